use serde_json::Value;

use crate::broker::Broker;

fn finding<'a>(report: &'a Value, check: &str) -> &'a Value {
    let findings = report["findings"].as_array().expect("a list");
    findings.iter().find(|finding| finding["check"] == check).unwrap_or_else(|| panic!("no {check} in {report}"))
}

#[test]
fn healthy_broker_has_nothing_wrong() {
    let broker = Broker::start();
    let report = broker.json(&["doctor"]);
    assert_eq!(report["wrong"], 0, "{report}");
    for check in ["reachable", "ready", "version", "clock", "disk", "memory", "dead letters", "groups"] {
        assert_eq!(finding(&report, check)["level"], "ok", "{report}");
    }
    assert!(broker.run(&["doctor", "--table"]).ends_with("\nnothing is wrong\n"));
}

#[test]
fn stuck_group_dead_letters_and_absent_server_are_found_with_what_to_do() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.driftq(&["produce", "t", "--lines"]).input("a\nb\n").run().succeeded();
    let printed = broker.run(&["consume", "t", "-g", "g", "-n", "1"]);
    broker.driftq(&["nack", "--lines", "--permanent"]).input(printed).run().succeeded();
    let flags = ["doctor", "--stuck-after", "0", "--watch", "100ms"];
    let ended = broker.driftq(&flags).run();
    assert_eq!(ended.code, 6, "{ended:?}");
    let report: Value = serde_json::from_str(&ended.out).expect("JSON");
    let groups = finding(&report, "groups");
    assert!(groups["what"].as_str().expect("text").ends_with("no consumer is connected"), "{groups}");
    assert!(groups["advice"].as_str().expect("text").contains("driftq groups delete t g"), "{groups}");
    assert_eq!(finding(&report, "dead letters")["what"], "1 dead letter of t");
    broker.run(&["groups", "pause", "t", "g"]);
    let report: Value = serde_json::from_str(&broker.driftq(&flags).run().out).expect("JSON");
    assert_eq!(finding(&report, "groups")["advice"], "`driftq groups resume t g`");
    broker.run(&["groups", "delete", "t", "g", "--yes"]);
    broker.run(&["dlq", "purge", "t", "--yes"]);
    assert_eq!(broker.driftq(&flags).run().code, 0);
    let half = broker.driftq(&["doctor", "--url", broker.url(), "--url", "http://127.0.0.1:1"]).run();
    assert_eq!(half.code, 6, "one of two servers is not there: {half:?}");
    assert!(half.out.contains("start the broker"), "{half:?}");
}
