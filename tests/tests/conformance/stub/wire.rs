//! A minimal HTTP server: one request per connection.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::{Value, json};

pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    pub(super) body: String,
    pub(super) host: String,
    pub(super) referer: String,
    /// One request per line.
    pub(super) is_batch: bool,
}

impl Request {
    pub(super) fn read(socket: &TcpStream) -> io::Result<Self> {
        let mut reader = BufReader::new(socket);
        let mut first = String::new();
        reader.read_line(&mut first)?;
        let mut len = 0;
        let (mut host, mut referer, mut is_batch) = (String::new(), String::new(), false);
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            let line = line.to_ascii_lowercase();
            let (name, value) = line.split_once(':').unwrap_or_default();
            match (name, value.trim()) {
                ("content-length", value) => len = value.parse().unwrap_or(0),
                ("content-type", value) => is_batch = value == "application/x-ndjson",
                ("host", value) => value.clone_into(&mut host),
                ("referer", value) => value.clone_into(&mut referer),
                _ => {}
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body)?;
        let mut parts = first.split(' ');
        let method = parts.next().unwrap_or_default().to_owned();
        let (path, query) = parts.next().unwrap_or_default().split_once('?').unwrap_or_else(|| {
            let target = first.split(' ').nth(1).unwrap_or_default();
            (target, "")
        });
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let query = pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect();
        let body = String::from_utf8_lossy(&body).into_owned();
        Ok(Self { method, path: path.to_owned(), query, body, host, referer, is_batch })
    }

    /// The request of one line of a batch.
    pub(super) fn of_line(&self, line: &str) -> Self {
        let (method, path) = (self.method.clone(), self.path.clone());
        let (query, host, referer) = (BTreeMap::new(), String::new(), String::new());
        Self { method, path, query, body: line.to_owned(), host, referer, is_batch: false }
    }
}

/// A percent-encoded text.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let coded = if first == b'%' { text_of(after.get(..2)) } else { None };
        bytes.push(coded.unwrap_or(first));
        rest = if coded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn text_of(hex: Option<&[u8]>) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(hex?).ok()?, 16).ok()
}

pub(super) struct Response {
    /// Lines in place of the body.
    pub(super) lines: Option<String>,
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Value,
}

impl Response {
    pub(super) fn new(status: u16, body: Value) -> Self {
        Self { lines: None, status, headers: Vec::new(), body }
    }

    pub(super) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::new(status, json!({ "error": code, "message": message }))
    }

    pub(super) fn invalid(message: &str) -> Self {
        Self::error(400, "INVALID_ARGUMENT", message)
    }

    pub(super) fn write(&self, mut socket: &TcpStream) -> io::Result<()> {
        let body = match &self.lines {
            Some(lines) => lines.clone(),
            None if self.status == 204 => String::new(),
            None => self.body.to_string(),
        };
        let mut text = format!("HTTP/1.1 {} -\r\nConnection: close\r\n", self.status);
        if self.status != 204 {
            text += &format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        }
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        socket.write_all((text + "\r\n" + &body).as_bytes())
    }
}

/// Writes the head of a stream.
pub(super) fn start_stream(mut socket: &TcpStream, content_type: &str) -> io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n");
    socket.write_all(head.as_bytes())
}

pub(super) fn send_line(mut socket: &TcpStream, line: &Value) -> io::Result<()> {
    let line = format!("{line}\n");
    socket.write_all(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes())
}

/// Whether the client is still connected; it sends nothing more.
pub(super) fn is_open(socket: &TcpStream) -> bool {
    let waiting = socket.set_nonblocking(true).and_then(|()| socket.peek(&mut [0]));
    let open = matches!(waiting, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    open && socket.set_nonblocking(false).is_ok()
}
