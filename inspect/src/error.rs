//! Why a log cannot be inspected.

use std::path::PathBuf;

use driftq_core::log::RecoveryError;
use driftq_core::types::{Timestamp, TopicName};
use driftq_files::FolderError;

use crate::format::timestamp;
use crate::message_name::MessageName;

/// Why a log cannot be inspected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The folder is in use or cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A salvage of the folder was interrupted, so its files are those of two logs.
    #[error("a salvage of {} was interrupted; finish it with `driftqd wal salvage`", .0.display())]
    SalvagePending(PathBuf),
    /// The log is damaged or missing. The text is that of a refused broker start.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The log does not reach this LSN, or no longer holds it.
    #[error("LSN {requested} is not in the log, which reaches from LSN {base} to LSN {last}{}", replaced(*.base))]
    NoSuchLsn {
        /// The LSN that was requested.
        requested: u64,
        /// The LSN of the first state that can be restored.
        base: u64,
        /// The last LSN.
        last: u64,
    },
    /// The time is before the first state that can be restored.
    #[error("{} is not in the log, which reaches from {} to {}",
        timestamp(*.requested), timestamp(*.first), timestamp(*.last))]
    NoSuchTime {
        /// The time that was requested.
        requested: Timestamp,
        /// The time of the first state that can be restored.
        first: Timestamp,
        /// The time of the last record.
        last: Timestamp,
    },
    /// No topic of this name is in the log.
    #[error("there is no topic {name} in the log; its topics are: {}", listed(.known))]
    NoSuchTopic {
        /// The name that was requested.
        name: TopicName,
        /// The topics at the end of the log.
        known: Vec<TopicName>,
    },
    /// The topic has no message at this offset.
    #[error("there is no message {name}; the next message of the topic gets offset {next}")]
    NoSuchMessage {
        /// The message that was requested.
        name: MessageName,
        /// The offset of the topic's next message.
        next: u64,
    },
}

fn replaced(base: u64) -> &'static str {
    if base > 0 { "; a snapshot has replaced the records before" } else { "" }
}

fn listed(known: &[TopicName]) -> String {
    let names: Vec<_> = known.iter().map(TopicName::to_string).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
