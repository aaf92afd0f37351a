//! Strategies for the entries of a snapshot.

use std::sync::Arc;

use driftq_core::record::{Image, RunImage};
use driftq_core::state::MessageChunk;
use driftq_core::types::{
    DecisionFields, DeliveryState, LastError, Lsn, Offset, OffsetRef, PayloadId, PayloadRef, Phase, Position,
    Timestamp, Winner,
};
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::{
    boot, completion, effect, effect_identity, group, group_name, message_ref, metadata, number, number32, offset,
    origin, owner_name, partition, position, produce_scope, retention, shared_text, text, time, token, topic,
    topic_name, wall_clock,
};

fn run() -> BoxedStrategy<RunImage> {
    (0..u64::MAX, 1..9_u64, offset())
        .prop_map(|(start, len, last_offset)| RunImage {
            start: Position(start),
            end: Position(start.saturating_add(len)),
            last_offset,
        })
        .boxed()
}

fn payload() -> BoxedStrategy<PayloadRef> {
    (number(), number32(), number32(), number32(), number32())
        .prop_map(|(lsn, part, metadata_len, key_len, value_len)| {
            let id = PayloadId { lsn: Lsn(lsn), part };
            PayloadRef { id, metadata_len, key_len, value_len }
        })
        .boxed()
}

fn decision_fields() -> BoxedStrategy<DecisionFields> {
    metadata()
        .prop_map(|metadata| DecisionFields {
            dead_letter: metadata.dead_letter.as_ref().map(|dead_letter| dead_letter.origin.clone()),
            redrive: metadata.redrive,
            lost: metadata.lost.clone(),
            ..DecisionFields::of(&metadata)
        })
        .boxed()
}

fn delivery_state() -> BoxedStrategy<DeliveryState> {
    let phase = prop_oneof![
        time().prop_map(|until| Phase::Leased { until }),
        time().prop_map(|not_before| Phase::Queued { not_before }),
    ];
    let last_error =
        prop_oneof![Just(LastError::Nothing), Just(LastError::AckTimeout), shared_text().prop_map(LastError::Reason),];
    ((offset(), number32(), number32()), token(), owner_name(), phase, last_error)
        .prop_map(|((offset, attempts, failures), token, owner, phase, last_error)| DeliveryState {
            offset,
            attempts,
            failures,
            token,
            owner,
            phase,
            last_error,
        })
        .boxed()
}

/// Messages in order, packed; `None` if their numbers wrap around.
fn chunk() -> BoxedStrategy<Option<MessageChunk>> {
    let acks = (0..3_u32, any::<bool>(), of(group()));
    let step = prop_oneof![6 => Just((1_u64, 1_u64, 0_u64)), 1 => (1..9_u64, 1..9_u64, 0..9_u64)];
    let message = (step, acks, payload(), proptest::option::weighted(0.1, decision_fields()));
    ((topic(), partition(), position(), offset(), time()), vec(message, 1..40))
        .prop_map(|((topic, partition, mut position, mut offset, mut produced_at), messages)| {
            let mut images = Vec::new();
            for ((places, offsets, ms), (acked_in, retained, visible_to), mut payload, fields) in messages {
                position = Position(position.0.wrapping_add(places));
                offset = Offset(offset.0.wrapping_add(offsets));
                produced_at = Timestamp(produced_at.0.wrapping_add(ms));
                payload.id.lsn = Lsn(payload.id.lsn.0.max(1));
                let fields = fields.filter(|fields| !fields.is_empty()).map(Arc::new);
                images.push(Image::Message {
                    topic,
                    partition,
                    position,
                    offset,
                    produced_at,
                    acked_in,
                    retained,
                    visible_to,
                    payload,
                    fields,
                });
            }
            MessageChunk::of_images(&images)
        })
        .boxed()
}

/// Any entry of a snapshot.
pub(super) fn image() -> BoxedStrategy<Image> {
    let of_topic = (topic(), topic_name(), number32(), retention(), offset(), group()).prop_map(
        |(topic, name, partitions, retention, next_offset, next_group)| Image::Topic {
            topic,
            name,
            partitions,
            retention,
            next_offset,
            next_group,
        },
    );
    let of_partition = ((topic(), partition()), position(), of(offset()), position(), of(offset())).prop_map(
        |((topic, partition), next_position, last_offset, trimmed_floor, trimmed_floor_offset)| Image::Partition {
            topic,
            partition,
            next_position,
            last_offset,
            trimmed_floor,
            trimmed_floor_offset,
        },
    );
    let at = (topic(), partition(), position(), offset(), time());
    let message = (at, number32(), any::<bool>(), of(group()), payload(), of(decision_fields())).prop_map(
        |((topic, partition, position, offset, produced_at), acked_in, retained, visible_to, payload, fields)| {
            let fields = fields.filter(|fields| !fields.is_empty()).map(Arc::new);
            Image::Message {
                topic,
                partition,
                position,
                offset,
                produced_at,
                acked_in,
                retained,
                visible_to,
                payload,
                fields,
            }
        },
    );
    let identity = (produce_scope(), text(), text(), partition(), offset(), time()).prop_map(
        |(scope, tenant, key, partition, offset, expires_at)| Image::DedupeEntry {
            scope,
            tenant,
            key,
            partition,
            offset,
            expires_at,
        },
    );
    let group_of = || (topic(), group());
    prop_oneof![
        (number(), time(), wall_clock(), boot(), topic()).prop_map(|(lsn, clock, wall_clock, boot, next_topic)| {
            Image::Origin { last_lsn: Lsn(lsn), clock, wall_clock, boot, next_topic }
        }),
        super::access::image_of_access(),
        of_topic,
        of_partition,
        (topic(), partition(), run()).prop_map(|(topic, partition, run)| Image::TrimmedRun { topic, partition, run }),
        message,
        (topic(), partition(), chunk().prop_filter_map("numbers wrap around", |chunk| chunk))
            .prop_map(|(topic, partition, chunk)| Image::Chunk { topic, partition, chunk }),
        (group_of(), group_name(), any::<bool>(), number(), origin(), any::<bool>()).prop_map(
            |((topic, group), name, paused, skipped, origin, has_acked)| Image::Group {
                topic,
                group,
                name,
                paused,
                skipped,
                origin,
                has_acked,
            }
        ),
        (group_of(), partition(), position(), of(offset())).prop_map(
            |((topic, group), partition, floor, floor_offset)| Image::Floor {
                topic,
                group,
                partition,
                floor,
                floor_offset
            }
        ),
        (group_of(), partition(), run()).prop_map(|((topic, group), partition, run)| Image::AckedRun {
            topic,
            group,
            partition,
            run
        }),
        (message_ref(), delivery_state())
            .prop_map(|(message_ref, delivery)| Image::DeliveryState { message_ref, delivery }),
        identity,
        (group_of(), partition(), position()).prop_map(|((topic, group), partition, below)| Image::Replayed {
            topic,
            group,
            partition,
            below
        }),
        (effect_identity(), effect()).prop_map(|(identity, effect)| Image::Effect { identity, effect }),
        (token(), completion()).prop_map(|(token, completion)| Image::Completion { token, completion }),
        ((group_of(), partition(), offset()), of(token()), time()).prop_map(|(message, token, until)| {
            let ((topic, group), partition, offset) = message;
            Image::Winner { message: OffsetRef { topic, group, partition, offset }, winner: Winner { token, until } }
        }),
    ]
    .boxed()
}
