//! The values that the small numbers in traces stand for: keys, reasons, results, tenants, times.

use std::sync::Arc;

use driftq_core::command::{GroupLifetime, OnDisconnect, Produce, Subscribe};
use driftq_core::types::{
    Deadline, EffectStatus, Envelope, GroupStart, Identity, Millis, Outcome, PartitionId, Priority, RetryPolicy,
    Routing, RoutingDecision, Scope, Setting, Text, Timestamp,
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

/// The broker's identity of an effect.
#[must_use]
pub fn identity(effect: &EffectRef) -> Identity {
    let name = |nth: u8| Text::from(NAMES[usize::from(nth) % NAMES.len()]);
    let scope = match effect.scope {
        actions::Scope::Tenant => Scope::Tenant,
        actions::Scope::Consume { topic, group } => Scope::Consume { topic: topic.name(), group: group.name() },
        actions::Scope::Job { id } => Scope::Job { id: name(id) },
        actions::Scope::Task { id } => Scope::Task { id: name(id) },
        actions::Scope::Rpc { principal, method } => Scope::Rpc { principal: name(principal), method: name(method) },
    };
    let tenant = TENANTS[usize::from(effect.tenant) % TENANTS.len()];
    Identity::new(tenant, scope, IDENTITIES[usize::from(effect.key) % IDENTITIES.len()])
}

/// One of the tenants.
pub(super) fn tenant_of(number: u8) -> Text {
    TENANTS[usize::from(number) % TENANTS.len()].into()
}

/// The effect of a group's work on a message with this envelope, if the message has an identity.
pub(super) fn effect_of(topic: Topic, group: Group, envelope: &Envelope) -> Option<EffectRef> {
    let key = IDENTITIES.iter().position(|key| Some(*key) == envelope.identity_key())?;
    let tenant = TENANTS.iter().position(|tenant| *tenant == envelope.tenant())?;
    Some(EffectRef { scope: actions::Scope::Consume { topic, group }, tenant: tenant as u8, key: key as u8 })
}

pub(super) fn effect_outcome(outcome: EffectOutcome, result: u8) -> Outcome {
    let (status, response_code, last_error) = match outcome {
        EffectOutcome::Succeeded => (EffectStatus::Succeeded, 0, ""),
        EffectOutcome::FailedFinal => (EffectStatus::FailedFinal, 400, "never"),
        EffectOutcome::FailedRetryable => (EffectStatus::FailedRetryable, 0, "later"),
        EffectOutcome::InProgress => (EffectStatus::InProgress, 0, ""),
    };
    Outcome { status, response_code, result: result_of(result), last_error: last_error.into() }
}

pub(super) fn result_of(nth: u8) -> Option<Arc<str>> {
    (nth > 0).then(|| Arc::from(RESULTS[usize::from(nth) % RESULTS.len()]))
}

pub(super) fn produce(new_message: &NewMessage) -> Produce {
    let mut value = new_message.message.0.to_string();
    value.extend(std::iter::repeat_n('.', usize::from(new_message.size)));
    let mut command = Produce::new(new_message.topic.name(), KEYS[usize::from(new_message.key) % KEYS.len()], value);
    let envelope = &mut command.envelope;
    envelope.priority = Priority::new(new_message.priority).filter(|priority| priority.level() > 0);
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
    envelope.idempotency_key =
        new_message.identity.map(|nth| Text::from(IDENTITIES[usize::from(nth) % IDENTITIES.len()]));
    envelope.tenant_id =
        (new_message.tenant > 0).then(|| Text::from(TENANTS[usize::from(new_message.tenant) % TENANTS.len()]));
    envelope.target_topic = new_message.target.map(Topic::name);
    envelope.partition_override = new_message.partition.map(PartitionId);
    command.delay = new_message.delay_ms.map(|ms| Millis(u64::from(ms)));
    command.routing = new_message.router.map(|router| RoutingDecision {
        routing: Routing { label: "routed".into(), meta: Default::default() },
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
