use crate::broker::Broker;

#[test]
fn bench_measures_both_ways_and_removes_its_topic() {
    let broker = Broker::start();
    let report = broker.json(&["bench", "--messages", "500", "--size", "1KiB", "--partitions", "2"]);
    assert_eq!(report["size"], 1_024);
    for (index, what) in ["produce", "consume and ack"].into_iter().enumerate() {
        let part = &report["parts"][index];
        assert_eq!((&part["what"], &part["messages"], &part["failed"]), (&what.into(), &500.into(), &0.into()));
        let figure = |name: &str| part[name].as_f64().expect("a number");
        assert!(figure("per_second") > 0.0 && figure("p50_ms") > 0.0 && figure("p50_ms") <= figure("p99_ms"), "{part}");
    }
    assert_eq!(broker.json(&["topics", "list", "--names"])["topics"], serde_json::json!([]));
}

#[test]
fn bench_of_a_topic_leaves_it() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    let table = broker.run(&["bench", "produce", "-n", "100", "--topic", "t", "--table"]);
    assert!(table.contains("PER SECOND") && table.contains("\nproduce       100"), "{table}");
    assert_eq!(broker.json(&["topics", "show", "t"])["partitions"][0]["messages"], 100);
    broker.driftq(&["bench", "consume"]).run().failed(2, "nothing to consume");
}
