//! Cleaning: payloads that are still referred to are written again, so that their segments can be removed.

use super::{Broker, LogSink, SpaceClass};
use crate::faults::Faults;
use crate::record::{Event, Record, Relocated};
use crate::types::{Lsn, Now, PayloadId};

/// What cleaning has done with records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cleaned {
    /// The bytes of the payloads that were written again.
    pub(crate) bytes: u64,
    /// The record at which the log refused another one; nothing from there on is done.
    pub(crate) refused_at: Option<Lsn>,
}

impl<F: Faults> Broker<F> {
    /// A read at `now` has brought records of a segment that is cleaned, in the order of the log. Writes the payloads
    /// again to which something refers now; what was removed since the read was planned is left out.
    pub(crate) fn relocate(
        &mut self,
        now: impl Into<Now>,
        records: &[(Lsn, Record)],
        class: SpaceClass,
        log: &mut dyn LogSink,
    ) -> Cleaned {
        let mut cleaned = Cleaned::default();
        if self.failure.is_some() || self.closing {
            return Cleaned { refused_at: records.first().map(|(lsn, _)| *lsn), ..cleaned };
        }
        self.now = self.now.max(self.time_at(now.into().mono));
        // From now on these outputs refer to payloads whose segment may be removed, so they get their bytes here.
        self.fill_outputs(records);
        self.outputs.fill_unsynced(|payload| {
            let at = records.binary_search_by_key(&payload.lsn, |(lsn, _)| *lsn).ok()?;
            let body = records[at].1.event.bodies().find(|(part, _)| *part == payload.part);
            body.map(|(_, body)| body)
        });
        for (lsn, record) in records {
            for (part, body) in record.event.bodies() {
                let from = PayloadId { lsn: *lsn, part };
                let referrers = self.state.referrers_of(from, &record.event);
                let referrers = self.faults.relocated_for(&self.state, &record.event, referrers);
                if referrers.is_empty() {
                    continue;
                }
                let bytes = body.encoded_len();
                let relocated = Relocated { from, referrers, body };
                if self.commit(Event::Relocated(Box::new(relocated)), class, log).is_err() {
                    return Cleaned { refused_at: Some(*lsn), ..cleaned };
                }
                cleaned.bytes += bytes;
            }
        }
        cleaned
    }
}
