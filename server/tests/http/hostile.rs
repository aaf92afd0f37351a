//! What nobody should send: it is refused, in time and in bounds, and whoever else is there notices nothing.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use crate::rig::{SOON, Server, abrupt, until};

pub const HEAD: &str = "POST /v1/produce HTTP/1.1\r\nHost: localhost\r\n";
pub const VERSION: &str = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n\r\n";
pub const MESSAGE: &str = r#"{"topic":"t","value":"x"}"#;
const SHAPE: &str = "content-type: application/json; charset=utf-8\r\n";

/// Bytes as they are, as many as are taken, and what comes back until the connection ends. It must end.
#[track_caller]
fn throw(server: &Server, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(server.addr).expect("connected");
    socket.set_read_timeout(Some(SOON)).expect("set");
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = socket.read_to_end(&mut answer) {
        let answer = String::from_utf8_lossy(&answer);
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "the connection stays open: {answer}");
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn statuses(answer: &str) -> Vec<u16> {
    let heads = answer.split("HTTP/1.").skip(1);
    heads.map(|head| head[2..5].parse().unwrap_or_else(|_| panic!("no status: {answer}"))).collect()
}

/// It runs, answers, and nothing in it has panicked.
#[track_caller]
pub fn unharmed(server: &mut Server) {
    assert!(server.is_running());
    assert_eq!(server.get("/v1/version").status, 200);
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// How many messages a topic has ever had.
fn next_offset(server: &Server, topic: &str) -> u64 {
    server.get(&format!("/v1/topics/{topic}")).json()["partitions"][0]["next_offset"].as_u64().expect("a number")
}

/// A figure of `/metrics`.
pub fn figure(server: &Server, name: &str) -> u64 {
    let figures = server.get("/metrics").body;
    let line = figures.lines().find(|line| line.split([' ', '{']).next() == Some(name));
    let value = line.and_then(|line| line.rsplit(' ').next()).unwrap_or_else(|| panic!("no {name} in {figures}"));
    value.parse::<f64>().expect("a number") as u64
}

#[test]
fn what_two_readers_might_frame_differently_is_answered_once_and_the_connection_ends() {
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
        let answer = throw(&server, format!("{HEAD}{headers}\r\n{body}{VERSION}").as_bytes());
        let answered = statuses(&answer);
        assert!(answered.len() == 1 && status.contains(&answered[0]), "{headers:?}: {answer}");
        assert!(!answer.contains("wal_enabled"), "the second request was answered: {headers:?}: {answer}");
    }
    unharmed(&mut server);
}

#[test]
fn targets_and_hosts_that_could_mean_two_things_are_refused_by_us() {
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
        ("GET /v1/topics/..%2fversion HTTP/1.1\r\nHost: localhost\r\n", 400),
        ("GET /v1/%ff HTTP/1.1\r\nHost: localhost\r\n", 400),
    ] {
        let answer = throw(&server, format!("{head}\r\n{VERSION}").as_bytes());
        assert_eq!(statuses(&answer), [status], "{head:?}: {answer}");
        assert!(answer.contains(SHAPE) && answer.contains("{\"error\":\"INVALID_ARGUMENT\","), "{head:?}: {answer}");
    }
    unharmed(&mut server);
}

#[test]
fn bytes_that_are_no_http_are_refused_and_the_connection_ends() {
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
        let answer = throw(&server, &bytes);
        if let Some(status) = status {
            assert_eq!(statuses(&answer), [status], "{shown:?}: {answer}");
        }
        assert!(!answer.contains("wal_enabled"), "{shown:?}: {answer}");
    }
    let lenient = server.connect().call("GET", "/v1/version", &[("Host", "localhost")], "");
    assert_eq!(lenient.status, 200);
    let bare = throw(&server, b"GET /v1/version HTTP/1.1\nHost: localhost\nConnection: close\n\n");
    assert_eq!(statuses(&bare), [200], "bare line feeds are borne: {bare}");
    unharmed(&mut server);
}

