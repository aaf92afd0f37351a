//! v1.3: what survives a restart. All cases share one restart.

use serde_json::json;

use crate::conformance::case::{Case, durable};
use crate::conformance::probe::{LONG_MS, Probe, SHORT_MS, SILENCE};
use crate::conformance::verdict::{Finding, brief, deviates, ensure, fail, pass};

const PRODUCE: &str = "v1.3 Produce durability";
const ACKS: &str = "v1.3 Ack and offset durability";
const REPLAY: &str = "v1.3 Replay";
const MAY_BE_LOST: &str = "v1.3 May be lost on restart";

pub(super) const CASES: &[Case] = &[
    durable(
        PRODUCE,
        "restart_keeps_messages",
        "produced messages survive a restart with partition, offset, key and value",
        keeps_messages,
    ),
    durable(PRODUCE, "restart_keeps_envelopes", "envelope fields survive a restart", keeps_envelopes),
    durable(
        PRODUCE,
        "restart_delivers_what_was_in_flight",
        "a message that was delivered and not acked is redelivered after a restart",
        in_flight_is_redelivered,
    ),
    durable(ACKS, "restart_keeps_acks", "an acked message is not redelivered after a restart", keeps_acks),
    durable(ACKS, "restart_keeps_offsets_per_group", "each group's offsets survive independently", offsets_per_group),
    durable(
        ACKS,
        "restart_keeps_offsets_per_partition",
        "each partition's offsets survive independently",
        offsets_per_partition,
    ),
    durable(
        ACKS,
        "restart_ack_above_a_gap",
        "the last acked offset survives: lower offsets are finished",
        ack_above_a_gap,
    ),
    durable(
        ACKS,
        "restart_exhausted_stays_finished",
        "a message given up at max_attempts does not resurrect on restart",
        exhausted_stays_done,
    ),
    durable(REPLAY, "restart_keeps_topics", "topics that have messages survive", keeps_topics),
    durable(REPLAY, "restart_keeps_order", "a partition's messages are in offset order after a restart", keeps_order),
    durable(REPLAY, "restart_offsets_go_on", "new offsets are above those replayed", offsets_go_on),
    durable(REPLAY, "restart_resumes_dispatch", "new messages are delivered after a restart", resumes_dispatch),
    durable(
        MAY_BE_LOST,
        "restart_empty_partitions",
        "partitions that never had a message may be forgotten",
        empty_partitions,
    ),
    durable(MAY_BE_LOST, "restart_attempts", "attempts may start again", attempts),
    durable(MAY_BE_LOST, "restart_last_error", "last_error is lost on restart", last_error),
    durable(MAY_BE_LOST, "restart_producer_idempotency", "the idempotency registry is in memory", producer_idempotency),
];

fn keeps_messages(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let mut sent = Vec::new();
    for (partition, key, value) in [(0, "k", "ä\n\"7"), (1, "", "plain")] {
        let envelope = json!({ "partition_override": partition });
        probe.produce_body(&json!({ "topic": topic, "key": key, "value": value, "envelope": envelope }))?;
        sent.push((partition, key.to_owned(), value.to_owned()));
    }
    // A separate group observes the offsets.
    let mut before: Vec<_> = probe
        .worker(&topic, "before", LONG_MS)?
        .take(2)?
        .into_iter()
        .map(|item| (item.partition, item.offset))
        .collect();
    before.sort_unstable();
    probe.restart()?;
    let mut items = probe.worker(&topic, "g", LONG_MS)?.take(2)?;
    items.sort_unstable_by_key(|item| (item.partition, item.offset));
    let positions: Vec<_> = items.iter().map(|item| (item.partition, item.offset)).collect();
    ensure(positions == before, format!("partitions and offsets {before:?}"), format!("{positions:?}"))?;
    let seen: Vec<_> = items.into_iter().map(|item| (item.partition, item.key, item.value)).collect();
    ensure(seen == sent, format!("{sent:?}"), format!("{seen:?}"))?;
    pass("both, at their offsets")
}

