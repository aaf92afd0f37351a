//! The history of a message as values and as text.

use std::fmt;

use driftq_core::types::{Escaped, Millis, Timestamp};
use serde::Serialize;

use crate::format::{millis, timestamp};

/// The history of a message, as far as a log holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageHistory {
    /// Its topic and offset.
    pub message: String,
    /// The history is complete after this LSN. What happened before is known only from the snapshot there.
    pub base: u64,
    /// The last LSN that the history covers.
    pub through: u64,
    /// What happened to the message, in order.
    pub events: Vec<MessageEvent>,
    /// The number of further events that are not listed.
    #[serde(rename = "left_out")]
    pub events_omitted: u64,
    /// Its deliveries, in order.
    pub deliveries: Vec<MessageDelivery>,
    /// Its state at the end: a sentence per group, or one if it is not stored or there is no group.
    #[serde(rename = "stands")]
    pub final_state: Vec<String>,
}

/// An event of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageEvent {
    /// The LSN of the record, or of the snapshot that shows it.
    pub lsn: u64,
    /// The time of the record in milliseconds since 1970; for a snapshot, that of the last record before it.
    pub at_ms: u64,
    /// The group it concerns, if it does not concern all.
    pub group: Option<String>,
    /// The kind of the record, `snapshot`, or `gone` for the removal of the message.
    pub kind: &'static str,
    /// The event as a sentence.
    pub text: String,
}

/// A delivery of a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageDelivery {
    /// The LSN of the delivery's record; that of the snapshot, if the delivery is older.
    pub lsn: u64,
    /// When it was made, in milliseconds since 1970; `None` if it is older than the snapshot.
    pub at_ms: Option<u64>,
    /// The group.
    pub group: String,
    /// The attempt.
    pub attempt: u32,
    /// The consumer that received it.
    pub owner: String,
    /// Its lease token.
    pub token: String,
    /// When its lease ends or would have ended, in milliseconds since 1970.
    pub until_ms: u64,
    /// How it ended; `None` while it is in flight.
    #[serde(rename = "outcome")]
    pub end: Option<String>,
    /// The LSN of the record that ended it.
    pub ended_lsn: Option<u64>,
    /// When it ended, in milliseconds since 1970.
    pub ended_ms: Option<u64>,
}

impl fmt::Display for MessageHistory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "history of {}, from LSN {} to LSN {}", Escaped(&self.message), self.base, self.through)?;
        for event in &self.events {
            let group = event.group.as_ref().map_or_else(String::new, |group| format!("{}: ", Escaped(group)));
            writeln!(f, "{:>10}  {}  {group}{}", event.lsn, timestamp(Timestamp(event.at_ms)), event.text)?;
        }
        if self.events_omitted > 0 {
            writeln!(f, "and {} more events", self.events_omitted)?;
        }
        if !self.deliveries.is_empty() {
            writeln!(f, "\ndeliveries")?;
        }
        for delivery in &self.deliveries {
            let MessageDelivery { group, attempt, owner, token, end, .. } = delivery;
            let made = delivery.at_ms.map_or_else(|| "before the snapshot".to_owned(), |at| timestamp(Timestamp(at)));
            let after = delivery.at_ms.zip(delivery.ended_ms);
            let after = after
                .map_or_else(String::new, |(from, to)| format!(" after {}", millis(Millis(to.saturating_sub(from)))));
            let (group, owner) = (Escaped(group), Escaped(owner));
            let end = end.as_deref().unwrap_or("in flight");
            writeln!(f, "  {group}, attempt {attempt}: {made} to {owner}, token {token}: {end}{after}")?;
        }
        writeln!(f)?;
        for sentence in &self.final_state {
            writeln!(f, "{sentence}")?;
        }
        Ok(())
    }
}