#[test]
fn heads_beyond_the_limits_are_refused_by_name() {
    let mut server = Server::with(&["--no-wal"]);
    let head = "GET /v1/version HTTP/1.1\r\nHost: localhost\r\n";
    let long = format!("{head}X: {}\r\n\r\n", "a".repeat(500_000));
    assert_eq!(statuses(&throw(&server, long.as_bytes())), [431]);
    let many = format!("{head}{}\r\n", "a: b\r\n".repeat(5_000));
    assert_eq!(statuses(&throw(&server, many.as_bytes())), [431]);
    let target = |len: usize| format!("GET /v1/version?{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(len));
    assert_eq!(statuses(&throw(&server, target(70_000).as_bytes())), [431]);
    let mut roomy = Server::configured("[http]\nhead_bytes_max = 1048576\n", &["--no-wal"]);
    assert_eq!(statuses(&throw(&roomy, target(70_000).as_bytes())), [414]);
    unharmed(&mut server);
    unharmed(&mut roomy);
}

#[test]
fn bodies_that_make_no_sense_are_refused_and_the_connection_goes_on() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect();
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
    // As lines of a batch each stands alone, and the good one among them is taken.
    let lines: Vec<&[u8]> = bodies.iter().map(Vec::as_slice).chain([MESSAGE.as_bytes()]).collect();
    let batch = lines.join(&b'\n');
    let kind = "Content-Type: application/x-ndjson\r\n";
    connection.send(format!("{HEAD}{kind}Content-Length: {}\r\n\r\n", batch.len()).as_bytes());
    connection.send(&batch);
    let reply = connection.reply("POST");
    let answers: Vec<&str> = reply.body.lines().collect();
    assert_eq!(answers.len(), lines.len(), "{answers:?}");
    assert!(answers[..bodies.len()].iter().all(|line| line.starts_with("{\"status\":400,\"error\":")), "{answers:?}");
    assert!(answers[bodies.len()].starts_with("{\"status\":200,"), "{answers:?}");
    assert_eq!(next_offset(&server, "t"), 1, "nothing else was taken");
    unharmed(&mut server);
}

#[test]
fn broken_chunks_and_cut_bodies_produce_nothing() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    for body in [
        "zz\r\n\r\n".to_owned(),
        "ffffffffffffffffff\r\n\r\n".to_owned(),
        format!("-19\r\n{MESSAGE}\r\n0\r\n\r\n"),
        format!("19;{}\r\n{MESSAGE}\r\n0\r\n\r\n", "a".repeat(100_000)),
        format!("18\r\n{MESSAGE}\r\n0\r\n\r\n"),
    ] {
        let answer = throw(&server, format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{body}{VERSION}").as_bytes());
        assert_eq!(statuses(&answer), [400], "{}: {answer}", &body[..20.min(body.len())]);
    }
    for framing in ["Content-Length: 26\r\n\r\n".to_owned(), "Transfer-Encoding: chunked\r\n\r\n19\r\n".to_owned()] {
        let mut socket = TcpStream::connect(server.addr).expect("connected");
        socket.write_all(format!("{HEAD}{framing}{MESSAGE}").as_bytes()).expect("sent");
        socket.shutdown(Shutdown::Write).expect("shut");
        socket.set_read_timeout(Some(SOON)).expect("set");
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        assert!(!answer.contains(" 200 "), "{answer}");
    }
    until("the connections are gone", || figure(&server, "connections") == 1);
    assert_eq!(next_offset(&server, "t"), 0);
    unharmed(&mut server);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect();
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
fn pages_of_other_sites_and_foreign_hosts_are_refused() {
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
    ] {
        get(&headers).refused(403, "PERMISSION_DENIED");
    }
    for path in ["/v1/produce", "/v1/topics", "/v1/ack", "/nowhere"] {
        server.call("POST", path, &[("Origin", "http://evil.example")], MESSAGE).refused(403, "PERMISSION_DENIED");
        server.call("POST", path, &[("Host", "evil.example")], MESSAGE).refused(403, "PERMISSION_DENIED");
    }
    let same = format!("http://{own}");
    for headers in [
        &[("Origin", same.as_str())][..],
        &[("Sec-Fetch-Site", "same-origin")],
        &[("Sec-Fetch-Site", "none")],
        &[("Host", "LOCALHOST:1")],
        &[("Host", "[::1]:80")],
    ] {
        assert_eq!(get(headers).status, 200, "{headers:?}");
    }
    // One that was let in does not open the door for the next.
    let mut connection = server.connect();
    assert_eq!(connection.call("GET", "/v1/version", &[("Host", "localhost")], "").status, 200);
    connection.call("GET", "/v1/version", &[("Host", "evil.example")], "").refused(403, "PERMISSION_DENIED");
    unharmed(&mut server);

    let named = Server::with(&["--no-wal", "--allowed-host", "queue.example"]);
    let ask = |host: &str| named.call("GET", "/v1/version", &[("Host", host)], "");
    assert_eq!(ask("Queue.Example:8080").status, 200);
    ask("evil.example").refused(403, "PERMISSION_DENIED");
    let any = Server::with(&["--no-wal", "--allowed-host", "*"]);
    assert_eq!(any.call("GET", "/v1/version", &[("Host", "whatever.example")], "").status, 200);
    any.call("GET", "/v1/version", &[("Origin", "http://evil.example")], "").refused(403, "PERMISSION_DENIED");
}

