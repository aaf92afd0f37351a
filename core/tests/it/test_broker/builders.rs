//! Names, requests, claims and effects that tests pass to a [`TestBroker`](super::TestBroker).

use driftq_core::Refusal;
use driftq_core::command::{Claim, GroupLifetime, OnDisconnect, Produce, Subscribe, TokenClaim};
use driftq_core::reply::{Delivery, Overload, StoreReply};
use driftq_core::types::{EffectStatus, GroupStart, Identity, Outcome, Scope, *};

pub fn topic(name: &str) -> TopicName {
    TopicName::new(name).expect("a topic name")
}

pub fn group(name: &str) -> GroupName {
    GroupName::new(name).expect("a group name")
}

pub fn owner(name: &str) -> OwnerName {
    OwnerName::new(name).expect("an owner name")
}

/// A subscribe with a lease of 2 s and room for 100 deliveries.
pub fn subscribe(topic_name: &str, group_name: &str, owner_name: &str) -> Subscribe {
    Subscribe {
        topic: topic(topic_name),
        group: group(group_name),
        owner: owner(owner_name),
        lease: Some(Millis(2_000)),
        prefetch: 100,
        deliveries_max: None,
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
        group_lifetime: GroupLifetime::Durable,
    }
}

pub fn value(delivery: &Delivery) -> String {
    String::from_utf8_lossy(delivery.body.value()).into_owned()
}

/// The claim of a consumer on its delivery, with the token of that delivery.
pub fn claim(topic_name: &str, group_name: &str, owner_name: &str, delivery: &Delivery) -> Claim {
    Claim {
        topic: topic(topic_name),
        group: group(group_name),
        partition: delivery.partition,
        offset: delivery.offset,
        owner: owner(owner_name),
        token: TokenClaim::Shown(delivery.token),
    }
}

/// A claim on the first message of the first partition, without a token.
pub fn first_message(topic_name: &str, group_name: &str, owner_name: &str) -> Claim {
    Claim {
        topic: topic(topic_name),
        group: group(group_name),
        partition: PartitionId(0),
        offset: Offset(0),
        owner: owner(owner_name),
        token: TokenClaim::Absent,
    }
}

/// A produce of `value` to this partition.
pub fn to_partition(topic_name: &str, partition: u32, key: &str, value: &str) -> Produce {
    let mut request = Produce::new(topic(topic_name), key, value);
    request.envelope.partition_override = Some(PartitionId(partition));
    request
}

pub fn policy(max_attempts: u32, backoff: u64, max_backoff: u64) -> RetryPolicy {
    RetryPolicy { max_attempts, backoff: Millis(backoff), max_backoff: Millis(max_backoff) }
}

/// The refusal of a command that exceeds a limit.
pub fn overloaded(reason: Overload) -> Refusal {
    Refusal::Overloaded { reason, retry_after: Limits::production().retry_after, full: None }
}

/// Asserts that a command was refused because a partition is full.
pub fn assert_overloaded<T: std::fmt::Debug>(result: &Result<T, Refusal>, expected: Overload) {
    let refused = matches!(result, Err(Refusal::Overloaded { reason, full: Some(_), .. }) if *reason == expected);
    assert!(refused, "{result:?} instead of {expected:?}");
}

/// A deadline at this time.
pub fn deadline(at: Timestamp) -> Option<Deadline> {
    Some(Deadline { at, text: at.to_string().into() })
}

/// A produce of `value` under an idempotency key.
pub fn identified(topic_name: &str, value: &str, key: &str) -> Produce {
    let mut request = Produce::new(topic(topic_name), "", value);
    request.envelope.idempotency_key = Some(key.into());
    request
}

/// The scope of produces to a topic without a target.
pub fn scope(topic_name: &str) -> ProduceScope {
    ProduceScope::new(&topic(topic_name), None)
}

/// An effect of the default tenant in the tenant scope.
pub fn effect(key: &str) -> Identity {
    Identity::new("", Scope::Tenant, key)
}

/// An effect in an RPC scope.
pub fn rpc_effect(key: &str) -> Identity {
    rpc_effect_of("p", "m", key)
}

/// An effect in the RPC scope of this principal and method.
pub fn rpc_effect_of(principal: &str, method: &str, key: &str) -> Identity {
    Identity::new("", Scope::Rpc { principal: principal.into(), method: method.into() }, key)
}

/// An effect in a job scope.
pub fn job_effect(id: &str, key: &str) -> Identity {
    Identity::new("", Scope::Job { id: id.into() }, key)
}

/// An effect in a task scope.
pub fn task_effect(id: &str, key: &str) -> Identity {
    Identity::new("", Scope::Task { id: id.into() }, key)
}

/// The effect of a group's work on the messages of a topic with this idempotency key.
pub fn consume_effect(topic_name: &str, group_name: &str, key: &str) -> Identity {
    Identity::new("", Scope::Consume { topic: topic(topic_name), group: group(group_name) }, key)
}

pub fn outcome(status: EffectStatus, result: Option<&str>, last_error: &str) -> Outcome {
    Outcome { status, response_code: 0, result: result.map(Into::into), last_error: last_error.into() }
}

pub fn success(result: &str) -> Outcome {
    outcome(EffectStatus::Succeeded, Some(result), "")
}

/// The reply to a begin of an effect that has ended.
pub fn replay(outcome: Outcome) -> StoreReply {
    StoreReply::Replay { outcome, result_lost: false }
}

pub fn final_failure(error: &str) -> Outcome {
    outcome(EffectStatus::FailedFinal, None, error)
}

pub fn retryable_failure(error: &str) -> Outcome {
    outcome(EffectStatus::FailedRetryable, None, error)
}

/// The token of a granted effect; panics for any other reply.
#[track_caller]
pub fn granted(reply: Result<StoreReply, Refusal>) -> LeaseToken {
    match reply {
        Ok(StoreReply::Execute { token, idempotent: true, .. }) => token,
        other => panic!("expected a grant, got {other:?}"),
    }
}
