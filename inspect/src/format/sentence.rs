//! Records as English sentences, with ids resolved to names in the state that the record was decided against.

use std::fmt::Write as _;

use driftq_core::Body;
use driftq_core::record::{Completed, DeadLetterSlot, DedupeWindow, Event, Record, Referrer};
use driftq_core::state::{Message, State};
use driftq_core::types::{
    EffectNamespace, Escaped, GroupId, GroupOrigin, GroupStart, Identity, MessageRef, Millis, Phase, Retention, Scope,
    Timestamp, TopicId, WallAdjustment,
};

use crate::format::access;
use crate::format::event::{kind, message_ref};
use crate::format::resolve::{entry, group, message, topic};
use crate::format::text::{millis, quoted, timestamp};

/// A record as a sentence.
#[must_use]
pub fn sentence(state: &State, record: &Record) -> String {
    if let Some(message_ref) = message_ref(&record.event) {
        let (message, group) = (message(state, message_ref), group(state, message_ref.topic, message_ref.group));
        return format!("{message} for group {group}: {}", message_sentence(state, record));
    }
    match &record.event {
        Event::Booted { boot } => format!("broker started, boot {boot}"),
        Event::TopicCreated { name, partitions, retention, .. } => {
            format!("topic {name} created with {partitions} partitions{}", retained(*retention))
        }
        Event::RetentionChanged { topic: id, retention } => {
            format!("topic {}: retention changed{}", topic(state, *id), retained(*retention))
        }
        Event::TopicDeleted { topic: id } => format!("topic {} deleted", topic(state, *id)),
        Event::GroupCreated { topic: id, name, start, origin, .. } => {
            let start = if *start == GroupStart::Latest { "latest" } else { "earliest" };
            let by = if *origin == GroupOrigin::Ephemeral { ", for as long as it is consumed" } else { "" };
            format!("group {name} of topic {} created, starting at the {start} message{by}", topic(state, *id))
        }
        Event::GroupOriginChanged { topic: id, group: of, .. } => group_sentence(state, (*id, *of), "is to stay"),
        Event::GroupDeleted { topic: id, group: of } => group_sentence(state, (*id, *of), "deleted"),
        Event::GroupPaused { topic: id, group: of } => group_sentence(state, (*id, *of), "paused"),
        Event::GroupResumed { topic: id, group: of } => group_sentence(state, (*id, *of), "resumed"),
        Event::GroupSought { topic: id, group: of, targets } => {
            let targets: Vec<_> = targets.iter().map(ToString::to_string).collect();
            group_sentence(state, (*id, *of), &format!("sought to positions {}", targets.join(", ")))
        }
        Event::Purged { topic: id, ends, .. } => {
            let ends: Vec<_> = ends.iter().map(ToString::to_string).collect();
            format!("topic {} purged below positions {}", topic(state, *id), ends.join(", "))
        }
        Event::Produced { topic: id, partition, offset, body: stored, dedupe, skipped } => {
            let (name, skips) = (topic(state, *id), skips(state, *id, skipped));
            let body = body(stored, &name, dedupe.as_ref());
            format!("{name}/{offset} produced into partition {partition}: {body}{skips}")
        }
        Event::Redriven { dead_topic, dead_partition, dead_position, topic: id, group: of, offset, .. } => {
            let dead = state.topic(*dead_topic).and_then(|dead| dead.partition(*dead_partition));
            let from = dead.and_then(|dead| dead.message(*dead_position)).map(|message| message.offset);
            let from = from.map_or_else(|| "?".to_owned(), |offset| offset.to_string());
            let (dead, name) = (topic(state, *dead_topic), topic(state, *id));
            format!("{dead}/{from} redriven as {name}/{offset}, for group {} only", group(state, *id, *of))
        }
        Event::RetentionExpired { topic: id, partition, through } => {
            let name = topic(state, *id);
            format!("topic {name}, partition {partition}: retention removed acked messages through position {through}")
        }
        Event::DedupeExpired { scope, count } => format!("{count} produce identities of topic {scope} expired"),
        Event::EffectBegun(begun) => {
            let (identity, owner, until) = (identity(&begun.identity), &begun.owner, timestamp(begun.until));
            format!("effect of {identity} granted to {owner} until {until}, token {}", begun.token)
        }
        Event::EffectFinished { identity: of, outcome } => {
            format!("effect of {} finished: {}", identity(of), outcome.status.as_str())
        }
        Event::CumulativelyAcked { topic: id, group: of, partition, acks } => {
            let positions: Vec<_> = acks.iter().map(|ack| ack.position.to_string()).collect();
            let what = format!("acked positions {} of partition {partition} together", positions.join(", "));
            group_sentence(state, (*id, *of), &what)
        }
        Event::EffectRenewed { identity: of, until } => {
            format!("effect of {} renewed until {}", identity(of), timestamp(*until))
        }
        Event::EffectForgotten { identity: of } => format!("effect of {} forgotten on request", identity(of)),
        Event::EffectsExpired { namespace, count } => match namespace {
            EffectNamespace::Shared => format!("{count} effects past their window examined"),
            EffectNamespace::Group(topic, group) => {
                format!("{count} effects of group {group} of topic {topic} past their window examined")
            }
        },
        Event::Relocated(relocated) => {
            let of = referrers(state, &relocated.referrers);
            format!("payload of {of} written again, before in record {}", relocated.from.lsn)
        }
        Event::PayloadLost(lost) => {
            let of = referrers(state, &lost.referrers);
            format!("payload of {of} lost, before in record {}: {}", lost.payload.lsn, lost.damage)
        }
        Event::CompletionsExpired { count } => format!("{count} replies of completed steps expired"),
        Event::WinnersExpired { count } => format!("{count} winners of messages forgotten"),
        Event::WallClockAdjusted(adjustment) => wall_clock_adjusted(adjustment),
        event => access::sentence(state, event).unwrap_or_else(|| kind(event).to_owned()),
    }
}

