use serde_json::{Value, json};

use crate::broker::Broker;

fn values(lines: &[Value]) -> Vec<&str> {
    lines.iter().map(|line| line["value"].as_str().expect("text")).collect()
}

#[test]
fn all_that_a_message_can_have_is_produced_and_consumed() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t", "--partitions", "2"]);
    let flags = "--key k --idempotency-key i --tenant x --priority 3 --deadline 2999-01-01T00:00:00Z --label a=b \
        --max-attempts 5 --backoff 1s --max-backoff 1m --partition 1 --run-id r --step-id s --parent-step-id p \
        --traceparent 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let arguments: Vec<&str> = ["produce", "t", "-v"].into_iter().chain(flags.split_whitespace()).collect();
    let produced = broker.json(&arguments);
    assert_eq!((&produced["partition"], &produced["offset"]), (&1.into(), &0.into()));
    assert_eq!(broker.json(&arguments)["duplicate"], true);
    let consumed = broker.lines(&["consume", "t", "--group", "g", "--ack", "--max", "1"]);
    let message = &consumed[0];
    assert_eq!((&message["value"], &message["key"], &message["group"]), (&json!("-v"), &json!("k"), &json!("g")));
    assert_eq!(message["trace"], "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let expected = json!({"tenant_id": "x", "idempotency_key": "i", "deadline": "2999-01-01T00:00:00Z", "priority": 3,
        "labels": {"a": "b"}, "partition_override": 1, "run_id": "r", "step_id": "s", "parent_step_id": "p",
        "retry_policy": {"max_attempts": 5, "backoff_ms": 1000, "max_backoff_ms": 60000}});
    assert_eq!(message["envelope"], expected);
    assert_eq!(broker.json(&["groups", "show", "t", "g"])["partitions"][1]["lag"], 0);
}

#[test]
fn value_comes_from_argument_file_or_input() {
    let (broker, folder) = (Broker::start(), tempfile::tempdir().expect("a folder"));
    broker.run(&["topics", "create", "t"]);
    let file = folder.path().join("value");
    std::fs::write(&file, b"\xff\n").expect("written");
    broker.run(&["produce", "t", "--file", file.to_str().expect("UTF-8")]);
    broker.driftq(&["produce", "t"]).input("in\nput").run().succeeded();
    broker.run(&["produce", "t", "--delay", "1h", "later"]);
    let peeked = broker.lines(&["peek", "t"]);
    assert_eq!((&peeked[0]["value_base64"], &peeked[1]["value"]), (&json!("/wo="), &json!("in\nput")));
    assert_eq!(broker.json(&["topics", "show", "t"])["partitions"][0]["delayed"], 1);
    assert_eq!(values(&broker.lines(&["peek", "t", "--offset", "1", "--limit", "1"])), ["in\nput"]);
}

#[test]
fn lines_are_messages_and_repeating_them_doubles_none() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    let text: String = (0..5_000).map(|number| format!("{number}\n")).collect();
    let produce = || broker.driftq(&["produce", "t", "--lines", "-i", "load"]).input(text.clone()).run().succeeded();
    let summary: Value = serde_json::from_str(&produce()).expect("JSON");
    assert_eq!(summary, json!({"produced": 5000, "duplicates": 0, "already_done": 0, "refused": 0}));
    let summary: Value = serde_json::from_str(&produce()).expect("JSON");
    assert_eq!(summary["duplicates"], 5_000);
    let consumed = broker.lines(&["consume", "t", "-g", "g", "--ack", "--max", "5000"]);
    assert!(consumed.iter().enumerate().all(|(index, line)| line["value"].as_str() == Some(&index.to_string())));
    assert_eq!(broker.json(&["groups", "show", "t", "g"])["partitions"][0]["lag"], 0);
}

