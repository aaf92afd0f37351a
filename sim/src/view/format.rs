//! Requests and replies as text.

use driftq_core::reply::{CloseCause, Delivery, StoreReply};
use driftq_core::{Refusal, Reply};

use super::diff::{Clock, short, span};
use super::snapshot::{effect_name, name_in};
use super::timeline::Glyph;
use crate::actions::{
    Damage, DeliveryRef, EffectBegin, EffectOutcome, EffectRef, GrantRef, Loss, NewMessage, Request, SeekTarget,
    Subscription, Tampering,
};
use crate::names::Worker;
use crate::world::effect_identity;

/// The worker that sends a request, if it is one.
pub(super) fn worker_of(request: &Request) -> Option<Worker> {
    match request {
        Request::Subscribe(Subscription { worker, .. }) | Request::BeginEffect(EffectBegin { worker, .. }) => {
            Some(*worker)
        }
        Request::SetPrefetch { worker, .. }
        | Request::Unsubscribe { worker, .. }
        | Request::ReacquireEffect { worker, .. } => Some(*worker),
        Request::Ack(delivery) | Request::Release(delivery) | Request::AckCumulative(delivery) => Some(delivery.worker),
        Request::Nack { delivery, .. } | Request::Extend { delivery, .. } | Request::Complete { delivery, .. } => {
            Some(delivery.worker)
        }
        Request::FinishEffect { grant, .. } | Request::RenewEffect { grant, .. } => Some(grant.worker),
        _ => None,
    }
}

/// The delivery that a request refers to, if it does.
pub(super) fn delivery_ref(request: &Request) -> Option<&DeliveryRef> {
    match request {
        Request::Ack(delivery)
        | Request::Release(delivery)
        | Request::AckCumulative(delivery)
        | Request::ExpireLease(delivery) => Some(delivery),
        Request::FinishEffect { dead_letter, .. } => dead_letter.as_ref(),
        Request::Nack { delivery, .. } | Request::Extend { delivery, .. } | Request::Complete { delivery, .. } => {
            Some(delivery)
        }
        Request::BeginEffect(EffectBegin { delivery, .. }) => delivery.as_ref(),
        _ => None,
    }
}

/// The messages that a request produces.
pub(super) fn new_messages(request: &Request) -> &[NewMessage] {
    match request {
        Request::Produce(new_message) => std::slice::from_ref(new_message),
        Request::Complete { produce, .. } => produce,
        _ => &[],
    }
}

/// The topic and the group that a request names.
pub(super) fn names(request: &Request) -> (Option<String>, Option<String>) {
    let (topic, group) = match request {
        Request::CreateTopic { topic, .. }
        | Request::ChangeRetention { topic, .. }
        | Request::DeleteTopic { topic }
        | Request::DescribeTopic { topic }
        | Request::Purge { topic }
        | Request::Peek { topic, .. } => (*topic, None),
        Request::Produce(NewMessage { topic, .. }) | Request::ListGroups { topic } | Request::Redrive { topic, .. } => {
            (*topic, None)
        }
        Request::Subscribe(Subscription { topic, group, .. }) => (*topic, Some(*group)),
        Request::CreateGroup { topic, group, .. } | Request::DeleteGroup { topic, group } => (*topic, Some(*group)),
        Request::Seek { topic, group, .. } | Request::Pause { topic, group } | Request::Resume { topic, group } => {
            (*topic, Some(*group))
        }
        _ => return (None, None),
    };
    (Some(topic.to_string()), group.map(|group| group.to_string()))
}

/// The symbol of a request.
pub(super) fn glyph(request: &Request) -> Glyph {
    match request {
        Request::Produce(_) => Glyph::Produce,
        Request::Ack(_) | Request::AckCumulative(_) | Request::Complete { .. } => Glyph::Ack,
        Request::Nack { .. } => Glyph::Nack,
        Request::BeginEffect(_)
        | Request::FinishEffect { .. }
        | Request::ReacquireEffect { .. }
        | Request::RenewEffect { .. } => Glyph::Effect,
        Request::GetEffect { .. } | Request::ForgetEffect { .. } | Request::ListEffects { .. } => Glyph::Effect,
        _ => Glyph::Call,
    }
}

