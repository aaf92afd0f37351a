//! Clients that send slowly, send nothing, or half-close their connection.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::harness::{Server, TIMEOUT, wait_until};
use crate::hostile::{HEAD, MESSAGE, VERSION, assert_healthy, gauge};
use crate::requests::ReplyExt;

#[test]
fn slow_and_paused_bodies_time_out() {
    let mut server = Server::configured("[http]\nbody_timeout_ms = 300\n", &["--no-wal"]);
    server.create("t", 1);
    let head = format!("{HEAD}Content-Length: 1000\r\n\r\n");
    let mut paused = server.connect_raw();
    let began = Instant::now();
    paused.send(format!("{head}{{\"topic\"").as_bytes());
    let message = paused.reply("POST").refused(400, "INVALID_ARGUMENT");
    assert!(message.contains("too slowly"), "{message}");
    assert!(began.elapsed() >= Duration::from_millis(250) && began.elapsed() < Duration::from_secs(3));
    assert_eq!(paused.rest(), "", "and the connection is closed");

    // No pause is too long, but the rate is too low.
    let mut trickling = server.connect_raw();
    trickling.send(head.as_bytes());
    let began = Instant::now();
    let mut socket = trickling.socket().try_clone().expect("cloned");
    let sender = std::thread::spawn(move || {
        while began.elapsed() < TIMEOUT && socket.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    trickling.reply("POST").refused(400, "INVALID_ARGUMENT");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(trickling);
    sender.join().expect("ended");

    // A batch may be sent slowly, line by line, but may not pause.
    let mut batch = server.connect_raw();
    let framing = "Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n";
    batch.send(format!("{HEAD}{framing}").as_bytes());
    assert_eq!(batch.head().status, 200);
    for _ in 0..4 {
        batch.send(format!("{MESSAGE}\n").as_bytes());
        assert!(batch.chunk().expect("a line").starts_with("{\"status\":200,"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(batch.chunk().expect("the timeout").starts_with("{\"status\":400,"));
    assert_eq!(batch.chunk(), None);
    assert_healthy(&mut server);
}

#[test]
fn incomplete_heads_and_idle_connections_are_closed() {
    let mut server = Server::configured("[http]\nhead_timeout_ms = 400\n", &["--no-wal"]);
    let began = Instant::now();
    let mut sockets: Vec<(&str, TcpStream)> = Vec::new();
    for (name, sent) in [
        ("silent", ""),
        ("one letter", "G"),
        ("half a preface", "PRI * HTTP/2.0\r\n"),
        ("half a head", "GET /v1/version HTTP/1.1\r\nHost: local"),
        ("half a head after a request", &format!("{VERSION}GET /v1/ver")),
        ("idle after a request", VERSION),
        ("a preface and nothing", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ] {
        let mut socket = TcpStream::connect(server.addr).expect("connected");
        socket.write_all(sent.as_bytes()).expect("sent");
        socket.set_read_timeout(Some(Duration::from_secs(4))).expect("set");
        sockets.push((name, socket));
    }
    let mut trickling = TcpStream::connect(server.addr).expect("connected");
    let trickled = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) && trickling.write_all(b"G").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        began.elapsed()
    });
    for (name, mut socket) in sockets {
        let mut received = Vec::new();
        let ended = socket.read_to_end(&mut received);
        let still_open = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!still_open, "{name}: still open after {:?}", began.elapsed());
        assert!(began.elapsed() >= Duration::from_millis(350), "{name}: closed after {:?}", began.elapsed());
    }
    let trickled = trickled.join().expect("ended");
    assert!(trickled < Duration::from_secs(3), "a head was read for {trickled:?}");
    wait_until("all are closed", || gauge(&server, "driftq_connections") == 1);
    assert_healthy(&mut server);
}

#[test]
fn connection_in_use_is_not_timed_out() {
    const IDLE_MAX: Duration = Duration::from_millis(1_000);
    let server = Server::configured(&format!("[http]\nhead_timeout_ms = {}\n", IDLE_MAX.as_millis()), &["--no-wal"]);
    server.create("t", 1);
    let mut stream = server.consume("topic=t&group=g&owner=w");
    let mut connection = server.connect();
    let (mut began, mut used) = (Instant::now(), Instant::now());
    while began.elapsed() < IDLE_MAX * 3 {
        if used.elapsed() > IDLE_MAX / 2 {
            // The machine is busy: this connection has been idle for so long that the broker may close it.
            connection = server.connect();
            began = Instant::now();
        }
        assert_eq!(connection.call("POST", "/v1/produce", &[], MESSAGE).status, 200);
        used = Instant::now();
        assert!(stream.item().is_some(), "the stream ended after {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The 99th percentile of calls on one connection.
fn p99(server: &Server, calls: usize) -> Duration {
    let mut connection = server.connect();
    let mut times: Vec<Duration> = (0..calls)
        .map(|_| {
            let began = Instant::now();
            assert_eq!(connection.call("POST", "/v1/produce", &[], MESSAGE).status, 200);
            began.elapsed()
        })
        .collect();
    times.sort();
    times[calls * 99 / 100]
}

#[test]
fn thousand_slow_senders_cost_little_and_delay_no_other_client() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let alone = p99(&server, 500).min(p99(&server, 500));
    let before = server.memory_kib();
    let mut senders: Vec<TcpStream> = (0..1_000)
        .map(|number| {
            let mut socket = TcpStream::connect(server.addr).expect("connected");
            let sent = match number % 3 {
                0 => "GET /v1/ver".to_owned(),
                1 => format!("{HEAD}Content-Length: 1000\r\n\r\n{{"),
                _ => format!("{HEAD}Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n{{"),
            };
            socket.write_all(sent.as_bytes()).expect("sent");
            socket
        })
        .collect();
    // Before they send more: some of it is malformed.
    wait_until("all are connected", || gauge(&server, "driftq_connections") >= 1_000);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let trickle = std::thread::spawn(move || {
        let mut sent = 0;
        while stopped.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
            for socket in senders.iter_mut().step_by(10) {
                sent += usize::from(socket.write_all(b" ").is_ok());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        sent
    });
    let among = p99(&server, 500).min(p99(&server, 500));
    let each = server.memory_kib().saturating_sub(before) as f64 / 1_000.0;
    stop.send(()).expect("received");
    let sent = trickle.join().expect("ended");
    println!("p99 alone {alone:?}, among 1,000 slow senders {among:?}; {each:.1} KiB each; {sent} bytes sent slowly");
    assert!(among < alone * 10 + Duration::from_millis(20), "alone {alone:?}, among them {among:?}");
    assert!(each <= 32.0, "{each} KiB each");
    wait_until("all are closed", || gauge(&server, "driftq_connections") == 1);
    assert_healthy(&mut server);
}

#[test]
fn half_closed_connection_gets_response() {
    let mut server = Server::with(&["--sync-delay-ms", "50"]);
    server.create("t", 1);
    let half_closed = |request: String| {
        let mut connection = server.connect_raw();
        connection.send(request.as_bytes());
        connection.socket().shutdown(std::net::Shutdown::Write).expect("closed");
        connection.rest()
    };
    let length = MESSAGE.len();
    let response = half_closed(format!("{HEAD}Content-Length: {length}\r\n\r\n{MESSAGE}"));
    assert!(response.starts_with("HTTP/1.1 200 OK") && response.contains("\"offset\":0"), "{response}");
    let response = half_closed("GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    assert!(response.contains("{\"topics\":[\"t\"]}"), "{response}");
    let line = format!("{MESSAGE}\n");
    let framing = format!("Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n", 2 * line.len());
    let response = half_closed(format!("{HEAD}{framing}{line}{line}"));
    assert_eq!(response.matches("{\"status\":200,").count(), 2, "{response}");
    let response =
        half_closed("GET /v1/consume?topic=no&group=g&owner=w HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    assert!(response.contains("NOT_FOUND"), "{response}");

    // A truncated body is detected at once.
    let began = Instant::now();
    let response = half_closed(format!("{HEAD}Content-Length: 1000\r\n\r\n{MESSAGE}"));
    assert!(response.starts_with("HTTP/1.1 400") && response.contains("ended early"), "{response}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // A stream of a half-closed connection ends.
    let began = Instant::now();
    half_closed("GET /v1/consume?topic=t&group=g&owner=w HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_healthy(&mut server);
}
