//! A broker process and connections to it. Failures panic: they fail the test.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use driftq_tests::daemon::{self, Daemon, Launcher, Signal, StartError};
use driftq_tests::http::{self, Client, Reply, Request, is_timeout, slow_reader_socket};
use driftq_tests::procfs;
use serde_json::Value;
use tempfile::{TempDir, TempPath};

use crate::openapi::{assert_documented, assert_item_documented};

/// How long anything that must happen may take.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// Small segments: a start allocates and zeroes two of them.
const STORAGE: &str = "[storage]\nsegment_bytes = 4194304\nreserve_bytes = 131072\n";
/// The largest message must fit into a segment.
const MESSAGE_LIMIT: &str = "message_bytes_max = 1048576\n";

/// The program under test.
pub fn driftqd() -> &'static Path {
    static DRIFTQD: OnceLock<PathBuf> = OnceLock::new();
    DRIFTQD.get_or_init(|| daemon::driftqd().expect("the broker"))
}

/// The production limits, but leases as short as a test needs.
const LEASE_LIMIT: &str = "lease_min_ms = 1\n";

/// Writes a configuration file into a folder, with small segments and short leases, and returns its path.
pub fn config_file(folder: &Path, toml: &str) -> String {
    let lease_limit = if toml.contains("lease_min_ms") { "" } else { LEASE_LIMIT };
    let limits = format!("{MESSAGE_LIMIT}{lease_limit}");
    let toml = match toml.contains("[limits]\n") {
        true => toml.replacen("[limits]\n", &format!("[limits]\n{limits}"), 1),
        false => format!("{toml}[limits]\n{limits}"),
    };
    exact_config_file(folder, &(toml + STORAGE))
}

/// Writes a configuration file into a folder as given, and returns its path.
pub fn exact_config_file(folder: &Path, toml: &str) -> String {
    let file = folder.join("driftq.toml");
    std::fs::write(&file, toml).expect("written");
    file.to_str().expect("a path in UTF-8").to_owned()
}

/// The configuration file of servers that have none: it only makes segments small. Other processes may use it at the
/// same time.
fn default_config() -> &'static str {
    static CONFIG: OnceLock<String> = OnceLock::new();
    CONFIG.get_or_init(|| {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = tempfile::tempdir_in(tmp).expect("a folder");
        let path = tmp.join("small-segments.toml");
        std::fs::rename(config_file(folder.path(), ""), &path).expect("renamed");
        path.to_str().expect("a path in UTF-8").to_owned()
    })
}

/// A running `driftqd`, killed when dropped.
pub struct Server {
    daemon: Daemon,
    client: Client,
    pub addr: SocketAddr,
    data_dir: PathBuf,
    folder: Option<TempDir>,
    /// Removes the file when dropped.
    _log_file: TempPath,
}

/// A start that failed: the exit status and what was logged.
#[derive(Debug)]
pub struct StartFailure {
    pub status: ExitStatus,
    pub log: String,
}

/// A launch that has not been started, for wrappers and environment variables.
pub struct Launch {
    pub launcher: Launcher,
    log_file: TempPath,
}

impl Launch {
    /// Launches the broker on a data folder with these flags, and with small segments unless they name a configuration
    /// file.
    pub fn new(data_dir: &Path, flags: &[&str]) -> Self {
        let log_file = tempfile::NamedTempFile::new().expect("a log file").into_temp_path();
        let config: &[&str] = if flags.contains(&"--config") { &[] } else { &["--config", default_config()] };
        let launcher = Launcher::new(driftqd(), data_dir, &log_file).args(config).args(flags);
        Self { launcher, log_file }
    }

    /// Runs it under another program.
    pub fn wrapper(self, wrapper: &[&str]) -> Self {
        Self { launcher: self.launcher.wrapper(wrapper), ..self }
    }

    /// Sets an environment variable.
    pub fn env(self, name: &str, value: &str) -> Self {
        Self { launcher: self.launcher.env(name, value), ..self }
    }

    /// Starts it and waits until it is ready.
    pub fn start(self) -> Result<Server, StartFailure> {
        match self.launcher.start() {
            Ok(daemon) => Ok(self.server(daemon)),
            Err(StartError::Exited { status, log }) => Err(StartFailure { status, log }),
            Err(error) => panic!("{error}"),
        }
    }

    /// Starts it and waits until it listens only.
    pub fn start_listening(self) -> Server {
        let mut daemon = self.launcher.launch().expect("driftqd runs");
        daemon.wait_until_listening().expect("it listens");
        self.server(daemon)
    }

