//! The ceiling: a bare hyper server whose responses have the size of the broker's.
//!
//! It runs as a separate process on one thread, reads each body, and looks at the path and the content type only. Its
//! rate is the most that HTTP, this machine and this client allow.

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

use crate::daemon::KillOnDrop;
use crate::load::error::Result;
use crate::procfs::{self, Memory};

/// As long as the broker's response to a produce.
const PRODUCED: &str = r#"{"status":"produced","topic":"load-1700000000000-0","partition":0,"offset":123456}"#;
/// As long as the broker's response to a line of a batch.
const LINE: &str = "{\"status\":200,\"topic\":\"load-1700000000000-0\",\"partition\":0,\"offset\":123456}\n";

/// As long as the broker's response to a begin.
const GRANT: &str = concat!(
    r#"{"decision":"EXECUTE","attempt":1,"lease_token":"000000010000000000123456","#,
    r#""lease_until":"2026-01-01T00:00:00.000Z","status":"IN_PROGRESS","status_v1":"PENDING","idempotent":true}"#
);
/// The broker's response to a finish.
const FINISHED: &str = r#"{"ok":true}"#;

/// A running ceiling server. It exits when this is dropped, and when this process exits.
#[derive(Debug)]
pub(crate) struct Ceiling {
    child: KillOnDrop,
    addr: SocketAddr,
}

impl Ceiling {
    /// Starts this program with the command that serves.
    pub(crate) fn start() -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .arg("ceiling-serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("the ceiling server cannot be started: {error}"))?;
        let mut child = KillOnDrop(child);
        let mut line = String::new();
        let output = child.0.stdout.take().ok_or("the ceiling server has no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let addr = line.trim().parse().map_err(|_| "the ceiling server did not print its address")?;
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

/// Serves until standard input is closed by the parent process.
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
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond)));
    }
}

async fn respond(request: Request<Incoming>) -> std::result::Result<Response<Full<Bytes>>, Infallible> {
    let batch = request.headers().get(CONTENT_TYPE).is_some_and(|kind| kind == crate::load::client::NDJSON);
    let single = match request.uri().path() {
        "/v1/idempotency/begin" => GRANT,
        "/v1/idempotency/finish" => FINISHED,
        _ => PRODUCED,
    };
    let body = request.into_body().collect().await.map(Collected::to_bytes).unwrap_or_default();
    let (kind, body) = if batch {
        let lines = body.iter().filter(|&&byte| byte == b'\n').count();
        (crate::load::client::NDJSON, Bytes::from(LINE.repeat(lines)))
    } else {
        ("application/json; charset=utf-8", Bytes::from_static(single.as_bytes()))
    };
    let mut response = Response::new(Full::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    Ok(response)
}
