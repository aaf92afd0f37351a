//! Steps and answers in plain words.

use driftq_core::idempotency::Outcome;
use driftq_core::reply::{CloseCause, Delivery, StoreReply};
use driftq_core::{Refusal, Reply};

use super::change::{Clock, short, span};
use super::sight::{effect_name, name_in};
use super::story::Glyph;
use crate::names::Worker;
use crate::steps::{Ask, Beginning, Damage, Effect, Ended, Grant, Loss, Made, Right, Stream, Target, Twist};
use crate::world::effect_identity;

/// Who asks, where it is a worker.
pub(super) fn asker(ask: &Ask) -> Option<Worker> {
    match ask {
        Ask::Subscribe(Stream { worker, .. }) | Ask::Begin(Beginning { worker, .. }) => Some(*worker),
        Ask::Prefetch { worker, .. } | Ask::Leave { worker } | Ask::Reacquire { worker, .. } => Some(*worker),
        Ask::Ack(right) | Ask::Release(right) => Some(right.worker),
        Ask::Nack { right, .. } | Ask::Extend { right, .. } | Ask::Complete { right, .. } => Some(right.worker),
        Ask::Finish { grant, .. } | Ask::Renew { grant, .. } => Some(grant.worker),
        _ => None,
    }
}

/// By which delivery it is asked, where it is by one.
pub(super) fn right(ask: &Ask) -> Option<&Right> {
    match ask {
        Ask::Ack(right) | Ask::Release(right) => Some(right),
        Ask::Nack { right, .. } | Ask::Extend { right, .. } | Ask::Complete { right, .. } => Some(right),
        Ask::Begin(Beginning { delivery, .. }) => delivery.as_ref(),
        _ => None,
    }
}

/// The messages that are to be made.
pub(super) fn made(ask: &Ask) -> &[Made] {
    match ask {
        Ask::Produce(made) => std::slice::from_ref(made),
        Ask::Complete { produce, .. } => produce,
        _ => &[],
    }
}

/// The topic and the group that a question names.
pub(super) fn named(ask: &Ask) -> (Option<String>, Option<String>) {
    let (topic, group) = match ask {
        Ask::Create { topic, .. } | Ask::Delete { topic } | Ask::Describe { topic } | Ask::Peek { topic, .. } => {
            (*topic, None)
        }
        Ask::Produce(Made { topic, .. }) | Ask::Groups { topic } | Ask::Redrive { topic, .. } => (*topic, None),
        Ask::Subscribe(Stream { topic, group, .. }) => (*topic, Some(*group)),
        Ask::CreateGroup { topic, group, .. } | Ask::DeleteGroup { topic, group } => (*topic, Some(*group)),
        Ask::Seek { topic, group, .. } | Ask::Pause { topic, group } | Ask::Resume { topic, group } => {
            (*topic, Some(*group))
        }
        _ => return (None, None),
    };
    (Some(topic.to_string()), group.map(|group| group.to_string()))
}

/// What a call looks like.
pub(super) fn glyph(ask: &Ask) -> Glyph {
    match ask {
        Ask::Produce(_) => Glyph::Produce,
        Ask::Ack(_) | Ask::Complete { .. } => Glyph::Ack,
        Ask::Nack { .. } => Glyph::Nack,
        Ask::Begin(_) | Ask::Finish { .. } | Ask::Reacquire { .. } | Ask::Renew { .. } => Glyph::Effect,
        Ask::Get { .. } | Ask::Forget { .. } => Glyph::Effect,
        _ => Glyph::Call,
    }
}

