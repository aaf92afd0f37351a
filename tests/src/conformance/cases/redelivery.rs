//! v1.1: ack timeout and redelivery; v1.6: owners, leases and `last_error`.

use crate::conformance::case::{Case, case};
use crate::conformance::probe::{AFTER_MEDIUM, Item, LONG_MS, MEDIUM_MS, Probe, SHORT_MS};
use crate::conformance::verdict::{Finding, ensure, ensure_status, fail, not_applicable, pass};

const TIMEOUT: &str = "v1.1 Ack timeout and redelivery";
const LAST_ERROR: &str = "v1.6 Failure reasons";
const OWNERS: &str = "v1.6 Owner and lease";

pub(super) const CASES: &[Case] = &[
    case(TIMEOUT, "redelivery_after_timeout", "a message that is not acked in time is delivered again", after_timeout),
    case(
        TIMEOUT,
        "attempts_start_at_one",
        "attempts is 1 at the first delivery: it counts deliveries, not produces",
        attempts_start_at_one,
    ),
    case(TIMEOUT, "attempts_increase", "attempts increases with each delivery attempt", attempts_increase),
    case(TIMEOUT, "redelivery_to_another", "a redelivery may go to another consumer of the group", to_another),
    case(TIMEOUT, "redelivery_in_time", "a redelivery follows soon after the lease expires (tick: 250 ms)", in_time),
    case(TIMEOUT, "redelivery_then_ack", "an ack after a redelivery stops the retries", then_ack),
    case(
        TIMEOUT,
        "redelivery_is_the_same_message",
        "a redelivery has the same partition, offset, key and value",
        same_message,
    ),
];

/// Cases of v1.6.
pub(super) const CASES_V1_6: &[Case] = &[
    case(
        OWNERS,
        "old_owner_after_redelivery",
        "after a redelivery to another owner the old owner's ack is 409",
        old_owner,
    ),
    case(OWNERS, "new_owner_after_redelivery", "after a redelivery the new owner's ack succeeds", new_owner),
    case(
        OWNERS,
        "old_token_after_ack",
        "after a redelivery was acked, an ack with the token of the old delivery is 409",
        old_token,
    ),
    case(LAST_ERROR, "last_error_empty_at_first", "last_error is empty at the first delivery", empty_at_first),
    case(LAST_ERROR, "last_error_of_a_nack", "a nack's reason is last_error at the next delivery", of_a_nack),
    case(LAST_ERROR, "last_error_of_the_latest_nack", "last_error is the latest reason", of_the_latest_nack),
    case(
        LAST_ERROR,
        "last_error_of_a_timeout",
        "after a timeout without a reason last_error may be \"ack_timeout\", and nothing else",
        of_a_timeout,
    ),
    case(
        LAST_ERROR,
        "last_error_timeout_after_nack",
        "a timeout does not replace the reason of a nack",
        timeout_after_nack,
    ),
];

fn after_timeout(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let (first, second) = (worker.next()?, worker.next()?);
    worker.ack(&second)?;
    ensure(first.offset == second.offset, "the same message", &second.json)?;
    pass(format!("again after {} ms", (second.at - first.at).as_millis()))
}

fn attempts_start_at_one(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure(item.attempts == 1, "attempts 1", &item.json)?;
    pass("attempts 1")
}

fn attempts_increase(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let first = worker.next()?;
    let second = worker.next()?;
    worker.nack(&second, "again")?;
    let third = worker.next()?;
    worker.ack(&third)?;
    let attempts = [first, second, third].map(|item| item.attempts);
    let increasing = attempts[1] == attempts[0] + 1 && attempts[2] == attempts[1] + 1;
    ensure(increasing, "attempts that increase by one", format!("{attempts:?}"))?;
    pass(format!("{attempts:?}, by a timeout and by a nack"))
}

fn to_another(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (first, _) = probe.take(&topic, "g", SHORT_MS)?;
    let mut other = probe.worker(&topic, "g", LONG_MS)?;
    let again = other.next()?;
    ensure(again.offset == first.offset, "the same message", &again.json)?;
    other.ack(&again)?;
    pass("another consumer got it")
}

