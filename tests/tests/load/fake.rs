//! A fake broker for `load`: topics, produces, streams, acks, steps and effects in memory.
//!
//! It runs on a thread of a test ([`Fake`]), or as a process with the arguments of `driftqd` ([`serve_as_process`]);
//! then it appends produced messages to a journal in its data folder and reads them back when restarted.

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
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

/// What the fake does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Fault {
    /// Nothing.
    #[default]
    None,
    /// Every tenth produce gets 500.
    EveryTenthProduce,
    /// Every tenth ack or complete gets 409.
    EveryTenthAck,
    /// Every tenth begin gets REPLAY.
    EveryTenthReplayed,
    /// Every tenth finish gets 409.
    EveryTenthFinish,
    /// Every tenth complete succeeds, but its first message is lost.
    EveryTenthOutput,
    /// Every delivered value has another last byte than the produced one.
    DamagedValues,
    /// A message with a known idempotency key is stored again.
    ForgottenKeys,
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

#[derive(Debug)]
struct Effect {
    token: String,
    /// The result, once finished.
    result: Option<Value>,
}

#[derive(Debug, Default)]
struct State {
    topics: BTreeMap<String, Topic>,
    fault: Fault,
    produces: u64,
    acks: u64,
    effects: BTreeMap<String, Effect>,
    begins: u64,
    finishes: u64,
    /// The offset of the message of each.
    idempotency_keys: BTreeMap<String, usize>,
    journal: Option<File>,
}

type Shared = Arc<Mutex<State>>;

fn lock(state: &Shared) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A fake broker on a thread. It stops when dropped.
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

    /// Its URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Messages per partition, over all topics.
    pub(crate) fn messages_by_partition(&self) -> BTreeMap<u32, usize> {
        let mut counts = BTreeMap::new();
        for topic in lock(&self.state).topics.values() {
            for (partition, ..) in &topic.messages {
                *counts.entry(*partition).or_default() += 1;
            }
        }
        counts
    }

    /// Finished effects, and how many of them have this result.
    pub(crate) fn effects_with(&self, result: &str) -> (usize, usize) {
        let state = lock(&self.state);
        let results = || state.effects.values().filter_map(|effect| effect.result.as_ref());
        (results().count(), results().filter(|stored| **stored == result).count())
    }

    /// Distinct idempotency keys of all messages.
    pub(crate) fn idempotency_keys(&self) -> usize {
        lock(&self.state).idempotency_keys.len()
    }

    /// Messages produced and acked, over all topics.
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

