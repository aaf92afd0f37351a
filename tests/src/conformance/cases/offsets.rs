//! v1.1: offsets, acknowledgements and the in-flight limit.

use std::time::Duration;

use super::expect::fill_partition;
use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, MEDIUM_MS, Probe, SILENCE, Worker};
use crate::conformance::verdict::{Finding, Verdict, ensure, ensure_status, not_applicable, pass};

const ACKS: &str = "v1.1 Offsets and acknowledgements";
const IN_FLIGHT: &str = "v1.1 In-flight limit";

/// Unacked deliveries after which a limit is no longer looked for.
const IN_FLIGHT_TRIED_MAX: usize = 8;

pub(super) const CASES: &[Case] = &[
    case(ACKS, "ack_stops_redelivery", "an acked message is not delivered again", ack_stops_redelivery),
    case(ACKS, "ack_twice", "a duplicate ack gets the same response as the first", ack_twice),
    case(ACKS, "ack_late", "an ack of an offset below the last acked one succeeds and finishes its message", ack_late),
    case(
        ACKS,
        "ack_out_of_order",
        "an ack of a higher offset does not finish a lower one that is in flight",
        ack_out_of_order,
    ),
    case(ACKS, "ack_per_partition", "each partition has its own progress", ack_per_partition),
    case(ACKS, "offsets_increase", "offsets increase with every message", offsets_increase),
    case(ACKS, "offsets_of_a_topic", "offsets increase per topic, over all its partitions", offsets_of_a_topic),
    case(
        IN_FLIGHT,
        "in_flight_limit",
        "no more than maxInFlight messages of a partition are unacked in a group",
        in_flight_limit,
    ),
    case(IN_FLIGHT, "in_flight_ack_allows_next", "an ack allows the next delivery", in_flight_ack_allows_next),
    case(IN_FLIGHT, "in_flight_other_group", "the limit of one group does not affect another", in_flight_other_group),
    case(IN_FLIGHT, "in_flight_default", "maxInFlight is 2 by default", in_flight_default),
];

fn ack_stops_redelivery(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    probe.produce(&topic, "v")?;
    let item = worker.next()?;
    worker.ack(&item)?;
    // Longer than the default lease as well.
    worker.expect_nothing(Duration::from_millis(2_600), "no redelivery of an acked message")?;
    pass("nothing for 2600 ms")
}

fn ack_twice(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (_, claim) = probe.take(&topic, "g", LONG_MS)?;
    for time in ["first", "second", "third"] {
        ensure_status(&probe.ack(&claim)?, 204, &format!("the {time} ack"))?;
    }
    pass("204 three times")
}

/// Two messages of one partition, both delivered.
fn two_delivered(probe: &Probe<'_>, worker: &mut Worker<'_>, topic: &str) -> Result<(Item, Item), Verdict> {
    probe.produce(topic, "a")?;
    probe.produce(topic, "b")?;
    let (first, second) = (worker.next()?, worker.next()?);
    ensure(first.offset < second.offset, "increasing offsets", format!("{} and {}", first.offset, second.offset))?;
    Ok((first, second))
}

fn ack_late(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let (first, second) = two_delivered(probe, &mut worker, &topic)?;
    for item in [&second, &first] {
        ensure_status(&probe.ack(&worker.claim(item))?, 204, &format!("the ack of offset {}", item.offset))?;
    }
    drop(worker);
    probe.worker(&topic, "g", LONG_MS)?.expect_nothing(SILENCE, "both to be finished")?;
    pass("204 for both, and both are finished")
}

fn ack_out_of_order(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    let (first, second) = two_delivered(probe, &mut worker, &topic)?;
    worker.ack(&second)?;
    let again = worker.next()?;
    let observed = format!("offset {} again, attempt {}", again.offset, again.attempts);
    ensure(again.offset == first.offset, format!("offset {} again", first.offset), &observed)?;
    worker.ack(&again)?;
    pass(observed)
}

