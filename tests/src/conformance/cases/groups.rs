//! v1.1: consumer groups and dispatch.

use std::time::{Duration, Instant};

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{Item, LONG_MS, Probe, SHORT_MS, SILENCE, Worker};
use crate::conformance::verdict::{Finding, Verdict, ensure, fail, pass};

const GROUPS: &str = "v1.1 Consumer groups and dispatch";

pub(super) const CASES: &[Case] = &[
    case(
        GROUPS,
        "group_no_broadcast",
        "within a group each delivery attempt goes to exactly one consumer",
        no_broadcast,
    ),
    case(GROUPS, "group_round_robin", "a group's consumers take turns", round_robin),
    case(
        GROUPS,
        "group_concurrent_consumers",
        "several consumers of one group can be connected at once",
        concurrent_consumers,
    ),
    case(GROUPS, "groups_each_get_everything", "each group gets every message", each_group_gets_everything),
    case(GROUPS, "groups_have_own_offsets", "an ack of one group affects no other group", own_offsets),
    case(
        GROUPS,
        "group_starts_with_nothing_acked",
        "a new group has nothing acked and gets what was produced before it",
        starts_with_nothing_acked,
    ),
    case(
        GROUPS,
        "group_owner_within_group",
        "a delivery belongs to the consumer that got it, not to its group",
        owner_within_group,
    ),
    case(
        GROUPS,
        "basic_consume_and_ack",
        "produce, consume, ack: the message is delivered once and progress is stored",
        basic_flow,
    ),
];

/// The next delivery to any of these workers, and the index of the worker.
fn next_of(probe: &Probe<'_>, workers: &mut [Worker<'_>]) -> Result<(usize, Item), Verdict> {
    let deadline = Instant::now() + probe.timeout();
    while Instant::now() < deadline {
        for (index, worker) in workers.iter_mut().enumerate() {
            if let Some(item) = worker.wait(Duration::from_millis(10))? {
                return Ok((index, item));
            }
        }
    }
    Err(fail("a delivery to one of the workers", "none"))
}

/// Two workers of one group, both registered at the broker.
fn pair<'a>(probe: &'a Probe<'a>, topic: &str) -> Result<Vec<Worker<'a>>, Verdict> {
    let workers = vec![probe.worker(topic, "g", LONG_MS)?, probe.worker(topic, "g", LONG_MS)?];
    // The head of a stream may arrive before its consumer is registered.
    std::thread::sleep(Duration::from_millis(100));
    Ok(workers)
}

fn no_broadcast(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(4)?;
    let mut workers = pair(probe, &topic)?;
    for partition in 0..4 {
        probe.produce_to(&topic, partition, "v")?;
    }
    let mut positions = Vec::new();
    for _ in 0..4 {
        let (_, item) = next_of(probe, &mut workers)?;
        positions.push((item.partition, item.offset));
    }
    for worker in &mut workers {
        worker.expect_nothing(SILENCE, "no delivery to a second consumer")?;
    }
    positions.sort_unstable();
    positions.dedup();
    ensure(positions.len() == 4, "4 different messages", format!("{positions:?}"))?;
    pass("4 messages, 4 deliveries to 2 consumers")
}

fn round_robin(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let mut workers = pair(probe, &topic)?;
    let mut turns = Vec::new();
    for turn in 0..4 {
        probe.produce_to(&topic, turn % 2, "v")?;
        let (index, item) = next_of(probe, &mut workers)?;
        workers[index].ack(&item)?;
        turns.push(index);
    }
    let fair = turns.windows(2).all(|two| two[0] != two[1]);
    ensure(fair, "two consumers in turns", format!("consumers {turns:?}"))?;
    pass(format!("consumers {turns:?}"))
}

fn concurrent_consumers(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    // Short leases: a message delivered to the closed stream is redelivered soon.
    let (mut closed, mut open) = (probe.worker(&topic, "g", SHORT_MS)?, probe.worker(&topic, "g", SHORT_MS)?);
    closed.expect_nothing(Duration::from_millis(50), "nothing before a produce")?;
    drop(closed);
    probe.produce(&topic, "v")?;
    let item = open.next()?;
    open.ack(&item)?;
    pass("two at once, and the remaining one got the message")
}

fn each_group_gets_everything(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let (mut one, mut two) = (probe.worker(&topic, "g1", LONG_MS)?, probe.worker(&topic, "g2", LONG_MS)?);
    for partition in 0..2 {
        probe.produce_to(&topic, partition, "v")?;
    }
    let positions = |items: Vec<Item>| {
        let mut positions: Vec<_> = items.iter().map(|item| (item.partition, item.offset)).collect();
        positions.sort_unstable();
        positions
    };
    let (one, two) = (positions(one.take(2)?), positions(two.take(2)?));
    ensure(one == two && one[0] != one[1], "the same two messages in both groups", format!("{one:?} and {two:?}"))?;
    pass("2 messages in each of 2 groups")
}

fn own_offsets(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let (mut one, mut two) = (probe.worker(&topic, "g1", LONG_MS)?, probe.worker(&topic, "g2", LONG_MS)?);
    probe.produce(&topic, "v")?;
    let first = one.next()?;
    one.ack(&first)?;
    let second = two.next()?;
    ensure(second.attempts == 1, "attempt 1 in the other group", &second.json)?;
    // Its claim is valid although the other group has acked.
    two.nack(&second, "not yet")?;
    let again = two.next()?;
    ensure(again.offset == first.offset, "the message to be pending in the other group", &again.json)?;
    two.ack(&again)?;
    pass("acked in one group, pending in the other")
}

fn starts_with_nothing_acked(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut earlier = probe.worker(&topic, "earlier", LONG_MS)?;
    let first = earlier.next()?;
    earlier.ack(&first)?;
    let (item, _) = probe.take(&topic, "late", LONG_MS)?;
    ensure((item.value.as_str(), item.attempts) == ("v", 1), "the earlier message, attempt 1", &item.json)?;
    pass("a late group got the earlier message")
}

fn owner_within_group(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut workers = pair(probe, &topic)?;
    probe.produce(&topic, "v")?;
    let (index, item) = next_of(probe, &mut workers)?;
    let reply = probe.ack(&workers[1 - index].claim(&item))?;
    ensure(reply.status == 409, "409 to the other consumer of the group", reply.status)?;
    workers[index].ack(&item)?;
    pass("409 for the other, 204 for its owner")
}

fn basic_flow(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    probe.produce(&topic, "v")?;
    let item = worker.next()?;
    worker.ack(&item)?;
    drop(worker);
    let mut next = probe.worker(&topic, "g", LONG_MS)?;
    next.expect_nothing(SILENCE, "an acked message to be finished for its group")?;
    pass("delivered, acked and finished")
}