fn keeps_envelopes(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let envelope = json!({
        "run_id": "r", "step_id": "s2", "parent_step_id": "s1", "tenant_id": "acme", "idempotency_key": probe.fixed("key"),
        "target_topic": topic, "partition_override": 1, "deadline": "2199-12-21T12:00:00Z",
        "retry_policy": { "max_attempts": 5, "backoff_ms": 250, "max_backoff_ms": 5000 },
    });
    probe.produce_with(&topic, "v", &envelope)?;
    probe.restart()?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    for (name, value) in envelope.as_object().into_iter().flatten() {
        ensure(item.envelope()[name] == *value, format!("{name} {value}"), item.envelope())?;
    }
    pass("every field")
}

fn in_flight_is_redelivered(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (first, _) = probe.take(&topic, "g", SHORT_MS)?;
    probe.restart()?;
    let (again, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure(again.offset == first.offset, "the same message", &again.json)?;
    pass("it was redelivered")
}

fn keeps_acks(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    for value in ["done", "open"] {
        probe.produce(&topic, value)?;
    }
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let first = worker.next()?;
    worker.ack(&first)?;
    drop(worker);
    probe.restart()?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let next = worker.next()?;
    ensure(next.offset > first.offset, "the unacked message alone", format!("offset {} again", next.offset))?;
    worker.ack(&next)?;
    worker.expect_nothing(SILENCE, "no acked message")?;
    pass("only the unacked one was delivered")
}

fn offsets_per_group(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (_, other) = probe.take(&topic, "open", SHORT_MS)?;
    let (_, claim) = probe.take(&topic, "done", LONG_MS)?;
    probe.ack(&claim)?;
    probe.restart()?;
    let (again, _) = probe.take(&topic, "open", LONG_MS)?;
    ensure(again.offset == other.offset, "the message in the group that had not acked it", &again.json)?;
    probe.worker(&topic, "done", LONG_MS)?.expect_nothing(SILENCE, "nothing for the group that had")?;
    pass("finished for one group, pending for the other")
}

fn offsets_per_partition(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    for partition in 0..2 {
        probe.produce_to(&topic, partition, "v")?;
    }
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let items = worker.take(2)?;
    let Some(acked) = items.iter().max_by_key(|item| item.offset) else { return Err(fail("two messages", "none")) };
    worker.ack(acked)?;
    drop(worker);
    probe.restart()?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let again = worker.next()?;
    ensure(again.partition != acked.partition, "the other partition's message", &again.json)?;
    worker.expect_nothing(SILENCE, "nothing of the acked partition")?;
    pass("finished in one partition, pending in the other")
}

fn ack_above_a_gap(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    for value in ["a", "b"] {
        probe.produce(&topic, value)?;
    }
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let items = worker.take(2)?;
    worker.ack(&items[1])?;
    drop(worker);
    probe.restart()?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    match worker.wait(probe.timeout().min(std::time::Duration::from_secs(3)))? {
        None => pass("the lower, unacked message is finished, as the highest acked offset implies"),
        Some(again) if again.offset == items[0].offset => {
            worker.expect_nothing(SILENCE, "the acked message to stay finished")?;
            deviates(
                "the lower, unacked message was redelivered",
                "an acked floor and the acks above it: docs/semantics.md",
            )
        }
        Some(again) => Err(fail("the lower message, or none", &again.json)),
    }
}

fn exhausted_stays_done(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce_with(&topic, "v", &json!({ "retry_policy": { "max_attempts": 1 } }))?;
    let (_, claim) = probe.take(&topic, "g", LONG_MS)?;
    probe.nack(&claim, "permanent failure")?;
    // Some brokers process retries periodically.
    std::thread::sleep(std::time::Duration::from_millis(600));
    probe.restart()?;
    probe.worker(&topic, "g", LONG_MS)?.expect_nothing(SILENCE, "no redelivery of the exhausted message")?;
    pass("it stays finished")
}

fn keeps_topics(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    probe.produce_to(&topic, 1, "v")?;
    probe.restart()?;
    ensure(probe.topics()?.contains(&topic), "the topic in the list", "a list without it")?;
    probe.produce_to(&topic, 1, "w")?;
    pass("it is listed, and accepts a message in partition 1")
}

fn keeps_order(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    for index in 0..4 {
        probe.produce_to(&topic, index % 2, &format!("v{index}"))?;
    }
    probe.restart()?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let items = worker.take(4)?;
    for (partition, expected) in [(0, ["v0", "v2"]), (1, ["v1", "v3"])] {
        let in_partition = items.iter().filter(|item| item.partition == partition);
        let values: Vec<&str> = in_partition.map(|item| item.value.as_str()).collect();
        ensure(values == expected, format!("{expected:?} in partition {partition}"), format!("{values:?}"))?;
    }
    pass("2 messages in each of 2 partitions, in order")
}

fn offsets_go_on(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "a")?;
    let (first, claim) = probe.take(&topic, "g", LONG_MS)?;
    probe.ack(&claim)?;
    probe.restart()?;
    probe.produce(&topic, "b")?;
    let (second, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure(second.offset > first.offset, format!("an offset above {}", first.offset), second.offset)?;
    pass(format!("{} before, {} after", first.offset, second.offset))
}

fn resumes_dispatch(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "a")?;
    let (_, claim) = probe.take(&topic, "g", LONG_MS)?;
    probe.ack(&claim)?;
    probe.restart()?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    probe.produce(&topic, "b")?;
    let item = worker.next()?;
    ensure(item.value == "b", "the new message", &item.json)?;
    worker.ack(&item)?;
    pass("a new message was delivered to an open stream")
}

