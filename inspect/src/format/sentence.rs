//! Records in words.

use std::fmt::Write as _;
use std::time::Duration;

use driftq_core::Body;
use driftq_core::idempotency::{Identity, Realm, Scope};
use driftq_core::record::{Completed, DedupeWindow, Event, GroupStart, MessageRef, Record, Retention};
use driftq_core::state::State;
use driftq_core::state::entry::Phase;
use driftq_core::types::{Millis, Timestamp};

use crate::format::names::{entry, group, message, moment, quoted, topic};
use crate::format::span;

/// A record's name.
pub fn kind(event: &Event) -> &'static str {
    match event {
        Event::Booted { .. } => "booted",
        Event::TopicCreated { .. } => "topic created",
        Event::TopicDeleted { .. } => "topic deleted",
        Event::GroupCreated { .. } => "group created",
        Event::GroupDeleted { .. } => "group deleted",
        Event::GroupPaused { .. } => "group paused",
        Event::GroupResumed { .. } => "group resumed",
        Event::GroupSought { .. } => "group sought",
        Event::Produced { .. } => "produced",
        Event::Delivered { .. } => "delivered",
        Event::Acked { .. } => "acked",
        Event::Skipped { .. } => "skipped",
        Event::Nacked { .. } => "nacked",
        Event::ReasonNoted { .. } => "reason noted",
        Event::Expired { .. } => "lease ended",
        Event::Extended { .. } => "extended",
        Event::Released { .. } => "released",
        Event::DeadLettered { .. } => "dead-lettered",
        Event::Redriven { .. } => "redriven",
        Event::RetainedOut { .. } => "retained out",
        Event::IdentitiesExpired { .. } => "identities expired",
        Event::EffectBegun(_) => "effect begun",
        Event::EffectFinished { .. } => "effect finished",
        Event::EffectRenewed { .. } => "effect renewed",
        Event::EffectForgotten { .. } => "effect forgotten",
        Event::EffectsExpired { .. } => "effects expired",
        Event::Completed(_) => "completed",
        Event::CompletionsExpired { .. } => "completions expired",
        Event::Restored(_) => "restored",
    }
}

/// The message that a record is about as one group sees it, if it is about one.
pub fn message_ref(event: &Event) -> Option<&MessageRef> {
    match event {
        Event::Delivered { message_ref, .. }
        | Event::Acked { message_ref, .. }
        | Event::Skipped { message_ref }
        | Event::Nacked { message_ref, .. }
        | Event::ReasonNoted { message_ref, .. }
        | Event::Expired { message_ref, .. }
        | Event::Extended { message_ref, .. }
        | Event::Released { message_ref }
        | Event::DeadLettered { message_ref, .. } => Some(message_ref),
        Event::Completed(step) => Some(&step.message_ref),
        _ => None,
    }
}

