//! A broker just good enough to be put under load: topics, produces, streams and acks, in memory and without promises.
//!
//! It runs inside a test on a thread of its own ([`Fake`]), or as a process that takes `driftqd`'s arguments
//! ([`serve_as_process`]); then it writes what was produced into its data folder and finds it again when restarted.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs::{self, File};
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Either, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// What the fake does wrong, on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Every tenth produce is answered with 500.
    EveryTenthProduce,
    /// Every tenth ack is answered with 409.
    EveryTenthAck,
}

#[derive(Debug, Default)]
struct Topic {
    partitions: u32,
    /// Partition, key and value, by offset.
    messages: Vec<(u32, String, String)>,
    groups: BTreeMap<String, Group>,
}

#[derive(Debug, Default)]
struct Group {
    next: usize,
    /// Owner by offset.
    leases: BTreeMap<usize, String>,
    acked: u64,
}

#[derive(Debug, Default)]
struct State {
    topics: BTreeMap<String, Topic>,
    fault: Fault,
    produces: u64,
    acks: u64,
    journal: Option<File>,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fake broker inside this test; it ends with its guard.
pub(crate) struct Fake {
    addr: SocketAddr,
    state: Shared,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Fake {
    /// Starts it on a free port.
    pub(crate) fn start(fault: Fault) -> Self {
        let state = Arc::new(Mutex::new(State { fault, ..State::default() }));
        let (stop, stopped) = oneshot::channel();
        let (tell_addr, addr) = std::sync::mpsc::channel();
        let shared = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                tell_addr.send(listener.local_addr().expect("an address")).expect("the test waits");
                tokio::select! { () = serve(listener, shared) => {}, _ = stopped => {} }
            });
        });
        let addr = addr.recv().expect("the fake has started");
        Self { addr, state, stop: Some(stop), thread: Some(thread) }
    }

    /// Where it is reached.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Messages it holds, by partition, of all topics.
    pub(crate) fn messages_by_partition(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for topic in lock(&self.state).topics.values() {
            for (partition, ..) in &topic.messages {
                *counts.entry(*partition).or_default() += 1;
            }
        }
        counts
    }

    /// Messages produced and acks taken, of all topics.
    pub(crate) fn produced_and_acked(&self) -> (u64, u64) {
        let state = lock(&self.state);
        let topics = || state.topics.values();
        let acked = topics().flat_map(|topic| topic.groups.values()).map(|group| group.acked).sum();
        (topics().map(|topic| topic.messages.len() as u64).sum(), acked)
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

/// Serves as a process with `driftqd`'s arguments until it is killed.
pub(crate) fn serve_as_process(args: &[String]) {
    let after = |name: &str| {
        let at = args.iter().position(|arg| arg == name).unwrap_or_else(|| panic!("{name} is missing"));
        args.get(at + 1).unwrap_or_else(|| panic!("{name} has no value"))
    };
    let (addr, folder) = (after("--addr"), Path::new(after("--data-dir")));
    fs::create_dir_all(folder).expect("a data folder");
    let path = folder.join("journal");
    let mut state = State::default();
    for line in fs::read_to_string(&path).unwrap_or_default().lines() {
        state.produce(&serde_json::from_str(line).expect("a line of our own"));
    }
    state.journal = Some(File::options().create(true).append(true).open(path).expect("a journal"));
    runtime().block_on(async {
        let listener = TcpListener::bind(addr).await.expect("the port is free");
        serve(listener, Arc::new(Mutex::new(state))).await;
    });
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn serve(listener: TcpListener, state: Shared) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        let state = Arc::clone(&state);
        let service = service_fn(move |request| answer(request, Arc::clone(&state)));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

type Answer = Response<Either<Full<Bytes>, Items>>;

async fn answer(request: Request<Incoming>, state: Shared) -> Result<Answer, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let batch = head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/x-ndjson");
    let handle = |line: &[u8]| -> (u16, Value) {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            return (400, json!({"error": "INVALID_ARGUMENT"}));
        };
        if head.uri.path() == "/v1/ack" { lock(&state).ack(&line) } else { lock(&state).produce(&line) }
    };
    Ok(match (&head.method, head.uri.path()) {
        (&Method::GET, "/v1/readyz") => whole(200, "{}".to_owned()),
        (&Method::POST, "/v1/topics") => {
            let topic: Value = serde_json::from_slice(&body).unwrap_or_default();
            let partitions = topic["partitions"].as_u64().unwrap_or(1) as u32;
            let name = topic["name"].as_str().unwrap_or_default().to_owned();
            lock(&state).topics.insert(name, Topic { partitions, ..Topic::default() });
            whole(201, "{}".to_owned())
        }
        (&Method::POST, "/v1/produce" | "/v1/ack") if batch => {
            let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
            let answers = lines.map(|line| {
                let (status, mut answer) = handle(line);
                answer["status"] = status.into();
                format!("{answer}\n")
            });
            whole(200, answers.collect())
        }
        (&Method::POST, "/v1/produce" | "/v1/ack") => {
            let (status, answer) = handle(&body);
            whole(status, if status == 204 { String::new() } else { answer.to_string() })
        }
        (&Method::GET, "/v1/consume") => stream(head.uri.query().unwrap_or_default(), state),
        _ => whole(404, json!({"error": "NOT_FOUND"}).to_string()),
    })
}

