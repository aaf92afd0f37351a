use crate::broker::Broker;

#[test]
fn topics_are_created_listed_changed_purged_and_deleted() {
    let broker = Broker::start();
    let created = broker.json(&["topics", "create", "orders/eu", "--partitions", "3", "--retention", "1h"]);
    assert_eq!((&created["partitions"], &created["retention_ms"]), (&3.into(), &3_600_000.into()));
    broker.run(&["topics", "create", "receipts"]);
    assert_eq!(broker.json(&["topics", "list", "--names"])["topics"], serde_json::json!(["orders/eu", "receipts"]));
    let page = broker.json(&["topics", "list", "--names", "--limit", "1", "--after", "orders/eu"]);
    assert_eq!(page["topics"], serde_json::json!(["receipts"]));
    let changed = broker.json(&["topics", "alter", "orders/eu", "--retention-bytes", "64KiB"]);
    assert_eq!((&changed["retention_ms"], &changed["retention_bytes"]), (&3_600_000.into(), &65_536.into()));
    assert_eq!(broker.json(&["topics", "show", "orders/eu"])["retention_bytes"], 65_536);
    broker.run(&["produce", "orders/eu", "v"]);
    assert_eq!(broker.json(&["topics", "purge", "orders/eu", "--yes"])["purged"], 1);
    assert_eq!(broker.json(&["topics", "delete", "orders/eu", "--yes"])["deleted"], "orders/eu");
    let listed = broker.json(&["topics", "list"]);
    assert_eq!(listed.as_array().expect("a list").len(), 1);
    assert_eq!(listed[0]["name"], "receipts");
}

#[test]
fn topics_and_groups_are_shown_as_aligned_tables() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "orders", "--partitions", "2"]);
    broker.run(&["produce", "orders", "one pizza", "--key", "customer-7"]);
    broker.run(&["groups", "create", "orders", "kitchen"]);
    assert_eq!(
        broker.run(&["topics", "list", "--table"]),
        "TOPIC   PARTITIONS  UNACKED  BYTES  GROUPS  LAG  IN FLIGHT\n\
         orders           2        1   19 B       1    1          0\n"
    );
    let shown = broker.run(&["topics", "show", "orders", "--table"]);
    assert!(shown.starts_with("orders\nretention  1d, 256 MiB a partition\n\nPARTITION  NEXT OFFSET"), "{shown}");
    assert!(shown.contains("\n0                    0        0    0 B        0\n"), "{shown}");
    let groups = broker.run(&["groups", "list", "--table"]);
    assert!(
        groups.starts_with("TOPIC   GROUP    STREAMS  LAG  IN FLIGHT  WAITING  OLDEST  SKIPPED  STATE\n"),
        "{groups}"
    );
    assert!(groups.trim_end().ends_with("no consumer is connected"), "{groups}");
}

#[test]
fn groups_are_created_moved_paused_and_deleted() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.driftq(&["produce", "t", "--lines"]).input("a\nb\nc\n").run().succeeded();
    broker.run(&["groups", "create", "t", "g", "--from", "latest"]);
    let lag = || broker.json(&["groups", "show", "t", "g"])["partitions"][0]["lag"].clone();
    assert_eq!(lag(), 0);
    for (position, left) in [("earliest", 3), ("1", 2), ("latest", 0), ("2000-01-01T00:00:00Z", 3)] {
        broker.run(&["groups", "seek", "t", "g", "--to", position]);
        assert_eq!(lag(), left, "{position}");
    }
    broker.run(&["groups", "pause", "t", "g"]);
    assert_eq!(broker.json(&["groups", "list", "t"])[0]["paused"], true);
    broker.run(&["groups", "resume", "t", "g"]);
    assert_eq!(broker.json(&["groups", "list"])[0]["paused"], false);
    assert_eq!(broker.json(&["groups", "list"])[0]["topic"], "t");
    broker.run(&["groups", "delete", "t", "g", "--yes"]);
    assert_eq!(broker.json(&["groups", "list", "t"]), serde_json::json!([]));
}
