//! Memory and time that clients can hold: unfinished bodies, unread answers, idle HTTP/2 connections.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Response;
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::harness::{RawConnection, Server, TIMEOUT, wait_until};

const MIB: usize = 1 << 20;

/// The value of a metric without labels.
fn metric(server: &Server, name: &str) -> u64 {
    value_in(&server.get("/metrics").body, name)
}

/// The same of a server whose memory may be used up, so that it answers no more than `429`.
fn metric_of_full(server: &Server, name: &str) -> Option<u64> {
    let reply = server.get("/metrics");
    (reply.status != 429).then(|| value_in(&reply.body, name))
}

fn value_in(metrics: &str, name: &str) -> u64 {
    let value = |line: &str| {
        let (found, value) = line.split_once(' ')?;
        (found.trim_start_matches("driftq_").trim_end_matches("_total") == name).then(|| value.parse::<f64>().ok())?
    };
    metrics.lines().find_map(value).unwrap_or_else(|| panic!("no {name} in {metrics}")) as u64
}

/// Produces messages of half a mebibyte.
fn fill(server: &Server, count: usize) {
    server.create("t", 1);
    let value = "v".repeat(MIB / 2);
    (0..count).for_each(|_| {
        server.produce("t", &value);
    });
}

/// An HTTP/2 connection with small windows. It reads and writes only while one of its methods runs.
struct Http2 {
    runtime: Runtime,
    sender: SendRequest<Full<Bytes>>,
    /// Ends with the connection.
    task: JoinHandle<()>,
    host: String,
}

impl Http2 {
    fn connect(server: &Server) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let (sender, task) = runtime.block_on(async {
            let socket = TcpStream::connect(server.addr).await.expect("connected");
            let mut builder = http2::Builder::new(TokioExecutor::new());
            builder.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
            let (sender, connection) = builder.handshake(TokioIo::new(socket)).await.expect("HTTP/2");
            let task = tokio::spawn(async move {
                let _ = connection.await;
            });
            (sender, task)
        });
        Self { runtime, sender, task, host: server.addr.to_string() }
    }

    /// The head of the answer; the body is not read.
    fn get(&mut self, target: &str) -> Response<Incoming> {
        let request = hyper::Request::get(format!("http://{}{target}", self.host)).body(Full::default());
        let answer = self.sender.send_request(request.expect("a request"));
        self.runtime.block_on(answer).expect("a response")
    }

    fn read(&self, response: Response<Incoming>) -> Bytes {
        self.runtime.block_on(response.into_body().collect()).expect("a body").to_bytes()
    }

    /// The next chunk of a stream; nothing if there is none within `limit`.
    fn next_chunk(&self, stream: &mut Incoming, limit: Duration) -> Option<Bytes> {
        let next = self.runtime.block_on(async { timeout(limit, stream.frame()).await });
        Some(next.ok()?.expect("the stream ended").expect("the stream failed").into_data().expect("data"))
    }

    /// Waits until the connection ends.
    fn ends(&mut self) -> bool {
        let task = &mut self.task;
        self.runtime.block_on(async { timeout(TIMEOUT, task).await }).is_ok()
    }
}