fn in_time(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", 2_000)?;
    let (first, second) = (worker.next()?, worker.next()?);
    worker.ack(&second)?;
    let seen = (second.at - first.at).as_millis();
    // A tick, and a second for a busy machine.
    ensure((1_800..3_250).contains(&seen), "a redelivery within a tick of 2000 ms", format!("one after {seen} ms"))?;
    pass(format!("a lease of 2000 ms, again after {seen} ms"))
}

fn then_ack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    probe.take(&topic, "g", SHORT_MS)?;
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    let again = worker.next()?;
    worker.ack(&again)?;
    worker.expect_nothing(AFTER_MEDIUM, "no delivery after the ack")?;
    pass("attempt 2 was acked, and none followed")
}

fn same_message(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(3)?;
    probe.produce_body(&serde_json::json!({ "topic": topic, "key": "k7", "value": "v" }))?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "again")?;
    let second = worker.next()?;
    worker.ack(&second)?;
    let identity = |item: &Item| (item.partition, item.offset, item.key.clone(), item.value.clone());
    ensure(identity(&first) == identity(&second), &first.json, &second.json)?;
    pass("the same partition, offset, key and value")
}

fn old_owner(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (_, old) = probe.take(&topic, "g", SHORT_MS)?;
    let (_, new) = probe.take(&topic, "g", LONG_MS)?;
    let reply = probe.ack(&old)?;
    probe.ack(&new)?;
    ensure_status(&reply, 409, "the old owner's ack")?;
    pass("409")
}

fn new_owner(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    probe.take(&topic, "g", SHORT_MS)?;
    let (_, new) = probe.take(&topic, "g", LONG_MS)?;
    ensure_status(&probe.ack(&new)?, 204, "the new owner's ack")?;
    pass("204")
}

fn old_token(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    let old = worker.next()?;
    let Some(token) = old.json["lease_token"].as_str() else {
        return Err(not_applicable("deliveries have no lease_token"));
    };
    let new = worker.next()?;
    worker.ack(&new)?;
    let mut body = worker.claim(&old).json();
    body["lease_token"] = token.into();
    ensure_status(&probe.post("/v1/ack", &body)?, 409, "the ack of the old delivery")?;
    body["lease_token"] = new.json["lease_token"].clone();
    ensure_status(&probe.post("/v1/ack", &body)?, 204, "the repeated ack of the new delivery")?;
    pass("409, and 204 to the token that acked it")
}

fn empty_at_first(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let (item, _) = probe.take(&topic, "g", LONG_MS)?;
    ensure(item.last_error.is_empty(), "an empty last_error", &item.json)?;
    pass("empty")
}

fn of_a_nack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "db_deadlock")?;
    let second = worker.next()?;
    worker.ack(&second)?;
    ensure(second.last_error == "db_deadlock", "last_error db_deadlock", &second.json)?;
    pass("last_error db_deadlock")
}

fn of_the_latest_nack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", LONG_MS)?;
    for reason in ["first", "second"] {
        let item = worker.next()?;
        worker.nack(&item, reason)?;
    }
    let third = worker.next()?;
    worker.ack(&third)?;
    ensure(third.last_error == "second", "last_error second", &third.json)?;
    pass("last_error second")
}

fn of_a_timeout(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", SHORT_MS)?;
    worker.next()?;
    let second = worker.next()?;
    worker.ack(&second)?;
    match second.last_error.as_str() {
        "ack_timeout" => pass("last_error ack_timeout"),
        "" => pass("last_error is empty, as the clause allows"),
        _ => Err(fail("last_error ack_timeout", &second.json)),
    }
}

fn timeout_after_nack(probe: &Probe<'_>) -> Finding {
    let topic = probe.topic(1)?;
    probe.produce(&topic, "v")?;
    let mut worker = probe.worker(&topic, "g", MEDIUM_MS)?;
    let first = worker.next()?;
    worker.nack(&first, "upstream timeout")?;
    worker.next()?;
    let third = worker.next()?;
    worker.ack(&third)?;
    ensure(third.last_error == "upstream timeout", "last_error \"oven is cold\"", &third.json)?;
    pass("the reason is unchanged")
}
