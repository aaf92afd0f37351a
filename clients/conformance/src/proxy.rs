//! The recording proxy: passes the bytes of a connection on as they come, both ways, and records the requests and
//! answers that they are. It changes nothing: a connection that is cut on one side is cut on the other.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use serde_json::Value;

use crate::http::{Event, Head, Parser, Request, Side, serve};
use crate::trace::{Recorder, Seen};

/// Numbers of connections and requests, over all proxies of a run.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    connections: AtomicU64,
    exchanges: AtomicU64,
}

/// A listener of its own for one incarnation of an adapter. It accepts no connection after it is dropped.
#[derive(Debug)]
pub(crate) struct Listener {
    addr: SocketAddr,
    stopped: Arc<AtomicBool>,
}

impl Listener {
    /// Accepts connections at a free port of the loopback address, each handled on a thread of its own.
    ///
    /// # Errors
    /// If there is no port.
    pub(crate) fn start(handle: impl Fn(TcpStream) + Send + Sync + 'static) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let addr = listener.local_addr()?;
        let stopped = Arc::new(AtomicBool::new(false));
        let (flag, handle) = (Arc::clone(&stopped), Arc::new(handle));
        thread::spawn(move || {
            for connection in listener.incoming() {
                if flag.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(connection) = connection else { continue };
                let handle = Arc::clone(&handle);
                thread::spawn(move || handle(connection));
            }
        });
        Ok(Self { addr, stopped })
    }

    /// The base URL of what is served.
    #[must_use]
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        // Only a connection ends the wait for one. Where it fails, the listener has ended already.
        let _ = TcpStream::connect(self.addr);
    }
}

/// A proxy before the broker at `upstream`, for one incarnation.
///
/// # Errors
/// If there is no port.
pub(crate) fn proxy(
    upstream: SocketAddr,
    incarnation: usize,
    recorder: Arc<Recorder>,
    numbers: Arc<Numbers>,
) -> io::Result<Listener> {
    Listener::start(move |client| {
        let tunnel = Tunnel {
            incarnation,
            connection: numbers.connections.fetch_add(1, Ordering::SeqCst),
            recorder: Arc::clone(&recorder),
            numbers: Arc::clone(&numbers),
            open: Mutex::default(),
        };
        // A client whose broker cannot be reached finds its connection closed.
        if let Ok(server) = TcpStream::connect(upstream) {
            tunnel.run(&client, &server);
        }
    })
}

/// A ledger for one incarnation: `POST /effect` records an effect.
///
/// # Errors
/// If there is no port.
pub(crate) fn ledger(incarnation: usize, recorder: Arc<Recorder>) -> io::Result<Listener> {
    Listener::start(move |connection| {
        // Answers are small, and each is waited for.
        let _ = connection.set_nodelay(true);
        serve(connection, |request| record_effect(request, incarnation, &recorder));
    })
}

fn record_effect(request: &Request, incarnation: usize, recorder: &Recorder) -> (u16, String) {
    let refused = |status| (status, "{}".to_owned());
    if request.head.method != "POST" || request.head.target != "/effect" {
        return refused(404);
    }
    let Ok(body) = serde_json::from_slice::<Value>(&request.body) else { return refused(400) };
    let text = |name: &str| body[name].as_str().map(str::to_owned);
    let (Some(name), Some(message), Some(attempt), Some(worker)) =
        (text("name"), text("message"), body["attempt"].as_u64(), text("worker"))
    else {
        return refused(400);
    };
    recorder.record(Seen::Effect { incarnation, name, message, attempt, worker });
    (200, "{\"ok\":true}".to_owned())
}

/// A request whose answer has not ended.
#[derive(Debug)]
struct Open {
    exchange: u64,
    stream: bool,
    batch: bool,
}

/// One connection.
struct Tunnel {
    incarnation: usize,
    connection: u64,
    recorder: Arc<Recorder>,
    numbers: Arc<Numbers>,
    open: Mutex<VecDeque<Open>>,
}