/// Serves with the arguments of `driftqd` until killed.
pub(crate) fn serve_as_process(args: &[String]) {
    let value_of = |name: &str| {
        let at = args.iter().position(|arg| arg == name).unwrap_or_else(|| panic!("{name} is missing"));
        args.get(at + 1).unwrap_or_else(|| panic!("{name} has no value"))
    };
    let (addr, folder) = (value_of("--addr"), Path::new(value_of("--data-dir")));
    fs::create_dir_all(folder).expect("a data folder");
    let path = folder.join("journal");
    let has = |name: &str| args.iter().any(|arg| arg == name);
    let fault = match () {
        () if has("--damaged-values") => Fault::DamagedValues,
        () if has("--forgotten-keys") => Fault::ForgottenKeys,
        () if has("--every-tenth-produce") => Fault::EveryTenthProduce,
        () => Fault::None,
    };
    let mut state = State { fault, ..State::default() };
    for line in fs::read_to_string(&path).unwrap_or_default().lines() {
        state.produce(&serde_json::from_str(line).expect("a line of the journal"));
    }
    state.journal = Some(File::options().create(true).append(true).open(path).expect("a journal"));
    let serve = async {
        let listener = TcpListener::bind(addr).await.expect("the port is free");
        let mut terminate = signal(SignalKind::terminate()).expect("a handler");
        tokio::select! { () = serve(listener, Arc::new(Mutex::new(state))) => {}, _ = terminate.recv() => {} }
    };
    if has("--reactors") {
        // On a thread that is named as the sequencer's.
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("driftq-sequencer".to_owned());
            thread.spawn_scoped(scope, || runtime().block_on(serve)).expect("a thread");
        });
    } else {
        runtime().block_on(serve);
    }
    std::process::exit(0);
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn serve(listener: TcpListener, state: Shared) {
    while let Ok((stream, _)) = listener.accept().await {
        stream.set_nodelay(true).expect("a socket");
        let state = Arc::clone(&state);
        let service = service_fn(move |request| respond(request, Arc::clone(&state)));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

type FakeResponse = Response<Either<Full<Bytes>, Items>>;

async fn respond(request: Request<Incoming>, state: Shared) -> Result<FakeResponse, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let batch = head.headers.get(CONTENT_TYPE).is_some_and(|kind| kind == "application/x-ndjson");
    let handle = |line: &[u8]| -> (u16, Value) {
        let Ok(line) = serde_json::from_slice::<Value>(line) else {
            return (400, json!({"error": "INVALID_ARGUMENT"}));
        };
        let mut state = lock(&state);
        match head.uri.path() {
            "/v1/ack" => state.ack(&line),
            "/v1/complete" => state.complete(&line),
            "/v1/idempotency/begin" => state.begin(&line),
            "/v1/idempotency/finish" => state.finish(&line),
            _ => state.produce(&line),
        }
    };
    Ok(match (&head.method, head.uri.path()) {
        (&Method::GET, "/v1/readyz") => complete_response(200, "{}".to_owned()),
        (&Method::GET, "/metrics") => complete_response(200, lock(&state).metrics()),
        (&Method::POST, "/v1/topics") => {
            let topic: Value = serde_json::from_slice(&body).unwrap_or_default();
            let partitions = topic["partitions"].as_u64().unwrap_or(1) as u32;
            let name = topic["name"].as_str().unwrap_or_default().to_owned();
            lock(&state).topics.insert(name, Topic { partitions, ..Topic::default() });
            complete_response(201, "{}".to_owned())
        }
        (&Method::POST, "/v1/produce" | "/v1/ack") if batch => {
            let lines = body.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
            let responses = lines.map(|line| {
                let (status, mut response) = handle(line);
                response["status"] = status.into();
                format!("{response}\n")
            });
            complete_response(200, responses.collect())
        }
        (
            &Method::POST,
            "/v1/produce" | "/v1/ack" | "/v1/complete" | "/v1/idempotency/begin" | "/v1/idempotency/finish",
        ) => {
            let (status, response) = handle(&body);
            complete_response(status, if status == 204 { String::new() } else { response.to_string() })
        }
        // Its messages stay: nothing here depends on them.
        (&Method::POST, path) if path.ends_with("/purge") => complete_response(200, json!({"purged": 0}).to_string()),
        (&Method::GET, path) if path.starts_with("/v1/topics/") => {
            let (status, response) = lock(&state).describe(path.trim_start_matches("/v1/topics/"));
            complete_response(status, response.to_string())
        }
        (&Method::GET, "/v1/consume") => stream(head.uri.query().unwrap_or_default(), state),
        _ => complete_response(404, json!({"error": "NOT_FOUND"}).to_string()),
    })
}

fn complete_response(status: u16, body: String) -> FakeResponse {
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
        if let Some(idempotency_key) = message["envelope"]["idempotency_key"].as_str() {
            let next = topic.messages.len();
            let offset = *self.idempotency_keys.entry(idempotency_key.to_owned()).or_insert(next);
            if offset != next && self.fault != Fault::ForgottenKeys {
                return (200, json!({"status": "produced", "topic": name, "partition": 0, "offset": offset}));
            }
        }
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

    /// Acks a message and produces others.
    fn complete(&mut self, step: &Value) -> (u16, Value) {
        let (status, response) = self.ack(step);
        if status != 204 {
            return (status, response);
        }
        let outputs = step["produce"].as_array().cloned().unwrap_or_default();
        let lost = usize::from(self.fault == Fault::EveryTenthOutput && self.acks.is_multiple_of(10));
        let produced: Vec<Value> = outputs.iter().skip(lost).map(|output| self.produce(output).1).collect();
        (200, json!({"produced": produced}))
    }

    fn begin(&mut self, request: &Value) -> (u16, Value) {
        self.begins += 1;
        let known = self.effects.get(request["key"].as_str().unwrap_or_default());
        if let Some(effect) = known
            && effect.result.is_none()
        {
            return (409, json!({"error": "FAILED_PRECONDITION", "decision": "IN_PROGRESS"}));
        }
        if known.is_some() || self.fault == Fault::EveryTenthReplayed && self.begins.is_multiple_of(10) {
            return (200, json!({"decision": "REPLAY", "status": "SUCCEEDED"}));
        }
        // Tokens differ in length: clients must not rely on it.
        let token = format!("t{}", self.begins);
        let effect = Effect { token: token.clone(), result: None };
        self.effects.insert(request["key"].as_str().unwrap_or_default().to_owned(), effect);
        (200, json!({"decision": "EXECUTE", "attempt": 1, "lease_token": token, "status": "IN_PROGRESS"}))
    }

    fn finish(&mut self, request: &Value) -> (u16, Value) {
        self.finishes += 1;
        let refused = self.fault == Fault::EveryTenthFinish && self.finishes.is_multiple_of(10);
        let well_formed = request["status"] == "SUCCEEDED" && request["scope"]["kind"] == "tenant";
        match self.effects.get_mut(request["key"].as_str().unwrap_or_default()) {
            Some(effect) if !refused && well_formed && request["lease_token"] == *effect.token => {
                effect.result = Some(request["result"].clone());
                (200, json!({"ok": true}))
            }
            _ => (409, json!({"error": "FAILED_PRECONDITION"})),
        }
    }

    fn describe(&self, name: &str) -> (u16, Value) {
        let Some(topic) = self.topics.get(name) else { return (404, json!({"error": "NOT_FOUND"})) };
        let partitions = (0..topic.partitions).map(|partition| {
            let count = topic.messages.iter().filter(|(of, ..)| *of == partition).count();
            json!({"partition": partition, "messages": count})
        });
        (200, json!({"name": name, "partitions": partitions.collect::<Vec<_>>()}))
    }

    /// The metrics of a log in which every message takes 100 bytes and a tenth of them is written again.
    fn metrics(&self) -> String {
        let bytes = self.produces * 100;
        let counters = [
            ("log_bytes_total", bytes),
            ("log_relocated_bytes_total", bytes / 10),
            ("snapshot_bytes_total", bytes / 20),
            ("payload_read_bytes_total", 0),
            ("log_size_bytes", bytes),
            ("log_live_bytes", bytes),
            ("state_bytes", 1),
        ];
        counters.iter().map(|(name, value)| format!("driftq_{name} {value}\n")).collect()
    }

    /// Leases as many messages to a stream as its prefetch allows. Returns them as lines.
    fn lease(&mut self, name: &str, group: &str, owner: &str, prefetch: usize) -> String {
        let topic = self.topics.entry(name.to_owned()).or_default();
        let group = topic.groups.entry(group.to_owned()).or_default();
        let held = group.leases.values().filter(|holder| *holder == owner).count();
        let mut lines = String::new();
        for _ in held..prefetch {
            let Some((partition, key, value)) = topic.messages.get(group.next) else { break };
            let offset = group.next;
            let damaged = self.fault == Fault::DamagedValues;
            let value = if damaged { format!("{}~", &value[..value.len() - 1]) } else { value.clone() };
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

fn stream(query: &str, state: Shared) -> FakeResponse {
    let value = |name: &str| {
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value.to_owned()).next()
    };
    let text = |name: &str| value(name).unwrap_or_default();
    let (topic, group, owner) = (text("topic"), text("group"), text("owner"));
    let prefetch = value("prefetch").and_then(|digits| digits.parse().ok()).unwrap_or(100);
    let (sender, items) = mpsc::channel(1);
    tokio::spawn(async move {
        // A keep-alive comes first, so that every test receives one.
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

/// A response body of lines.
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