/// Who refers to a payload.
fn referrers(state: &State, referrers: &[Referrer]) -> String {
    let names = referrers.iter().map(|referrer| match referrer {
        Referrer::Message(at) => {
            let partition = state.topic(at.topic).and_then(|topic| topic.partition(at.partition));
            let offset = partition.and_then(|partition| partition.message(at.position)).map(|message| message.offset);
            let offset = offset.map_or_else(|| "?".to_owned(), |offset| offset.to_string());
            format!("{}/{offset}", topic(state, at.topic))
        }
        Referrer::Effect(of) => format!("the result of {}", identity(of)),
    });
    names.collect::<Vec<_>>().join(" and ")
}

fn group_sentence(state: &State, (id, of): (TopicId, GroupId), what: &str) -> String {
    format!("group {} of topic {} {what}", group(state, id, of), topic(state, id))
}

fn retained(retention: Retention) -> String {
    let age = retention.age.map(|age| format!("for {}", millis(age)));
    let bytes = retention.bytes.map(|bytes| format!("up to {bytes} bytes"));
    match age.into_iter().chain(bytes).collect::<Vec<_>>() {
        limits if limits.is_empty() => String::new(),
        limits => format!("; acked messages are retained {}", limits.join(" and ")),
    }
}

/// What a record says about its message, without the names of message and group. Empty if the record is not about one
/// message.
#[must_use]
pub fn message_sentence(state: &State, record: &Record) -> String {
    let Some(message_ref) = message_ref(&record.event) else { return String::new() };
    let before = entry(state, message_ref);
    let owner = before.map_or_else(|| "an unknown owner".to_owned(), |entry| entry.owner.to_string());
    let attempts = before.map_or(0, |entry| entry.attempts);
    let late = match before.map(|entry| entry.phase) {
        Some(Phase::Queued { .. }) => ", after its lease had expired",
        _ => "",
    };
    match &record.event {
        Event::Delivered { token, owner, until, .. } => {
            let (attempt, lease) = (attempts.saturating_add(1), millis(until.since(record.at)));
            let until = timestamp(*until);
            format!("delivered to {owner}, attempt {attempt}, lease of {lease} until {until}, token {token}")
        }
        Event::Acked { commits, winner_until, .. } => {
            let committed = |window| match window {
                _ if has_effect(state, message_ref) => {
                    "; the effect of its identity is committed and keeps its own window".to_owned()
                }
                Millis(0) => "; a produce of its identity is not a duplicate any more".to_owned(),
                window => format!("; the effect of its identity is committed for {}", millis(window)),
            };
            let won = |until| format!("; other tokens are refused until {}", timestamp(until));
            let (committed, won) =
                (commits.map_or_else(String::new, committed), winner_until.map_or_else(String::new, won));
            format!("acked by {owner}{late}{committed}{won}")
        }
        Event::Nacked { reason, not_before, .. } => {
            let reason = reason.as_ref().map_or("without a reason".to_owned(), |reason| quoted(reason.as_bytes()));
            format!("nacked by {owner}, {reason}; {}", due(*not_before, record.at))
        }
        Event::ReasonNoted { reason, .. } => {
            format!("{owner} reported the reason of a failure already recorded: {}", quoted(reason.as_bytes()))
        }
        Event::Expired { not_before, .. } => format!("lease of {owner} expired; {}", due(*not_before, record.at)),
        Event::Extended { until, .. } => format!("lease of {owner} extended until {}", timestamp(*until)),
        Event::Released { .. } => format!("released by {owner}"),
        Event::Withdrawn { .. } => format!("withdrawn before it reached {owner}; the attempt does not count"),
        Event::DeadLettered { dead_offset, reason, last_error, .. } => {
            let source = state.topic(message_ref.topic).and_then(|topic| topic.dead_letter_name());
            let dead = source.map_or_else(|| "?".to_owned(), ToString::to_string);
            let (reason, error) = (reason.as_str(), quoted(last_error.as_bytes()));
            format!("dead-lettered as {dead}/{dead_offset} ({reason}) after {attempts} attempts, last error {error}")
        }
        Event::Completed(step) => match &step.dead_letter {
            None => format!("completed by {owner}{}", produced(step)),
            Some(slot) => {
                let dead = dead_letter(state, message_ref, slot);
                format!("completed as failed by {owner} and dead-lettered as {dead}{}", produced(step))
            }
        },
        Event::EffectDeadLettered(failed) => {
            let (of, dead) = (identity(&failed.identity), dead_letter(state, message_ref, &failed.dead_letter));
            format!("effect of {of} finished: {}; dead-lettered as {dead}", failed.outcome.status.as_str())
        }
        _ => String::new(),
    }
}