/// What a record says, in a sentence, by the state it was decided against.
pub fn sentence(state: &State, record: &Record) -> String {
    if let Some(message_ref) = message_ref(&record.event) {
        let (message, group) = (message(state, message_ref), group(state, message_ref.topic, message_ref.group));
        return format!("{message} for group {group}: {}", of_message(state, record));
    }
    match &record.event {
        Event::Booted { boot } => format!("the broker started, boot {boot}"),
        Event::TopicCreated { name, partitions, retention, .. } => {
            format!("topic {name} created with {partitions} partitions{}", kept(*retention))
        }
        Event::TopicDeleted { topic: id } => format!("topic {} deleted", topic(state, *id)),
        Event::GroupCreated { topic: id, name, start, .. } => {
            let start = if *start == GroupStart::Latest { "latest" } else { "earliest" };
            format!("group {name} of topic {} created, from the {start} message on", topic(state, *id))
        }
        Event::GroupDeleted { topic: id, group: of } => of_group(state, (*id, *of), "deleted"),
        Event::GroupPaused { topic: id, group: of } => of_group(state, (*id, *of), "paused"),
        Event::GroupResumed { topic: id, group: of } => of_group(state, (*id, *of), "resumed"),
        Event::GroupSought { topic: id, group: of, targets } => {
            let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
            of_group(state, (*id, *of), &format!("sought to positions {}", targets.join(", ")))
        }
        Event::Produced { topic: id, partition, offset, body, dedupe } => {
            let name = topic(state, *id);
            format!("{name}/{offset} produced into partition {partition}: {}", of_body(body, &name, dedupe.as_ref()))
        }
        Event::Redriven { dead_topic, dead_partition, dead_position, topic: id, group: of, offset, .. } => {
            let dead = state.topic(*dead_topic).and_then(|dead| dead.partition(*dead_partition));
            let from = dead.and_then(|dead| dead.message(*dead_position)).map(|message| message.offset);
            let from = from.map_or_else(|| "?".to_owned(), |offset| offset.to_string());
            let (dead, name) = (topic(state, *dead_topic), topic(state, *id));
            format!("{dead}/{from} redriven as {name}/{offset}, for group {} alone", group(state, *id, *of))
        }
        Event::RetainedOut { topic: id, partition, through } => {
            let name = topic(state, *id);
            format!("topic {name}, partition {partition}: done messages go, through position {through}")
        }
        Event::IdentitiesExpired { scope, count } => format!("{count} produce identities of topic {scope} expired"),
        Event::EffectBegun(begun) => {
            let (identity, owner, until) = (identity(&begun.identity), &begun.owner, moment(begun.until));
            format!("effect of {identity} granted to {owner} until {until}, token {}", begun.token)
        }
        Event::EffectFinished { identity: of, outcome } => {
            format!("effect of {} ended: {}", identity(of), outcome.status.as_str())
        }
        Event::EffectRenewed { identity: of, until } => {
            format!("effect of {} may take until {}", identity(of), moment(*until))
        }
        Event::EffectForgotten { identity: of } => format!("effect of {} forgotten, as somebody asked", identity(of)),
        Event::EffectsExpired { realm, count } => match realm {
            Realm::Shared => format!("{count} effects past their window looked at"),
            Realm::Group(topic, group) => {
                format!("{count} effects of group {group} of topic {topic} past their window looked at")
            }
        },
        Event::CompletionsExpired { count } => format!("{count} answers of completed steps need not be repeated"),
        event => kind(event).to_owned(),
    }
}

fn of_group(state: &State, (id, of): (driftq_core::types::TopicId, driftq_core::types::GroupId), what: &str) -> String {
    format!("group {} of topic {} {what}", group(state, id, of), topic(state, id))
}

fn kept(retention: Retention) -> String {
    let age = retention.age.map(|age| format!("{} old", time(age)));
    let bytes = retention.bytes.map(|bytes| format!("of {bytes} bytes"));
    match age.into_iter().chain(bytes).collect::<Vec<_>>() {
        kept if kept.is_empty() => String::new(),
        kept => format!("; done messages are kept until they are {}", kept.join(" or more than ")),
    }
}

/// What a record says of the one message it is about, without naming it; empty if it is about none.
pub fn of_message(state: &State, record: &Record) -> String {
    let Some(message_ref) = message_ref(&record.event) else { return String::new() };
    let before = entry(state, message_ref);
    let owner = before.map_or("nobody", |entry| entry.owner.as_str());
    let attempts = before.map_or(0, |entry| entry.attempts);
    let late = match before.map(|entry| entry.phase) {
        Some(Phase::Queued { .. }) => ", after its lease had ended",
        _ => "",
    };
    match &record.event {
        Event::Delivered { token, owner, until, .. } => {
            let (attempt, lease) = (attempts.saturating_add(1), time(until.since(record.at)));
            format!("delivered to {owner}, attempt {attempt}, lease of {lease} until {}, token {token}", moment(*until))
        }
        Event::Acked { commits, .. } => {
            let commits = commits
                .map_or(String::new(), |window| format!("; its identity is remembered as done for {}", time(window)));
            format!("acked by {owner}{late}{commits}")
        }
        Event::Skipped { .. } => "skipped, undelivered: a message of its identity is done already".to_owned(),
        Event::Nacked { reason, not_before, .. } => {
            let reason = reason.as_ref().map_or("without a reason".to_owned(), |reason| quoted(reason.as_bytes()));
            format!("nacked by {owner}, {reason}; {}", again(*not_before, record.at))
        }
        Event::ReasonNoted { reason, .. } => {
            format!("{owner} says why the failed delivery had failed: {}", quoted(reason.as_bytes()))
        }
        Event::Expired { not_before, .. } => {
            format!("the lease of {owner} ended without a word; {}", again(*not_before, record.at))
        }
        Event::Extended { until, .. } => format!("the lease of {owner} now ends at {}", moment(*until)),
        Event::Released { .. } => format!("given back by {owner}"),
        Event::DeadLettered { dead_offset, reason, last_error, .. } => {
            let source = state.topic(message_ref.topic).and_then(|topic| topic.dead_letter_name());
            let dead = source.map_or("?", |name| name.as_str());
            let (reason, error) = (reason.as_str(), quoted(last_error.as_bytes()));
            format!("dead ({reason}) after {attempts} attempts, last error {error}; it is {dead}/{dead_offset} now")
        }
        Event::Completed(step) => format!("completed by {owner}{}", made(step)),
        _ => String::new(),
    }
}

