//! The records of a log, one a line, with the names of what they are about.

use driftq_core::log::Storage;
use driftq_core::state::State;
use driftq_core::types::Timestamp;
use serde::Serialize;

use super::replay::{Logged, Watch};
use super::{At, Wal, WalError};
use crate::format::names::moment;
use crate::format::sentence::{kind, sentence};

/// A record in a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RecordLine {
    /// Its LSN.
    pub lsn: u64,
    /// When it was decided, in milliseconds since 1970.
    pub at_ms: u64,
    /// Its kind.
    pub kind: &'static str,
    /// What it says.
    pub text: String,
}

impl std::fmt::Display for RecordLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:>10}  {}  {}", self.lsn, moment(Timestamp(self.at_ms)), self.text)
    }
}

/// Shows the records of a range, as they come.
struct Lines<F> {
    from: u64,
    show: F,
    /// The last one that was shown: what is read a second time, from a newer snapshot on, is not shown again.
    shown: u64,
}

impl<F: FnMut(RecordLine)> Watch for Lines<F> {
    fn reset(&mut self) {}

    fn before(&mut self, state: &State, logged: &Logged) {
        if logged.lsn < self.from || logged.lsn <= self.shown {
            return;
        }
        self.shown = logged.lsn;
        let record = &logged.record;
        let text = sentence(state, record);
        (self.show)(RecordLine { lsn: logged.lsn, at_ms: record.at.0, kind: kind(&record.event), text });
    }
}

impl<S: Storage> Wal<S> {
    /// Shows every record from the LSN `from` to the LSN `to`, as far as they can be told.
    ///
    /// # Errors
    /// As [`Wal::replay`]; some records may have been shown by then.
    pub fn records(
        &mut self,
        from: Option<u64>,
        to: Option<u64>,
        show: impl FnMut(RecordLine),
    ) -> Result<(), WalError> {
        let mut lines = Lines { from: from.unwrap_or(0), show, shown: 0 };
        match self.replay(to.map(At::Lsn), &mut lines) {
            Err(WalError::NoSuchLsn { asked, last, .. }) if asked > last => Ok(()),
            replayed => replayed.map(drop),
        }
    }
}