fn empty_partitions(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(3)?;
    probe.restart()?;
    let body = json!({ "topic": topic, "value": "v", "envelope": { "partition_override": 2 } });
    let reply = probe.post("/v1/produce", &body)?;
    match reply.status {
        200 => deviates("an empty topic kept its 3 partitions", "topics are in the log: docs/semantics.md"),
        400..=499 => pass("they were lost"),
        _ => Err(fail("the partition, or a refusal", brief(&reply))),
    }
}

fn attempts(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    probe.take(&topic, "g", SHORT_MS)?;
    probe.restart()?;
    let (again, _) = probe.take(&topic, "g", LONG_MS)?;
    match again.attempts {
        1 => pass("attempts 1 again"),
        2 => deviates("attempts 2", "attempts survive a restart: docs/semantics.md"),
        _ => Err(fail("attempts 1 or 2", &again.json)),
    }
}

fn last_error(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    // A short lease: the message may be delivered to the stream that was just closed.
    let (_, claim) = probe.take(&topic, "g", SHORT_MS)?;
    probe.nack(&claim, "timeout")?;
    probe.restart()?;
    let (again, _) = probe.take(&topic, "g", LONG_MS)?;
    match again.last_error.as_str() {
        "" | "ack_timeout" => pass("it is lost"),
        "timeout" => deviates("it is kept", "last_error survives a restart: docs/semantics.md"),
        _ => Err(fail("no last_error, or the nack's reason", &again.json)),
    }
}

fn producer_idempotency(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let envelope = json!({ "tenant_id": "acme", "idempotency_key": probe.fixed("key") });
    probe.produce_with(&topic, "a", &envelope)?;
    probe.restart()?;
    let reply = probe.post("/v1/produce", &json!({ "topic": topic, "value": "b", "envelope": envelope }))?;
    ensure(matches!(reply.status, 200 | 409), "200 or 409", brief(&reply))?;
    match probe.drain(&topic, "g")?.len() {
        2 => pass("the key is forgotten: two messages"),
        1 => deviates("still one message", "produced keys are in the log: docs/semantics.md"),
        other => Err(fail("one message or two", other)),
    }
}
