//! What a record mentions: the keys by which the filter of a segment is asked for the history of a message, of a topic
//! or of a run.
//!
//! The record that stores a message names its offset, which is unique in its topic; the position is not written. Every
//! record about it from then on names partition and position. So the history of a message is found by asking for both:
//! its offset leads to the record that stored it, its position to all others. What concerns a whole topic or group of
//! it, such as a purge or a seek, mentions the topic. A record about an effect names an identity, and mentions a
//! message only if it settles it.
//!
//! Offsets and positions are mentioned by runs of [`RUN`]: neighbours share a mention, so that most records add nothing
//! to a filter, and a filter that is asked for one message answers for its run.

use super::{Completed, DeadLetterSlot, Event, MessageAt, Referrer};
use crate::types::{Body, MessageRef, Offset, PartitionId, Position, TopicId};

/// So many offsets or positions, the first a multiple of it, have the same hash.
const RUN: u64 = 64;

/// Something that a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mention<'a> {
    /// The message with this offset is stored: produced, dead-lettered or redriven.
    Stored(TopicId, Offset),
    /// The message at this position is delivered, settled or moved.
    Message(TopicId, PartitionId, Position),
    /// A topic, or a group of it, is created, changed or deleted, or messages of it are removed or replayed together.
    Topic(TopicId),
    /// A message of this run is stored.
    Run(&'a [u8]),
}

impl Mention<'_> {
    /// The hash that filters contain. The same in every version of the program.
    #[must_use]
    #[inline]
    pub fn hash(&self) -> u64 {
        match self {
            Self::Stored(topic, offset) => absorb(absorb(1, u64::from(topic.0)), offset.0 / RUN),
            Self::Message(topic, partition, position) => {
                absorb(absorb(2, u64::from(topic.0) << 32 | u64::from(partition.0)), position.0 / RUN)
            }
            Self::Topic(topic) => absorb(3, u64::from(topic.0)),
            Self::Run(id) => {
                let number = |bytes: &[u8]| bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
                id.chunks(8).fold(absorb(4, id.len() as u64), |hash, bytes| absorb(hash, number(bytes)))
            }
        }
    }
}

/// Mixes a number into a hash; the steps and constants are those of SplitMix64.
#[inline]
const fn absorb(hash: u64, number: u64) -> u64 {
    let mixed = (hash ^ number).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Event {
    /// Passes everything that the event mentions to `each`; nothing if it is an image.
    pub fn mentions(&self, mut each: impl FnMut(Mention<'_>)) {
        match self {
            Self::Produced { topic, offset, body, .. } => stored(*topic, *offset, body, &mut each),
            Self::Delivered { message_ref, .. }
            | Self::Acked { message_ref, .. }
            | Self::Nacked { message_ref, .. }
            | Self::ReasonNoted { message_ref, .. }
            | Self::Expired { message_ref, .. }
            | Self::Extended { message_ref, .. }
            | Self::Released { message_ref }
            | Self::Withdrawn { message_ref } => each(of_ref(message_ref)),
            Self::CumulativelyAcked { topic, partition, acks, .. } => {
                acks.iter().for_each(|ack| each(Mention::Message(*topic, *partition, ack.position)));
            }
            Self::DeadLettered { message_ref, dead_topic, dead_offset, .. } => {
                each(of_ref(message_ref));
                each(Mention::Stored(*dead_topic, *dead_offset));
            }
            Self::EffectDeadLettered(failed) => {
                each(of_ref(&failed.message_ref));
                each(of_slot(&failed.dead_letter));
            }
            Self::Redriven { dead_topic, dead_partition, dead_position, topic, offset, .. } => {
                each(Mention::Message(*dead_topic, *dead_partition, *dead_position));
                each(Mention::Stored(*topic, *offset));
            }
            Self::Completed(step) => completed(step, &mut each),
            Self::Relocated(relocated) => {
                relocated.referrers.iter().filter_map(of_referrer).for_each(&mut each);
                relocated.body.run_id().into_iter().for_each(|run| each(Mention::Run(run)));
            }
            Self::PayloadLost(lost) => lost.referrers.iter().filter_map(of_referrer).for_each(each),
            Self::TopicCreated { topic, .. }
            | Self::RetentionChanged { topic, .. }
            | Self::TopicDeleted { topic }
            | Self::GroupCreated { topic, .. }
            | Self::GroupOriginChanged { topic, .. }
            | Self::GroupDeleted { topic, .. }
            | Self::GroupPaused { topic, .. }
            | Self::GroupResumed { topic, .. }
            | Self::GroupSought { topic, .. }
            | Self::Purged { topic, .. }
            | Self::RetentionExpired { topic, .. } => each(Mention::Topic(*topic)),
            Self::Booted { .. }
            | Self::DedupeExpired { .. }
            | Self::EffectBegun(_)
            | Self::EffectFinished { .. }
            | Self::EffectRenewed { .. }
            | Self::EffectForgotten { .. }
            | Self::EffectsExpired { .. }
            | Self::CompletionsExpired { .. }
            | Self::WinnersExpired { .. }
            | Self::WallClockAdjusted(_)
            | Self::KeyCreated(_)
            | Self::KeyRevoked { .. }
            | Self::KeyBound { .. }
            | Self::TenantCreated { .. }
            | Self::TenantDeleted { .. }
            | Self::Audited(_)
            | Self::Restored(_) => {}
        }
    }
}

/// As all records about effects, one about a result mentions nothing.
const fn of_referrer(referrer: &Referrer) -> Option<Mention<'static>> {
    match referrer {
        Referrer::Message(MessageAt { topic, partition, position }) => {
            Some(Mention::Message(*topic, *partition, *position))
        }
        Referrer::Effect(_) => None,
    }
}

const fn of_ref(message_ref: &MessageRef) -> Mention<'static> {
    Mention::Message(message_ref.topic, message_ref.partition, message_ref.position)
}

