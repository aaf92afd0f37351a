//! Malformed and malicious input: it is refused in time and in bounded memory, and no other client is affected.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use driftq_tests::http::slow_reader_socket;

use crate::harness::{Server, TIMEOUT, wait_until};
use crate::requests::ReplyExt;

pub const HEAD: &str = "POST /v1/produce HTTP/1.1\r\nHost: localhost\r\n";
pub const VERSION: &str = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n";
pub const MESSAGE: &str = r#"{"topic":"t","value":"x"}"#;
const CONTENT_TYPE: &str = "content-type: application/json; charset=utf-8\r\n";

/// Sends bytes as given and returns everything until the connection ends, which it must.
#[track_caller]
fn send_until_closed(server: &Server, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.addr).expect("connected");
    socket.set_read_timeout(Some(TIMEOUT)).expect("set");
    let _ = socket.write_all(bytes);
    let mut response = Vec::new();
    if let Err(error) = socket.read_to_end(&mut response) {
        let response = String::from_utf8_lossy(&response);
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection stays open: {response}");
    }
    String::from_utf8_lossy(&response).into_owned()
}

fn statuses(responses: &str) -> Vec<u16> {
    let heads = responses.split("HTTP/1.").skip(1);
    heads.map(|head| head[2..5].parse().unwrap_or_else(|_| panic!("no status: {responses}"))).collect()
}

/// Asserts that the server runs, responds, and has not panicked.
#[track_caller]
pub fn assert_healthy(server: &mut Server) {
    assert!(server.is_running());
    assert_eq!(server.get("/v1/version").status, 200);
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// How many messages were ever produced to a topic.
fn next_offset(server: &Server, topic: &str) -> u64 {
    server.get(&format!("/v1/topics/{topic}")).json()["partitions"][0]["next_offset"].as_u64().expect("a number")
}

/// A metric without labels.
#[track_caller]
pub fn gauge(server: &Server, name: &str) -> u64 {
    server.metric(name).unwrap_or_else(|| panic!("no {name}")) as u64
}

#[test]
fn ambiguous_framing_gets_one_response_and_closes_connection() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let chunked = format!("19\r\n{MESSAGE}\r\n0\r\n\r\n");
    for (headers, body, status) in [
        ("Content-Length: 25\r\nTransfer-Encoding: chunked\r\n", chunked.as_str(), &[200, 400][..]),
        ("Transfer-Encoding: chunked\r\nContent-Length: 25\r\n", &chunked, &[200, 400]),
        ("Transfer-Encoding: chunked\r\n", &chunked, &[200]),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", &chunked, &[200, 400]),
        ("Transfer-Encoding: chunked, identity\r\n", &chunked, &[400]),
        ("Transfer-Encoding: xchunked\r\n", &chunked, &[400]),
        ("Content-Length: 25\r\nContent-Length: 26\r\n", MESSAGE, &[400]),
        ("Content-Length: 25, 25\r\n", MESSAGE, &[400]),
        ("Content-Length: +25\r\n", MESSAGE, &[400]),
        ("Content-Length: -1\r\n", MESSAGE, &[400]),
        ("Content-Length: 99999999999999999999999\r\n", MESSAGE, &[400]),
        ("Content-Length : 25\r\n", MESSAGE, &[400]),
        ("Folded: a\r\n b\r\nContent-Length: 25\r\n", MESSAGE, &[400]),
    ] {
        let response = send_until_closed(&server, format!("{HEAD}{headers}\r\n{body}{VERSION}").as_bytes());
        let statuses = statuses(&response);
        assert!(statuses.len() == 1 && status.contains(&statuses[0]), "{headers:?}: {response}");
        assert!(!response.contains("wal_enabled"), "the second request was served: {headers:?}: {response}");
    }
    assert_healthy(&mut server);
}