/// Whether the store has an effect of the identity of the message in its group.
fn has_effect(state: &State, message_ref: &MessageRef) -> bool {
    let find = || {
        let topic = state.topic(message_ref.topic)?;
        let group = topic.group(message_ref.group)?;
        let message = topic.partition(message_ref.partition)?.message(message_ref.position)?;
        state.store().consumed(topic.name(), group.name(), message.identity()?)
    };
    find().is_some()
}

/// The name and the last error of a message's dead letter.
fn dead_letter(state: &State, message_ref: &MessageRef, slot: &DeadLetterSlot) -> String {
    let name = state.topic(message_ref.topic).and_then(|topic| topic.dead_letter_name());
    let (name, error) = (name.map_or("?", |name| name.as_str()), quoted(slot.last_error.as_bytes()));
    format!("{name}/{}, last error {error}", slot.offset)
}

/// The result of a completed step and the messages it produced.
fn produced(step: &Completed) -> String {
    let result = step.effect.as_ref().and_then(|effect| effect.result.as_ref());
    let result = result.map_or(String::new(), |result| format!(", result {}", quoted(result.json.as_bytes())));
    let outputs = step.outputs.iter().map(|output| {
        let remark = match &output.stored {
            None => " (duplicate)",
            Some(stored) if !stored.skipped.is_empty() => " (already done)",
            Some(_) => "",
        };
        format!("{}/{}{remark}", output.requested_topic, output.offset)
    });
    let outputs: Vec<_> = outputs.collect();
    let outputs = if outputs.is_empty() { "nothing".to_owned() } else { outputs.join(", ") };
    format!("{result}; produced {outputs}")
}

/// The groups that skip a new message.
fn skips(state: &State, of: TopicId, skipped: &[GroupId]) -> String {
    let groups: Vec<_> = skipped.iter().map(|id| group(state, of, *id)).collect();
    match groups.is_empty() {
        true => String::new(),
        false => format!("; skipped without delivery in {}: they have acked its identity", groups.join(", ")),
    }
}

fn due(not_before: Timestamp, at: Timestamp) -> String {
    match not_before.since(at) {
        Millis(0) => "due again immediately".to_owned(),
        backoff => format!("due again in {}, at {}", millis(backoff), timestamp(not_before)),
    }
}

