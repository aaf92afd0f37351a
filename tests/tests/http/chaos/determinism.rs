//! The same requests and deliveries suffer the same faults.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::support::{LINES, TestBroker, keyed, message};

const ALL: &str = "seed=42,duplicate=0.2,drop-reply=0.2,delay=0.05,reorder=0.05";

/// The faults without their numbers, in the order in which they were played.
fn faults(broker: &TestBroker) -> Vec<Value> {
    let mut played = broker.report()["played"].as_array().expect("a list").clone();
    played.iter_mut().for_each(|played| played["n"] = Value::Null);
    played
}

fn run_one_after_another(broker: &TestBroker) {
    broker.create("t");
    for number in 0..40 {
        broker.until_answered("POST", "/v1/produce", &keyed(&number.to_string()));
        let _ = broker.try_call("POST", "/v1/produce", &[LINES], &format!("{}\n{}", message("a"), keyed("b")));
        let claim = json!({ "topic": "t", "group": "g", "partition": 0, "offset": number, "owner": "w" });
        let _ = broker.try_post("/v1/ack", claim.to_string());
        let _ = broker.try_call("GET", "/v1/topics/t?x=1", &[], "");
    }
}

#[test]
fn same_requests_suffer_the_same_faults() {
    let run = |chaos: &str| {
        let broker = TestBroker::with_chaos(chaos);
        run_one_after_another(&broker);
        faults(&broker)
    };
    let first = run(ALL);
    assert!(first.len() > 40, "{}", first.len());
    assert_eq!(run(ALL), first);
    assert_ne!(run(&ALL.replace("42", "43")), first);
}

#[test]
fn same_requests_suffer_the_same_restarts() {
    let run = || {
        let broker = TestBroker::with_chaos("seed=7,restart=0.1,drop-reply=0.1");
        broker.create("t");
        for number in 0..40 {
            broker.until_answered("POST", "/v1/produce", &keyed(&number.to_string()));
        }
        (faults(&broker), broker.values("t"))
    };
    let first = run();
    assert!(first.0.iter().filter(|played| played["fault"] == "restart").count() > 2, "{:?}", first.0);
    assert_eq!(run(), first);
}

#[test]
fn faults_do_not_depend_on_the_order_of_requests() {
    let run = |threads: usize, backwards: bool| -> BTreeSet<String> {
        let broker = TestBroker::with_chaos(ALL);
        broker.create("t");
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let broker = &broker;
                scope.spawn(move || {
                    let mut own: Vec<usize> = (0..48).filter(|number| number % threads == thread).collect();
                    if backwards {
                        own.reverse();
                    }
                    for number in own {
                        // Some requests are the same.
                        broker.until_answered("POST", "/v1/produce", &keyed(&number.to_string()));
                        let _ = broker.try_call("GET", "/v1/topics", &[], "");
                    }
                });
            }
        });
        faults(&broker).iter().map(ToString::to_string).collect()
    };
    let first = run(1, false);
    assert!(first.len() > 20, "{}", first.len());
    assert_eq!(run(1, true), first);
    assert_eq!(run(4, false), first);
}

#[test]
fn same_deliveries_suffer_the_same_faults() {
    let run = || {
        let broker = TestBroker::with_chaos("seed=42,duplicate=0.2,expire=0.2,delay=0.05,reorder=0.2");
        broker.create("t");
        for number in 0..20 {
            broker.until_answered("POST", "/v1/produce", &keyed(&number.to_string()));
        }
        let mut stream = broker.client.consume("topic=t&group=g&owner=w&max=20&lease_ms=600000").expect("a response");
        while stream.item().expect("a stream").is_some() {}
        let of_first_attempts = |played: &Value| played["delivery"]["attempts"] == 1;
        faults(&broker).into_iter().filter(of_first_attempts).map(|played| played.to_string()).collect::<Vec<_>>()
    };
    let first = run();
    assert!(first.len() > 8, "{first:?}");
    assert_eq!(run(), first);
}
