//! The broker of a run, a process of its own, and what the runner asks of it without the proxy.

use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};

use crate::http::{Answer, Client};

/// What the broker logs in front of its address.
const LISTENING: &str = "listening on http://";
/// How long one question may take, with the faults that it suffers, too.
const ASK_WITHIN: Duration = Duration::from_secs(10);
const RETRY_AFTER: Duration = Duration::from_millis(20);
/// More than a topic of a scenario has.
const PEEK_MAX: usize = 1_000;

/// A running broker. It is killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    child: Child,
    addr: SocketAddr,
    client: Client,
}

impl Broker {
    /// Starts `program` in memory at a free port, with these faults.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn start(program: &Path, seed: u64, chaos: &Map<String, Value>) -> io::Result<Self> {
        let faults: String = chaos.iter().map(|(fault, value)| format!(",{fault}={value}")).collect();
        let mut child = Command::new(program)
            .args(["serve", "--addr", "127.0.0.1:0", "--memory", "--chaos", &format!("seed={seed}{faults}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let mut log = BufReader::new(child.stderr.take().ok_or(io::ErrorKind::BrokenPipe)?);
        let mut told = String::new();
        let addr = loop {
            let start = told.len();
            if log.read_line(&mut told)? == 0 {
                let _ = child.kill();
                let _ = child.wait();
                return Err(io::Error::other(format!("the broker did not start: {told}")));
            }
            if let Some(addr) = told[start..].split(LISTENING).nth(1).and_then(|rest| rest.trim().parse().ok()) {
                break addr;
            }
        };
        // It must not block on a full pipe.
        thread::spawn(move || io::copy(&mut log, &mut io::sink()));
        Ok(Self { child, addr, client: Client::new(addr, ASK_WITHIN) })
    }

    /// Where it listens.
    #[must_use]
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Asks again until there is an answer that is no 5xx: only for requests that can be repeated.
    ///
    /// # Errors
    /// If there is none in time.
    pub(crate) fn ask(&mut self, method: &str, target: &str, body: Option<&Value>) -> io::Result<Answer> {
        let until = Instant::now() + ASK_WITHIN;
        loop {
            match self.client.send(method, target, body) {
                Ok(answer) if answer.status < 500 => return Ok(answer),
                _ if Instant::now() < until => thread::sleep(RETRY_AFTER),
                Ok(answer) => return Err(io::Error::other(format!("{target}: status {}", answer.status))),
                Err(error) => return Err(io::Error::other(format!("{target}: {error}"))),
            }
        }
    }

    /// How many messages of a topic a group has not acked, over all partitions; nothing if the group is not known.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub(crate) fn lag(&mut self, topic: &str, group: &str) -> io::Result<Option<u64>> {
        let answer = self.ask("GET", &format!("/v1/topics/{topic}"), None)?;
        let groups = answer.body["groups"].as_array().cloned().unwrap_or_default();
        Ok(groups.iter().find(|known| known["group"] == group).map(|group| {
            let partitions = group["partitions"].as_array().cloned().unwrap_or_default();
            partitions.iter().filter_map(|partition| partition["lag"].as_u64()).sum()
        }))
    }

    /// All that a judge wants to know at the end: topics with their messages and groups, effects, faults played.
    ///
    /// # Errors
    /// If the broker does not answer.
    pub(crate) fn state(&mut self) -> io::Result<Value> {
        let names = self.ask("GET", "/v1/topics", None)?.body["topics"].as_array().cloned().unwrap_or_default();
        let mut topics = Map::new();
        for name in names.iter().filter_map(Value::as_str) {
            let description = self.ask("GET", &format!("/v1/topics/{name}"), None)?.body;
            let mut messages = Vec::new();
            for partition in 0..description["partitions"].as_array().map_or(0, Vec::len) {
                let target = format!("/v1/peek?topic={name}&partition={partition}&offset=0&limit={PEEK_MAX}");
                let items = self.ask("GET", &target, None)?.body["messages"].take();
                messages.extend(items.as_array().cloned().unwrap_or_default());
            }
            let groups = description["groups"].clone();
            topics.insert(name.to_owned(), json!({"messages": messages, "groups": groups}));
        }
        let effects = self.ask("GET", &format!("/v1/idempotency/list?limit={PEEK_MAX}"), None)?.body;
        let chaos = self.ask("GET", "/v1/chaos", None)?.body;
        Ok(json!({"topics": topics, "effects": effects["records"], "chaos": chaos}))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The program of the broker: what is given, or the variable `DRIFTQD`, or `driftqd` beside this program or in the
/// folder above it, or in the search path.
#[must_use]
pub fn program(given: Option<PathBuf>) -> PathBuf {
    let beside = || {
        let own = std::env::current_exe().ok()?;
        own.ancestors().skip(1).take(2).map(|folder| folder.join("driftqd")).find(|path| path.is_file())
    };
    given
        .or_else(|| std::env::var_os("DRIFTQD").map(PathBuf::from))
        .or_else(beside)
        .unwrap_or_else(|| PathBuf::from("driftqd"))
}
