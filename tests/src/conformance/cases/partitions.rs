//! v1.2: partitions, their selection, and order within them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::expect::ensure_refused;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{LONG_MS, Probe, SILENCE, Worker};
use crate::conformance::verdict::{Finding, Verdict, brief, ensure, fail, pass};

const TOPICS: &str = "v1.2 Partitions of a topic";
const SELECTION: &str = "v1.2 Partition selection";
const ORDER: &str = "v1.2 Ordering and delivery";

pub(super) const CASES: &[Case] = &[
    case(TOPICS, "partitions_all_usable", "a topic of N partitions has the partitions 0 to N-1", all_usable),
    case(TOPICS, "partitions_at_least_one", "a topic never has fewer than one partition", at_least_one),
    case(SELECTION, "partition_exactly_one", "each message is in exactly one partition", exactly_one),
    case(SELECTION, "partition_override_wins", "an override wins over the key", override_wins),
    case(
        SELECTION,
        "partition_override_too_large",
        "an override beyond the last partition fails the produce",
        override_too_large,
    ),
    case(SELECTION, "partition_override_negative", "an override below 0 fails the produce", override_negative),
    case(SELECTION, "partition_by_key_is_stable", "the same key goes to the same partition", by_key_is_stable),
    case(
        SELECTION,
        "partition_by_key_per_count",
        "the same key and count give the same partition in every topic",
        by_key_per_count,
    ),
    case(SELECTION, "partition_by_key_spreads", "different keys are spread over the partitions", by_key_spreads),
    case(SELECTION, "partition_of_empty_key", "an empty key goes to partition 0", of_empty_key),
    case(
        ORDER,
        "delivery_has_partition_and_offset",
        "partition and offset are delivered with every message",
        has_partition_and_offset,
    ),
    case(ORDER, "order_within_a_partition", "a partition's messages are delivered in offset order", order_within),
    case(ORDER, "order_of_a_key", "messages of one key are delivered in the order of their produces", order_of_a_key),
    case(ORDER, "dispatch_from_all_partitions", "a consumer gets the messages of all partitions", from_all),
];

/// A topic and its only worker, which observes the partitions of messages.
struct PartitionObserver<'a> {
    probe: &'a Probe<'a>,
    topic: String,
    worker: Worker<'a>,
}

impl<'a> PartitionObserver<'a> {
    fn new(probe: &'a Probe<'a>, partitions: u32) -> Result<Self, Verdict> {
        let topic = probe.topic(partitions)?;
        let worker = probe.worker(&topic, "g", LONG_MS)?;
        Ok(Self { probe, topic, worker })
    }

    /// The partition in which a message with this key and envelope is delivered.
    fn partition_of(&mut self, key: &str, envelope: &Value) -> Result<i64, Verdict> {
        let body = json!({ "topic": self.topic, "key": key, "value": "v", "envelope": envelope });
        self.probe.produce_body(&body)?;
        let item = self.worker.next()?;
        self.worker.ack(&item)?;
        Ok(item.partition)
    }
}

fn all_usable(probe: &Probe<'_>) -> Finding {
    let mut observer = PartitionObserver::new(probe, 3)?;
    for partition in 0..3 {
        let seen = observer.partition_of("", &json!({ "partition_override": partition }))?;
        ensure(seen == partition, format!("partition {partition}"), seen)?;
    }
    pass("0, 1 and 2")
}

fn at_least_one(probe: &Probe<'_>) -> Finding {
    for partitions in [0, -1] {
        let name = probe.name("t");
        let reply = probe.post("/v1/topics", &json!({ "name": name, "partitions": partitions }))?;
        let created = reply.status == 201 && reply.json()["partitions"].as_i64().is_some_and(|count| count >= 1);
        let refused = (400..500).contains(&reply.status);
        ensure(created || refused, format!("{partitions} refused, or treated as 1"), brief(&reply))?;
    }
    pass("0 and -1 are refused, or treated as 1")
}

fn exactly_one(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(4)?;
    probe.produce_body(&json!({ "topic": topic, "key": "k", "value": "v" }))?;
    let items = probe.drain(&topic, "g")?;
    ensure(items.len() == 1, "1 delivery", format!("{} of them", items.len()))?;
    pass(format!("once, in partition {}", items[0].partition))
}

fn override_wins(probe: &Probe<'_>) -> Finding {
    let mut observer = PartitionObserver::new(probe, 3)?;
    let by_key = observer.partition_of("user:1", &json!({}))?;
    let other = (by_key + 1) % 3;
    let seen = observer.partition_of("user:1", &json!({ "partition_override": other }))?;
    ensure(seen == other, format!("partition {other}"), seen)?;
    pass(format!("by its key {by_key}, by its override {other}"))
}