#[test]
fn ambiguous_targets_and_hosts_are_refused() {
    let mut server = Server::with(&["--no-wal"]);
    for (head, status) in [
        ("GET /v1/version HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
        ("GET /v1/version HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n", 400),
        ("GET /v1/version HTTP/1.1\r\n", 400),
        ("GET /v1/version HTTP/1.0\r\n", 400),
        ("GET http://localhost/v1/version HTTP/1.1\r\nHost: localhost\r\n", 400),
        ("CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n", 400),
        ("GET /v1/../v1/version HTTP/1.1\r\nHost: localhost\r\n", 400),
        ("GET /v1/%2e%2e/v1/version HTTP/1.1\r\nHost: localhost\r\n", 400),
        ("GET /v1/%ff HTTP/1.1\r\nHost: localhost\r\n", 400),
    ] {
        let response = send_until_closed(&server, format!("{head}\r\n{VERSION}").as_bytes());
        assert_eq!(statuses(&response), [status], "{head:?}: {response}");
        assert!(response.contains(CONTENT_TYPE), "{head:?}: {response}");
        assert!(response.contains("{\"error\":\"INVALID_ARGUMENT\","), "{head:?}: {response}");
    }
    assert_healthy(&mut server);
}

#[test]
fn input_that_is_not_http_is_refused_and_closes_connection() {
    let mut server = Server::with(&["--no-wal"]);
    let preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let unframed = "GET / HTTP/1.1\r\nHost: localhost\r\n";
    for (bytes, status) in [
        (b"GET /v1/version\r\n\r\n".to_vec(), Some(400)),
        (b"GET /v1/version HTTP/1.2\r\nHost: localhost\r\n\r\n".to_vec(), Some(400)),
        (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(), Some(400)),
        (format!("{preface}{}", "garbage".repeat(50)).into_bytes(), None),
        ([preface.as_bytes(), &[0xff; 200]].concat(), None),
        (vec![0; 1_000], Some(400)),
        ([&[0x16, 3, 1, 0, 0xa5, 1, 0, 0, 0xa1][..], &[0; 100]].concat(), Some(400)),
        (format!("{unframed}X: a\0b\r\n\r\n").into_bytes(), Some(400)),
        (b"GET /v1/ver\0sion HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), Some(400)),
        (b"GET /v1/peek?topic=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(), Some(400)),
    ] {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
        let response = send_until_closed(&server, &bytes);
        if let Some(status) = status {
            assert_eq!(statuses(&response), [status], "{shown:?}: {response}");
        }
        assert!(!response.contains("wal_enabled"), "{shown:?}: {response}");
    }
    let valid = server.connect().call("GET", "/v1/version", &[("Host", "localhost")], "");
    assert_eq!(valid.status, 200);
    let bare = send_until_closed(&server, b"GET /v1/version HTTP/1.1\nHost: localhost\nConnection: close\n\n");
    assert_eq!(statuses(&bare), [200], "bare line feeds are tolerated: {bare}");
    assert_healthy(&mut server);
}

#[test]
fn heads_over_limits_are_refused() {
    let mut server = Server::with(&["--no-wal"]);
    let head = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n";
    let long = format!("{head}X: {}\r\n\r\n", "a".repeat(500_000));
    assert_eq!(statuses(&send_until_closed(&server, long.as_bytes())), [431]);
    let many = format!("{head}{}\r\n", "a: b\r\n".repeat(5_000));
    assert_eq!(statuses(&send_until_closed(&server, many.as_bytes())), [431]);
    let target = |len: usize| format!("GET /v1/version?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(len));
    assert_eq!(statuses(&send_until_closed(&server, target(70_000).as_bytes())), [431]);
    let mut large_heads = Server::configured("[http]\nhead_bytes_max = 1048576\n", &["--no-wal"]);
    assert_eq!(statuses(&send_until_closed(&large_heads, target(70_000).as_bytes())), [414]);
    assert_healthy(&mut server);
    assert_healthy(&mut large_heads);
}

#[test]
fn invalid_bodies_are_refused_and_connection_continues() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect_raw();
    let nested = |open: &str, close: &str, depth: usize| format!("{}1{}", open.repeat(depth), close.repeat(depth));
    let mut bodies = vec![
        b"{\"topic\":\"t\",\"value\":\"\xff\"}".to_vec(),
        b"{\"topic\":\"t\",\"value\":\"\0\"}".to_vec(),
        b"{\"topic\":\"t\",\"value\":\"\\ud800\"}".to_vec(),
        b"\xef\xbb\xbf{\"topic\":\"t\",\"value\":\"x\"}".to_vec(),
        b"{\"topic\":\"t\",\"value\":\"x\"} {}".to_vec(),
        vec![0; 10_000],
    ];
    for depth in [127, 128, 129, 100_000] {
        bodies.push(nested("[", "]", depth).into_bytes());
        bodies.push(nested("{\"a\":", "}", depth).into_bytes());
        bodies.push(format!("{{\"topic\":\"t\",\"value\":{}}}", nested("[", "]", depth)).into_bytes());
        bodies.push(
            format!("{{\"topic\":\"t\",\"value\":\"x\",\"envelope\":{}}}", nested("{\"retry_policy\":", "}", depth))
                .into(),
        );
    }
    for body in &bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        connection.send(format!("{HEAD}Content-Length: {}\r\n\r\n", body.len()).as_bytes());
        connection.send(body);
        let reply = connection.reply("POST");
        assert_eq!(
            (reply.status, reply.json()["error"].as_str()),
            (400, Some("INVALID_ARGUMENT")),
            "{shown}: {reply:?}"
        );
    }
    connection.call("GET", "/v1/peek?topic=%ff", &[], "").refused(400, "INVALID_ARGUMENT");
    // As lines of a batch they are refused individually, and the valid one is accepted.
    let lines: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).chain([MESSAGE.as_bytes()]).collect();
    let batch = lines.join(&b'\n');
    let kind = "Content-Type: application/x-ndjson\r\n";
    connection.send(format!("{HEAD}{kind}Content-Length: {}\r\n\r\n", batch.len()).as_bytes());
    connection.send(&batch);
    let reply = connection.reply("POST");
    let responses: Vec<&str> = reply.body.lines().collect();
    assert_eq!(responses.len(), lines.len(), "{responses:?}");
    assert!(
        responses[..bodies.len()].iter().all(|line| line.starts_with("{\"status\":400,\"error\":")),
        "{responses:?}"
    );
    assert!(responses[bodies.len()].starts_with("{\"status\":200,"), "{responses:?}");
    assert_eq!(next_offset(&server, "t"), 1, "nothing else was accepted");
    assert_healthy(&mut server);
}

#[test]
fn malformed_chunks_and_truncated_bodies_produce_nothing() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    for body in [
        "zz\r\n\r\n".to_owned(),
        "ffffffffffffffffff\r\n\r\n".to_owned(),
        format!("-19\r\n{MESSAGE}\r\n0\r\n\r\n"),
        format!("19;{}\r\n{MESSAGE}\r\n0\r\n\r\n", "a".repeat(100_000)),
        format!("18\r\n{MESSAGE}\r\n0\r\n\r\n"),
    ] {
        let response =
            send_until_closed(&server, format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{body}{VERSION}").as_bytes());
        assert_eq!(statuses(&response), [400], "{}: {response}", &body[..20.min(body.len())]);
    }
    for framing in ["Content-Length: 26\r\n\r\n".to_owned(), "Transfer-Encoding: chunked\r\n\r\n19\r\n".to_owned()] {
        let mut socket = TcpStream::connect(server.addr).expect("connected");
        socket.write_all(format!("{HEAD}{framing}{MESSAGE}").as_bytes()).expect("sent");
        socket.shutdown(Shutdown::Write).expect("shut");
        socket.set_read_timeout(Some(TIMEOUT)).expect("set");
        let mut response = String::new();
        let _ = socket.read_to_string(&mut response);
        assert!(!response.contains(" 200 "), "{response}");
    }
    wait_until("the connections are closed", || gauge(&server, "driftq_connections") == 1);
    assert_eq!(next_offset(&server, "t"), 0);
    assert_healthy(&mut server);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect_raw();
    let requests: String = (0..300)
        .map(|number| format!("{HEAD}X-Request-Id: r{number}\r\nContent-Length: 25\r\n\r\n{MESSAGE}"))
        .collect();
    connection.send(requests.as_bytes());
    for number in 0..300 {
        let reply = connection.reply("POST");
        assert_eq!(reply.header("x-request-id"), Some(format!("r{number}").as_str()));
        assert_eq!((reply.status, &reply.json()["offset"]), (200, &number.into()));
    }
}

#[test]
fn cross_site_requests_and_foreign_hosts_are_refused() {
    let mut server = Server::with(&["--no-wal"]);
    let own = server.addr.to_string();
    let get = |headers: &[(&str, &str)]| server.call("GET", "/v1/version", headers, "");
    for headers in [
        [("Origin", "http://evil.example")],
        [("Origin", "null")],
        [("Origin", "http://localhost:1")],
        [("Sec-Fetch-Site", "cross-site")],
        [("Sec-Fetch-Site", "same-site")],
        [("Host", "evil.example")],
        [("Host", "localhost.evil.example")],
        [("Host", "192.0.2.1:8080")],
        [("Host", "")],
        [("Host", "[127.0.0.1]evil.com")],
        [("Host", "localhost:80@evil")],
        [("Host", "user@localhost")],
        [("Host", "localhost.")],
        [("Host", "local%68ost")],
        [("Host", "localhost:x")],
        [("Host", "evil.com")],
        [("Referer", "http://evil.example/page")],
        [("Referer", "http://localhost:1/")],
        [("Referer", "nonsense")],
    ] {
        get(&headers).refused(403, "PERMISSION_DENIED");
    }
    for path in ["/v1/produce", "/v1/topics", "/v1/ack", "/nowhere"] {
        server.call("POST", path, &[("Origin", "http://evil.example")], MESSAGE).refused(403, "PERMISSION_DENIED");
        server.call("POST", path, &[("Referer", "http://evil.example/")], MESSAGE).refused(403, "PERMISSION_DENIED");
        server.call("POST", path, &[("Host", "evil.example")], MESSAGE).refused(403, "PERMISSION_DENIED");
    }
    let (same, page) = (format!("http://{own}"), format!("http://{own}/ui/?q"));
    for headers in [
        &[("Origin", same.as_str())][..],
        &[("Sec-Fetch-Site", "same-origin")],
        &[("Sec-Fetch-Site", "none")],
        &[("Host", "LOCALHOST:1")],
        &[("Host", "[::1]:80")],
        &[("Referer", page.as_str())],
        &[("Origin", same.as_str()), ("Referer", page.as_str())],
        &[("Referer", "")],
        &[("Host", "driftqd:8080")],
        &[("Host", "broker.internal")],
        &[("Host", "nas.local")],
        &[("Host", "driftqd.queues.svc")],
        &[("Host", "driftqd.queues.svc.cluster.local:8080")],
    ] {
        assert_eq!(get(headers).status, 200, "{headers:?}");
    }
    // Every request of a connection is checked.
    let mut connection = server.connect();
    assert_eq!(connection.call("GET", "/v1/version", &[("Host", "localhost")], "").status, 200);
    connection.call("GET", "/v1/version", &[("Host", "evil.example")], "").refused(403, "PERMISSION_DENIED");
    assert_healthy(&mut server);

    let named = Server::with(&["--no-wal", "--allowed-host", "queue.example"]);
    let get_from = |host: &str| named.call("GET", "/v1/version", &[("Host", host)], "");
    assert_eq!(get_from("Queue.Example:8080").status, 200);
    get_from("evil.example").refused(403, "PERMISSION_DENIED");
    let any_host = Server::with(&["--no-wal", "--allowed-host", "*"]);
    assert_eq!(any_host.call("GET", "/v1/version", &[("Host", "whatever.example")], "").status, 200);
    any_host.call("GET", "/v1/version", &[("Origin", "http://evil.example")], "").refused(403, "PERMISSION_DENIED");
}

#[test]
fn methods_upgrades_and_expectations_get_plain_responses() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect_raw();
    for method in ["CONNECT", "TRACE", "OPTIONS", "PATCH", "BREW", "get"] {
        let reply = connection.call(method, "/v1/version", &[], "");
        reply.refused(405, "METHOD_NOT_ALLOWED");
        assert_eq!(reply.header("allow"), Some("GET"));
    }
    connection.call("OPTIONS", "*", &[], "").refused(404, "NOT_FOUND");
    for upgrade in ["websocket", "h2c"] {
        let headers = [("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", upgrade), ("HTTP2-Settings", "AAMAAABk")];
        assert_eq!(connection.call("GET", "/v1/version", &headers, "").status, 200, "an upgrade is ignored");
    }
    connection.send(format!("{HEAD}Expect: 100-continue\r\nContent-Length: 25\r\n\r\n").as_bytes());
    assert_eq!(connection.head().status, 100);
    connection.send(MESSAGE.as_bytes());
    assert_eq!(connection.reply("POST").status, 200);
    connection.send(format!("{HEAD}Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n").as_bytes());
    connection.reply("POST").refused(413, "PAYLOAD_TOO_LARGE");
    assert_eq!(connection.rest(), "", "the body is not awaited");
    assert_healthy(&mut server);
}