/// What is asked.
pub(super) fn question(ask: &Ask) -> String {
    match ask {
        Ask::Create { topic, partitions, keep_ms, keep_bytes } => {
            let mut notes = Vec::new();
            notes.extend(partitions.map(|count| format!("{count} partitions")));
            notes.extend(keep_ms.map(|ms| format!("done messages stay {}", span(u64::from(ms)))));
            notes.extend(keep_bytes.map(|bytes| format!("done messages stay up to {bytes} bytes")));
            format!("create topic {topic}{}", listed(&notes))
        }
        Ask::Delete { topic } => format!("delete topic {topic}"),
        Ask::Topics => "list the topics".to_owned(),
        Ask::Describe { topic } => format!("describe {topic}"),
        Ask::Peek { topic, offset, .. } => format!("peek into {topic} from offset {offset} on"),
        Ask::Produce(made) => produce(made),
        Ask::Subscribe(stream) => {
            let mut notes = Vec::new();
            notes.extend(stream.lease_ms.map(|ms| format!("leases of {}", span(u64::from(ms)))));
            notes.extend((stream.owner != stream.worker).then(|| format!("under the name {}", stream.owner)));
            notes.extend(stream.deliveries.map(|count| format!("{count} deliveries in all")));
            format!("{} subscribes to {} in {}{}", stream.worker, stream.topic, stream.group, listed(&notes))
        }
        Ask::Prefetch { worker, to } => format!("{worker} sets its prefetch to {to}"),
        Ask::Leave { worker } => format!("{worker} leaves"),
        Ask::Ack(right) => format!("{} acks {}{}", right.worker, right.message, odd(right)),
        Ask::Nack { right, .. } => format!("{} nacks {}{}", right.worker, right.message, odd(right)),
        Ask::Extend { right, lease_ms } => {
            let by = lease_ms.map(|ms| format!(" to {} from now", span(u64::from(ms)))).unwrap_or_default();
            format!("{} extends its lease of {}{by}{}", right.worker, right.message, odd(right))
        }
        Ask::Release(right) => format!("{} gives {} back{}", right.worker, right.message, odd(right)),
        Ask::Complete { right, produce, .. } => {
            let next: Vec<String> = produce.iter().map(|made| format!("{} to {}", made.message, made.topic)).collect();
            let next = if next.is_empty() { String::new() } else { format!(", handing on {}", next.join(", ")) };
            format!("{} completes {}{next}{}", right.worker, right.message, odd(right))
        }
        Ask::Begin(begin) => {
            let by = begin.delivery.as_ref().map(|right| format!(", holding {}{}", right.message, odd(right)));
            format!("{} asks to run {}{}", begin.worker, name(&begin.effect), by.unwrap_or_default())
        }
        Ask::Finish { grant, ended, .. } => {
            let how = match ended {
                Ended::Succeeded => "succeeded",
                Ended::FailedFinal => "failed for good",
                Ended::FailedRetryable => "failed for now",
                Ended::InProgress => "is in progress",
            };
            format!("{} says {} {how}{}", grant.worker, name(&grant.effect), odd_grant(grant))
        }
        Ask::Reacquire { worker, effect, .. } => format!("{worker} asks for {} again", name(effect)),
        Ask::Renew { grant, .. } => {
            format!("{} needs longer for {}{}", grant.worker, name(&grant.effect), odd_grant(grant))
        }
        Ask::Get { effect } => format!("ask about {}", name(effect)),
        Ask::Forget { effect } => format!("forget {}", name(effect)),
        Ask::CreateGroup { topic, group, .. } => format!("create group {group} of {topic}"),
        Ask::DeleteGroup { topic, group } => format!("delete group {group} of {topic}"),
        Ask::Groups { topic } => format!("list the groups of {topic}"),
        Ask::Seek { topic, group, to } => {
            let to = match to {
                Target::Earliest => "the earliest message".to_owned(),
                Target::Latest => "the end".to_owned(),
                Target::Offset(offset) => format!("offset {offset}"),
                Target::Time(ms) => span(*ms),
            };
            format!("seek {group} of {topic} to {to}")
        }
        Ask::Pause { topic, group } => format!("pause {group} of {topic}"),
        Ask::Resume { topic, group } => format!("resume {group} of {topic}"),
        Ask::Redrive { topic, offset, .. } => match offset {
            Some(offset) => format!("redrive the dead letter at offset {offset} of {topic}"),
            None => format!("redrive the dead letters of {topic}"),
        },
    }
}

fn produce(made: &Made) -> String {
    let mut notes = Vec::new();
    notes.extend(made.delay_ms.map(|ms| format!("held back {}", span(u64::from(ms)))));
    notes.extend(made.deliver_at.map(|ms| format!("held back until {}", span(ms))));
    notes.extend(made.deadline.map(|ms| format!("worthless after {}", span(ms))));
    notes.extend((made.priority > 0).then(|| format!("priority {}", made.priority)));
    notes.extend(made.policy.map(|policy| format!("at most {} attempts", policy.attempts)));
    notes.extend(made.identity.map(|nth| format!("identity {nth}")));
    format!("produce {} to {}{}", made.message, made.topic, listed(&notes))
}

fn listed(notes: &[String]) -> String {
    if notes.is_empty() { String::new() } else { format!(" ({})", notes.join(", ")) }
}

/// The effect a step means.
pub(super) fn name(effect: &Effect) -> String {
    effect_name(&effect_identity(effect))
}

