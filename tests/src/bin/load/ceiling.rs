//! The ceiling: a bare hyper server that answers as the broker does and does nothing else.
//!
//! It runs as a process of its own, on one thread, as a good small server would. It reads each body whole, looks at
//! nothing but the path and the content type, and answers with bytes as long as the broker's. What it reaches is what HTTP, this
//! machine and this client leave to be reached.

use std::convert::Infallible;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use crate::Result;
use crate::daemon::Guarded;
use crate::procfs::{self, Memory};

/// As long as the broker's answer to a produce.
const ANSWER: &str = r#"{"status":"produced","topic":"load-1700000000000-0","partition":0,"offset":123456}"#;
/// As long as the broker's answer to a line of a batch.
const LINE: &str = "{\"status\":200,\"topic\":\"load-1700000000000-0\",\"partition\":0,\"offset\":123456}\n";

/// As long as the broker's answer to a begin, with a token as long as the broker's.
const GRANT: &str = concat!(
    r#"{"decision":"EXECUTE","attempt":1,"lease_token":"000000010000000000123456","#,
    r#""lease_until":"2026-01-01T00:00:00.000Z","status":"IN_PROGRESS","status_v1":"PENDING","idempotent":true}"#
);
/// The broker's answer to a finish.
const FINISHED: &str = r#"{"ok":true}"#;

/// A running ceiling server; ends with its guard, and by itself when this process is gone.
#[derive(Debug)]
pub(crate) struct Ceiling {
    child: Guarded,
    addr: SocketAddr,
}

impl Ceiling {
    /// Starts it, as this same program under another command.
    pub(crate) fn start() -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg("ceiling-serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the ceiling server cannot be started: {error}"))?;
        let mut child = Guarded(child);
        let mut line = String::new();
        let output = child.0.stdout.take().ok_or("the ceiling server has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let addr = line.trim().parse().map_err(|_| "the ceiling server did not say where it listens")?;
        Ok(Self { child, addr })
    }

    /// Where it listens.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its CPU time so far.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        procfs::cpu_time(self.child.0.id())
    }

    /// Its memory.
    pub(crate) fn memory(&self) -> Option<Memory> {
        procfs::memory(self.child.0.id())
    }
}

/// Serves until standard input ends: the other end is held by who started us.
pub(crate) async fn serve() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        // A client that goes away in the middle is none of our business.
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer)));
    }
}

async fn answer(request: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let batch = request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == crate::client::NDJSON);
    let single = match request.uri().path() {
        "/v1/idempotency/begin" => GRANT,
        "/v1/idempotency/finish" => FINISHED,
        _ => ANSWER,
    };
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let (kind, answer) = if batch {
        let lines = body.iter().filter(|&&byte| byte == b'\n').count();
        (crate::client::NDJSON, Bytes::from(LINE.repeat(lines)))
    } else {
        ("application/json; charset=utf-8", Bytes::from_static(single.as_bytes()))
    };
    let mut response = Response::new(Full::new(answer));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}
