//! The live bytes of segments, counted while a snapshot is written.

use std::collections::BTreeMap;

use crate::log::ReferredSegment;
use crate::record::Image;
use crate::state::View;
use crate::types::{Lsn, PayloadId, PayloadRef};

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
        let Image::Message { payload, .. } = image else { return };
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

/// What a payload counts: an empty one, too, needs its segment.
fn counted(payload: &PayloadRef) -> u64 {
    payload.encoded_len().max(1)
}

fn count(segments: &mut [(Lsn, ReferredSegment)], lsn: Lsn, bytes: u64) {
    let at = segments.partition_point(|(first, _)| *first <= lsn).checked_sub(1);
    let found = at.filter(|at| lsn <= segments[*at].1.last.lsn);
    let Some(at) = found else { panic!("the payload of record {lsn} stands in none of {segments:?}") };
    let (_, segment) = &mut segments[at];
    segment.live_bytes += bytes;
}
