//! A real broker on a free port and a temporary folder, and a client that says exactly what it is told to.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take that is expected to happen.
pub const SOON: Duration = Duration::from_secs(10);

/// A running `driftqd`. It is killed when this goes.
pub struct Server {
    child: Child,
    pub addr: SocketAddr,
    /// What the process has logged.
    log: Receiver<String>,
    pub logged: Vec<String>,
    dir: PathBuf,
    _own: Option<TempDir>,
}

impl Server {
    /// A broker with nothing in it, as it is by default.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// A broker with nothing in it and these flags.
    pub fn with(flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let mut server = Self::on(dir.path(), flags);
        server._own = Some(dir);
        server
    }

    /// A broker with nothing in it, this configuration file and these flags.
    pub fn configured(toml: &str, flags: &[&str]) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = config_file(dir.path(), toml);
        let mut server = Self::on(&dir.path().join("data"), &[&["--config", file.as_str()], flags].concat());
        server._own = Some(dir);
        server
    }

    /// A broker on a folder.
    pub fn on(dir: &Path, flags: &[&str]) -> Self {
        Self::try_on(dir, flags).unwrap_or_else(|(status, log)| panic!("no start, {status}:\n{}", log.join("\n")))
    }

    /// A broker on a folder, or what it said instead of starting.
    pub fn try_on(dir: &Path, flags: &[&str]) -> Result<Self, (ExitStatus, Vec<String>)> {
        Self::try_command(Command::new(env!("CARGO_BIN_EXE_driftqd")), dir, flags)
    }

    /// The same, run by `command`, which ends in the program's path.
    pub fn try_command(command: Command, dir: &Path, flags: &[&str]) -> Result<Self, (ExitStatus, Vec<String>)> {
        let mut server = Self::launch(command, dir, flags);
        match server.wait_ready() {
            true => Ok(server),
            false => {
                let status = server.child.wait().expect("waited for");
                while let Ok(line) = server.log.recv_timeout(Duration::from_millis(200)) {
                    server.logged.push(line);
                }
                Err((status, std::mem::take(&mut server.logged)))
            }
        }
    }

    /// A process that has just been started and may not even listen yet.
    pub fn launch(mut command: Command, dir: &Path, flags: &[&str]) -> Self {
        command.args(["--addr", "127.0.0.1:0", "--data-dir"]).arg(dir).args(flags);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DRIFTQ_")) {
            command.env_remove(name);
        }
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("driftqd runs");
        let stderr = child.stderr.take().expect("piped");
        let (send, log) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    return;
                }
            }
        });
        let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
        Self { child, addr: unknown, log, logged: Vec::new(), dir: dir.to_owned(), _own: None }
    }

    /// Waits until the process listens.
    pub fn wait_listening(&mut self) {
        let end = Instant::now() + SOON;
        while self.addr.port() == 0 {
            assert!(Instant::now() < end, "it does not listen: {:?}", self.logged);
            let Ok(line) = self.log.recv_timeout(Duration::from_millis(50)) else { continue };
            if let Some((_, addr)) = line.split_once("listening on http://") {
                self.addr = addr.trim().parse().expect("an address");
            }
            self.logged.push(line);
        }
    }

    fn wait_ready(&mut self) -> bool {
        let end = Instant::now() + SOON;
        while Instant::now() < end {
            if let Ok(line) = self.log.recv_timeout(Duration::from_millis(50)) {
                if let Some((_, addr)) = line.split_once("listening on http://") {
                    self.addr = addr.trim().parse().expect("an address");
                }
                self.logged.push(line);
                continue;
            }
            if self.child.try_wait().expect("asked").is_some() {
                return false;
            }
            if self.addr.port() != 0 && self.is_ready() {
                return true;
            }
        }
        panic!("not ready in time: {:?}", self.logged)
    }

    /// Whether it says that it is ready; it may be ending at this very moment.
    fn is_ready(&self) -> bool {
        let Ok(mut socket) = TcpStream::connect(self.addr) else { return false };
        let ask = format!("GET /v1/readyz HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.addr);
        let mut answer = String::new();
        let _ = socket.write_all(ask.as_bytes()).and_then(|()| socket.read_to_string(&mut answer));
        answer.starts_with("HTTP/1.1 200")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Everything logged so far, and within a moment.
    pub fn log(&mut self) -> String {
        while let Ok(line) = self.log.recv_timeout(Duration::from_millis(100)) {
            self.logged.push(line);
        }
        self.logged.join("\n")
    }

    /// `kill -9`, and the same folder again.
    pub fn crash_and_restart(mut self) -> Self {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited for");
        let mut next = Self::on(&self.dir, &[]);
        next._own = self._own.take();
        next
    }

    /// Sends SIGTERM and waits for the end. Says how it ended and how long it took.
    pub fn terminate(&mut self) -> (ExitStatus, Duration) {
        let began = Instant::now();
        self.signal("-TERM");
        (self.wait(), began.elapsed())
    }

    /// `kill -9`; the folder stays as it is.
    pub fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited for");
    }

    /// How much memory the process has, in KiB.
    pub fn memory_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// How long the process has been busy so far.
    pub fn busy(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("it runs");
        let (_, fields) = stat.rsplit_once(')').expect("a name in brackets");
        let ticks = |at: usize| fields.split_whitespace().nth(at).and_then(|ticks| ticks.parse::<u64>().ok());
        Duration::from_millis(10 * (ticks(11).expect("user") + ticks(12).expect("system")))
    }

    pub fn signal(&self, signal: &str) {
        let killed = Command::new("kill").args([signal, &self.pid().to_string()]).status().expect("kill runs");
        assert!(killed.success());
    }

    pub fn wait(&mut self) -> ExitStatus {
        let end = Instant::now() + SOON;
        loop {
            if let Some(status) = self.child.try_wait().expect("asked") {
                return status;
            }
            assert!(Instant::now() < end, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("asked").is_none()
    }

    /// A connection that is open.
    pub fn connect(&self) -> Connection {
        self.over(TcpStream::connect(self.addr).expect("connected"))
    }

    /// A connection over a socket that is open.
    pub fn over(&self, socket: TcpStream) -> Connection {
        socket.set_read_timeout(Some(SOON)).expect("set");
        socket.set_write_timeout(Some(SOON)).expect("set");
        Connection { reader: BufReader::new(socket), host: self.addr.to_string() }
    }

    pub fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.connect().call(method, path, headers, body)
    }

    pub fn get(&self, path: &str) -> Reply {
        self.call("GET", path, &[], "")
    }

    pub fn post(&self, path: &str, body: impl AsRef<str>) -> Reply {
        self.call("POST", path, &[], body.as_ref())
    }

    pub fn delete(&self, path: &str) -> Reply {
        self.call("DELETE", path, &[], "")
    }

    /// Bytes as they are, and all that comes back until the connection ends.
    pub fn raw(&self, bytes: &[u8]) -> String {
        let mut connection = self.connect();
        connection.send(bytes);
        connection.rest()
    }

    pub fn create(&self, topic: &str, partitions: u32) {
        let made = self.post("/v1/topics", format!("{{\"name\":\"{topic}\",\"partitions\":{partitions}}}"));
        assert_eq!(made.status, 201, "{made:?}");
    }

    /// Produces and gives partition and offset.
    pub fn produce(&self, topic: &str, value: &str) -> (u64, u64) {
        let body = serde_json::json!({ "topic": topic, "value": value });
        let reply = self.post("/v1/produce", body.to_string());
        assert_eq!(reply.status, 200, "{reply:?}");
        let json = reply.json();
        (json["partition"].as_u64().expect("a number"), json["offset"].as_u64().expect("a number"))
    }

    /// A stream of a topic, its head read.
    pub fn consume(&self, query: &str) -> Stream {
        let stream = self.try_consume(query);
        assert_eq!(stream.head.status, 200, "{:?}", stream.head);
        stream
    }

    pub fn try_consume(&self, query: &str) -> Stream {
        self.consume_over(self.connect(), query)
    }

    /// A stream over a connection that is open.
    pub fn consume_over(&self, mut connection: Connection, query: &str) -> Stream {
        connection.send(format!("GET /v1/consume?{query} HTTP/1.1\r\nHost: {}\r\n\r\n", self.addr).as_bytes());
        let head = connection.head();
        Stream { connection, head, buffer: String::new(), ended: false }
    }

    /// All messages a group can have at once, unacked.
    pub fn fetch(&self, topic: &str, group: &str) -> Vec<Value> {
        let mut stream = self.consume(&format!("topic={topic}&group={group}&owner=w&wait_ms=300&lease_ms=60000"));
        std::iter::from_fn(|| stream.item()).collect()
    }
}

/// A configuration file in a folder, and its name.
pub fn config_file(dir: &Path, toml: &str) -> String {
    let file = dir.join("driftq.toml");
    std::fs::write(&file, toml).expect("written");
    file.to_str().expect("a name in UTF-8").to_owned()
}

/// The program under test.
pub fn driftqd() -> Command {
    Command::new(env!("CARGO_BIN_EXE_driftqd"))
}

/// Waits for something to be so.
#[track_caller]
pub fn until(what: &str, so: impl FnMut() -> bool) {
    assert!(within(SOON, so), "not in time: {what}");
}

/// Whether something comes to be so in this time.
pub fn within(limit: Duration, mut so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !so() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A socket of which little fits into the system's hands unread, and which resets its connection when it is closed.
pub fn abrupt(addr: SocketAddr) -> TcpStream {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().expect("a runtime");
    let socket = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4_096).expect("set");
        socket.set_zero_linger().expect("set");
        socket.connect(addr).await.expect("connected").into_std().expect("a socket")
    });
    socket.set_nonblocking(false).expect("set");
    socket
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What came back.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: String,
}