fn out_of_range(probe: &Probe<'_>, partition: i64) -> Finding {
    let topic = probe.topic(2)?;
    let body = json!({ "topic": topic, "value": "v", "envelope": { "partition_override": partition } });
    let reply = probe.post("/v1/produce", &body)?;
    ensure_refused(&reply, &format!("partition {partition} of 2"))?;
    let items = probe.drain(&topic, "g")?;
    ensure(items.is_empty(), "no message from a failed produce", format!("{} of them", items.len()))?;
    pass(brief(&reply))
}

fn override_too_large(probe: &Probe<'_>) -> Finding {
    out_of_range(probe, 2)
}

fn override_negative(probe: &Probe<'_>) -> Finding {
    out_of_range(probe, -1)
}

const KEYS: [&str; 6] = ["user:1", "user:2", "b", "ключ", "order-7", "x"];

fn by_key_is_stable(probe: &Probe<'_>) -> Finding {
    for key in KEYS {
        let mut observer = PartitionObserver::new(probe, 8)?;
        let two = [observer.partition_of(key, &json!({}))?, observer.partition_of(key, &json!({}))?];
        ensure(two[0] == two[1], format!("one partition for {key:?}"), format!("{two:?}"))?;
    }
    pass(format!("{} keys, twice each", KEYS.len()))
}

fn by_key_per_count(probe: &Probe<'_>) -> Finding {
    let (mut one, mut other) = (PartitionObserver::new(probe, 8)?, PartitionObserver::new(probe, 8)?);
    for key in KEYS {
        let two = [one.partition_of(key, &json!({}))?, other.partition_of(key, &json!({}))?];
        ensure(two[0] == two[1], format!("one partition for {key:?} in both topics"), format!("{two:?}"))?;
    }
    pass(format!("{} keys in 2 topics", KEYS.len()))
}

fn by_key_spreads(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(16)?;
    for index in 0..12 {
        let reply =
            probe.post("/v1/produce", &json!({ "topic": topic, "key": format!("key-{index}"), "value": "v" }))?;
        ensure(matches!(reply.status, 200 | 429), "200, or 429 for keys of the same partition", brief(&reply))?;
    }
    let items = probe.drain(&topic, "g")?;
    let used: BTreeSet<i64> = items.iter().map(|item| item.partition).collect();
    ensure(used.len() > 1, "12 keys in more than one of 16 partitions", format!("{used:?}"))?;
    pass(format!("12 keys in {} of 16 partitions", used.len()))
}

fn of_empty_key(probe: &Probe<'_>) -> Finding {
    let seen = PartitionObserver::new(probe, 5)?.partition_of("", &json!({}))?;
    ensure(seen == 0, "partition 0", seen)?;
    pass("partition 0")
}

fn has_partition_and_offset(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(3)?;
    for partition in 0..3 {
        probe.produce_to(&topic, partition, "v")?;
    }
    for item in probe.worker(&topic, "g", LONG_MS)?.take(3)? {
        let positioned = item.json["partition"].is_u64() && item.json["offset"].is_u64();
        ensure(positioned, "partition and offset as numbers", &item.json)?;
    }
    pass("with each of 3 messages")
}

/// Produces up to eight messages to each of two partitions; first deliveries must be in order.
fn order_within(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let mut sent: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    for index in 0..16 {
        let (partition, value) = (i64::from(index % 2), format!("{index:02}"));
        let envelope = json!({ "partition_override": partition });
        let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": value, "envelope": envelope }))?;
        match reply.status {
            200 => sent.entry(partition).or_default().push(value),
            429 => break,
            _ => return Err(fail("200 or 429", brief(&reply))),
        }
    }
    let mut seen: BTreeMap<i64, Vec<String>> = BTreeMap::new();
    let mut last = BTreeMap::new();
    for item in probe.drain(&topic, "g")? {
        let before = last.insert(item.partition, item.offset);
        ensure(before.is_none_or(|before| before < item.offset), "increasing offsets", &item.json)?;
        seen.entry(item.partition).or_default().push(item.value);
    }
    ensure(seen == sent, format!("{sent:?}"), format!("{seen:?}"))?;
    pass(format!("{} messages in order", sent.values().map(Vec::len).sum::<usize>()))
}

fn order_of_a_key(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(4)?;
    for value in ["1st", "2nd"] {
        probe.produce_body(&json!({ "topic": topic, "key": "user:1", "value": value }))?;
    }
    let values: Vec<String> = probe.drain(&topic, "g")?.into_iter().map(|item| item.value).collect();
    ensure(values == ["1st", "2nd"], "1st, 2nd", format!("{values:?}"))?;
    pass("1st, 2nd")
}

fn from_all(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(6)?;
    for partition in 0..6 {
        probe.produce_to(&topic, partition, "v")?;
    }
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let partitions: BTreeSet<i64> = worker.take(6)?.iter().map(|item| item.partition).collect();
    worker.expect_nothing(SILENCE, "6 deliveries for 6 messages")?;
    ensure(partitions.len() == 6, "6 partitions", format!("{partitions:?}"))?;
    pass("6 messages from 6 partitions, none acked")
}