/// What a completed step has made.
fn made(step: &Completed) -> String {
    let result = step.effect.as_ref().and_then(|effect| effect.result.as_ref());
    let result = result.map_or(String::new(), |result| format!(", result {}", quoted(result.as_bytes())));
    let outputs = step.outputs.iter().map(|output| {
        let was = if output.stored.is_none() { " (accepted before)" } else { "" };
        format!("{}/{}{was}", output.asked, output.offset)
    });
    let outputs: Vec<_> = outputs.collect();
    let made = if outputs.is_empty() { "nothing".to_owned() } else { outputs.join(", ") };
    format!("{result}; it made {made}")
}

fn again(not_before: Timestamp, at: Timestamp) -> String {
    match not_before.since(at) {
        Millis(0) => "due again at once".to_owned(),
        backoff => format!("due again in {}, at {}", time(backoff), moment(not_before)),
    }
}

/// A message's bytes and what travels with them, in words.
pub fn of_body(body: &Body, stored_in: &str, dedupe: Option<&DedupeWindow>) -> String {
    let mut text = format!("key {}, value of {} bytes", quoted(body.key()), body.value().len());
    let meta = body.metadata();
    let envelope = &meta.envelope;
    if let Some((tenant, key)) = body.identity() {
        let _ = write!(text, ", identity {} of tenant {tenant}", quoted(key.as_bytes()));
        if let Some(dedupe) = dedupe {
            let _ = write!(text, ", a duplicate until {}", moment(dedupe.expires_at));
        }
    }
    if let Some(priority) = envelope.priority {
        let _ = write!(text, ", priority {}", priority.level());
    }
    if let Some(at) = envelope.deliver_at {
        let _ = write!(text, ", not before {}", moment(at));
    }
    if let Some(deadline) = &envelope.deadline {
        let _ = write!(text, ", deadline {}", moment(deadline.at));
    }
    if let Some(policy) = envelope.retry_policy {
        let (most, backoff) = (policy.max_attempts, time(policy.backoff));
        let _ = write!(text, ", at most {most} attempts, backoff {backoff}");
    }
    for (name, id) in [("run", &envelope.run_id), ("step", &envelope.step_id)] {
        if let Some(id) = id {
            let _ = write!(text, ", {name} {}", quoted(id.as_bytes()));
        }
    }
    if let Some(routing) = &meta.routing {
        let _ = write!(text, ", routed to {stored_in} by the label {}", quoted(routing.label.as_bytes()));
    } else if envelope.target_topic.is_some() {
        let _ = write!(text, ", sent on to {stored_in} by its producer's own target topic");
    }
    if let Some(scope) = dedupe.map(|dedupe| dedupe.scope.as_str()).filter(|scope| *scope != stored_in) {
        let _ = write!(text, " (its producer meant {scope})");
    }
    if let Some(dead) = &meta.dead_letter {
        let (topic, offset, group) = (&dead.original_topic, dead.original_offset, &dead.group);
        let _ = write!(text, ", the dead letter of {topic}/{offset} for group {group}: {}", dead.reason.as_str());
    }
    if let Some(redrive) = meta.redrive {
        let (count, first) = (redrive.count, redrive.original_offset);
        let _ = write!(text, ", redriven {count} times, first as offset {first}");
    }
    text
}

/// An identity of an effect, in words.
pub fn identity(identity: &Identity) -> String {
    let scope = match &identity.scope {
        Scope::Consume { topic, group } => format!("group {group} of topic {topic}"),
        Scope::Tenant => "the tenant".to_owned(),
        Scope::Job { id } => format!("job {}", quoted(id.as_bytes())),
        Scope::Task { id } => format!("task {}", quoted(id.as_bytes())),
        Scope::Rpc { principal, method } => {
            format!("calls of {} by {}", quoted(method.as_bytes()), quoted(principal.as_bytes()))
        }
    };
    format!("key {} of tenant {} for {scope}", quoted(identity.key().as_bytes()), identity.tenant())
}

/// A time as people say it, to the millisecond where it is short.
pub fn time(time: Millis) -> String {
    match time.0 {
        0..1_000 => format!("{} ms", time.0),
        millis => span(Duration::from_millis(millis)),
    }
}