/// A request as text.
pub(super) fn request_text(request: &Request) -> String {
    match request {
        Request::CreateTopic { topic, partitions, keep_ms, keep_bytes } => {
            let mut notes = Vec::new();
            notes.extend(partitions.map(|count| format!("{count} partitions")));
            notes.extend(keep_ms.map(|ms| format!("retention {}", span(u64::from(ms)))));
            notes.extend(keep_bytes.map(|bytes| format!("retention {bytes} bytes")));
            format!("create topic {topic}{}", parenthesized(&notes))
        }
        Request::ChangeRetention { topic, keep_ms, keep_bytes, reset } => {
            let mut notes = Vec::new();
            notes.extend(keep_ms.map(|ms| span(u64::from(ms))));
            notes.extend(keep_bytes.map(|bytes| format!("{bytes} bytes")));
            notes.extend(reset.then(|| "the rest by default".to_owned()));
            format!("change the retention of {topic}{}", parenthesized(&notes))
        }
        Request::DeleteTopic { topic } => format!("delete topic {topic}"),
        Request::ListTopics => "list the topics".to_owned(),
        Request::DescribeTopic { topic } => format!("describe {topic}"),
        Request::Peek { topic, offset, .. } => format!("peek {topic} from offset {offset}"),
        Request::Produce(new_message) => produce(new_message),
        Request::Subscribe(subscription) => {
            let mut notes = Vec::new();
            notes.extend(subscription.lease_ms.map(|ms| format!("leases of {}", span(u64::from(ms)))));
            notes.extend(
                (subscription.owner != subscription.worker).then(|| format!("as owner {}", subscription.owner)),
            );
            notes.extend(subscription.deliveries.map(|count| format!("at most {count} deliveries")));
            format!(
                "{} subscribes to {} in {}{}",
                subscription.worker,
                subscription.topic,
                subscription.group,
                parenthesized(&notes)
            )
        }
        Request::SetPrefetch { worker, to } => format!("{worker} sets its prefetch to {to}"),
        Request::Unsubscribe { worker, .. } => format!("{worker} unsubscribes"),
        Request::Ack(delivery) => format!("{} acks {}{}", delivery.worker, delivery.message, deviation(delivery)),
        Request::Nack { delivery, never, .. } => {
            let retry = if *never { " without a retry" } else { "" };
            format!("{} nacks {}{retry}{}", delivery.worker, delivery.message, deviation(delivery))
        }
        Request::AckCumulative(delivery) => {
            format!("{} acks all up to {}{}", delivery.worker, delivery.message, deviation(delivery))
        }
        Request::ExpireLease(delivery) => {
            format!("the lease of {} on {} is ended{}", delivery.worker, delivery.message, deviation(delivery))
        }
        Request::Extend { delivery, lease_ms } => {
            let lease = lease_ms.map(|ms| format!(" to {} from now", span(u64::from(ms)))).unwrap_or_default();
            format!("{} extends its lease of {}{lease}{}", delivery.worker, delivery.message, deviation(delivery))
        }
        Request::Release(delivery) => {
            format!("{} releases {}{}", delivery.worker, delivery.message, deviation(delivery))
        }
        Request::Withdraw { worker } => format!("the newest unread delivery to {worker} is withdrawn"),
        Request::Complete { delivery, produce, failed, .. } => {
            let outputs: Vec<String> =
                produce.iter().map(|new_message| format!("{} to {}", new_message.message, new_message.topic)).collect();
            let outputs =
                if outputs.is_empty() { String::new() } else { format!(", producing {}", outputs.join(", ")) };
            let how = if failed.is_some() { " as failed" } else { "" };
            format!("{} completes {}{how}{outputs}{}", delivery.worker, delivery.message, deviation(delivery))
        }
        Request::BeginEffect(begin) => {
            let delivery =
                begin.delivery.as_ref().map(|delivery| format!(", for {}{}", delivery.message, deviation(delivery)));
            format!("{} requests a grant of {}{}", begin.worker, name(&begin.effect), delivery.unwrap_or_default())
        }
        Request::FinishEffect { grant, outcome, dead_letter, .. } => {
            let how = match outcome {
                EffectOutcome::Succeeded => "succeeded",
                EffectOutcome::FailedFinal => "failed, final",
                EffectOutcome::FailedRetryable => "failed, retryable",
                EffectOutcome::InProgress => "in progress",
            };
            let dead = dead_letter.as_ref().map(|delivery| format!(", dead-lettering {}", delivery.message));
            let (dead, deviation) = (dead.unwrap_or_default(), grant_deviation(grant));
            format!("{} finishes {}: {how}{dead}{deviation}", grant.worker, name(&grant.effect))
        }
        Request::ReacquireEffect { worker, effect, .. } => format!("{worker} reacquires {}", name(effect)),
        Request::RenewEffect { grant, .. } => {
            format!("{} renews its grant of {}{}", grant.worker, name(&grant.effect), grant_deviation(grant))
        }
        Request::GetEffect { effect } => format!("get {}", name(effect)),
        Request::ForgetEffect { effect } => format!("forget {}", name(effect)),
        Request::ListEffects { limit, .. } => format!("list at most {limit} effects"),
        Request::CreateGroup { topic, group, .. } => format!("create group {group} of {topic}"),
        Request::DeleteGroup { topic, group } => format!("delete group {group} of {topic}"),
        Request::ListGroups { topic } => format!("list the groups of {topic}"),
        Request::Seek { topic, group, to } => {
            let to = match to {
                SeekTarget::Earliest => "the earliest message".to_owned(),
                SeekTarget::Latest => "the latest".to_owned(),
                SeekTarget::Offset(offset) => format!("offset {offset}"),
                SeekTarget::Time(ms) => span(*ms),
            };
            format!("seek {group} of {topic} to {to}")
        }
        Request::Pause { topic, group } => format!("pause {group} of {topic}"),
        Request::Resume { topic, group } => format!("resume {group} of {topic}"),
        Request::Redrive { topic, offset, .. } => match offset {
            Some(offset) => format!("redrive the dead letter at offset {offset} of {topic}"),
            None => format!("redrive the dead letters of {topic}"),
        },
        Request::Purge { topic } => format!("purge {topic}"),
        Request::RedriveRest { .. } => "redrive the rest of the dead letters".to_owned(),
    }
}

