//! The live bytes of segments, counted while a snapshot is written.

use std::collections::BTreeMap;

use crate::log::ReferredSegment;
use crate::record::Image;
use crate::state::View;
use crate::types::{Effect, Lsn, PayloadId, PayloadRef};

/// The live bytes of the segments that a snapshot refers to.
#[derive(Clone, Debug)]
pub(super) struct LiveBytes {
    /// The segments, each with its first LSN, in the order of the log.
    segments: Vec<(Lsn, ReferredSegment)>,
    /// Payloads to which more than one message may refer.
    shared: BTreeMap<PayloadId, u64>,
}

impl LiveBytes {
    /// Nothing is live yet.
    pub(super) fn new(segments: Vec<(Lsn, ReferredSegment)>) -> Self {
        Self { segments, shared: BTreeMap::new() }
    }

    /// Counts the payload that an image of `view` refers to.
    pub(super) fn add(&mut self, image: &Image, view: &View) {
        let result = |effect: &Effect| effect.result.as_ref().and_then(|result| result.payload_ref());
        match image {
            Image::Message { payload, .. } if payload.id.is_lost() => {}
            Image::Message { payload, .. } => self.add_payload(payload, view),
            Image::Effect { effect, .. } => {
                result(effect).iter().for_each(|payload| self.add_payload(payload, view));
            }
            Image::Chunk { chunk, .. } => {
                let (first, last) = chunk.lsns();
                match segment_of(&self.segments, first) {
                    Some(at) if last <= self.segments[at].1.last.lsn && !view.is_any_shared(first, last) => {
                        self.segments[at].1.live_bytes += chunk.payload_bytes() + chunk.len() as u64 * RECORD_BYTES;
                    }
                    _ => chunk.payloads().for_each(|payload| self.add_payload(&payload, view)),
                }
            }
            _ => {}
        }
    }

    fn add_payload(&mut self, payload: &PayloadRef, view: &View) {
        match view.is_shared(payload.id) {
            true => drop(self.shared.insert(payload.id, counted(payload))),
            false => count(&mut self.segments, payload.id.lsn, counted(payload)),
        }
    }

    /// The segments with live bytes, in the order of the log.
    pub(super) fn referred(&self) -> Vec<ReferredSegment> {
        let mut segments = self.segments.clone();
        for (payload, bytes) in &self.shared {
            count(&mut segments, payload.lsn, *bytes);
        }
        let live = segments.into_iter().map(|(_, segment)| segment).filter(|segment| segment.live_bytes > 0);
        live.collect()
    }
}

/// What the record of a relocation takes beside its payload.
const RECORD_BYTES: u64 = 64;

/// What a payload counts: as much as it would take to write it again, so that cleaning never writes more than it was
/// expected to.
fn counted(payload: &PayloadRef) -> u64 {
    payload.encoded_len() + RECORD_BYTES
}

fn count(segments: &mut [(Lsn, ReferredSegment)], lsn: Lsn, bytes: u64) {
    let Some(at) = segment_of(segments, lsn) else {
        panic!("the payload of record {lsn} stands in none of {segments:?}")
    };
    let (_, segment) = &mut segments[at];
    segment.live_bytes += bytes;
}

/// The segment that holds a record.
fn segment_of(segments: &[(Lsn, ReferredSegment)], lsn: Lsn) -> Option<usize> {
    let at = segments.partition_point(|(first, _)| *first <= lsn).checked_sub(1)?;
    (lsn <= segments[at].1.last.lsn).then_some(at)
}