const fn of_slot(slot: &DeadLetterSlot) -> Mention<'static> {
    Mention::Stored(slot.topic, slot.offset)
}

fn stored(topic: TopicId, offset: Offset, body: &Body, each: &mut impl FnMut(Mention<'_>)) {
    each(Mention::Stored(topic, offset));
    if let Some(run) = body.run_id() {
        each(Mention::Run(run));
    }
}

fn completed(step: &Completed, each: &mut impl FnMut(Mention<'_>)) {
    each(of_ref(&step.message_ref));
    step.dead_letter.iter().for_each(|slot| each(of_slot(slot)));
    for (_, (output, kept)) in step.stored_outputs() {
        stored(kept.topic, output.offset, &kept.body, each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Boot, Envelope, GroupId, LeaseToken, Metadata, OwnerName, Timestamp};

    #[test]
    fn hashes_stay_as_they_are() {
        let hashes = [
            Mention::Stored(TopicId(1), Offset(2 * 64)),
            Mention::Message(TopicId(1), PartitionId(2), Position(3 * 64)),
            Mention::Topic(TopicId(1)),
            Mention::Run(b""),
            Mention::Run(b"run-0123456789"),
        ]
        .map(|mention| mention.hash());
        let expected = [
            0xd7cc_9674_ff5f_fa39,
            0x903b_68e3_61e6_b040,
            0x9758_35de_1c97_56ce,
            0x6e73_e372_e233_8aca,
            0x0ef0_43bd_7fdc_2cfc,
        ];
        assert_eq!(hashes, expected, "filters in old footers would be useless");
    }

    #[test]
    fn neighbours_share_a_mention_within_their_run() {
        let stored = |offset| Mention::Stored(TopicId(1), Offset(offset)).hash();
        let at = |position| Mention::Message(TopicId(1), PartitionId(2), Position(position)).hash();
        assert_eq!((stored(64), at(64)), (stored(127), at(127)));
        assert!(stored(63) != stored(64) && stored(127) != stored(128) && at(63) != at(64) && at(127) != at(128));
    }

    #[test]
    fn message_is_mentioned_by_its_offset_when_stored_and_by_its_position_later() {
        let all = |event: &Event| {
            let mut hashes = Vec::new();
            event.mentions(|mention| hashes.push(mention.hash()));
            hashes
        };
        let (topic, partition, position, offset) = (TopicId(3), PartitionId(1), Position(7), Offset(20));
        let envelope = Envelope { run_id: Some("run-7".into()), ..Envelope::default() };
        let meta = Metadata { envelope, ..Metadata::default() };
        let body = Body::pack(&meta, b"key", b"value");
        let produced = Event::Produced { topic, partition, offset, body, dedupe: None, skipped: Vec::new() };
        let by_offset = Mention::Stored(topic, offset).hash();
        assert_eq!(all(&produced), [by_offset, Mention::Run(b"run-7").hash()]);
        let message_ref = MessageRef { topic, group: GroupId(0), partition, position };
        let by_position = Mention::Message(topic, partition, position).hash();
        let token = LeaseToken { boot: Boot(1), counter: 1 };
        let owner = OwnerName::new("worker").unwrap();
        let delivered = Event::Delivered { message_ref, token, owner, until: Timestamp::default() };
        assert_eq!(all(&delivered), [by_position]);
        let (dead_topic, dead_partition) = (TopicId(4), PartitionId(1));
        let (dead_position, group) = (Position(0), GroupId(0));
        let redriven = Event::Redriven { dead_topic, dead_partition, dead_position, topic, group, partition, offset };
        assert_eq!(all(&redriven), [Mention::Message(dead_topic, dead_partition, dead_position).hash(), by_offset]);
        assert_eq!(all(&Event::TopicDeleted { topic }), [Mention::Topic(topic).hash()]);
        assert_eq!(all(&Event::WinnersExpired { count: 1 }), []);
    }
}
