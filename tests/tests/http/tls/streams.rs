//! What holds of plain connections holds with TLS: streams that end with their clients, clients that half-close, and
//! clients that do not read.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use driftq_tests::http::slow_reader_socket;

use super::support::{Authority, Connection, Requests, TlsBroker};
use crate::harness::wait_until;

const LARGE: usize = 64 << 10;

fn consume(connection: &mut Connection, query: &str) {
    let request = format!("GET /v1/consume?{query} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    connection.send(request.as_bytes()).expect("sent");
    assert_eq!(connection.head().expect("a head").status, 200);
}

fn fill(broker: &TlsBroker, topic: &str, count: usize) {
    let mut connection = broker.client().connect().expect("connected");
    let create = format!(r#"{{"name":"{topic}"}}"#);
    assert_eq!(connection.request("POST", "/v1/topics", &create).expect("made").0, 201);
    let message = format!(r#"{{"topic":"{topic}","value":"{}"}}"#, "v".repeat(LARGE));
    for _ in 0..count {
        assert_eq!(connection.request("POST", "/v1/produce", &message).expect("stored").0, 200);
    }
}

#[test]
fn stream_ends_with_its_client() {
    let broker = TlsBroker::ready(&[]);
    fill(&broker, "t", 0);
    let ends: [fn(&mut Connection); 3] = [
        |connection| {
            let stream = connection.socket();
            stream.conn.send_close_notify();
            stream.conn.write_tls(&mut stream.sock).expect("sent");
        },
        |connection| connection.socket().sock.shutdown(Shutdown::Both).expect("closed"),
        |connection| connection.socket().sock.shutdown(Shutdown::Write).expect("closed"),
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut stream = broker.client().connect().expect("connected");
        consume(&mut stream, "topic=t&group=g&owner=w");
        wait_until("it is connected", || broker.metric("driftq_consumer_streams") == 1.0);
        end(&mut stream);
        wait_until(&format!("it ends: {number}"), || broker.metric("driftq_consumer_streams") == 0.0);
    }
}

#[test]
fn client_that_half_closes_after_its_request_is_answered() {
    let broker = TlsBroker::ready(&["--sync-delay-ms", "300"]);
    fill(&broker, "t", 0);
    let mut connection = broker.client().connect().expect("connected");
    let body = r#"{"topic":"t","value":"v"}"#;
    let head = format!("POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    connection.send(format!("{head}{body}").as_bytes()).expect("sent");
    let stream = connection.socket();
    stream.conn.send_close_notify();
    stream.conn.write_tls(&mut stream.sock).expect("sent");
    let reply = connection.reply("POST").expect("a response");
    assert_eq!(reply.status, 200, "{reply:?}");
    assert_eq!(connection.rest(), "", "and the connection is closed");
}

#[test]
fn large_bodies_and_pipelined_requests_arrive_whole() {
    let broker = TlsBroker::ready(&[]);
    fill(&broker, "t", 20);
    let mut connection = broker.client().connect().expect("connected");
    let request = "GET /v1/peek?topic=t&partition=0&offset=0&limit=20 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    connection.send(request.repeat(3).as_bytes()).expect("sent");
    for _ in 0..3 {
        let reply = connection.reply("GET").expect("a response");
        assert_eq!(reply.json()["messages"].as_array().map(Vec::len), Some(20));
        assert!(reply.body.len() > 20 * LARGE);
    }
}

#[test]
fn client_that_does_not_read_its_answers_is_disconnected() {
    let toml = "[http]\nwrite_timeout_ms = 500\n";
    let broker = TlsBroker::with(Authority::new("root"), toml, &[]);
    broker.wait_until_ready(&broker.client());
    fill(&broker, "t", 40);
    let target = "/v1/peek?topic=t&partition=0&offset=0&limit=40";
    // One that reads slowly, but reads, is not: more than the timeout passes until it has everything.
    let mut reader =
        broker.client().complete_handshake(slow_reader_socket(broker.server.addr).expect("connected")).expect("TLS");
    reader.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).expect("sent");
    let reading = std::thread::spawn(move || {
        let begun = Instant::now();
        let head = reader.head().expect("a head");
        let length: usize = head.header("content-length").expect("a length").parse().expect("a number");
        let mut read = 0;
        while read < length {
            let mut buffer = vec![0; 64 << 10];
            let count = reader.read(&mut buffer).expect("it goes on");
            assert!(count > 0, "it was cut after {read} of {length}");
            read += count;
            std::thread::sleep(Duration::from_millis(10));
        }
        begun.elapsed()
    });
    let mut stalled =
        broker.client().complete_handshake(slow_reader_socket(broker.server.addr).expect("connected")).expect("TLS");
    for _ in 0..4 {
        stalled.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).expect("sent");
    }
    wait_until("it is unsent", || broker.metric("driftq_unsent_bytes") > LARGE as f64);
    wait_until("it is closed", || broker.metric("driftq_slow_readers_closed_total") >= 1.0);
    let took = reading.join().expect("it read everything");
    println!("the slow reader took {took:?}");
    assert_eq!(broker.metric("driftq_slow_readers_closed_total"), 1.0);
    wait_until("nothing is unsent", || broker.metric("driftq_unsent_bytes") == 0.0);
}
