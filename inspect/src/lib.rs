//! The log of a real broker, read only: the state at any point of it, what happened when, and the life of one message.
//!
//! The log is read as a start reads it, but from as far back as its files reach, and every record goes through
//! [`State::apply`](driftq_core::state::State::apply); so what is told here of a point in the log is what the broker knew there, and
//! [the digest](Overview::digest) is the one its `GET /v1/digest` told there. Nothing is kept of the records but what was asked for: a
//! log may be larger than memory, as long as the state it makes is not.

pub mod format;
mod location;
mod overview;
mod rates;
mod records;
mod replay;
mod snapshot_limit;
mod summary;
mod trace_message;

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use driftq_core::faults::NoFaults;
use driftq_core::log::{FileId, RecoveryError, Storage};
use driftq_core::pipeline::inspect;
use driftq_core::types::{NameError, Offset, Timestamp, TopicName};
use driftq_files::{DataFolder, FileStorage, FolderError};

use self::format::names::moment;
pub use self::location::Spot;
pub use self::overview::{Ending, FileLine, KindLine, Overview};
pub use self::rates::{Happened, Rates, Row};
pub use self::records::RecordLine;
pub use self::replay::{Bound, Logged, Replayed, Watch, replay};
pub use self::summary::{EffectsStanding, GroupStanding, Standing, TopicStanding};
pub use self::trace_message::{Life, LifeDelivery, LifeEvent};

/// A plan in a folder: a salvage was interrupted. As in `driftqd wal salvage`.
const SALVAGE_PLAN: [&str; 2] = ["salvage-tmp", "plan"];

/// Why nothing can be told of a log.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WalError {
    /// The folder cannot be read.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A salvage was interrupted there.
    #[error("a salvage of {} was interrupted; finish it with `driftqd wal salvage`", .0.display())]
    SalvagePending(PathBuf),
    /// The log cannot be relied on; the words are those of a start.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The LSN is not one of this log.
    #[error("LSN {asked} is not there: what is left of the log reaches from LSN {base} to LSN {last}{}", after_snapshot(*.base))]
    NoSuchLsn {
        /// What was asked for.
        asked: u64,
        /// Where what is left of the log begins: the state after this LSN is the first that can be told.
        base: u64,
        /// Where it ends.
        last: u64,
    },
    /// The moment is before what is left of the log.
    #[error("{} is not there: what is left of the log reaches from {} to {}", moment(*.asked), moment(*.first), moment(*.last))]
    NoSuchTime {
        /// What was asked for.
        asked: Timestamp,
        /// The first moment whose state can be told.
        first: Timestamp,
        /// The last recorded moment.
        last: Timestamp,
    },
    /// There was never such a topic, as far as the log tells.
    #[error("there is no topic {name} in what is left of the log; there are {}", listed(.known))]
    NoSuchTopic {
        /// What was asked for.
        name: String,
        /// What there is at its end.
        known: Vec<String>,
    },
    /// The topic never had such a message.
    #[error("there is no message {name}: the next message of the topic gets offset {next}")]
    NoSuchMessage {
        /// What was asked for.
        name: MessageName,
        /// The offset of the message that comes next.
        next: u64,
    },
}

fn after_snapshot(base: u64) -> &'static str {
    if base > 0 { "; snapshots have replaced what came before" } else { "" }
}

fn listed(known: &[String]) -> String {
    if known.is_empty() { "none".to_owned() } else { known.join(", ") }
}

/// A point in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// After the record with this LSN, or the last before it.
    Lsn(u64),
    /// After the last record decided at this moment or before it.
    Time(Timestamp),
    /// So long before the last recorded moment.
    BeforeEnd(Duration),
}

/// The text names no point of a log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is neither an LSN nor a time; write 5120, 2026-11-15T12:00:00Z or -5m")]
pub struct AtError(String);

impl FromStr for At {
    type Err = AtError;

    fn from_str(text: &str) -> Result<Self, AtError> {
        let wrong = || AtError(text.to_owned());
        if let Some(back) = text.strip_prefix('-') {
            return duration(back).map(At::BeforeEnd).ok_or_else(wrong);
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(At::Lsn).map_err(|_| wrong());
        }
        let time: jiff::Timestamp = text.parse().map_err(|_| wrong())?;
        Ok(At::Time(Timestamp(u64::try_from(time.as_millisecond()).unwrap_or(0))))
    }
}

