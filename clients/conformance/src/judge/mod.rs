//! Judges what a client did by the trace of a run. Nothing is held against a client without proof: each conviction
//! names the entries that prove it. What the broker, the network or a kill can have caused is not the client's fault.

mod effects;
mod ends;
mod facts;
mod leases;
mod requests;
mod shutdown;

use serde::Serialize;

use self::facts::Facts;
use crate::trace::Entry;

/// How long something that was on its way may have taken, on a busy machine too. What a client does within it, it can
/// have done before it knew better.
const IN_TRANSIT_US: u64 = 300_000;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Conviction {
    /// The rule, as in [`RULES`].
    pub rule: &'static str,
    /// What happened.
    pub text: String,
    /// The entries of the trace that prove it, counted from 0.
    pub entries: Vec<usize>,
}

/// The rules, and what they demand.
pub const RULES: &[(&str, &str)] = &[
    ("effect_without_grant", "An effect runs only under an EXECUTE that was granted for its delivery."),
    ("effect_twice", "An effect runs again only after its grant was recorded as failed, or its delivery has ended."),
    ("settled_before_effect", "A message is not finished before its effects have run."),
    ("effect_missing", "Each message that was produced has its effect."),
    ("begin_without_delivery", "A begin names the delivery that it is for."),
    ("no_token", "Whatever ends or extends a lease shows its token."),
    ("ended_without_finish", "A granted effect ends with a result or a recorded failure before its message goes back."),
    ("heartbeat_late", "A lease in use, of a message or of its effect, is extended every third of its length."),
    ("lost_lease_used", "Nothing is reported for a lease that was refused, or had no heartbeat for its whole length."),
    ("stale_result", "A result is that of the delivery it is reported for, or the stored one."),
    ("too_many_handlers", "No more handlers run at a time than the worker's concurrency."),
    ("credit", "A stream asks for no more messages than the worker's concurrency."),
    ("key_order", "Messages of one key are handled one after the other, as delivered."),
    ("held_after_stop", "A worker that has stopped holds no lease."),
    ("unsafe_repeat", "A request that may have been carried out is repeated only if that does no harm."),
    ("repeat_after_refusal", "A request that was refused is not sent again."),
    ("other_key", "A message that is sent again has the same idempotency key."),
    ("other_delay", "A failure that names a delay is nacked with it."),
    ("message_twice", "A message that is made once is stored once."),
    ("message_missing", "Each message that was produced is acked in its group or a dead letter."),
    ("dead_letters", "Those messages are dead letters that should be, and no others."),
    ("wrong_answer", "The client answers its caller with what the broker has done."),
    ("adapter_ended", "The client's process ends only when it is told to, and then at once."),
    ("timed_out", "Everything ends in time."),
];

/// What is wrong with the client of this trace: nothing, if it kept the contract.
#[must_use]
pub fn judge(entries: &[Entry]) -> Vec<Conviction> {
    let facts = match Facts::new(entries) {
        Ok(facts) => facts,
        Err(text) => return vec![Conviction { rule: "timed_out", text, entries: Vec::new() }],
    };
    let mut convictions = Vec::new();
    effects::check(&facts, &mut convictions);
    requests::check(&facts, &mut convictions);
    leases::check(&facts, &mut convictions);
    shutdown::check(&facts, &mut convictions);
    ends::check(&facts, &mut convictions);
    debug_assert!(
        convictions.iter().all(|conviction| RULES.iter().any(|(rule, _)| *rule == conviction.rule)),
        "each conviction is by a rule that is listed"
    );
    convictions
}