fn produce(new_message: &NewMessage) -> String {
    let mut notes = Vec::new();
    notes.extend(new_message.delay_ms.map(|ms| format!("delay {}", span(u64::from(ms)))));
    notes.extend(new_message.deliver_at.map(|ms| format!("delayed until {}", span(ms))));
    notes.extend(new_message.deadline.map(|ms| format!("deadline {}", span(ms))));
    notes.extend((new_message.priority > 0).then(|| format!("priority {}", new_message.priority)));
    notes.extend(new_message.policy.map(|policy| format!("at most {} attempts", policy.attempts)));
    notes.extend(new_message.identity.map(|nth| format!("identity {nth}")));
    format!("produce {} to {}{}", new_message.message, new_message.topic, parenthesized(&notes))
}

fn parenthesized(notes: &[String]) -> String {
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
}

/// The name of an effect.
pub(super) fn name(effect: &EffectRef) -> String {
    effect_name(&effect_identity(effect))
}

fn deviation(delivery: &DeliveryRef) -> String {
    let back = if delivery.back > 0 { ", with an older delivery" } else { "" };
    let tampering = match delivery.tampering {
        Tampering::None => "",
        Tampering::NoToken => ", without token",
        Tampering::Unreadable => ", with a malformed token",
        Tampering::WrongOwner => ", as another owner",
        Tampering::WrongPartition => ", with another partition",
        Tampering::WrongOffset => ", with another offset",
        Tampering::WrongGroup => ", with another group",
        Tampering::NoGroup => ", with an unknown group",
    };
    format!("{back}{tampering}")
}

fn grant_deviation(grant: &GrantRef) -> String {
    let back = if grant.back > 0 { ", with an older grant" } else { "" };
    let tampering = match grant.tampering {
        Tampering::NoToken => ", without token",
        Tampering::Unreadable => ", with a malformed token",
        _ => "",
    };
    format!("{back}{tampering}")
}

/// A crash as text.
pub(super) fn loss(loss: Loss) -> &'static str {
    match loss {
        Loss::All => "power loss: all unsynced data is lost",
        Loss::Partial { .. } => "power loss: some unsynced data is kept, in part torn",
        Loss::Cut { .. } => "power loss: a prefix of the unsynced data is kept",
        Loss::Nothing => "process crash: unsynced data is kept",
    }
}