#[test]
fn refused_lines_are_reported_and_the_others_produced() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    let input = "{\"value\":\"a\",\"key\":\"k\",\"envelope\":{\"labels\":{\"x\":\"y\"}}}\nno JSON\n\n\
        {\"topic\":\"nowhere\",\"value\":\"b\"}\n{\"value_base64\":\"/w==\"}\n";
    let ended = broker.driftq(&["produce", "t", "--objects", "--tenant", "z"]).input(input).run();
    assert!(ended.err.contains("line 2: no JSON") && ended.err.contains("line 4: topic \"nowhere\""), "{ended:?}");
    assert_eq!(ended.code, 4, "the first refusal of the broker decides");
    let summary: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!((&summary["produced"], &summary["refused"]), (&2.into(), &2.into()));
    let peeked = broker.lines(&["peek", "t"]);
    assert_eq!(peeked[0]["envelope"], json!({"tenant_id": "z", "labels": {"x": "y"}}));
    assert_eq!(peeked[1]["value_base64"], "/w==");
}

#[test]
fn deliveries_are_settled_by_their_lease_token() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.driftq(&["produce", "t", "--lines"]).input("a\nb\nc\nd\n").run().succeeded();
    let consumed = broker.lines(&["consume", "t", "-g", "g", "-n", "4"]);
    assert_eq!(values(&consumed), ["a", "b", "c", "d"]);
    let token = |index: usize| consumed[index]["lease_token"].as_str().expect("a token");
    broker.run(&["extend", "t/0/0", "-g", "g", "-t", token(0), "--lease", "1m"]);
    broker.run(&["ack", "t/0/0", "-g", "g", "-t", token(0)]);
    broker.run(&["nack", "t/0/1", "-g", "g", "-t", token(1), "--reason", "cold"]);
    broker.run(&["release", "t/0/2", "-g", "g", "-t", token(2)]);
    broker.run(&["groups", "expire", "t/0/3", "-g", "g"]);
    let again = broker.lines(&["consume", "t", "-g", "g", "-n", "3"]);
    let seen: Vec<_> = again.iter().map(|line| (line["value"].as_str(), line["last_error"].as_str())).collect();
    assert!(seen.contains(&(Some("b"), Some("cold"))), "{seen:?}");
    assert!(seen.contains(&(Some("c"), Some(""))), "{seen:?}");
    assert!(seen.contains(&(Some("d"), Some("ack_timeout"))), "{seen:?}");
    broker.driftq(&["ack", "t/0/1", "-g", "g", "-t", token(1)]).run().failed(5, "stale lease");
    broker.run(&["ack", "t/0/3", "-g", "g", "--cumulative"]);
    assert_eq!(broker.json(&["groups", "show", "t", "g"])["partitions"][0]["lag"], 0);
}

#[test]
fn printed_deliveries_can_be_settled_as_they_are() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.driftq(&["produce", "t", "--lines"]).input("a\nb\n").run().succeeded();
    let printed = broker.run(&["consume", "t", "-g", "g", "-n", "2", "--owner", "me"]);
    let settled = broker.driftq(&["ack", "--lines"]).input(printed.clone()).run().succeeded();
    assert!(settled.contains("\"settled\":2"), "{settled}");
    assert_eq!(broker.json(&["groups", "show", "t", "g"])["partitions"][0]["lag"], 0);
    let ended = broker.driftq(&["ack", "--lines"]).input(printed.replace("\"topic\":\"t\"", "\"topic\":\"u\"")).run();
    assert_eq!((ended.code, ended.err.lines().count()), (4, 2), "{ended:?}");
    broker.driftq(&["ack", "--lines"]).input("x\n").run().failed(2, "line 1 is no delivery");
}

#[test]
fn tail_shows_the_last_messages_of_all_partitions_in_order() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t", "--partitions", "2"]);
    for number in 0..6 {
        broker.run(&["produce", "t", &number.to_string(), "--partition", if number % 2 == 0 { "0" } else { "1" }]);
    }
    assert_eq!(values(&broker.lines(&["tail", "t", "--no-follow", "-n", "3"])), ["3", "4", "5"]);
    assert_eq!(values(&broker.lines(&["tail", "t", "--no-follow", "-n", "3", "-p", "1"])), ["3", "5"]);
    assert_eq!(broker.json(&["groups", "list", "t"]), json!([]), "no group is concerned");
    broker.driftq(&["tail", "t", "-p", "7"]).run().failed(4, "no partition 7");
}
