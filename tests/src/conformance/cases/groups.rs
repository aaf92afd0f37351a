//! v1.1: consumer groups and dispatch.

use std::time::{Duration, Instant};

use super::{Case, Probe, Verdict, case};
use crate::conformance::probe::{Item, LONG_MS, QUIET, SHORT_MS, Worker};
use crate::conformance::verdict::{Finding, ensure, fail, pass};

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
    case(GROUPS, "groups_have_own_offsets", "an ack of one group moves no other group", own_offsets),
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
        "produce, consume, ack: the message is delivered once and progress is kept",
        basic_flow,
    ),
];

/// The next delivery to any of these workers, and to whom it went.
fn next_of(probe: &Probe<'_>, workers: &mut [Worker<'_>]) -> Result<(usize, Item), Verdict> {
    let give_up = Instant::now() + probe.patience();
    while Instant::now() < give_up {
        for (index, worker) in workers.iter_mut().enumerate() {
            if let Some(item) = worker.wait(Duration::from_millis(10))? {
                return Ok((index, item));
            }
        }
    }
    Err(fail("a delivery to one of them", "none"))
}

/// Two workers of one group, both known to the broker.
fn pair<'a>(probe: &'a Probe<'a>, topic: &str) -> Result<Vec<Worker<'a>>, Verdict> {
    let workers = vec![probe.worker(topic, "g", LONG_MS)?, probe.worker(topic, "g", LONG_MS)?];
    // A stream's head may leave before the broker counts on its consumer.
    std::thread::sleep(Duration::from_millis(100));
    Ok(workers)
}

fn no_broadcast(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(4)?;
    let mut workers = pair(probe, &topic)?;
    for partition in 0..4 {
        probe.produce_to(&topic, partition, "v")?;
    }
    let mut places = Vec::new();
    for _ in 0..4 {
        let (_, item) = next_of(probe, &mut workers)?;
        places.push((item.partition, item.offset));
    }
    for worker in &mut workers {
        worker.quiet(QUIET, "no delivery to a second consumer")?;
    }
    places.sort_unstable();
    places.dedup();
    ensure(places.len() == 4, "4 different messages", format!("{places:?}"))?;
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
    // Short leases: what is handed to the one that has just gone comes again soon.
    let (mut gone, mut left) = (probe.worker(&topic, "g", SHORT_MS)?, probe.worker(&topic, "g", SHORT_MS)?);
    gone.quiet(Duration::from_millis(50), "nothing before a produce")?;
    drop(gone);
    probe.produce(&topic, "v")?;
    let item = left.next()?;
    left.ack(&item)?;
    pass("two at once, and the one that stayed got the message")
}

fn each_group_gets_everything(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(2)?;
    let (mut one, mut two) = (probe.worker(&topic, "g1", LONG_MS)?, probe.worker(&topic, "g2", LONG_MS)?);
    for partition in 0..2 {
        probe.produce_to(&topic, partition, "v")?;
    }
    let places = |items: Vec<Item>| {
        let mut places: Vec<_> = items.iter().map(|item| (item.partition, item.offset)).collect();
        places.sort_unstable();
        places
    };
    let (one, two) = (places(one.take(2)?), places(two.take(2)?));
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
    // Its own claim is still good, whatever the other group has acked.
    two.nack(&second, "not yet")?;
    let again = two.next()?;
    ensure(again.offset == first.offset, "the message to be open in the other group", &again.json)?;
    two.ack(&again)?;
    pass("acked in one group, open in the other")
}

fn starts_with_nothing_acked(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    // A group that was there before keeps what it has not acked, so that nothing is trimmed for being done.
    let held = probe.worker(&topic, "keeper", LONG_MS)?;
    probe.produce(&topic, "v")?;
    let (item, _) = probe.take(&topic, "late", LONG_MS)?;
    drop(held);
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
    next.quiet(QUIET, "an acked message to be over for its group")?;
    pass("delivered, acked, and over")
}
