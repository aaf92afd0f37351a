//! Clients without a valid key: nothing of their bodies is read, and their failures are bounded and counted.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use serde_json::json;

use super::support::Keyed;
use crate::harness::{Server, wait_until};

#[test]
fn body_of_an_unknown_client_is_not_waited_for() {
    let broker = Keyed::start();
    let wrong = format!("Authorization: Bearer {}\r\n", broker.admin.with_other_secret());
    for header in ["", wrong.as_str()] {
        for kind in ["application/json", "application/x-ndjson"] {
            for length in ["Content-Length: 1000000", "Transfer-Encoding: chunked"] {
                let mut connection = broker.server.connect_raw();
                let head = format!(
                    "POST /v1/produce HTTP/1.1\r\nHost: localhost\r\n{header}Content-Type: {kind}\r\n{length}\r\n\
                     Expect: 100-continue\r\n\r\n"
                );
                connection.send(head.as_bytes());
                // A `100 Continue` would come first.
                let reply = connection.reply("POST");
                assert_eq!((reply.status, reply.header("connection")), (401, Some("close")), "{head}: {reply:?}");
            }
        }
    }
    let metrics = broker.call_as(&broker.admin.text, "GET", "/metrics", "").body;
    assert!(metrics.contains("driftq_body_bytes 0\n"), "{metrics}");
}

#[test]
fn answer_reaches_a_client_that_sends_its_whole_body_first() {
    let broker = Keyed::start();
    let mut socket = std::net::TcpStream::connect(broker.server.addr).expect("connected");
    socket.set_read_timeout(Some(Duration::from_secs(10))).expect("set");
    let body = vec![b' '; 200 << 10];
    let head = format!("POST /v1/produce HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&body)).expect("sent");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("a whole answer");
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
}

#[test]
fn address_that_fails_too_often_gets_429_but_valid_keys_pass() {
    let broker = Keyed::on(Server::start());
    let wrong = broker.admin.with_other_secret();
    let statuses: Vec<_> = (0..60).map(|_| broker.call_as(&wrong, "GET", "/v1/topics", "").status).collect();
    assert_eq!((statuses[0], statuses[20]), (401, 401), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    let mut throttled = broker.call_as(&wrong, "GET", "/v1/topics", "");
    wait_until("one more is refused", || {
        throttled = broker.server.get("/v1/topics");
        throttled.status == 429
    });
    assert_eq!(throttled.json()["reason"], "authentication");
    assert!(throttled.header("retry-after").is_some(), "{throttled:?}");
    assert_eq!(broker.call_as(&broker.admin.text, "GET", "/v1/topics", "").status, 200);
    assert_eq!(broker.server.get("/v1/healthz").status, 200);
    let metrics = broker.call_as(&broker.admin.text, "GET", "/metrics", "").body;
    let value = |series: &str| -> f64 {
        let found = metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        found.unwrap_or_else(|| panic!("{series}: {metrics}"))
    };
    assert!(value("driftq_authentications_failed_total{reason=\"wrong_secret\"}") >= 60.0);
    assert!(value("driftq_authentications_failed_total{reason=\"missing\"}") >= 1.0);
    assert!(value("driftq_authentications_throttled_total") >= 1.0);
    wait_until("it may fail again", || broker.call_as(&wrong, "GET", "/v1/topics", "").status == 401);
}

#[test]
fn failures_are_bounded_as_set() {
    let broker = Keyed::on(Server::configured("[auth]\nfailures_max = 2\n", &[]));
    let statuses: Vec<_> = (0..3).map(|_| broker.server.get("/v1/topics").status).collect();
    assert_eq!(statuses[..2], [401, 401]);
    let config = broker.admin("GET", "/v1/config", &serde_json::Value::Null).json();
    assert_eq!(config["auth"], json!({ "failures_max": 2 }));
}
