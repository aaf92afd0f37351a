//! The values that the small numbers in traces stand for: keys, reasons, results, tenants, times.

use std::borrow::Cow;
use std::sync::Arc;

use driftq_core::command::{GroupLifetime, OnDisconnect, Produce, Subscribe};
use driftq_core::types::{
    Deadline, EffectStatus, Envelope, GroupStart, Identity, Millis, Outcome, PartitionId, Priority, RetryPolicy,
    Routing, RoutingDecision, Scope, ScopeKind, Setting, Text, Timestamp,
};

use crate::actions::{self, EffectOutcome, EffectRef, NewMessage, Subscription};
use crate::names::{Group, Topic};

/// The time at which worlds start.
pub const START_TIME: Timestamp = Timestamp(1_000_000_000);

const KEYS: [&str; 5] = ["", "k", "user:1", "other", "another"];
pub(super) const REASONS: [&str; 4] = ["", "bad", "ack_timeout", "worse"];
const IDENTITIES: [&str; 13] =
    ["", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];
const NAMES: [&str; 3] = ["", "this", "that"];
const RESULTS: [&str; 4] = ["0", "1", "22", "\"three\""];
const TENANTS: [&str; 4] = ["", "default", "acme", ""];

/// Numbers from here on stand for a text of as many bytes as they exceed it.
pub(crate) const LENGTHS_FROM: u8 = 16;