#[test]
fn methods_upgrades_and_expectations_get_plain_answers() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let mut connection = server.connect();
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
    assert_eq!(connection.rest(), "", "the body is not waited for");
    unharmed(&mut server);
}

#[test]
fn a_body_too_large_is_refused_before_it_is_read_and_however_it_is_framed() {
    let mut server = Server::configured("[http]\nbody_bytes_max = 4096\n", &["--no-wal"]);
    server.create("t", 1);
    let before = server.memory_kib();
    for sent in [0, 1, 4_096, 100_000] {
        let mut connection = server.connect();
        connection.send(format!("{HEAD}Content-Length: 100000\r\n\r\n{}", "a".repeat(sent)).as_bytes());
        connection.reply("POST").refused(413, "PAYLOAD_TOO_LARGE");
    }
    let chunk = format!("400\r\n{}\r\n", "a".repeat(0x400));
    let answer = throw(&server, format!("{HEAD}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(5)).as_bytes());
    assert_eq!(statuses(&answer), [413], "{answer}");
    // A line of a batch that is too long is skipped, whatever its length, and the next one stands.
    let mut batch = server.connect();
    let framing = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n";
    batch.send(format!("{HEAD}{framing}").as_bytes());
    for _ in 0..200 {
        batch.send(format!("10000\r\n{}\r\n", "a".repeat(0x1_0000)).as_bytes());
    }
    batch.send(format!("1b\r\n\n{MESSAGE}\n\r\n0\r\n\r\n").as_bytes());
    let reply = batch.reply("POST");
    let answers: Vec<&str> = reply.body.lines().collect();
    assert!(answers[0].starts_with("{\"status\":413,\"error\":\"PAYLOAD_TOO_LARGE\""), "{answers:?}");
    assert!(answers.len() == 2 && answers[1].starts_with("{\"status\":200,"), "{answers:?}");
    let grown = server.memory_kib().saturating_sub(before);
    assert!(grown < 8 << 10, "{grown} KiB for 13 MB that were skipped");
    unharmed(&mut server);
}

#[test]
fn connections_beyond_the_limit_are_turned_away_and_the_others_live_on() {
    let mut server = Server::configured("[http]\nconnections_max = 8\n", &["--no-wal"]);
    until("the first is forgotten", || figure(&server, "connections") == 1);
    // All at once, so that many are accepted before the first is served.
    let sockets: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(server.addr).expect("connected")).collect();
    let mut served = Vec::new();
    let mut told = 0;
    for mut socket in sockets {
        socket.set_read_timeout(Some(SOON)).expect("set");
        let _ = socket.write_all(VERSION.as_bytes());
        let mut head = [0; 12];
        match socket.read_exact(&mut head) {
            Ok(()) if &head == b"HTTP/1.1 200" => {
                let mut rest = Vec::new();
                while !rest.ends_with(b"}") {
                    let mut byte = [0];
                    socket.read_exact(&mut byte).expect("the rest of the answer");
                    rest.push(byte[0]);
                }
                served.push(server.over(socket));
            }
            Ok(()) => {
                let mut rest = String::new();
                let _ = socket.read_to_string(&mut rest);
                assert_eq!(&head, b"HTTP/1.1 503", "{rest}");
                assert!(rest.contains(SHAPE) && rest.contains("retry-after: 1\r\n"), "{rest}");
                let (_, body) = rest.split_once("\r\n\r\n").expect("a body");
                assert_eq!(body, "{\"error\":\"UNAVAILABLE\",\"message\":\"too many open connections\"}");
                assert!(rest.contains(&format!("content-length: {}\r\n", body.len())), "{rest}");
                told += 1;
            }
            Err(_) => {}
        }
    }
    assert!((1..=8).contains(&served.len()), "{} were served", served.len());
    assert!(told > 0, "nobody was told");
    for connection in &mut served {
        assert_eq!(connection.call("GET", "/v1/version", &[], "").status, 200, "those inside live on");
    }
    drop(served);
    until("there is room again", || {
        let mut socket = TcpStream::connect(server.addr).expect("connected");
        let mut head = [0; 12];
        socket.write_all(VERSION.as_bytes()).and_then(|()| socket.read_exact(&mut head)).is_ok()
            && &head == b"HTTP/1.1 200"
    });
    unharmed(&mut server);
}

#[test]
fn work_that_is_broken_off_thousands_of_times_leaves_nothing_behind() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let upload = [format!("{HEAD}Content-Length: 1000000\r\n\r\n").as_bytes(), &[b'a'; 30_000]].concat();
    let lines = format!("{MESSAGE}\n").repeat(20);
    let batch = format!("{HEAD}Content-Type: application/x-ndjson\r\nContent-Length: 1000000\r\n\r\n{lines}{{\"to");
    let stream = "GET /v1/consume?topic=t&group=g&owner=w HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    let ask = format!("{HEAD}Content-Length: 25\r\n\r\n{MESSAGE}");
    let peek = "GET /v1/peek?topic=t&limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned();
    for (name, bytes) in [
        ("uploads", upload),
        ("batches", batch.into_bytes()),
        ("streams", stream.into_bytes()),
        ("requests", ask.into_bytes()),
        ("answers", peek.into_bytes()),
    ] {
        let round = |times: usize| {
            for number in 0..times {
                let mut socket = abrupt(server.addr);
                socket.write_all(&bytes).expect("sent");
                if number % 2 == 0 {
                    // Some are broken off while the answer is being read.
                    socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
                    let _ = socket.read(&mut [0; 10]);
                }
            }
            // What was taken stays, and is not what is looked for here.
            assert_eq!(server.delete("/v1/topics/t").status, 204);
            server.create("t", 1);
            until("all are gone", || figure(&server, "connections") == 1 && figure(&server, "consumer_streams") == 0);
        };
        round(1_000);
        let before = server.memory_kib();
        round(1_000);
        let grown = server.memory_kib().saturating_sub(before);
        println!("1,000 more {name} broken off: {grown} KiB more");
        assert!(grown < 6 << 10, "{grown} KiB more for 1,000 {name} broken off");
    }
    assert_eq!(figure(&server, "awaited_replies"), 0);
    unharmed(&mut server);
}
