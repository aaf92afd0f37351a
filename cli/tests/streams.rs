use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use crate::broker::Broker;

fn signal(process: &Child, signal: Signal) {
    let id = Pid::from_child(process);
    kill_process(id, signal).expect("the process is there");
}

#[test]
fn interrupted_streams_end_with_success_and_without_a_complaint() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.run(&["produce", "t", "first"]);
    for (arguments, number) in [
        (&["consume", "t", "-g", "g", "--ack", "--follow"][..], Signal::INT),
        (&["tail", "t"], Signal::INT),
        (&["tail", "t"], Signal::TERM),
    ] {
        let mut process = broker.driftq(arguments).start();
        let mut out = BufReader::new(process.stdout.take().expect("piped"));
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        assert!(line.contains("\"value\":\"first\""), "{arguments:?}: {line}");
        signal(&process, number);
        let status = process.wait().expect("it ends");
        let mut complaint = String::new();
        process.stderr.take().expect("piped").read_to_string(&mut complaint).expect("read");
        assert_eq!((status.code(), complaint.as_str()), (Some(0), ""), "{arguments:?}");
    }
    assert_eq!(broker.json(&["groups", "show", "t", "g"])["partitions"][0]["lag"], 0, "what was printed is acked");
}

#[test]
fn closed_pipe_is_no_error_and_what_was_not_printed_is_not_acked() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    let lines: String = (0..2_000).map(|number| format!("{number:0100}\n")).collect();
    broker.driftq(&["produce", "t", "--lines"]).input(lines).run().succeeded();
    let mut process = broker.driftq(&["consume", "t", "-g", "g", "--ack", "--follow"]).start();
    let mut out = BufReader::new(process.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    drop(out);
    let status = process.wait().expect("it ends");
    let mut complaint = String::new();
    process.stderr.take().expect("piped").read_to_string(&mut complaint).expect("read");
    assert_eq!((status.code(), complaint.as_str()), (Some(0), ""));
    let lag = broker.json(&["groups", "show", "t", "g"])["partitions"][0]["lag"].as_u64().expect("a number");
    assert!((1..2_000).contains(&lag), "{lag}");
}

#[test]
fn stream_goes_on_after_a_restart_of_the_broker() {
    let mut broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.run(&["produce", "t", "before"]);
    let mut process = broker.driftq(&["tail", "t", "--interval", "100ms"]).start();
    let mut out = BufReader::new(process.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    broker.kill();
    // It says so, which is what can be waited for.
    let mut err = BufReader::new(process.stderr.take().expect("piped"));
    let mut remark = String::new();
    err.read_line(&mut remark).expect("a remark");
    assert!(remark.contains("waiting for it"), "{remark}");
    broker.start_again();
    broker.run(&["produce", "t", "after"]);
    line.clear();
    out.read_line(&mut line).expect("a line");
    assert!(line.contains("\"value\":\"after\""), "{line}");
    signal(&process, Signal::INT);
    assert_eq!(process.wait().expect("it ends").code(), Some(0));
}