/// The text that a number stands for: one of `texts`, or one of a certain length.
fn text(texts: &[&'static str], nth: u8) -> Cow<'static, str> {
    match nth.checked_sub(LENGTHS_FROM) {
        None => Cow::Borrowed(texts[usize::from(nth) % texts.len()]),
        Some(len) => Cow::Owned("7".repeat(usize::from(len))),
    }
}

pub(super) fn reason_of(nth: u8) -> Text {
    text(&REASONS, nth).into()
}

pub(super) fn request_hash_of(nth: u8) -> Option<Text> {
    match nth {
        0 => None,
        nth if nth < LENGTHS_FROM => Some(format!("request {nth}").into()),
        nth => Some(text(&[], nth).into()),
    }
}

/// The kind of a scope.
pub(super) fn scope_kind(scope: actions::Scope) -> ScopeKind {
    match scope {
        actions::Scope::Tenant => ScopeKind::Tenant,
        actions::Scope::Consume { .. } => ScopeKind::Consume,
        actions::Scope::Job { .. } => ScopeKind::Job,
        actions::Scope::Task { .. } => ScopeKind::Task,
        actions::Scope::Rpc { .. } => ScopeKind::Rpc,
    }
}

/// The broker's identity of an effect.
#[must_use]
pub fn identity(effect: &EffectRef) -> Identity {
    let name = |nth: u8| Text::from(text(&NAMES, nth));
    let scope = match effect.scope {
        actions::Scope::Tenant => Scope::Tenant,
        actions::Scope::Consume { topic, group } => Scope::Consume { topic: topic.name(), group: group.name() },
        actions::Scope::Job { id } => Scope::Job { id: name(id) },
        actions::Scope::Task { id } => Scope::Task { id: name(id) },
        actions::Scope::Rpc { principal, method } => Scope::Rpc { principal: name(principal), method: name(method) },
    };
    Identity::new(&text(&TENANTS, effect.tenant), scope, &text(&IDENTITIES, effect.key))
}

/// One of the tenants.
pub(super) fn tenant_of(number: u8) -> Text {
    text(&TENANTS, number).into()
}

/// The effect of a group's work on a message with this envelope, if the message has an identity.
pub(super) fn effect_of(topic: Topic, group: Group, envelope: &Envelope) -> Option<EffectRef> {
    let key = IDENTITIES.iter().position(|key| Some(*key) == envelope.identity_key())?;
    let tenant = TENANTS.iter().position(|tenant| *tenant == envelope.tenant())?;
    Some(EffectRef { scope: actions::Scope::Consume { topic, group }, tenant: tenant as u8, key: key as u8 })
}

pub(super) fn effect_outcome(outcome: EffectOutcome, result: u8, error: u8) -> Outcome {
    let (status, response_code, last_error) = match outcome {
        EffectOutcome::Succeeded => (EffectStatus::Succeeded, 0, ""),
        EffectOutcome::FailedFinal => (EffectStatus::FailedFinal, 400, "never"),
        EffectOutcome::FailedRetryable => (EffectStatus::FailedRetryable, 0, "later"),
        EffectOutcome::InProgress => (EffectStatus::InProgress, 0, ""),
    };
    let last_error = if error == 0 { last_error.into() } else { reason_of(error) };
    Outcome { status, response_code, result: result_of(result), last_error }
}

pub(super) fn result_of(nth: u8) -> Option<Arc<str>> {
    (nth > 0).then(|| Arc::from(&*text(&RESULTS, nth)))
}

pub(super) fn produce(new_message: &NewMessage) -> Produce {
    let mut value = new_message.message.0.to_string();
    value.extend(std::iter::repeat_n('.', new_message.size as usize));
    let key = text(&KEYS, new_message.key).into_owned();
    let mut command = Produce::new(new_message.topic.name(), key, value);
    let details = new_message.details.unwrap_or_default();
    let envelope = &mut command.envelope;
    envelope.priority = Priority::new(new_message.priority).filter(|it| it.level() > 0 || details.lowest);
    envelope.deliver_at = new_message.deliver_at.map(time);
    envelope.deadline = new_message.deadline.map(|ms| {
        let at = time(ms);
        Deadline { at, text: at.to_string().into() }
    });
    envelope.retry_policy = new_message.policy.map(|policy| RetryPolicy {
        max_attempts: policy.attempts,
        backoff: Millis(policy.backoff_ms),
        max_backoff: Millis(policy.max_backoff_ms),
    });
    envelope.idempotency_key = new_message.identity.map(|nth| Text::from(text(&IDENTITIES, nth)));
    envelope.tenant_id = (new_message.tenant > 0).then(|| Text::from(text(&TENANTS, new_message.tenant)));
    envelope.target_topic = new_message.target.map(Topic::name);
    envelope.partition_override = new_message.partition.map(PartitionId);
    command.delay = new_message.delay_ms.map(|ms| Millis(u64::from(ms)));
    let of_length = |len: usize| Text::from("7".repeat(len));
    envelope.run_id = details.run.map(|len| of_length(len.into()));
    envelope.step_id = details.step.map(|len| of_length(len.into()));
    envelope.parent_step_id = details.parent.map(|len| of_length(len.into()));
    let pairs =
        |count: u8| (0..count).map(|nth| (of_length(nth.into()), of_length((count - nth - 1).into()))).collect();
    envelope.labels = pairs(details.labels);
    command.trace = details.trace.map(|len| of_length(len.into()));
    let label = details.route.map_or("routed".into(), |len| of_length(len.into()));
    command.routing = new_message.router.map(|router| RoutingDecision {
        routing: Routing { label, meta: pairs(details.pairs) },
        target_topic: router.topic.map(Topic::name),
        partition_override: router.partition.map(PartitionId),
    });
    command
}

pub(super) fn subscribe(subscription: &Subscription) -> Subscribe {
    Subscribe {
        topic: subscription.topic.name(),
        group: subscription.group.name(),
        owner: subscription.owner.name(),
        lease: subscription.lease_ms.map(|ms| Millis(u64::from(ms))),
        prefetch: subscription.prefetch,
        deliveries_max: subscription.deliveries,
        start: start(subscription.latest),
        on_disconnect: if subscription.release { OnDisconnect::Release } else { OnDisconnect::Keep },
        group_lifetime: if subscription.ephemeral { GroupLifetime::Ephemeral } else { GroupLifetime::Durable },
    }
}

/// A value that is given is set; another one stays, or is reset.
pub(super) fn setting<T>(value: Option<T>, reset: bool) -> Setting<T> {
    match value {
        Some(value) => Setting::Value(value),
        None if reset => Setting::ServerDefault,
        None => Setting::Unchanged,
    }
}

pub(super) fn start(latest: bool) -> GroupStart {
    if latest { GroupStart::Latest } else { GroupStart::Earliest }
}

pub(super) fn time(since_start_ms: u64) -> Timestamp {
    START_TIME.after(Millis(since_start_ms))
}