/// The damage of a probe as text.
pub(super) fn damage(damage: Damage) -> String {
    match damage {
        Damage::Flip { bit } => format!("bit {bit} flipped"),
        Damage::Zero { sector } => format!("sector {sector} zeroed"),
        Damage::Misdirect { from, to } => format!("the write to sector {from} misdirected to sector {to}"),
        Damage::Unreadable { sector } => format!("sector {sector} unreadable"),
    }
}

/// A reply as text.
pub(super) fn reply(result: &Result<Reply, Refusal>, clock: Clock) -> String {
    let reply = match result {
        Ok(reply) => reply,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    match reply {
        Reply::Success => "ok".to_owned(),
        Reply::RetentionChanged { .. } => "the retention is changed".to_owned(),
        Reply::TopicCreated { partitions, .. } => {
            format!("the topic exists, with {}", counted(*partitions as usize, "partition"))
        }
        Reply::Topics(topics) => counted(topics.len(), "topic"),
        Reply::Topic(topic) => format!("{} has {}", topic.name, counted(topic.groups.len(), "group")),
        Reply::Produced(produced) if produced.duplicate => {
            format!("duplicate of the message at offset {}", produced.offset.0)
        }
        Reply::Produced(produced) => format!("stored at offset {}", produced.offset.0),
        Reply::Peeked(peeked) => counted(peeked.len(), "message"),
        Reply::Subscribed { .. } => "connected".to_owned(),
        Reply::Extended { lease_until } => format!("leased until {}", clock.text(*lease_until)),
        Reply::Groups(groups) => counted(groups.len(), "group"),
        Reply::Redriven { count, .. } => format!("{count} redriven"),
        Reply::Purged { count } => format!("{count} purged"),
        Reply::Completed(outputs) if outputs.is_empty() => "completed".to_owned(),
        Reply::Completed(outputs) => format!("completed, {} produced", counted(outputs.len(), "message")),
        Reply::Store(reply) => store_reply(reply, clock),
        Reply::KeyCreated(key) => format!("key {} exists", key.id),
        Reply::Keys(page) => counted(page.keys.len(), "key"),
        Reply::TenantCreated { tenant } => format!("the tenant exists, with number {tenant}"),
        Reply::Tenants(tenants) => counted(tenants.len(), "tenant"),
        Reply::Audit(page) => format!("{} of the audit", counted(page.entries.len(), "record")),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn store_reply(reply: &StoreReply, clock: Clock) -> String {
    match reply {
        StoreReply::Execute { attempt, lease_until, .. } => {
            format!("EXECUTE, attempt {attempt}, until {}", clock.text(*lease_until))
        }
        StoreReply::Replay { outcome, result_lost: false } => format!("REPLAY of {}", outcome.status.as_str()),
        StoreReply::Replay { outcome, result_lost: true } => {
            format!("REPLAY of {}, without its result", outcome.status.as_str())
        }
        StoreReply::Retryable { status, .. } => format!("retryable: {}", status.as_str()),
        StoreReply::Renewed { lease_until } => format!("granted until {}", clock.text(*lease_until)),
        StoreReply::Listed(page) => format!("{} effects", page.effects.len()),
        StoreReply::Effect(found) => format!("{}, attempt {}", found.effect.status.as_str(), found.effect.attempt),
    }
}

/// A delivery as text.
pub(super) fn delivery(worker: Option<Worker>, delivery: &Delivery, clock: Clock) -> String {
    let to = worker.map_or("a closed stream".to_owned(), |worker| worker.to_string());
    format!(
        "to {to}: {} (offset {}, attempt {}, token {}, until {})",
        name_in(delivery.body.value()),
        delivery.offset.0,
        delivery.attempts,
        short(delivery.token),
        clock.text(delivery.lease_until),
    )
}

/// A closed stream as text.
pub(super) fn closed(worker: Option<Worker>, cause: CloseCause) -> String {
    let to = worker.map_or("a closed stream".to_owned(), |worker| worker.to_string());
    let why = match cause {
        CloseCause::TopicDeleted => "its topic was deleted",
        CloseCause::GroupDeleted => "its group was deleted",
        CloseCause::KeyRevoked => "its key was revoked",
        CloseCause::KeyExpired => "its key has expired",
    };
    format!("to {to}: stream closed, {why}")
}
