//! A server that misbehaves on purpose: it answers each request with what a test says, byte for byte.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// How long a test waits for anything at most.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// What the stub does with a request.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    /// An answer with a body of JSON.
    Json(u16, String),
    /// An answer with these headers, each with its line end, and this body.
    Raw { status: u16, headers: String, body: Vec<u8> },
    /// These bytes, then the end of the connection.
    Bytes(Vec<u8>),
    /// The start of a stream with these lines, then the end of the connection.
    CutStream(String),
    /// The start of a stream with these lines, then silence.
    OpenStream(String),
    /// The connection is cut without an answer.
    Cut,
    /// No answer, for as long as the client waits.
    Silence,
}

impl Reply {
    pub(crate) fn json(status: u16, body: &Value) -> Self {
        Self::Json(status, body.to_string())
    }

    pub(crate) fn error(status: u16, code: &str, message: &str) -> Self {
        Self::json(status, &serde_json::json!({"error": code, "message": message}))
    }

    /// The answers to the lines of a batch.
    pub(crate) fn lines(lines: impl IntoIterator<Item = Value>) -> Self {
        let body = lines.into_iter().map(|line| format!("{line}\n")).collect::<String>().into_bytes();
        Self::Raw { status: 200, headers: "content-type: application/x-ndjson\r\n".to_owned(), body }
    }

    /// The line of a batch that says the same as this answer to a request of its own.
    pub(crate) fn into_line(self) -> Value {
        let (status, body) = match self {
            Self::Json(status, body) => (status, body),
            Self::Raw { status: 204, .. } => (204, "{}".to_owned()),
            other => panic!("no line of a batch: {other:?}"),
        };
        let mut line: Value = serde_json::from_str(&body).expect("JSON");
        if let Some(effect_status) = line.get("status").cloned() {
            line["effect_status"] = effect_status;
        }
        line["status"] = status.into();
        line
    }

    /// An answer to any request that says it was carried out.
    pub(crate) fn ok() -> Self {
        Self::Raw { status: 204, headers: String::new(), body: Vec::new() }
    }
}

/// A request that the stub got.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) method: String,
    pub(crate) target: String,
    pub(crate) headers: String,
    pub(crate) body: String,
}

impl Seen {
    /// Method and path without the query.
    pub(crate) fn route(&self) -> String {
        format!("{} {}", self.method, self.target.split('?').next().unwrap_or_default())
    }

    /// Whether it has one request per line.
    pub(crate) fn is_batch(&self) -> bool {
        self.headers.contains("content-type: application/x-ndjson")
    }

    /// The requests of a batch, each as if it had come alone; of any other request itself.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        if !self.is_batch() {
            return vec![self.clone()];
        }
        self.body.lines().map(|line| Seen { body: line.to_owned(), ..self.clone() }).collect()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

type Answer = dyn Fn(&Seen) -> Reply + Send + Sync;

struct State {
    seen: Mutex<Vec<Seen>>,
    changed: Notify,
    answer: Box<Answer>,
}

/// A stub that listens on a free port until it is dropped.
pub(crate) struct Stub {
    port: u16,
    state: Arc<State>,
    task: JoinHandle<()>,
}

impl Stub {
    /// Answers each request with what `answer` says; `GET /v1/version` as a broker does, unless `answer` does.
    pub(crate) async fn start(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_with_version(move |seen| match seen.target.as_str() {
            "/v1/version" => Reply::Json(200, r#"{"version":"0.1.0","commit":"x","wal_enabled":true}"#.to_owned()),
            _ => answer(seen),
        })
        .await
    }

    /// The same without the answer to `GET /v1/version`.
    pub(crate) async fn start_with_version(answer: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let state = Arc::new(State { seen: Mutex::default(), changed: Notify::new(), answer: Box::new(answer) });
        let task = tokio::spawn(accept(listener, Arc::clone(&state)));
        Self { port, state, task }
    }

    /// Answers with these replies in order, and with the last one from then on.
    pub(crate) async fn replies(replies: impl IntoIterator<Item = Reply>) -> Self {
        let queue = Mutex::new(replies.into_iter().collect::<VecDeque<_>>());
        Self::start(move |_| {
            let mut queue = queue.lock().expect("not poisoned");
            if queue.len() > 1 { queue.pop_front() } else { queue.front().cloned() }.expect("a reply")
        })
        .await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The requests so far, without those for the version.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        let seen = self.state.seen.lock().expect("not poisoned");
        seen.iter().filter(|seen| seen.target != "/v1/version").cloned().collect()
    }

    /// The requests so far, with each line of a batch as one.
    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.seen().iter().flat_map(Seen::requests).collect()
    }