impl Reply {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The body is an error of this code, in the shape all errors have.
    #[track_caller]
    pub fn refused(&self, status: u16, code: &str) -> String {
        assert_eq!(self.status, status, "{self:?}");
        assert_eq!(self.header("content-type"), Some("application/json; charset=utf-8"), "{self:?}");
        let json = self.json();
        assert_eq!(json["error"], code, "{self:?}");
        json["message"].as_str().unwrap_or_else(|| panic!("no message: {self:?}")).to_owned()
    }
}

/// An open connection.
pub struct Connection {
    reader: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    pub fn send(&mut self, bytes: &[u8]) {
        self.reader.get_mut().write_all(bytes).expect("sent");
    }

    pub fn socket(&mut self) -> &mut TcpStream {
        self.reader.get_mut()
    }

    pub fn call(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut request = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            request += &format!("Host: {}\r\n", self.host);
        }
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() || method == "POST" {
            request += &format!("Content-Length: {}\r\n", body.len());
        }
        self.send(format!("{request}\r\n{body}").as_bytes());
        self.reply(method)
    }

    /// Reads a whole reply to a request of this method.
    pub fn reply(&mut self, method: &str) -> Reply {
        let mut reply = self.head();
        if method == "HEAD" || reply.status == 204 {
            return reply;
        }
        if reply.header("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk() {
                reply.body += &chunk;
            }
        } else {
            let len = reply.header("content-length").map_or(0, |len| len.parse().expect("a length"));
            let mut body = vec![0; len];
            self.reader.read_exact(&mut body).expect("a body");
            reply.body = String::from_utf8(body).expect("text");
        }
        reply
    }

    pub fn head(&mut self) -> Reply {
        let mut line = || {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("a line of the head");
            line.trim_end().to_owned()
        };
        let first = line();
        let status = first.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {first:?}"));
        let mut headers = Vec::new();
        loop {
            let line = line();
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
        Reply { status, headers, body: String::new() }
    }

    /// The next chunk, or nothing after the last.
    pub fn chunk(&mut self) -> Option<String> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let len = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut data = vec![0; len + 2];
        self.reader.read_exact(&mut data).ok()?;
        data.truncate(len);
        (len > 0).then(|| String::from_utf8(data).expect("text"))
    }

    /// Everything until the connection ends.
    pub fn rest(&mut self) -> String {
        let mut bytes = Vec::new();
        // A reset after the answer is an end as well.
        let _ = self.reader.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// A stream of messages.
pub struct Stream {
    pub connection: Connection,
    pub head: Reply,
    buffer: String,
    ended: bool,
}

impl Stream {
    /// The next line, blank ones included; nothing once the stream has ended.
    pub fn line(&mut self) -> Option<String> {
        loop {
            if let Some((line, rest)) = self.buffer.split_once('\n') {
                let line = line.to_owned();
                self.buffer = rest.to_owned();
                return Some(line);
            }
            if self.ended {
                return None;
            }
            match self.connection.chunk() {
                Some(chunk) => self.buffer += &chunk,
                None => self.ended = true,
            }
        }
    }

    /// The next message; nothing once the stream has ended.
    pub fn item(&mut self) -> Option<Value> {
        loop {
            let line = self.line()?;
            if !line.is_empty() {
                return Some(serde_json::from_str(&line).expect("an item"));
            }
        }
    }

    /// Whether nothing comes for so long.
    pub fn is_silent_for(&mut self, span: Duration) -> bool {
        let socket = self.connection.reader.get_ref();
        socket.set_read_timeout(Some(span)).expect("set");
        let silent = self.buffer.is_empty() && self.connection.reader.fill_buf().is_err();
        self.connection.reader.get_ref().set_read_timeout(Some(SOON)).expect("set");
        silent
    }
}