impl Tunnel {
    fn run(&self, client: &TcpStream, server: &TcpStream) {
        for side in [client, server] {
            // Without it an answer in two writes waits for the delayed acknowledgement of the first.
            let _ = side.set_nodelay(true);
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                self.requests(client, server);
                self.recorder.record(Seen::Closed { connection: self.connection });
                // Fails only where the connection has ended, too.
                let _ = server.shutdown(Shutdown::Write);
            });
            self.answers(server, client);
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        });
    }

    fn requests(&self, mut client: &TcpStream, mut server: &TcpStream) {
        let mut parser = Parser::new(Side::Requests);
        let mut current = (0, Head::default(), Vec::new());
        let mut buffer = [0; 64 * 1024];
        while let Ok(length @ 1..) = client.read(&mut buffer) {
            for event in parser.feed(&buffer[..length]) {
                match event {
                    Event::Head(head) => {
                        let exchange = self.numbers.exchanges.fetch_add(1, Ordering::SeqCst);
                        let open =
                            Open { exchange, stream: head.target.starts_with("/v1/consume"), batch: is_batch(&head) };
                        self.open().push_back(open);
                        current = (exchange, head, Vec::new());
                    }
                    Event::Body(bytes) => current.2.extend_from_slice(&bytes),
                    Event::End => {
                        let (exchange, head, body) = std::mem::take(&mut current);
                        let batch = is_batch(&head);
                        let idempotency_key = head.header("idempotency-key").map(str::to_owned);
                        self.recorder.record(Seen::Request {
                            exchange,
                            incarnation: self.incarnation,
                            connection: self.connection,
                            method: head.method,
                            target: head.target,
                            batch,
                            idempotency_key,
                            body: parsed(&body, batch),
                        });
                    }
                }
            }
            if server.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    }

    fn answers(&self, mut server: &TcpStream, mut client: &TcpStream) {
        let mut parser = Parser::new(Side::Responses);
        let (mut status, mut body) = (0, Vec::new());
        let mut buffer = [0; 64 * 1024];
        while let Ok(length @ 1..) = server.read(&mut buffer) {
            for event in parser.feed(&buffer[..length]) {
                self.answer_event(event, &mut status, &mut body);
            }
            if client.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        if let Some(event) = parser.end() {
            self.answer_event(event, &mut status, &mut body);
        }
        let unanswered: Vec<Open> = self.open().drain(..).collect();
        for open in unanswered {
            // The status and part of the body may have come for the oldest one only.
            let body = parsed_lines(&std::mem::take(&mut body), open.batch);
            let status = std::mem::take(&mut status);
            self.recorder.record(Seen::End { exchange: open.exchange, status, body, complete: false });
        }
    }

    fn answer_event(&self, event: Event, status: &mut u16, body: &mut Vec<u8>) {
        let mut queue = self.open();
        let Some(open) = queue.front() else { return };
        let (exchange, batch, is_stream) = (open.exchange, open.batch, open.stream && matches!(*status, 0 | 200));
        match event {
            Event::Head(head) => {
                *status = head.status;
                if is_stream && head.status == 200 {
                    self.recorder.record(Seen::Head { exchange, status: head.status });
                }
            }
            Event::Body(bytes) => {
                body.extend_from_slice(&bytes);
                while let Some(end) = body.iter().position(|&byte| byte == b'\n').filter(|_| is_stream) {
                    let line: Vec<u8> = body.drain(..=end).collect();
                    if let Ok(line) = serde_json::from_slice(&line) {
                        self.recorder.record(Seen::Line { exchange, line });
                    }
                }
            }
            Event::End => {
                queue.pop_front();
                let (status, body) = (std::mem::take(status), std::mem::take(body));
                self.recorder.record(Seen::End { exchange, status, body: parsed(&body, batch), complete: true });
            }
        }
    }

    fn open(&self) -> std::sync::MutexGuard<'_, VecDeque<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn is_batch(head: &Head) -> bool {
    head.header("content-type").is_some_and(|value| value.starts_with("application/x-ndjson"))
}

/// A body as JSON: that of a batch is a list of its lines. What is no JSON is a text.
fn parsed(body: &[u8], batch: bool) -> Value {
    if batch {
        return parsed_lines(body, true);
    }
    if body.is_empty() {
        return Value::Null;
    }
    serde_json::from_slice(body).unwrap_or_else(|_| String::from_utf8_lossy(body).into_owned().into())
}

/// The complete lines of a batch, also of one that was cut; nothing of what is none.
fn parsed_lines(body: &[u8], batch: bool) -> Value {
    if !batch {
        return Value::Null;
    }
    body.split_inclusive(|&byte| byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect::<Vec<Value>>()
        .into()
}
