//! Starts the real broker on a folder: its messages, or why it refuses to start.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a start may take.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Small segments, so that a start preallocates little.
const CONFIG: &str = "[limits]\nkey_bytes_max = 1024\nmessage_bytes_max = 65536\nmetadata_bytes_max = 65536\n\
                      result_bytes_max = 65536\n[storage]\nsegment_bytes = 524288\nreserve_bytes = 16384\n";

/// The result of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// The broker serves these messages of topic `one`: offset and value.
    Serves(BTreeMap<u64, String>),
    /// As `Serves`, and the payloads of messages with these offsets are lost.
    Loses(BTreeMap<u64, String>, Vec<u64>),
    /// The broker exited: its exit code and its last line of output.
    Refuses(i32, String),
}

/// A process that is killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the broker on the folder, reads its messages, and kills it.
pub fn start(dir: &Path) -> Start {
    // Next to the folder, whose name is unique.
    let config = dir.with_extension("toml");
    fs::write(&config, CONFIG).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftqd"));
    command.args(["--addr", "127.0.0.1:0", "--config"]).arg(&config).arg("--data-dir").arg(dir);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DRIFTQ_")) {
        command.env_remove(name);
    }
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);
    let lines = BufReader::new(running.0.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (mut addr, mut last) = (None, String::new());
    for line in lines {
        if let Some((_, found)) = line.split_once("listening on http://") {
            addr = Some(found.trim().to_owned());
        }
        last = line;
        if let Some(addr) = &addr
            && let Some(found) = served(addr)
        {
            fs::remove_file(&config).unwrap();
            return found;
        }
    }
    // Standard error is closed: the process has ended.
    fs::remove_file(&config).unwrap();
    Start::Refuses(running.0.wait().unwrap().code().unwrap_or(-1), last)
}

/// Waits until the broker is ready and reads its messages; `None` if it exits.
fn served(addr: &str) -> Option<Start> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        assert!(Instant::now() < deadline, "neither ready nor ended within the timeout");
        match get(addr, "/v1/readyz") {
            None => return None,
            Some((200, _)) => break,
            Some(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    let (status, body) = get(addr, "/v1/peek?topic=one&partition=0&offset=0&limit=1000")?;
    if status == 404 {
        return Some(Start::Serves(BTreeMap::new()));
    }
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let message =
        |message: &Value| (message["offset"].as_u64().unwrap(), message["value"].as_str().unwrap().to_owned());
    let messages = body["messages"].as_array().unwrap().iter();
    let (lost, others): (Vec<_>, Vec<_>) = messages.partition(|message| message["lost"] == true);
    let others = others.into_iter().map(message).collect();
    Some(match lost.is_empty() {
        true => Start::Serves(others),
        false => Start::Loses(others, lost.into_iter().map(|lost| lost["offset"].as_u64().unwrap()).collect()),
    })
}

/// Status and body; `None` if the connection is refused or closed.
fn get(addr: &str, path: &str) -> Option<(u16, String)> {
    let mut socket = TcpStream::connect(addr).ok()?;
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n");
    let mut response = String::new();
    socket.write_all(request.as_bytes()).and_then(|()| socket.read_to_string(&mut response)).ok()?;
    let (head, body) = response.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}
