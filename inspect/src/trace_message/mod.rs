//! The life of one message: where it came from, who had it, how each delivery ended, and what became of it.

mod tracer;

use std::fmt;

use driftq_core::log::Storage;
use driftq_core::types::{GroupName, Timestamp};
use serde::Serialize;

use self::tracer::Follower;
use crate::format::names::moment;
use crate::{At, MessageName, Wal, WalError};

/// The most events of one message that are told. What comes later is counted.
const EVENTS_MAX: usize = 10_000;

/// The life of a message, as far as a log tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Life {
    /// Its topic and offset.
    pub message: String,
    /// Everything after this LSN is told; of what came before, only what a snapshot knew of it there.
    pub base: u64,
    /// Everything through this LSN is told.
    pub through: u64,
    /// What happened to it, in order.
    pub events: Vec<LifeEvent>,
    /// How many events more there were than are told.
    pub left_out: u64,
    /// Its deliveries, in order.
    pub deliveries: Vec<LifeDelivery>,
    /// Where it stands in the end: a sentence for each group, or one if it is gone.
    pub stands: Vec<String>,
}

/// Something that happened to a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LifeEvent {
    /// The LSN of the record, or of the snapshot that knows of it.
    pub lsn: u64,
    /// When, in milliseconds since 1970; for what a snapshot knows, the last moment before it was taken.
    pub at_ms: u64,
    /// For which group, if not for all.
    pub group: Option<String>,
    /// The kind of the record, or "snapshot", or "gone".
    pub kind: &'static str,
    /// What.
    pub text: String,
}

/// A delivery of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LifeDelivery {
    /// The LSN of the delivery's record; that of the snapshot, if it was made before.
    pub lsn: u64,
    /// When it was made, in milliseconds since 1970; `None` if it was made before the snapshot.
    pub at_ms: Option<u64>,
    /// For which group.
    pub group: String,
    /// Which attempt it was.
    pub attempt: u32,
    /// To whom.
    pub owner: String,
    /// By which token.
    pub token: String,
    /// When its lease ends or would have ended, in milliseconds since 1970.
    pub until_ms: u64,
    /// How it ended; `None` while it runs.
    pub outcome: Option<String>,
    /// The LSN of the record that ended it.
    pub ended_lsn: Option<u64>,
    /// When it ended, in milliseconds since 1970.
    pub ended_ms: Option<u64>,
}

impl<S: Storage> Wal<S> {
    /// The life of a message, for one group or for all, to a point of the log or to its end.
    ///
    /// # Errors
    /// As [`Wal::replay`]; [`WalError::NoSuchTopic`], [`WalError::NoSuchMessage`].
    pub fn life(&mut self, message: &MessageName, group: Option<&GroupName>, at: Option<At>) -> Result<Life, WalError> {
        let mut follower = Follower::new(message, group);
        let replayed = self.replay(at, &mut follower)?;
        follower.conclude(&replayed)
    }
}

impl fmt::Display for Life {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the life of {}, told from LSN {} to LSN {}", self.message, self.base, self.through)?;
        for event in &self.events {
            let group = event.group.as_ref().map_or_else(String::new, |group| format!("{group}: "));
            writeln!(f, "{:>10}  {}  {group}{}", event.lsn, moment(Timestamp(event.at_ms)), event.text)?;
        }
        if self.left_out > 0 {
            writeln!(f, "and {} events more", self.left_out)?;
        }
        if !self.deliveries.is_empty() {
            writeln!(f, "\ndeliveries")?;
        }
        for delivery in &self.deliveries {
            let LifeDelivery { group, attempt, owner, token, outcome, .. } = delivery;
            let made = delivery.at_ms.map_or_else(|| "before the snapshot".to_owned(), |at| moment(Timestamp(at)));
            let after = delivery.at_ms.zip(delivery.ended_ms).map_or_else(String::new, |(from, to)| {
                format!(" after {}", crate::format::sentence::time(driftq_core::types::Millis(to.saturating_sub(from))))
            });
            let outcome = outcome.as_deref().unwrap_or("still running");
            writeln!(f, "  {group}, attempt {attempt}: {made} to {owner}, token {token}: {outcome}{after}")?;
        }
        writeln!(f)?;
        for stand in &self.stands {
            writeln!(f, "{stand}")?;
        }
        Ok(())
    }
}
