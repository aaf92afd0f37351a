//! The kind of a record and the message it is about.

use driftq_core::record::Event;
use driftq_core::types::MessageRef;

/// The kind of a record, as `docs/wal.md` names it.
#[must_use]
pub fn kind(event: &Event) -> &'static str {
    match event {
        Event::Booted { .. } => "booted",
        Event::TopicCreated { .. } => "topic created",
        Event::RetentionChanged { .. } => "retention changed",
        Event::TopicDeleted { .. } => "topic deleted",
        Event::GroupCreated { .. } => "group created",
        Event::GroupOriginChanged { .. } => "group origin changed",
        Event::GroupDeleted { .. } => "group deleted",
        Event::GroupPaused { .. } => "group paused",
        Event::GroupResumed { .. } => "group resumed",
        Event::GroupSought { .. } => "group sought",
        Event::Purged { .. } => "purged",
        Event::Produced { .. } => "produced",
        Event::Delivered { .. } => "delivered",
        Event::Acked { .. } => "acked",
        Event::CumulativelyAcked { .. } => "cumulatively acked",
        Event::Nacked { .. } => "nacked",
        Event::ReasonNoted { .. } => "reason noted",
        Event::Expired { .. } => "expired",
        Event::Extended { .. } => "extended",
        Event::Released { .. } => "released",
        Event::Withdrawn { .. } => "withdrawn",
        Event::DeadLettered { .. } => "dead-lettered",
        Event::Redriven { .. } => "redriven",
        Event::RetentionExpired { .. } => "retained out",
        Event::DedupeExpired { .. } => "identities expired",
        Event::EffectBegun(_) => "effect begun",
        Event::EffectFinished { .. } => "effect finished",
        Event::EffectDeadLettered(_) => "effect dead-lettered",
        Event::EffectRenewed { .. } => "effect renewed",
        Event::EffectForgotten { .. } => "effect forgotten",
        Event::EffectsExpired { .. } => "effects expired",
        Event::Completed(step) if step.dead_letter.is_some() => "completed and dead-lettered",
        Event::Completed(_) => "completed",
        Event::CompletionsExpired { .. } => "completions expired",
        Event::WinnersExpired { .. } => "winners expired",
        Event::Relocated(_) => "relocated",
        Event::PayloadLost(_) => "payload lost",
        Event::WallClockAdjusted(_) => "wall clock adjusted",
        Event::KeyCreated(_) => "key created",
        Event::KeyRevoked { .. } => "key revoked",
        Event::KeyBound { .. } => "key bound",
        Event::TenantCreated { .. } => "tenant created",
        Event::TenantDeleted { .. } => "tenant deleted",
        Event::Audited(_) => "audited",
        Event::Restored(_) => "restored",
    }
}

/// The message and group that a record is about, if it is about one message in one group.
#[must_use]
pub fn message_ref(event: &Event) -> Option<&MessageRef> {
    match event {
        Event::Delivered { message_ref, .. }
        | Event::Acked { message_ref, .. }
        | Event::Nacked { message_ref, .. }
        | Event::ReasonNoted { message_ref, .. }
        | Event::Expired { message_ref, .. }
        | Event::Extended { message_ref, .. }
        | Event::Released { message_ref }
        | Event::Withdrawn { message_ref }
        | Event::DeadLettered { message_ref, .. } => Some(message_ref),
        Event::Completed(step) => Some(&step.message_ref),
        Event::EffectDeadLettered(failed) => Some(&failed.message_ref),
        _ => None,
    }
}
