//! A client that keeps the contract meets every guarantee, whatever faults are played.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use serde_json::json;

use super::support::{TestBroker, keyed};

const MESSAGES: usize = 30;
const DEADLINE: Duration = Duration::from_secs(60);

/// Completes each delivery of a stream with one message for the next step.
fn work(broker: &TestBroker) {
    let query = "topic=t&group=g&owner=w&lease_ms=1000&max=5&wait_ms=200&release_on_disconnect=true";
    let Ok(mut stream) = broker.client.consume(query) else { return };
    while let Ok(Some(item)) = stream.item() {
        let step = json!({
            "topic": "t", "group": "g", "partition": 0, "offset": item["offset"], "owner": "w",
            "lease_token": item["lease_token"], "result": item["value"],
            "produce": [{ "topic": "out", "value": item["value"] }],
        });
        let reply = broker.until_answered("POST", "/v1/complete", &step.to_string());
        // A lease that has ended, or been fenced, is no error: the message comes again.
        assert!([200, 409].contains(&reply.status), "{reply:?}");
    }
}

#[test]
fn steps_happen_once_under_all_faults() {
    let mut counts = BTreeMap::new();
    for seed in 1..=3 {
        let faults = "duplicate=0.2,drop-reply=0.1,expire=0.1,delay=0.05,restart=0.03,reorder=0.1";
        let broker = TestBroker::with_chaos(&format!("seed={seed},{faults}"));
        broker.create("t");
        broker.create("out");
        let values: BTreeSet<String> = (0..MESSAGES).map(|number| number.to_string()).collect();
        for value in &values {
            broker.until_answered("POST", "/v1/produce", &keyed(value));
        }
        assert_eq!(broker.values("t").len(), MESSAGES, "each is stored once");
        let deadline = Instant::now() + DEADLINE;
        while broker.values("out").len() < MESSAGES {
            assert!(Instant::now() < deadline, "{:?}", broker.values("out"));
            work(&broker);
        }
        let outputs = broker.values("out");
        assert_eq!(outputs.len(), MESSAGES, "{outputs:?}");
        assert_eq!(outputs.into_iter().collect::<BTreeSet<_>>(), values);
        for (fault, count) in broker.report()["counts"].as_object().expect("counts") {
            *counts.entry(fault.clone()).or_insert(0) += count.as_u64().expect("a number");
        }
    }
    assert!(counts.len() == 6 && counts.values().all(|count| *count > 0), "every fault was played: {counts:?}");
}
