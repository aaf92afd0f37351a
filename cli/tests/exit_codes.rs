use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use crate::broker::Broker;
use crate::program::Driftq;

#[test]
fn refusals_of_the_broker_have_codes_of_their_own() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.driftq(&["topics", "create", "bad", "--partitions", "99999"]).run().failed(1, "partitions");
    broker.driftq(&["produce", "t", "v", "--deadline", "1999-01-01T00:00:00Z"]).run().failed(1, "deadline");
    broker.driftq(&["topics", "show", "nowhere"]).run().failed(4, "topic \"nowhere\" does not exist");
    broker.driftq(&["consume", "nowhere", "-g", "g"]).run().failed(4, "nowhere");
    broker.driftq(&["groups", "show", "t", "g"]).run().failed(4, "group \"g\"");
    broker.driftq(&["topics", "create", "t", "--partitions", "2"]).run().failed(5, "exists");
    broker.driftq(&["groups", "expire", "t/0/0", "-g", "g"]).run().failed(4, "g");
}

#[test]
fn wrong_usage_is_found_before_anything_is_sent() {
    for arguments in [
        &["--nonsense"][..],
        &["topics"],
        &["produce"],
        &["produce", "t", "v", "--lines"],
        &["produce", "t", "v", "--delay", "10"],
        &["produce", "t", "v", "--priority", "10"],
        &["produce", "t", "v", "--label", "x"],
        &["consume", "t"],
        &["consume", "t", "-g", "g", "--max", "0"],
        &["ack", "t-0-0", "-g", "g"],
        &["ack", "t/0/0"],
        &["groups", "seek", "t", "g", "--to", "yesterday"],
        &["effects", "get", "k", "--scope", "job"],
        &["topics", "list", "--json", "--table"],
        &["topics", "list", "--url", "http://h", "--context", "c"],
        &["top"],
        &["bench", "consume", "--url", "nothing"],
        &["topics", "list", "--url", "localhost:8080"],
        &["topics", "list", "--context", "missing"],
        &["topics", "list", "--key-file", "/nonexistent/key"],
        &["topics", "alter", "t"],
    ] {
        let ended = Driftq::new(arguments).variable("DRIFTQ_URL", "").run();
        assert_eq!(ended.code, 2, "{arguments:?}: {ended:?}");
        assert!(ended.out.is_empty() && !ended.err.is_empty(), "{arguments:?}: {ended:?}");
        assert!(!ended.err.contains("panicked"), "{ended:?}");
    }
}

#[test]
fn broker_that_is_not_there_or_does_not_answer_is_not_reachable() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("an address"));
    let flags = ["--url", &url, "--timeout", "200ms"];
    Driftq::new(&[&["topics", "list"][..], &flags].concat()).run().failed(3, "200ms");
    drop(silent);
    for command in [&["topics", "list"][..], &["consume", "t", "-g", "g"], &["tail", "t"], &["bench"], &["peek", "t"]] {
        Driftq::new(&[command, &flags].concat()).run().failed(3, "is the broker running?");
    }
    assert_eq!(Driftq::new(&[&["doctor"][..], &flags].concat()).run().code, 3);
}

#[test]
fn server_that_is_no_broker_is_refused_in_one_line() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", server.local_addr().expect("an address"));
    let answering = std::thread::spawn(move || {
        let (mut connection, _) = server.accept().expect("a connection");
        let mut request = [0; 1_024];
        let read = connection.read(&mut request).expect("a request");
        assert!(read > 0);
        let answer = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 4\r\n\r\n<p>\n";
        connection.write_all(answer.as_bytes()).expect("answered");
    });
    Driftq::new(&["topics", "list", "--url", &url]).run().failed(1, "is this the URL of a DriftQ broker?");
    answering.join().expect("it has answered");
}

#[test]
fn help_explains_exit_codes() {
    for arguments in [&["help", "exit-codes"][..], &["exit-codes"]] {
        let text = Driftq::new(arguments).run().succeeded();
        for line in ["  0  done", "  3  not reachable", "  6  something is wrong (doctor)"] {
            assert!(text.contains(line), "{text}");
        }
    }
}
