//! Lists the records of a log, one per line.

use std::fmt;

use driftq_core::log::Storage;
use driftq_core::state::State;
use driftq_core::types::Timestamp;
use serde::Serialize;

use crate::error::InspectError;
use crate::format::{kind, sentence, timestamp};
use crate::point::LogPoint;
use crate::reader::LogReader;
use crate::replay::{LoggedRecord, ReplayObserver};

/// A record as one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordLine {
    /// Its LSN.
    pub lsn: u64,
    /// When it was decided, in milliseconds since 1970.
    pub at_ms: u64,
    /// Its kind, as in `docs/wal.md`.
    pub kind: &'static str,
    /// Its content, as a sentence.
    pub text: String,
}

impl fmt::Display for RecordLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>10}  {}  {}", self.lsn, timestamp(Timestamp(self.at_ms)), self.text)
    }
}

/// Passes the records from one LSN on to a function.
struct Lines<F> {
    from: u64,
    show: F,
    /// The last LSN that was shown: a replay that starts over does not show a record twice.
    shown: u64,
}

impl<F: FnMut(RecordLine)> ReplayObserver for Lines<F> {
    fn reset(&mut self) {}

    fn before_record(&mut self, state: &State, logged: &LoggedRecord) {
        if logged.lsn < self.from || logged.lsn <= self.shown {
            return;
        }
        self.shown = logged.lsn;
        let record = &logged.record;
        let text = sentence(state, record);
        (self.show)(RecordLine { lsn: logged.lsn, at_ms: record.at.0, kind: kind(&record.event), text });
    }
}

impl<S: Storage> LogReader<S> {
    /// Passes every record from LSN `from` to LSN `to`, both included, to `show`. The range may exceed the log.
    ///
    /// # Errors
    /// As [`LogReader::replay`]; some records may have been shown before.
    pub fn records(
        &mut self,
        from: Option<u64>,
        to: Option<u64>,
        show: impl FnMut(RecordLine),
    ) -> Result<(), InspectError> {
        let mut lines = Lines { from: from.unwrap_or(0), show, shown: 0 };
        match self.replay(to.map(LogPoint::Lsn), &mut lines) {
            Err(InspectError::NoSuchLsn { requested, last, .. }) if requested > last => Ok(()),
            replayed => replayed.map(drop),
        }
    }
}