/// What an adjustment of the wall clock does.
fn wall_clock_adjusted(adjustment: &WallAdjustment) -> String {
    match adjustment {
        WallAdjustment::Forward { offset } => format!("wall time set forward, to broker time {offset:+} ms"),
        WallAdjustment::Slew { offset, target } => {
            format!("wall time slowed to half speed, from broker time {offset:+} ms until broker time {target:+} ms")
        }
        WallAdjustment::Rebase { offset } => format!("wall time rebased by an operator, to broker time {offset:+} ms"),
    }
}

/// The sizes of a stored message, where its bytes stand, and what decisions need of its metadata.
#[must_use]
pub fn stored_message(message: &Message) -> String {
    let payload = &message.payload;
    let (key, value, lsn) = (payload.key_len, payload.value_len, payload.id.lsn);
    let mut text = format!("key of {key} bytes, value of {value} bytes, in the record with LSN {lsn}");
    if let Some((tenant, key)) = message.identity() {
        let _ = write!(text, ", identity {} of tenant {}", quoted(key.as_bytes()), Escaped(tenant));
    }
    if message.flags().priority.level() > 0 {
        let _ = write!(text, ", priority {}", message.flags().priority.level());
    }
    if let Some(at) = message.deliver_at() {
        let _ = write!(text, ", not before {}", timestamp(at));
    }
    if let Some(until) = message.delayed_until() {
        let _ = write!(text, ", delayed until {}", timestamp(until));
    }
    if let Some(deadline) = message.deadline() {
        let _ = write!(text, ", deadline {}", timestamp(deadline));
    }
    if let Some(policy) = message.retry_policy() {
        let (attempts, backoff) = (policy.max_attempts, millis(policy.backoff));
        let _ = write!(text, ", at most {attempts} attempts, backoff {backoff}");
    }
    text
}

/// The key, size and metadata of a message. `stored_in` is the topic that holds it, as text.
#[must_use]
pub fn body(body: &Body, stored_in: &str, dedupe: Option<&DedupeWindow>) -> String {
    let mut text = format!("key {}, value of {} bytes", quoted(body.key()), body.value().len());
    let meta = body.metadata();
    let envelope = &meta.envelope;
    if let Some((tenant, key)) = body.identity() {
        let _ = write!(text, ", identity {} of tenant {}", quoted(key.as_bytes()), Escaped(tenant));
        if let Some(dedupe) = dedupe {
            let _ = write!(text, ", deduplicated until {}", timestamp(dedupe.expires_at));
        }
    }
    if let Some(priority) = envelope.priority {
        let _ = write!(text, ", priority {}", priority.level());
    }
    if let Some(at) = envelope.deliver_at {
        let _ = write!(text, ", not before {}", timestamp(at));
    }
    if let Some(until) = envelope.delayed_until {
        let _ = write!(text, ", delayed until {}", timestamp(until));
    }
    if let Some(deadline) = &envelope.deadline {
        let _ = write!(text, ", deadline {}", timestamp(deadline.at));
    }
    if let Some(policy) = envelope.retry_policy {
        let (attempts, backoff) = (policy.max_attempts, millis(policy.backoff));
        let _ = write!(text, ", at most {attempts} attempts, backoff {backoff}");
    }
    for (name, id) in [("run", &envelope.run_id), ("step", &envelope.step_id)] {
        if let Some(id) = id {
            let _ = write!(text, ", {name} {}", quoted(id.as_bytes()));
        }
    }
    if let Some(routing) = &meta.routing {
        let _ = write!(text, ", routed to {stored_in} by the label {}", quoted(routing.label.as_bytes()));
    } else if envelope.target_topic.is_some() {
        let _ = write!(text, ", sent to {stored_in} by its target_topic");
    }
    if let Some(requested) = &meta.requested {
        let _ = write!(text, " (produced to {requested})");
    }
    if let Some(dead) = &meta.dead_letter {
        let (topic, offset, group) = (&dead.original_topic, dead.original_offset, &dead.group);
        let _ = write!(text, ", dead letter of {topic}/{offset} for group {group}: {}", dead.reason.as_str());
    }
    if let Some(redrive) = meta.redrive {
        let (count, first) = (redrive.count, redrive.original_offset);
        let _ = write!(text, ", redriven {count} times, first as offset {first}");
    }
    text
}

/// The identity of an effect.
#[must_use]
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
    let tenant = Escaped(identity.tenant());
    format!("key {} of tenant {tenant} for {scope}", quoted(identity.key().as_bytes()))
}
