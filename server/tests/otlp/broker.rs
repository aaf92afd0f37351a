//! A `driftqd` that exports, and requests to it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::collector::wait_until;

/// The caller of a produce, and of what a worker does.
pub const PRODUCER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
pub const WORKER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A running `driftqd` with its log in memory, killed when dropped.
pub struct Broker {
    child: Child,
    addr: String,
    log: Arc<Mutex<String>>,
    /// Sent with every request.
    key: Option<String>,
}

impl Broker {
    /// Exports to `endpoint`, with these flags.
    pub fn start(endpoint: &str, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_driftqd"));
        command.args(["--addr", "127.0.0.1:0", "--memory", "--otlp-endpoint", endpoint]).args(flags).env_clear();
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let listening = lines.find(|line| line.contains("listening on http://")).expect("it listens");
        let log: Arc<Mutex<String>> = Arc::default();
        let logged = Arc::clone(&log);
        std::thread::spawn(move || lines.for_each(|line| logged.lock().unwrap().push_str(&(line + "\n"))));
        let broker = Self { child, addr: listening.rsplit_once("http://").unwrap().1.to_owned(), log, key: None };
        wait_until(|| broker.get("/v1/readyz").0 == 200);
        broker
    }

    /// As [`Broker::start`], with this first key.
    pub fn start_with_key(endpoint: &str, flags: &[&str], key: &str) -> Self {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{key}").unwrap();
        let path = ["--admin-key-file", file.path().to_str().unwrap()];
        let mut broker = Self::start(endpoint, &[flags, &path].concat());
        broker.key = Some(key.to_owned());
        broker
    }

    /// What it has logged since it listens.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Status and body of the answer to a request on a connection of its own.
    pub fn call(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        head.extend(headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")));
        head.extend(self.key.iter().map(|key| format!("authorization: Bearer {key}\r\n")));
        head.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        socket.write_all(head.as_bytes()).unwrap();
        socket.write_all(body.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    pub fn get(&self, target: &str) -> (u16, String) {
        self.call("GET", target, &[], "")
    }

    /// A POST that succeeds, with this caller, and the body of the answer.
    #[track_caller]
    pub fn post(&self, target: &str, caller: Option<&str>, body: &str) -> String {
        let headers: Vec<_> = caller.map(|caller| ("traceparent", caller)).into_iter().collect();
        let (status, answer) = self.call("POST", target, &headers, body);
        assert!((200..300).contains(&status), "{status} {answer}");
        answer
    }

    /// The next `max` deliveries of a topic.
    pub fn consume(&self, topic: &str, max: usize) -> Vec<serde_json::Value> {
        let target = format!("/v1/consume?topic={topic}&group=g&owner=w&max={max}");
        let (status, body) = self.get(&target);
        assert_eq!(status, 200, "{body}");
        // Lines without the sizes of chunks.
        let lines = body.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// The body of a request that settles a delivery.
    pub fn claim(topic: &str, delivery: &serde_json::Value) -> String {
        let mut claim = serde_json::json!({ "topic": topic, "group": "g", "owner": "w" });
        for field in ["partition", "offset", "lease_token"] {
            claim[field] = delivery[field].clone();
        }
        claim.to_string()
    }

    /// The value of a metric.
    pub fn metric(&self, series: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {text}")).parse().unwrap()
    }

    /// How many spans had this result.
    pub fn spans(&self, result: &str) -> f64 {
        self.metric(&format!("driftq_otlp_spans_total{{result=\"{result}\"}}"))
    }

    /// Stops it as an operator does, and returns how long that took.
    pub fn stop(&mut self) -> Duration {
        let begun = Instant::now();
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        begun.elapsed()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // It may have been stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