    fn server(self, daemon: Daemon) -> Server {
        let (addr, data_dir) = (daemon.addr(), self.launcher.data_dir().to_owned());
        let client = Client::new(addr, TIMEOUT);
        Server { daemon, client, addr, data_dir, folder: None, _log_file: self.log_file }
    }
}

impl Server {
    /// An empty broker with default settings.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// An empty broker with these flags.
    pub fn with(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut server = Self::on(folder.path(), flags);
        server.folder = Some(folder);
        server
    }

    /// An empty broker with a log in memory whose allocator gives memory back when it is freed, so that what is
    /// resident is what is held. Of payloads it keeps 4 MiB beside the log, and 8 MiB for streams that have not taken
    /// them. It has one reactor: with several, deliveries behind one that waits for its bytes hold their own for longer
    /// (docs/edges.md).
    ///
    /// The arenas of glibc keep what threads have freed, a thread more an arena more.
    pub fn that_returns_memory() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = config_file(folder.path(), "[http]\nunsent_bytes_max = 33554432\n");
        let flags = ["--config", &file, "--memory-bytes", "4194304", "--no-wal", "--reactors", "1"];
        let launch = Launch::new(&folder.path().join("data"), &flags).env("MALLOC_MMAP_THRESHOLD_", "32768");
        let mut server = launch.start().unwrap_or_else(|failure| panic!("no start:\n{}", failure.log));
        server.folder = Some(folder);
        server
    }

    /// An empty broker with this configuration file and these flags.
    pub fn configured(toml: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = config_file(folder.path(), toml);
        let mut server = Self::on(&folder.path().join("data"), &[&["--config", file.as_str()], flags].concat());
        server.folder = Some(folder);
        server
    }

    /// A broker on a data folder.
    pub fn on(data_dir: &Path, flags: &[&str]) -> Self {
        Self::try_on(data_dir, flags).unwrap_or_else(|failure| panic!("no start, {}:\n{}", failure.status, failure.log))
    }

    /// A broker on a data folder, or why it does not start.
    pub fn try_on(data_dir: &Path, flags: &[&str]) -> Result<Self, StartFailure> {
        Launch::new(data_dir, flags).start()
    }

    pub fn pid(&self) -> u32 {
        self.daemon.pid()
    }

    /// Everything logged so far.
    pub fn log(&self) -> String {
        self.daemon.log()
    }

    /// Waits until the log contains a text, and returns the log.
    #[track_caller]
    pub fn log_with(&self, text: &str) -> String {
        wait_until(&format!("{text:?} in the log"), || self.log().contains(text));
        self.log()
    }

    /// Kills the broker and starts it again on the same folder, without its flags.
    pub fn crash_and_restart(mut self) -> Self {
        self.daemon.kill();
        let mut next = Self::on(&self.data_dir, &[]);
        next.folder = self.folder.take();
        next
    }

    /// Sends SIGTERM and waits for the exit.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Kills the broker; the folder stays.
    pub fn kill(&mut self) {
        self.daemon.kill();
    }

    /// The memory that the process holds in KiB, without its code.
    pub fn memory_kib(&self) -> u64 {
        procfs::memory(self.pid()).expect("it runs").anonymous_bytes / 1024
    }

    /// The CPU time of the process so far.
    pub fn cpu_time(&self) -> Duration {
        procfs::cpu_time(self.pid()).expect("it runs")
    }

    pub fn signal(&self, signal: Signal) {
        self.daemon.signal(signal);
    }

    pub fn wait(&mut self) -> ExitStatus {
        self.daemon.wait(TIMEOUT).expect("it exits")
    }

    pub fn is_running(&mut self) -> bool {
        self.daemon.is_running()
    }

    /// A keep-alive connection.
    pub fn connect(&self) -> Connection {
        Connection(self.client.connect().expect("connected"))
    }

    /// A connection that sends bytes as given.
    pub fn connect_raw(&self) -> RawConnection {
        self.raw(self.client.connect_raw().expect("connected"))
    }

    /// A raw connection whose socket has a small receive buffer and resets the connection when closed.
    pub fn connect_slow_reader(&self) -> RawConnection {
        let socket = slow_reader_socket(self.addr).expect("connected");
        self.raw(http::RawConnection::over(socket, TIMEOUT).expect("set"))
    }

    fn raw(&self, inner: http::RawConnection) -> RawConnection {
        RawConnection { inner, host: self.addr.to_string(), buffer: String::new() }
    }

    /// A request on a new connection.
    #[track_caller]
    pub fn call(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.try_call(method, target, headers, body).expect("a response")
    }

    /// A request on a new connection, which may fail. Its answer must be one that the OpenAPI document describes.
    #[track_caller]
    pub fn try_call(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> Result<Reply, http::CallError> {
        let reply = self.client.call(&Request { method, target, headers, body })?;
        assert_documented(method, target, &reply);
        Ok(reply)
    }

    #[track_caller]
    pub fn get(&self, target: &str) -> Reply {
        self.call("GET", target, &[], "")
    }

    #[track_caller]
    pub fn post(&self, target: &str, body: impl AsRef<str>) -> Reply {
        self.call("POST", target, &[], body.as_ref())
    }

    #[track_caller]
    pub fn delete(&self, target: &str) -> Reply {
        self.call("DELETE", target, &[], "")
    }

    /// Sends bytes as given and returns everything until the connection ends.
    pub fn send_raw(&self, bytes: &[u8]) -> String {
        let mut connection = self.connect_raw();
        connection.send(bytes);
        connection.rest()
    }

    /// A stream, which must be opened.
    #[track_caller]
    pub fn consume(&self, query: &str) -> Stream {
        let stream = self.try_consume(query);
        assert_eq!(stream.head().status, 200, "{:?}", stream.head());
        stream
    }

    /// A stream, or its refusal.
    #[track_caller]
    pub fn try_consume(&self, query: &str) -> Stream {
        Stream(self.client.consume(query).expect("a response"))
    }
}

