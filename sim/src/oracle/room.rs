//! A log without space: which records it refuses, and what follows from it.
//!
//! What the disk holds is not modelled. The oracle is told which attempts of a call to append a record were refused,
//! and predicts the rest: the reply, that nothing changes, what pauses and when it goes on.

use std::fmt;

use driftq_core::pipeline::RefusedAppend;
use driftq_core::reply::Overload;
use driftq_core::types::{Millis, PartitionId};
use driftq_core::{LogRefusal, Refusal, SpaceClass};

use super::expected::Expected;
use super::model::{Model, Unwritten};

/// How long timers and dispatch pause after the log refused a record of theirs.
const PAUSE: Millis = Millis(100);

/// The attempts of one call to append a record.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    /// Attempts so far.
    attempts: usize,
    /// Those that the log refuses, in order, and how many of them have come.
    refused: Vec<RefusedAppend>,
    met: usize,
    /// A record that the broker tried to append as one of another kind.
    misclassified: Option<(RefusedAppend, SpaceClass)>,
}

/// The log refused records in another way than it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RoomError {
    /// A record was refused as one of another class.
    Class(RefusedAppend, SpaceClass),
    /// More records were refused than the call appends.
    Extra(RefusedAppend, usize),
}

impl Room {
    pub(super) fn of(refused: Vec<RefusedAppend>) -> Self {
        Self { refused, ..Self::default() }
    }

    /// Whether any record of the call is refused.
    pub(super) fn is_short(&self) -> bool {
        !self.refused.is_empty()
    }

    /// The next attempt of the call.
    pub(super) fn attempt(&mut self, class: SpaceClass) -> Result<(), LogRefusal> {
        let attempt = self.attempts;
        self.attempts += 1;
        match self.refused.get(self.met) {
            Some(refused) if refused.attempt == attempt => {
                self.met += 1;
                if refused.class != class {
                    self.misclassified.get_or_insert((*refused, class));
                }
                Err(refused.refusal)
            }
            _ => Ok(()),
        }
    }

    /// At the end of a call: whether the refusals were those of its records.
    pub(super) fn check(&self) -> Result<(), RoomError> {
        if let Some((refused, class)) = self.misclassified {
            return Err(RoomError::Class(refused, class));
        }
        self.refused.get(self.met).map_or(Ok(()), |extra| Err(RoomError::Extra(*extra, self.attempts)))
    }
}

impl fmt::Display for RoomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(refused, class) => write!(f, "{refused:?} of a record of class {class:?}"),
            Self::Extra(refused, attempts) => write!(f, "{refused:?} of a call that appends {attempts} records"),
        }
    }
}

impl Model {
    /// The refusal of a command whose record the log refused.
    pub(super) fn refusal_of(&self, refusal: LogRefusal) -> Refusal {
        match refusal {
            LogRefusal::Full => Refusal::StorageFull,
            LogRefusal::Busy => self.overloaded(Overload::Log),
            LogRefusal::Memory => self.overloaded(Overload::Memory),
            _ => Refusal::Invalid("the record would be too long for the log"),
        }
    }

    /// The log has failed. What waits for a sync was never confirmed: replies become refusals, the rest is lost.
    pub(super) fn fail(&mut self) {
        self.failed = true;
        for pending in std::mem::take(&mut self.outputs) {
            if let Expected::Reply { ticket, .. } = pending.expected {
                self.expect(Expected::Reply { ticket, result: Err(Refusal::LogFailed) });
            }
        }
    }

    pub(super) fn is_stalled(&self) -> bool {
        self.stalled_until.is_some()
    }

    /// The result of a record that no client waits for: if it was refused, timers and dispatch pause.
    pub(super) fn or_pause(&mut self, written: Result<(), Unwritten>) -> Result<(), Unwritten> {
        match written {
            Err(Unwritten::NoRoom(_)) => {
                self.stalled_until = Some(self.now.after(PAUSE));
                Ok(())
            }
            written => written,
        }
    }

    /// The pause is over when its time has come.
    pub(super) fn end_pause(&mut self) {
        let now = self.now;
        self.stalled_until.take_if(|until| *until <= now);
    }

    /// The disk is full: the oldest retained messages go, partition by partition. Returns whether there are more, and
    /// the log took the records.
    pub(super) fn reclaim_retained(&mut self) -> Result<bool, Unwritten> {
        for _ in 0..self.limits.work.reclaims_per_call {
            let Some((t, partition)) = self.oldest_retained() else { return Ok(false) };
            match self.record(SpaceClass::Drain) {
                Err(Unwritten::NoRoom(_)) => return Ok(false),
                written => written?,
            }
            let max = self.limits.work.swept_per_record as usize;
            let topic = &mut self.topics[t];
            let is_old = |m: &usize| topic.messages[*m].is_retained && topic.messages[*m].partition == partition;
            let mut old: Vec<_> = (0..topic.messages.len()).filter(is_old).take(max).collect();
            while let Some(message) = old.pop() {
                topic.remove(message);
            }
        }
        Ok(self.oldest_retained().is_some())
    }

    /// The topic and the partition of the retained message that was produced first.
    fn oldest_retained(&self) -> Option<(usize, PartitionId)> {
        let retained = self.topics.iter().enumerate().flat_map(|(t, topic)| {
            let retained = topic.messages.iter().filter(|message| message.is_retained);
            retained.map(move |message| (message.produced_at, topic.id, message.partition, t))
        });
        retained.min().map(|(_, _, partition, t)| (t, partition))
    }
}