fn whole(status: u16, body: String) -> Answer {
    Response::builder().status(status).body(Either::Left(Full::new(body.into()))).expect("a valid status")
}

impl State {
    fn produce(&mut self, message: &Value) -> (u16, Value) {
        self.produces += 1;
        if self.fault == Fault::EveryTenthProduce && self.produces.is_multiple_of(10) {
            return (500, json!({"error": "INTERNAL"}));
        }
        if let Some(journal) = &mut self.journal {
            writeln!(journal, "{message}").expect("a journal that can be written");
        }
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        let (name, key, value) = (text("topic"), text("key"), text("value"));
        let topic = self.topics.entry(name.clone()).or_default();
        let hash = key.bytes().fold(0x811c_9dc5u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        let partition = if key.is_empty() { 0 } else { hash % topic.partitions.max(1) };
        topic.messages.push((partition, key, value));
        let offset = topic.messages.len() - 1;
        (200, json!({"status": "produced", "topic": name, "partition": partition, "offset": offset}))
    }

    fn ack(&mut self, ack: &Value) -> (u16, Value) {
        self.acks += 1;
        let text = |name: &str| ack[name].as_str().unwrap_or_default();
        let offset = ack["offset"].as_u64().unwrap_or(u64::MAX) as usize;
        let refused = self.fault == Fault::EveryTenthAck && self.acks.is_multiple_of(10);
        let group = self.topics.get_mut(text("topic")).and_then(|topic| topic.groups.get_mut(text("group")));
        match group {
            Some(group)
                if !refused
                    && group.leases.get(&offset).is_some_and(|owner| owner == text("owner"))
                    && text("lease_token") == format!("t{offset}") =>
            {
                group.leases.remove(&offset);
                group.acked += 1;
                (204, json!({}))
            }
            _ => (409, json!({"error": "FAILED_PRECONDITION"})),
        }
    }

    /// Leases as many messages to a stream as its prefetch allows, and returns them as lines.
    fn lease(&mut self, name: &str, group: &str, owner: &str, prefetch: usize) -> String {
        let topic = self.topics.entry(name.to_owned()).or_default();
        let group = topic.groups.entry(group.to_owned()).or_default();
        let held = group.leases.values().filter(|holder| *holder == owner).count();
        let mut lines = String::new();
        for _ in held..prefetch {
            let Some((partition, key, value)) = topic.messages.get(group.next) else { break };
            let offset = group.next;
            lines.push_str(&format!(
                "{{\"partition\":{partition},\"offset\":{offset},\"attempts\":1,\"key\":\"{key}\",\"value\":\"{value}\",\
                 \"last_error\":\"\",\"lease_token\":\"t{offset}\",\"failures\":0}}\n"
            ));
            group.leases.insert(offset, owner.to_owned());
            group.next += 1;
        }
        lines
    }
}

fn stream(query: &str, state: Shared) -> Answer {
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
    };
    let text = |name: &str| value(name).unwrap_or_default();
    let (topic, group, owner) = (text("topic"), text("group"), text("owner"));
    let prefetch = value("prefetch").and_then(|digits| digits.parse().ok()).unwrap_or(100);
    let (sender, items) = mpsc::channel(1);
    tokio::spawn(async move {
        // A keep-alive comes first, so that every test meets one.
        let mut lines = String::from("\n");
        while sender.send(lines.clone().into()).await.is_ok() {
            loop {
                lines = lock(&state).lease(&topic, &group, &owner, prefetch);
                if !lines.is_empty() || sender.is_closed() {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    Response::new(Either::Right(Items(items)))
}

/// A body that brings lines as they come.
pub(crate) struct Items(mpsc::Receiver<Bytes>);

impl Body for Items {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}