/// A keep-alive connection.
pub struct Connection(http::Connection);

impl Connection {
    #[track_caller]
    pub fn call(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        self.try_call(method, target, headers, body).expect("a response")
    }

    /// A request, which may fail.
    pub fn try_call(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<Reply> {
        let reply = self.0.call(&Request { method, target, headers, body })?;
        assert_documented(method, target, &reply);
        Ok(reply)
    }
}

/// A connection that sends bytes as given.
pub struct RawConnection {
    inner: http::RawConnection,
    host: String,
    /// A part of a stream that [`RawConnection::item`] has not returned.
    buffer: String,
}

impl RawConnection {
    pub fn socket(&mut self) -> &mut std::net::TcpStream {
        self.inner.socket()
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.inner.send(bytes).expect("sent");
    }

    /// Sends a request with `Host` and, for a body, `Content-Length`, and reads the response.
    #[track_caller]
    pub fn call(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        self.send(format!("{head}\r\n{body}").as_bytes());
        self.reply(method)
    }

    /// Opens a stream and reads its head.
    #[track_caller]
    pub fn consume(&mut self, query: &str) -> Reply {
        let request = format!("GET /v1/consume?{query} HTTP/1.1\r\nHost: {}\r\n\r\n", self.host);
        self.send(request.as_bytes());
        self.head()
    }

    /// Reads a response to a request of this method.
    #[track_caller]
    pub fn reply(&mut self, method: &str) -> Reply {
        self.inner.reply(method).expect("a response")
    }

    #[track_caller]
    pub fn head(&mut self) -> Reply {
        self.inner.head().expect("a response")
    }

    /// The next chunk; nothing after the last one or a failure.
    pub fn chunk(&mut self) -> Option<String> {
        self.inner.chunk().ok().flatten()
    }

    /// The next message of a stream; nothing at its end.
    #[track_caller]
    pub fn item(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.buffer.split_once('\n') {
                let item = (!line.is_empty()).then(|| serde_json::from_str(line).expect("JSON"));
                self.buffer = rest.to_owned();
                if item.is_some() {
                    return item;
                }
            } else {
                let chunk = self.chunk()?;
                self.buffer += &chunk;
            }
        }
    }

    /// Everything until the connection ends.
    pub fn rest(&mut self) -> String {
        self.inner.rest()
    }
}

/// A stream of messages.
pub struct Stream(http::Stream);

impl Stream {
    pub fn head(&self) -> &Reply {
        &self.0.head
    }

    /// The next line, blank ones included; nothing once the stream has ended or failed.
    pub fn line(&mut self) -> Option<String> {
        self.0.line().ok().flatten()
    }

    /// The next message, which must be one that the OpenAPI document describes; nothing once the stream has ended or
    /// failed.
    #[track_caller]
    pub fn item(&mut self) -> Option<Value> {
        let item = self.0.item().ok().flatten();
        item.iter().for_each(assert_item_documented);
        item
    }

    /// The remaining messages.
    pub fn items(&mut self) -> Vec<Value> {
        std::iter::from_fn(|| self.item()).collect()
    }

    /// Whether nothing is received for this long.
    pub fn is_silent_for(&mut self, span: Duration) -> bool {
        self.0.set_timeout(span);
        let silent = self.0.line().is_err_and(|error| is_timeout(&error));
        self.0.set_timeout(TIMEOUT);
        silent
    }

    /// The connection of a stream that has ended.
    pub fn into_connection(self) -> Connection {
        Connection(self.0.into_connection())
    }
}

/// Waits until a condition holds.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