    /// Waits for a request, or a line of a batch, that `wanted` accepts.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let found = async {
            loop {
                let mut changed = std::pin::pin!(self.state.changed.notified());
                changed.as_mut().enable();
                if let Some(seen) = self.requests().into_iter().find(|seen| wanted(seen)) {
                    return seen;
                }
                changed.await;
            }
        };
        tokio::time::timeout(LIMIT, found).await.unwrap_or_else(|_| panic!("no such request; seen: {:#?}", self.seen()))
    }

    pub(crate) async fn wait_for_route(&self, route: &str) -> Seen {
        self.wait_for(|seen| seen.route() == route).await
    }

    /// How many requests of a route there were, each line of a batch as one.
    pub(crate) fn count(&self, route: &str) -> usize {
        self.requests().iter().filter(|seen| seen.route() == route).count()
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.expect("accepted");
        connections.spawn(serve(stream, Arc::clone(&state)));
    }
}

/// Answers the requests of one connection.
pub(crate) async fn serve_with<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin>(
    mut stream: S,
    answer: &(dyn Fn(Seen) -> Reply + Send + Sync),
) {
    let mut buffer = Vec::new();
    while let Some(seen) = read_request(&mut stream, &mut buffer).await {
        if !write_reply(&mut stream, answer(seen)).await {
            return;
        }
    }
}

async fn serve(stream: TcpStream, state: Arc<State>) {
    let answer = move |seen: Seen| {
        state.seen.lock().expect("not poisoned").push(seen.clone());
        state.changed.notify_waiters();
        (state.answer)(&seen)
    };
    serve_with(stream, &answer).await;
}

async fn read_request<S: tokio::io::AsyncRead + Unpin>(stream: &mut S, buffer: &mut Vec<u8>) -> Option<Seen> {
    let head_end = loop {
        if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&buffer[..head_end]).into_owned();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let end = head_end + length.unwrap_or(0);
    while buffer.len() < end {
        if stream.read_buf(buffer).await.ok()? == 0 {
            return None;
        }
    }
    let body = String::from_utf8_lossy(&buffer[head_end..end]).into_owned();
    buffer.drain(..end);
    let (first, headers) = head.split_once("\r\n")?;
    let mut parts = first.split(' ');
    let (method, target) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some(Seen { method, target, headers: headers.to_ascii_lowercase(), body })
}

/// Writes an answer; false if the connection is to be cut.
async fn write_reply<S: tokio::io::AsyncWrite + Unpin>(stream: &mut S, reply: Reply) -> bool {
    const STREAM: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = |lines: &str| format!("{STREAM}{:x}\r\n{lines}\r\n", lines.len());
    let json = |status, body: String| {
        (status, "content-type: application/json; charset=utf-8\r\n".to_owned(), body.into_bytes())
    };
    let (status, headers, body) = match reply {
        Reply::Json(status, body) => json(status, body),
        Reply::Raw { status, headers, body } => (status, headers, body),
        Reply::Bytes(bytes) => {
            let _ = stream.write_all(&bytes).await;
            return false;
        }
        Reply::CutStream(lines) => {
            let _ = stream.write_all(chunk(&lines).as_bytes()).await;
            return false;
        }
        Reply::OpenStream(lines) => {
            let text = if lines.is_empty() { STREAM.to_owned() } else { chunk(&lines) };
            let _ = stream.write_all(text.as_bytes()).await;
            std::future::pending::<()>().await;
            return false;
        }
        Reply::Cut => return false,
        Reply::Silence => {
            std::future::pending::<()>().await;
            return false;
        }
    };
    let length = if status == 204 { String::new() } else { format!("content-length: {}\r\n", body.len()) };
    let head = format!("HTTP/1.1 {status} X\r\n{length}{headers}\r\n");
    stream.write_all(head.as_bytes()).await.is_ok() && stream.write_all(&body).await.is_ok()
}