#[test]
fn unfinished_bodies_have_a_bound_over_all() {
    let config = "[http]\nbody_bytes_max = 4194304\nbodies_bytes_max = 8388608\n";
    let server = Server::configured(config, &["--no-wal"]);
    server.create("t", 1);
    let before = server.memory_kib();
    let part = vec![b' '; 3 * MIB];
    let mut senders = Vec::new();
    for _ in 0..12 {
        let mut sender = server.connect_raw();
        let head = format!("POST /v1/produce HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\n\r\n", server.addr, 4 * MIB);
        sender.send(head.as_bytes());
        sender.send(&part);
        senders.push(sender);
    }
    wait_until("some are refused", || metric(&server, "bodies_refused") >= 8);
    let held = metric(&server, "body_bytes");
    assert!(held > 0 && held <= 8 * MIB as u64, "{held} bytes");
    let grown = server.memory_kib().saturating_sub(before);
    println!("{grown} KiB more for 12 unfinished bodies of 3 MiB, of which {held} bytes are held");
    assert!(grown < 24 << 10, "{grown} KiB more");
    // Requests that arrive in one piece need none of it.
    server.produce("t", "small");
    let is_answered = |sender: &mut RawConnection| {
        sender.socket().set_read_timeout(Some(Duration::from_millis(50))).expect("set");
        sender.socket().peek(&mut [0]).is_ok()
    };
    let refused = senders.iter_mut().find_map(|sender| is_answered(sender).then_some(sender));
    let reply = refused.expect("a refused body").reply("POST");
    assert_eq!((reply.status, reply.json()["reason"].as_str()), (429, Some("memory")), "{reply:?}");
    assert!(reply.header("retry-after") == Some("1") && reply.header("connection") == Some("close"), "{reply:?}");
    drop(senders);
    wait_until("the memory is free again", || metric(&server, "body_bytes") == 0);
    // A batch is bounded by the lines that are not complete.
    let mut batches: Vec<_> = (0..5).map(|_| server.connect_raw()).collect();
    for batch in &mut batches {
        let head = format!(
            "POST /v1/produce HTTP/1.1\r\nHost: {}\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n",
            server.addr,
            4 * MIB
        );
        batch.send(head.as_bytes());
        batch.send(&part);
    }
    wait_until("unfinished lines are refused", || metric(&server, "bodies_refused") >= 9);
    assert!(metric(&server, "body_bytes") <= 8 * MIB as u64);
}

/// An answer of 1.5 MiB.
const LARGE: &str = "/v1/peek?topic=t&partition=0&offset=0&limit=3";

#[test]
fn unread_answers_on_one_http2_connection_are_bounded() {
    let server = Server::configured("[http]\nunsent_bytes_max = 16777216\n", &["--no-wal"]);
    fill(&server, 4);
    let before = server.memory_kib();
    let mut client = Http2::connect(&server);
    let mut unread = Vec::new();
    let (mut answered, mut refused) = (0, 0);
    for _ in 0..60 {
        let response = client.get(LARGE);
        match response.status().as_u16() {
            200 => answered += 1,
            429 => refused += 1,
            other => panic!("{other}"),
        }
        unread.push(response);
    }
    let unsent = metric(&server, "unsent_bytes");
    let grown = server.memory_kib().saturating_sub(before);
    println!("{answered} of 60 answers of 1.5 MiB, {unsent} bytes unsent, {grown} KiB more");
    assert!(answered >= 1 && refused >= 50, "{answered} answered, {refused} refused");
    assert!(unsent <= 2 * MIB as u64, "an eighth of the bound: {unsent}");
    assert!(grown < 24 << 10, "{grown} KiB more");
    // Another connection has its own share.
    let mut other = Http2::connect(&server);
    let response = other.get(LARGE);
    assert_eq!(response.status().as_u16(), 200);
    assert!(other.read(response).len() > MIB);
    // Once it reads, everything is as before.
    let bodies: Vec<Bytes> = unread.into_iter().map(|response| client.read(response)).collect();
    assert!(String::from_utf8_lossy(&bodies[59]).contains(r#""reason":"memory""#), "{:?}", bodies[59]);
    let response = client.get(LARGE);
    assert_eq!(response.status().as_u16(), 200);
    assert!(client.read(response).len() > MIB);
    wait_until("nothing is unsent", || metric(&server, "unsent_bytes") == 0);
}

#[test]
fn client_that_does_not_read_its_answers_is_disconnected() {
    let server = Server::configured("[http]\nwrite_timeout_ms = 400\n", &["--no-wal"]);
    fill(&server, 20);
    let large = "/v1/peek?topic=t&partition=0&offset=0&limit=20";
    // A stream may pause: it holds no more than a chunk.
    let mut stream = server.connect_slow_reader();
    assert_eq!(stream.consume("topic=t&group=g&owner=w&prefetch=20&lease_ms=60000").status, 200);
    let mut http1 = server.connect_slow_reader();
    http1.send(format!("GET {large} HTTP/1.1\r\nHost: {}\r\n\r\n", server.addr).as_bytes());
    wait_until("the HTTP/1 connection is closed", || metric(&server, "slow_readers_closed") == 1);
    let mut client = Http2::connect(&server);
    let unread = client.get(large);
    assert_eq!(unread.status().as_u16(), 200);
    assert!(client.ends(), "the HTTP/2 connection stays open");
    wait_until("its memory is free", || metric(&server, "unsent_bytes") < 2 * MIB as u64);
    assert_eq!(metric(&server, "slow_readers_closed"), 2);
    assert!(stream.item().is_some(), "the stream was closed");
}

#[test]
fn stalled_streams_are_closed_when_the_memory_is_needed() {
    let server = Server::configured("[http]\nunsent_bytes_max = 1048576\n", &["--no-wal"]);
    fill(&server, 40);
    let streams: Vec<_> = (0..6)
        .map(|number| {
            let mut stream = server.connect_slow_reader();
            let query = format!("topic=t&group=g{number}&owner=w&prefetch=40&lease_ms=60000");
            assert_eq!(stream.consume(&query).status, 200);
            stream
        })
        .collect();
    let closed = || metric_of_full(&server, "slow_readers_closed").unwrap_or(0);
    wait_until("stalled streams are closed", || closed() > 0);
    // A client that reads gets everything meanwhile.
    let mut reader = server.consume("topic=t&group=reader&owner=w&prefetch=40&lease_ms=60000");
    let mut offsets: Vec<_> = (0..40).map(|_| reader.item().expect("a message")["offset"].as_u64()).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..40).map(Some).collect::<Vec<_>>());
    drop(streams);
}