#[test]
fn too_large_body_is_refused_in_any_framing_in_bounded_memory() {
    let mut server = Server::configured("[http]\nbody_bytes_max = 4096\n", &["--no-wal"]);
    server.create("t", 1);
    let before = server.memory_kib();
    for sent in [0, 1, 4_096, 100_000] {
        let mut connection = server.connect_raw();
        connection.send(format!("{HEAD}Content-Length: 100000\r\n\r\n{}", "a".repeat(sent)).as_bytes());
        connection.reply("POST").refused(413, "PAYLOAD_TOO_LARGE");
    }
    let chunk = format!("400\r\n{}\r\n", "a".repeat(0x400));
    let response =
        send_until_closed(&server, format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(5)).as_bytes());
    assert_eq!(statuses(&response), [413], "{response}");
    // A line of a batch that is too long is skipped, whatever its length, and the next one is accepted.
    let mut batch = server.connect_raw();
    let framing = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
    batch.send(format!("{HEAD}{framing}").as_bytes());
    for _ in 0..200 {
        batch.send(format!("10000\r\n{}\r\n", "a".repeat(0x1_0000)).as_bytes());
    }
    batch.send(format!("1b\r\n\n{MESSAGE}\n\r\n0\r\n\r\n").as_bytes());
    let reply = batch.reply("POST");
    let responses: Vec<&str> = reply.body.lines().collect();
    assert!(responses[0].starts_with("{\"status\":413,\"error\":\"PAYLOAD_TOO_LARGE\""), "{responses:?}");
    assert!(responses.len() == 2 && responses[1].starts_with("{\"status\":200,"), "{responses:?}");
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB for 13 MB that were skipped");
    assert_healthy(&mut server);
}

