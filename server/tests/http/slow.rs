//! Senders that take their time, say nothing, or close their side when they have said all.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::hostile::{HEAD, MESSAGE, VERSION, figure, unharmed};
use crate::rig::{SOON, Server, until};

#[test]
fn bodies_that_trickle_or_pause_are_given_up() {
    let mut server = Server::configured("[http]\nbody_timeout_ms = 300\n", &["--no-wal"]);
    server.create("t", 1);
    let head = format!("{HEAD}Content-Length: 1000\r\n\r\n");
    let mut paused = server.connect();
    let began = Instant::now();
    paused.send(format!("{head}{{\"topic\"").as_bytes());
    let message = paused.reply("POST").refused(400, "INVALID_ARGUMENT");
    assert!(message.contains("too slowly"), "{message}");
    assert!(began.elapsed() >= Duration::from_millis(250) && began.elapsed() < Duration::from_secs(3));
    assert_eq!(paused.rest(), "", "and the connection is over");

    // Never a pause that is too long, and yet never an end.
    let mut trickling = server.connect();
    trickling.send(head.as_bytes());
    let began = Instant::now();
    let mut socket = trickling.socket().try_clone().expect("cloned");
    let sender = std::thread::spawn(move || {
        while began.elapsed() < SOON && socket.write_all(b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    trickling.reply("POST").refused(400, "INVALID_ARGUMENT");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    drop(trickling);
    sender.join().expect("ended");

    // A batch may trickle, for its sender speaks when it has something to say; but it may not pause.
    let mut batch = server.connect();
    let framing = "Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n";
    batch.send(format!("{HEAD}{framing}").as_bytes());
    assert_eq!(batch.head().status, 200);
    for _ in 0..6 {
        batch.send(format!("{MESSAGE}\n").as_bytes());
        assert!(batch.chunk().expect("an answer").starts_with("{\"status\":200,"));
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(batch.chunk().expect("the last word").starts_with("{\"status\":400,"));
    assert_eq!(batch.chunk(), None);
    unharmed(&mut server);
}

#[test]
fn heads_that_do_not_end_and_connections_that_say_nothing_are_closed() {
    let mut server = Server::configured("[http]\nhead_timeout_ms = 400\n", &["--no-wal"]);
    let began = Instant::now();
    let mut waiting: Vec<(&str, TcpStream)> = Vec::new();
    for (name, said) in [
        ("silent", ""),
        ("one letter", "G"),
        ("half a preface", "PRI * HTTP/2.0\r\n"),
        ("half a head", "GET /v1/version HTTP/1.1\r\nHost: local"),
        ("half a head after a request", &format!("{VERSION}GET /v1/ver")),
        ("idle after a request", VERSION),
        ("a preface and nothing", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    ] {
        let mut socket = TcpStream::connect(server.addr).expect("connected");
        socket.write_all(said.as_bytes()).expect("sent");
        socket.set_read_timeout(Some(Duration::from_secs(4))).expect("set");
        waiting.push((name, socket));
    }
    let mut trickling = TcpStream::connect(server.addr).expect("connected");
    let trickled = std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(4) && trickling.write_all(b"G").is_ok() {
            std::thread::sleep(Duration::from_millis(50));
        }
        began.elapsed()
    });
    for (name, mut socket) in waiting {
        let mut answer = Vec::new();
        let ended = socket.read_to_end(&mut answer);
        let still_open = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!still_open, "{name}: still open after {:?}", began.elapsed());
        assert!(began.elapsed() >= Duration::from_millis(350), "{name}: closed after {:?}", began.elapsed());
    }
    let trickled = trickled.join().expect("ended");
    assert!(trickled < Duration::from_secs(3), "a head trickled for {trickled:?}");
    until("all are gone", || figure(&server, "connections") == 1);
    unharmed(&mut server);
}

#[test]
fn a_connection_in_use_is_kept_however_long_it_lasts() {
    let server = Server::configured("[http]\nhead_timeout_ms = 300\n", &["--no-wal"]);
    server.create("t", 1);
    let mut stream = server.consume("topic=t&group=g&owner=w");
    let mut connection = server.connect();
    let began = Instant::now();
    while began.elapsed() < Duration::from_millis(1_000) {
        assert_eq!(connection.call("POST", "/v1/produce", &[], MESSAGE).status, 200);
        assert!(stream.item().is_some(), "the stream ended after {:?}", began.elapsed());
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The 99th of 100 of some calls on one connection.
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
fn a_thousand_slow_senders_cost_little_and_hold_nobody_up() {
    let mut server = Server::with(&["--no-wal"]);
    server.create("t", 1);
    let alone = p99(&server, 500).min(p99(&server, 500));
    let before = server.memory_kib();
    let mut senders: Vec<TcpStream> = (0..1_000)
        .map(|number| {
            let mut socket = TcpStream::connect(server.addr).expect("connected");
            let said = match number % 3 {
                0 => "GET /v1/ver".to_owned(),
                1 => format!("{HEAD}Content-Length: 1000\r\n\r\n{{"),
                _ => format!("{HEAD}Content-Type: application/x-ndjson\r\nContent-Length: 1000\r\n\r\n{{"),
            };
            socket.write_all(said.as_bytes()).expect("sent");
            socket
        })
        .collect();
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
    until("all are connected", || figure(&server, "connections") >= 1_000);
    let among = p99(&server, 500).min(p99(&server, 500));
    let each = server.memory_kib().saturating_sub(before) as f64 / 1_000.0;
    stop.send(()).expect("told");
    let sent = trickle.join().expect("ended");
    println!("p99 alone {alone:?}, among 1,000 slow senders {among:?}; {each:.1} KiB each; {sent} bytes trickled");
    assert!(among < alone * 10 + Duration::from_millis(20), "alone {alone:?}, among them {among:?}");
    assert!(each <= 32.0, "{each} KiB each");
    until("all are gone", || figure(&server, "connections") == 1);
    unharmed(&mut server);
}

#[test]
fn who_has_said_all_may_close_its_side_and_is_answered() {
    let mut server = Server::with(&["--sync-delay-ms", "50"]);
    server.create("t", 1);
    let half_closed = |request: String| {
        let mut connection = server.connect();
        connection.send(request.as_bytes());
        connection.socket().shutdown(std::net::Shutdown::Write).expect("closed");
        connection.rest()
    };
    let length = MESSAGE.len();
    let answer = half_closed(format!("{HEAD}Content-Length: {length}\r\n\r\n{MESSAGE}"));
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.contains("\"offset\":0"), "{answer}");
    let answer = half_closed("GET /v1/topics HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    assert!(answer.contains("{\"topics\":[\"t\"]}"), "{answer}");
    let line = format!("{MESSAGE}\n");
    let framing = format!("Content-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n", 2 * line.len());
    let answer = half_closed(format!("{HEAD}{framing}{line}{line}"));
    assert_eq!(answer.matches("{\"status\":200,").count(), 2, "{answer}");
    let answer = half_closed("GET /v1/consume?topic=no&group=g&owner=w HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    assert!(answer.contains("NOT_FOUND"), "{answer}");

    // A body that is cut off is no whole request, and is seen at once.
    let began = Instant::now();
    let answer = half_closed(format!("{HEAD}Content-Length: 1000\r\n\r\n{MESSAGE}"));
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("ended early"), "{answer}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    // And a stream that nobody reads any more is over.
    let began = Instant::now();
    half_closed("GET /v1/consume?topic=t&group=g&owner=w HTTP/1.1\r\nHost: localhost\r\n\r\n".to_owned());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    unharmed(&mut server);
}