#[test]
fn idle_http2_connection_ends_as_one_of_http1_does() {
    let server = Server::configured("[http]\nhead_timeout_ms = 400\n", &["--no-wal"]);
    server.create("t", 1);
    let mut client = Http2::connect(&server);
    let response = client.get("/v1/topics");
    assert_eq!(client.read(response), r#"{"topics":["t"]}"#);
    assert!(client.ends(), "an idle connection stays open");
    // With a stream it is not idle.
    let mut client = Http2::connect(&server);
    let mut stream = client.get("/v1/consume?topic=t&group=g&owner=w").into_body();
    assert_eq!(client.next_chunk(&mut stream, Duration::from_millis(1_500)), None);
    server.produce("t", "v");
    let item = client.next_chunk(&mut stream, TIMEOUT).expect("a message");
    assert!(String::from_utf8_lossy(&item).contains(r#""value":"v""#), "{item:?}");
    drop((stream, client));
    wait_until("all are closed but this one", || metric(&server, "connections") == 1);
}

#[test]
fn state_at_its_bound_gets_429_memory_and_drains() {
    let server = Server::configured("", &["--no-wal", "--state-bytes-max=60000"]);
    server.create("t", 1);
    assert_eq!(metric(&server, "state_bytes_max"), 60_000);
    let mut stream = server.consume("topic=t&group=g&owner=w&prefetch=10000&lease_ms=600000");
    let body = r#"{"topic":"t","value":"v"}"#;
    let refused = (0..10_000).map(|_| server.post("/v1/produce", body)).find(|reply| reply.status != 200);
    let refused = refused.expect("the state has a bound");
    assert_eq!(refused.status, 429, "{}", refused.body);
    assert!(refused.body.contains(r#""reason":"memory""#), "{}", refused.body);
    assert!(refused.body.contains("RESOURCE_EXHAUSTED"), "{}", refused.body);
    assert!(metric(&server, "state_bytes") > 30_000);
    // Leased messages take the most. Once they are acked there is room again.
    let stored = server.get("/v1/peek?topic=t&partition=0&offset=0&limit=1000").body.matches("\"offset\"").count();
    for _ in 0..stored {
        let item = stream.item().expect("a message");
        let ack = format!(r#"{{"topic":"t","group":"g","owner":"w","partition":0,"offset":{}}}"#, item["offset"]);
        assert_eq!(server.post("/v1/ack", ack).status, 204, "acks go on");
    }
    wait_until("produces are accepted again", || server.post("/v1/produce", body).status == 200);
}

#[test]
fn deliveries_that_streams_do_not_take_are_bounded_over_all() {
    let server = Server::configured("[http]\nunsent_bytes_max = 8388608\n", &["--no-wal"]);
    fill(&server, 40);
    let before = server.memory_kib();
    let streams: Vec<_> = (0..8)
        .map(|number| {
            let mut stream = server.connect_slow_reader();
            let query = format!("topic=t&group=g{number}&owner=w&prefetch=40&lease_ms=60000");
            assert_eq!(stream.consume(&query).status, 200);
            let held = metric(&server, "stream_bytes");
            assert!(held <= 2 * MIB as u64 + 4_096, "{held} bytes are queued");
            stream
        })
        .collect();
    wait_until("some are withdrawn", || metric(&server, "deliveries_refused") > 0);
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 40 << 10, "{grown} KiB more for 160 MiB of deliveries");
    // Nothing is lost: a client that reads gets everything.
    let mut reader = server.consume("topic=t&group=g0&owner=reader&prefetch=40&lease_ms=60000");
    assert!(reader.item().is_some());
    drop((reader, streams));
    let mut reader = server.consume("topic=t&group=other&owner=w&prefetch=40&lease_ms=60000");
    let mut offsets: Vec<_> = (0..40).map(|_| reader.item().expect("a message")["offset"].as_u64()).collect();
    offsets.sort_unstable();
    assert_eq!(offsets, (0..40).map(Some).collect::<Vec<_>>());
}

#[test]
fn stalled_streams_take_nothing_from_one_that_reads_slowly() {
    const COUNT: u64 = 100;
    let server = Server::configured("[http]\nunsent_bytes_max = 4194304\n", &["--no-wal"]);
    server.create("t", 1);
    let value = "v".repeat(64 << 10);
    (0..COUNT).for_each(|_| {
        server.produce("t", &value);
    });
    // Each of them would fill the share of all.
    let stalled: Vec<_> = (0..8)
        .map(|number| {
            let mut stream = server.connect_slow_reader();
            let query = format!("topic=t&group=g{number}&owner=w&prefetch=100&lease_ms=60000");
            assert_eq!(stream.consume(&query).status, 200);
            stream
        })
        .collect();
    wait_until("the share is used up", || metric(&server, "deliveries_refused") > 0);
    let mut reader = server.consume("topic=t&group=reader&owner=w&prefetch=20&lease_ms=60000");
    let mut offsets = Vec::new();
    let mut longest = Duration::ZERO;
    for _ in 0..COUNT {
        let began = Instant::now();
        let item = reader.item().expect("a message");
        longest = longest.max(began.elapsed());
        assert_eq!((item["attempts"].as_u64(), item["failures"].as_u64()), (Some(1), Some(0)), "{}", item["offset"]);
        let ack = format!(r#"{{"topic":"t","group":"reader","owner":"w","partition":0,"offset":{}}}"#, item["offset"]);
        assert_eq!(server.post("/v1/ack", ack).status, 204);
        offsets.push(item["offset"].as_u64());
        std::thread::sleep(Duration::from_millis(20));
    }
    offsets.sort_unstable();
    assert_eq!(offsets, (0..COUNT).map(Some).collect::<Vec<_>>());
    println!("the longest wait was {longest:?}");
    assert!(longest < Duration::from_secs(3), "{longest:?}");
    assert_eq!(metric(&server, "slow_readers_closed"), 0, "there is memory for what their connections hold");
    // What never left a stalled stream costs no attempt, also when the stream is cut off.
    drop(stalled);
    wait_until("they are closed", || metric(&server, "consumer_streams") == 1);
    let mut other = server.consume("topic=t&group=g0&owner=other&prefetch=20&lease_ms=60000");
    for _ in 0..20 {
        let item = other.item().expect("a message");
        assert_eq!((item["attempts"].as_u64(), item["failures"].as_u64()), (Some(1), Some(0)), "{}", item["offset"]);
    }
}
