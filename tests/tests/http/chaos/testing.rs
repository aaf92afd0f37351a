//! What a test learns from `driftq_server::testing::Broker` about the faults it has met.

use std::process::Command;

use super::support::TestBroker;

#[test]
fn faults_are_those_that_the_route_lists() {
    let broker = TestBroker::with_chaos("seed=42,duplicate=0.5");
    broker.create("t");
    for _ in 0..20 {
        broker.until_answered("POST", "/v1/produce", &super::support::message("v"));
    }
    let faults = broker.faults();
    assert!(!faults.is_empty());
    assert_eq!(broker.report()["played"].as_array(), Some(&faults));
}

/// Run by the test below, in a process of its own.
#[test]
#[ignore = "fails on purpose"]
fn fails_under_faults() {
    let broker = TestBroker::with_chaos("seed=7,duplicate=1");
    broker.create("t");
    panic!("the test");
}

#[test]
fn failure_under_faults_shows_seed_and_faults() {
    let program = std::env::current_exe().expect("the test program");
    let arguments = ["--exact", "chaos::testing::fails_under_faults", "--ignored", "--nocapture"];
    let ran = Command::new(program).args(arguments).output().expect("it runs");
    let shown = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(shown.contains(r#"the broker simulated chaos "seed=7,duplicate=1.0" and played 1 faults"#), "{shown}");
    assert!(shown.contains(r#""fault":"duplicate""#) && shown.contains(r#""request":"POST /v1/topics""#), "{shown}");
}