/// A positive whole number with its unit: `500ms`, `30s`, `2m` or `1h`.
fn duration(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit_ms = match &text[digits.len()..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    let ms = digits.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    (ms > 0).then(|| Duration::from_millis(ms))
}

/// A message: a topic and an offset in it, written `topic/offset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageName {
    /// The topic.
    pub topic: TopicName,
    /// The offset.
    pub offset: Offset,
}

impl std::fmt::Display for MessageName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.offset)
    }
}

/// The text is not `topic/offset`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageNameError {
    /// There is no slash, or what follows it is no number.
    #[error("\"{0}\" is not a message; write its topic and its offset, such as orders/17")]
    Form(String),
    /// What stands before the slash cannot be a topic's name.
    #[error(transparent)]
    Topic(#[from] NameError),
}

impl FromStr for MessageName {
    type Err = MessageNameError;

    fn from_str(text: &str) -> Result<Self, MessageNameError> {
        let parts = text.rsplit_once('/').and_then(|(topic, offset)| Some((topic, offset.parse().ok()?)));
        let (topic, offset) = parts.ok_or_else(|| MessageNameError::Form(text.to_owned()))?;
        Ok(Self { topic: TopicName::new(topic)?, offset: Offset(offset) })
    }
}

/// A log to be read.
#[derive(Debug)]
pub struct Wal<S> {
    storage: S,
}

impl Wal<FileStorage> {
    /// The log in a data folder whose broker has ended. Until this is dropped none can start there. Nothing in the folder is changed.
    ///
    /// # Errors
    /// [`WalError::Folder`] if the folder is in use or cannot be read, [`WalError::SalvagePending`].
    pub fn open(folder: &Path) -> Result<Self, WalError> {
        let data = DataFolder::read(folder)?;
        if SALVAGE_PLAN.iter().fold(folder.to_owned(), |path, part| path.join(part)).exists() {
            return Err(WalError::SalvagePending(folder.to_owned()));
        }
        Ok(Self { storage: data.storage() })
    }
}

impl<S: Storage> Wal<S> {
    /// The log in any storage.
    pub fn over(storage: S) -> Self {
        Self { storage }
    }

    /// Replays the log to a point of it, or to its end, and shows the records to `watch`.
    ///
    /// # Errors
    /// [`WalError::Recovery`] where a start would refuse; [`WalError::NoSuchLsn`] and [`WalError::NoSuchTime`].
    pub fn replay(&mut self, at: Option<At>, watch: &mut (impl Watch + ?Sized)) -> Result<Replayed, WalError> {
        let listed = self.storage.list();
        let listed = listed.map_err(|fault| RecoveryError::Storage { doing: "listing", file: None, fault })?;
        let has_snapshots = listed.iter().any(|info| matches!(info.file, FileId::Snapshot(_)));
        // Who reads past the newest snapshot does not see what it proves, so it is asked first what a start would say.
        let clock = match has_snapshots || matches!(at, Some(At::BeforeEnd(_))) {
            true => inspect(&mut self.storage, None, &NoFaults)?.0.clock(),
            false => Timestamp(0),
        };
        let bound = match at {
            None => Bound::End,
            Some(At::Lsn(lsn)) => Bound::Lsn(lsn),
            Some(At::Time(moment)) => Bound::Time(moment),
            Some(At::BeforeEnd(back)) => {
                let back = u64::try_from(back.as_millis()).unwrap_or(u64::MAX);
                Bound::Time(Timestamp(clock.0.saturating_sub(back)))
            }
        };
        let replayed = replay(&mut self.storage, bound, watch)?;
        match bound {
            Bound::End => {}
            Bound::Lsn(asked) => {
                let (base, last) = (replayed.base, replayed.recovered.last_lsn.0);
                if !(base..=last).contains(&asked) {
                    return Err(WalError::NoSuchLsn { asked, base, last });
                }
            }
            Bound::Time(asked) => {
                let (first, last) = replayed.moments.unwrap_or((replayed.base_at, replayed.base_at));
                let first = if replayed.base > 0 { replayed.base_at } else { first };
                if asked < first {
                    return Err(WalError::NoSuchTime { asked, first, last });
                }
            }
        }
        Ok(replayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_a_topic_and_an_offset() {
        let name: MessageName = "dlq.orders/17".parse().unwrap();
        assert_eq!((name.topic.as_str(), name.offset), ("dlq.orders", Offset(17)));
        assert_eq!(name.to_string(), "dlq.orders/17");
        for text in ["", "orders", "orders/", "orders/x", "orders/-1", "/3", "a/b/3"] {
            assert!(text.parse::<MessageName>().is_err(), "{text}");
        }
    }
}