#[test]
fn connections_over_limit_are_refused_and_others_continue() {
    let mut server = Server::configured("[http]\nconnections_max = 8\n", &["--no-wal"]);
    wait_until("the first is closed", || gauge(&server, "driftq_connections") == 1);
    // All at once, so that many are accepted before the first one is served.
    let sockets: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.addr).expect("connected")).collect();
    let mut served = Vec::new();
    let mut refused = 0;
    for mut socket in sockets {
        socket.set_read_timeout(Some(TIMEOUT)).expect("set");
        let _ = socket.write_all(VERSION.as_bytes());
        let mut head = [0; 12];
        match socket.read_exact(&mut head) {
            Ok(()) if &head == b"HTTP/1.1 200" => {
                let mut rest = Vec::new();
                while !rest.ends_with(b"}") {
                    let mut byte = [0];
                    socket.read_exact(&mut byte).expect("the rest of the response");
                    rest.push(byte[0]);
                }
                served.push(socket);
            }
            Ok(()) => {
                let mut rest = String::new();
                let _ = socket.read_to_string(&mut rest);
                assert_eq!(&head, b"HTTP/1.1 503", "{rest}");
                assert!(rest.contains(CONTENT_TYPE) && rest.contains("retry-after: 1\r\n"), "{rest}");
                let (_, body) = rest.split_once("\r\n\r\n").expect("a body");
                assert_eq!(body, "{\"error\":\"UNAVAILABLE\",\"message\":\"too many open connections\"}");
                assert!(rest.contains(&format!("content-length: {}\r\n", body.len())), "{rest}");
                refused += 1;
            }
            Err(_) => {}
        }
    }
    assert!((1..=8).contains(&served.len()), "{} were served", served.len());
    assert!(refused > 0, "no connection got 503");
    for socket in &mut served {
        socket.write_all(VERSION.as_bytes()).expect("sent");
        let mut head = [0; 12];
        socket.read_exact(&mut head).expect("a response");
        assert_eq!(&head, b"HTTP/1.1 200", "served connections continue");
    }
    drop(served);
    wait_until("connections are accepted again", || {
        let mut socket = TcpStream::connect(server.addr).expect("connected");
        let mut head = [0; 12];
        socket.write_all(VERSION.as_bytes()).and_then(|()| socket.read_exact(&mut head)).is_ok()
            && &head == b"HTTP/1.1 200"
    });
    assert_healthy(&mut server);
}