fn ack_per_partition(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    probe.produce_to(&topic, 0, "a")?;
    probe.produce_to(&topic, 1, "b")?;
    let items = worker.take(2)?;
    // The higher offset, which would cover the other's if progress were per topic.
    let acked = items.iter().max_by_key(|item| item.offset).map_or(0, |item| item.partition);
    for item in items.iter().filter(|item| item.partition == acked) {
        worker.ack(item)?;
    }
    let again = worker.next()?;
    ensure(again.partition != acked, "the other partition's message again", &again.json)?;
    worker.ack(&again)?;
    pass(format!("partition {acked} was acked, partition {} was redelivered", again.partition))
}

fn offsets_increase(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let mut offsets = Vec::new();
    for value in ["a", "b"] {
        probe.produce(&topic, value)?;
        let item = worker.next()?;
        worker.ack(&item)?;
        offsets.push(item.offset);
    }
    ensure(offsets[0] < offsets[1], "increasing offsets", format!("{offsets:?}"))?;
    pass(format!("{offsets:?}"))
}

fn offsets_of_a_topic(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(3)?;
    for partition in [2, 0, 1] {
        probe.produce_to(&topic, partition, "v")?;
    }
    let mut items = probe.worker(&topic, "g", LONG_MS)?.take(3)?;
    items.sort_unstable_by_key(|item| item.offset);
    let positions: Vec<_> = items.iter().map(|item| (item.partition, item.offset)).collect();
    let partitions: Vec<i64> = positions.iter().map(|(partition, _)| *partition).collect();
    let distinct = positions.windows(2).all(|two| two[0].1 < two[1].1);
    ensure(distinct && partitions == [2, 0, 1], "offsets in the order of the produces", format!("{positions:?}"))?;
    pass(format!("partitions and offsets {positions:?}"))
}

/// A worker that acks nothing, the deliveries it holds, and how many messages the partition has, which are more.
fn at_the_limit<'a>(probe: &'a Probe<'a>, topic: &str) -> Result<(Worker<'a>, Vec<Item>, usize), Verdict> {
    let sent = fill_partition(probe, topic, IN_FLIGHT_TRIED_MAX)?;
    let mut worker = probe.worker(topic, "g", LONG_MS)?;
    let mut held = Vec::new();
    while held.len() < sent {
        let Some(item) = worker.wait(SILENCE)? else { break };
        held.push(item);
    }
    if held.len() < sent {
        return Ok((worker, held, sent));
    }
    Err(not_applicable(if sent < IN_FLIGHT_TRIED_MAX {
        format!("a partition accepts only {sent} unfinished messages, so no more can be in flight")
    } else {
        format!("{sent} in flight are allowed; higher limits are not looked for")
    }))
}

fn in_flight_limit(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (mut worker, held, sent) = at_the_limit(probe, &topic)?;
    ensure(!held.is_empty(), "some deliveries", "none")?;
    worker.expect_nothing(SILENCE, "nothing more without an ack")?;
    pass(format!("{} of {sent} in flight, and no more", held.len()))
}

fn in_flight_ack_allows_next(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (mut worker, held, _) = at_the_limit(probe, &topic)?;
    let Some(first) = held.first() else { return Err(not_applicable("nothing is delivered at all")) };
    worker.ack(first)?;
    let next = worker.next()?;
    ensure(held.iter().all(|item| item.offset < next.offset), "a message that was not in flight yet", &next.json)?;
    worker.expect_nothing(SILENCE, "one more for one ack")?;
    pass("one more for one ack")
}

fn in_flight_other_group(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (_worker, held, _) = at_the_limit(probe, &topic)?;
    let (item, _) = probe.take(&topic, "other", LONG_MS)?;
    pass(format!("{} held by one group, offset {} went to another", held.len(), item.offset))
}

fn in_flight_default(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (_worker, held, _) = at_the_limit(probe, &topic)?;
    if held.len() != 2 {
        return Err(not_applicable(format!("the limit in force is {}, not the default of 2", held.len())));
    }
    pass("2 in flight, and no more")
}
