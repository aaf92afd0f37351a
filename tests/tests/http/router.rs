//! The router's webhook as clients see it: batches ask it in parallel, and a stop does not wait for it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::{Server, wait_until};
use crate::requests::ReplyExt;

const NDJSON: &[(&str, &str)] = &[("Content-Type", "application/x-ndjson")];

/// A webhook that answers after a while.
struct Webhook {
    addr: SocketAddr,
    asked: Arc<AtomicUsize>,
    /// Most requests at a time.
    peak: Arc<AtomicUsize>,
}

impl Webhook {
    fn start(delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (asked, open, peak) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::default());
        let webhook = Self { addr, asked: Arc::clone(&asked), peak: Arc::clone(&peak) };
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let (asked, open, peak) = (Arc::clone(&asked), Arc::clone(&open), Arc::clone(&peak));
                thread::spawn(move || answer(socket, delay, &asked, &open, &peak));
            }
        });
        webhook
    }

    fn config(&self, timeout_ms: u32) -> String {
        format!("[router.webhook]\nurl = \"http://{}/\"\ntimeout_ms = {timeout_ms}\n", self.addr)
    }
}

/// Answers the requests of a connection with the value of their message as label.
fn answer(mut socket: TcpStream, delay: Duration, asked: &AtomicUsize, open: &AtomicUsize, peak: &AtomicUsize) {
    let mut received = Vec::new();
    let mut buffer = [0; 4_096];
    loop {
        let Some(body) = take_body(&mut received) else {
            match socket.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(len) => received.extend_from_slice(&buffer[..len]),
            }
            continue;
        };
        asked.fetch_add(1, Ordering::SeqCst);
        peak.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        sleep(delay);
        open.fetch_sub(1, Ordering::SeqCst);
        let body = format!("{{\"label\":{}}}", body["value"]);
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if socket.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn take_body(received: &mut Vec<u8>) -> Option<Value> {
    let head_end = received.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
    let head = String::from_utf8_lossy(&received[..head_end]).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let end = head_end + length.unwrap_or(0);
    let body = serde_json::from_slice(received.get(head_end..end)?).expect("JSON");
    received.drain(..end);
    Some(body)
}

#[test]
fn lines_of_a_batch_are_routed_in_parallel_and_stay_in_order() {
    const LINES: usize = 200;
    let webhook = Webhook::start(Duration::from_millis(100));
    let server = Server::configured(&webhook.config(30_000), &["--no-wal"]);
    server.create("t", 1);
    let mut batch = String::new();
    for number in 0..LINES {
        match number {
            50 => batch += "no JSON\n",
            _ => batch += &format!("{{\"topic\":\"t\",\"value\":\"m{number}\"}}\n"),
        }
    }
    let began = Instant::now();
    let reply = server.call("POST", "/v1/produce", NDJSON, &batch);
    let took = began.elapsed();
    println!("{LINES} lines at 100 ms took {took:?}, {} at a time", webhook.peak.load(Ordering::SeqCst));
    assert!(took < Duration::from_secs(10), "one after the other takes 20 s: {took:?}");
    let peak = webhook.peak.load(Ordering::SeqCst);
    assert!((8..=64).contains(&peak), "{peak} at a time");
    assert_eq!(webhook.asked.load(Ordering::SeqCst), LINES - 1, "each line once");
    let lines: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), LINES);
    assert_eq!(lines[50]["status"], 400, "a malformed line is refused in its place");
    let offsets: Vec<u64> = lines.iter().filter_map(|line| line["offset"].as_u64()).collect();
    assert!(offsets.len() == LINES - 1 && offsets.is_sorted(), "{offsets:?}");
    // Stored in the order of the lines, each with its own decision.
    let stored = server.get("/v1/peek?topic=t&partition=0&offset=0&limit=1000").json();
    let stored = stored["messages"].as_array().expect("a list");
    let numbers = (0..LINES).filter(|number| *number != 50);
    for (item, number) in stored.iter().zip(numbers) {
        let value = format!("m{number}");
        assert_eq!((&item["value"], &item["routing"]["label"]), (&value.clone().into(), &value.into()));
    }
}

#[test]
fn single_message_is_routed_beside_a_batch() {
    let webhook = Webhook::start(Duration::from_millis(50));
    let server = Server::configured(&webhook.config(30_000), &["--no-wal"]);
    server.create("t", 1);
    server.create("single", 1);
    let batch = "{\"topic\":\"t\",\"value\":\"b\"}\n".repeat(300);
    thread::scope(|scope| {
        scope.spawn(|| assert_eq!(server.call("POST", "/v1/produce", NDJSON, &batch).status, 200));
        wait_until("the batch is routed", || webhook.asked.load(Ordering::SeqCst) > 10);
        server.produce("single", "s");
    });
    let item = &server.get("/v1/peek?topic=single&partition=0&offset=0").json()["messages"][0];
    assert_eq!(item["routing"]["label"], "s", "a batch leaves room: {item}");
}

#[test]
fn stop_answers_who_waits_for_the_webhook_at_once() {
    let webhook = Webhook::start(Duration::from_secs(20));
    let mut server = Server::configured(&webhook.config(30_000), &[]);
    server.create("t", 1);
    let (mut single, mut batch) = (server.connect(), server.connect());
    let waiting = thread::spawn(move || single.call("POST", "/v1/produce", &[], r#"{"topic":"t","value":"single"}"#));
    let lines = "{\"topic\":\"t\",\"value\":\"line\"}\n".repeat(3);
    let waiting_batch = thread::spawn(move || batch.call("POST", "/v1/produce", NDJSON, &lines));
    wait_until("the webhook is asked", || webhook.asked.load(Ordering::SeqCst) == 4);
    let began = Instant::now();
    assert!(server.terminate().success());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "the stop waited for the webhook: {took:?}");
    waiting.join().expect("an answer").refused(503, "UNAVAILABLE");
    let batch = waiting_batch.join().expect("an answer");
    assert_eq!(batch.body.matches("{\"status\":503,\"error\":\"UNAVAILABLE\"").count(), 3, "{batch:?}");
}