fn odd(right: &Right) -> String {
    let back = if right.back > 0 { ", by an older delivery" } else { "" };
    let twist = match right.twist {
        Twist::None => "",
        Twist::NoToken => ", showing no token",
        Twist::Unreadable => ", showing what is no token",
        Twist::WrongOwner => ", under another name",
        Twist::WrongPartition => ", in another partition",
        Twist::WrongOffset => ", at another offset",
        Twist::WrongGroup => ", for another group",
        Twist::NoGroup => ", for a group that never was",
    };
    format!("{back}{twist}")
}

fn odd_grant(grant: &Grant) -> String {
    let back = if grant.back > 0 { ", by an older grant" } else { "" };
    let twist = match grant.twist {
        Twist::NoToken => ", showing no token",
        Twist::Unreadable => ", showing what is no token",
        _ => "",
    };
    format!("{back}{twist}")
}

/// What becomes of what was not synced.
pub(super) fn loss(loss: Loss) -> &'static str {
    match loss {
        Loss::All => "the power goes: all that was not synced is lost",
        Loss::Some { .. } => "the power goes: some of what was not synced is left, in pieces",
        Loss::Cut { .. } => "the power goes: a beginning of what was not synced is left",
        Loss::Nothing => "the process dies: what it wrote is still there",
    }
}

/// What is done to a copy of the disk.
pub(super) fn damage(damage: Damage) -> String {
    match damage {
        Damage::Flip { bit } => format!("bit {bit} were flipped"),
        Damage::Zero { sector } => format!("sector {sector} were zeros again"),
        Damage::Misdirect { from, to } => format!("the write to sector {from} had gone to sector {to}"),
        Damage::Unreadable { sector } => format!("sector {sector} could not be read"),
    }
}

/// What the broker answers.
pub(super) fn answer(result: &Result<Reply, Refusal>, clock: Clock) -> String {
    let reply = match result {
        Ok(reply) => reply,
        Err(refusal) => return format!("refused: {refusal}"),
    };
    match reply {
        Reply::Done => "done".to_owned(),
        Reply::TopicCreated { partitions } => {
            format!("the topic exists, with {}", counted(*partitions as usize, "partition"))
        }
        Reply::Topics(topics) => counted(topics.len(), "topic"),
        Reply::Topic(topic) => format!("{} has {}", topic.name, counted(topic.groups.len(), "group")),
        Reply::Produced(produced) if produced.duplicate => {
            format!("known already: it is the message at offset {}", produced.offset.0)
        }
        Reply::Produced(produced) => format!("stored at offset {}", produced.offset.0),
        Reply::Peeked(peeked) => counted(peeked.len(), "message"),
        Reply::Subscribed { .. } => "connected".to_owned(),
        Reply::Extended { lease_until } => format!("the lease runs until {}", clock.says(*lease_until)),
        Reply::Groups(groups) => counted(groups.len(), "group"),
        Reply::Redriven { count } => format!("{count} made live again"),
        Reply::Completed(outputs) if outputs.is_empty() => "completed".to_owned(),
        Reply::Completed(outputs) => format!("completed, {} handed on", counted(outputs.len(), "message")),
        Reply::Store(reply) => store_answer(reply, clock),
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

fn store_answer(reply: &StoreReply, clock: Clock) -> String {
    match reply {
        StoreReply::Execute { attempt, lease_until, .. } => {
            format!("EXECUTE, attempt {attempt}, until {}", clock.says(*lease_until))
        }
        StoreReply::Replay(Outcome { status, .. }) => format!("REPLAY: it ended with {}", status.as_str()),
        StoreReply::Retryable { status, .. } => format!("it may be reacquired: {}", status.as_str()),
        StoreReply::Renewed { lease_until } => format!("granted until {}", clock.says(*lease_until)),
        StoreReply::Effect(effect) => format!("{}, attempt {}", effect.status.as_str(), effect.attempt),
    }
}

/// A delivery on its way to its reader.
pub(super) fn delivery(worker: Option<Worker>, delivery: &Delivery, clock: Clock) -> String {
    let to = worker.map_or("a stream that is gone".to_owned(), |worker| worker.to_string());
    format!(
        "to {to}: {} (offset {}, attempt {}, token {}, until {})",
        name_in(delivery.body.value()),
        delivery.offset.0,
        delivery.attempts,
        short(delivery.token),
        clock.says(delivery.lease_until),
    )
}

/// Why a stream is over.
pub(super) fn closed(worker: Option<Worker>, cause: CloseCause) -> String {
    let whose = worker.map_or("somebody".to_owned(), |worker| worker.to_string());
    let why = match cause {
        CloseCause::TopicDeleted => "its topic was deleted",
        CloseCause::GroupDeleted => "its group was deleted",
    };
    format!("to {whose}: your stream is over, {why}")
}