#[test]
fn thousands_of_aborted_requests_leave_no_memory() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let upload = [format!("{HEAD}Content-Length: 1000000\r\n\r\n").as_bytes(), &[b'a'; 30_000]].concat();
    let lines = format!("{MESSAGE}\n").repeat(20);
    let batch = format!("{HEAD}Content-Type: application/x-ndjson\r\nContent-Length: 1000000\r\n\r\n{lines}{{\"to");
    let stream = "GET /v1/consume?topic=t&group=g&owner=w HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    let request = format!("{HEAD}Content-Length: 25\r\n\r\n{MESSAGE}");
    let peek = "GET /v1/peek?topic=t&limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    for (name, bytes) in [
        ("uploads", upload),
        ("batches", batch.into_bytes()),
        ("streams", stream.into_bytes()),
        ("requests", request.into_bytes()),
        ("responses", peek.into_bytes()),
    ] {
        let round = |times: usize| {
            for number in 0..times {
                let mut socket = slow_reader_socket(server.addr).expect("connected");
                socket.write_all(&bytes).expect("sent");
                if number % 8 == 0 {
                    // Some are aborted while the response is being read.
                    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
                    let _ = socket.read(&mut [0; 10]);
                }
            }
            // Accepted messages are not measured here.
            assert_eq!(server.delete("/v1/topics/t").status, 204);
            server.create("t", 1);
            wait_until("all are closed", || {
                gauge(&server, "driftq_connections") == 1 && gauge(&server, "driftq_consumer_streams") == 0
            });
        };
        round(1_000);
        let before = server.memory_kib();
        round(1_000);
        let grown = server.memory_kib().saturating_sub(before);
        println!("1,000 more {name} aborted: {grown} KiB more");
        assert!(grown < 6 << 10, "{grown} KiB more for 1,000 aborted {name}");
    }
    assert_eq!(gauge(&server, "driftq_awaited_replies"), 0);
    assert_healthy(&mut server);
}
