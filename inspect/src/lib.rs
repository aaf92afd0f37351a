//! Reads the log of a stopped DriftQ broker: its state at any LSN, its records, and the history of one message.
//!
//! A [`LogReader`] replays the log as broker startup does, but from the oldest snapshot that the files still support,
//! and applies every record with [`State::apply`](driftq_core::state::State::apply). The state at a point of the log
//! is therefore the state that the broker had there, and [`Overview::digest`] equals what its `GET /v1/digest`
//! returned.
//!
//! * [`LogReader::overview`]: files, record counts, rates and a [`StateSummary`], at the end or at a [`LogPoint`]
//! * [`LogReader::records`]: every record as one line of text
//! * [`LogReader::trace_message`]: the [`MessageHistory`] of one message
//! * [`LogReader::replay`]: the same replay for any [`ReplayObserver`]
//! * [`PayloadReader`]: the bytes of messages, which a state only refers to
//! * [`format`](mod@format): the text and JSON forms of records, which `driftqd wal dump` and `driftqd wal inspect`
//!   share
//!
//! Reading changes nothing. Memory holds the replayed state and what was asked for, never the records: a log may be
//! larger than memory.
//!
//! ```
//! use driftq_core::OpenOptions;
//! use driftq_core::faults::NoFaults;
//! use driftq_core::log::{LogId, MemoryStorage};
//! use driftq_core::types::Timestamp;
//! use driftq_core::{Pipeline, PipelineConfig};
//! use driftq_inspect::LogReader;
//!
//! // A broker starts on an empty storage; `LogReader::open` does the same for a data folder.
//! let mut storage = MemoryStorage::new();
//! let config = PipelineConfig::default();
//! let now = Timestamp(1_766_318_400_000);
//! let (mut broker, _) = OpenOptions::new().config(config).create(LogId([7; 16])).open(&mut storage, now)?;
//! broker.drive(now, &mut storage);
//!
//! let overview = LogReader::new(storage).overview(None)?;
//! assert_eq!(overview.summary.boot, 1);
//! assert_eq!(overview.digest, format!("{:016x}", broker.state().digest()));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod error;
pub mod format;
mod location;
mod message_name;
mod overview;
mod payloads;
mod point;
mod rates;
mod reader;
mod records;
mod replay;
mod snapshot_limit;
mod summary;
mod topic_text;
mod trace_message;

pub use self::error::InspectError;
pub use self::location::MessageLocation;
pub use self::message_name::{MessageName, MessageNameError};
pub use self::overview::{FileSummary, KindCount, LogEnding, Overview};
pub use self::payloads::{PayloadError, PayloadReader};
pub use self::point::{LogPoint, LogPointError};
pub use self::rates::{EventCounts, RateInterval, Rates};
pub use self::reader::{LogReader, SALVAGE_FOLDER, SALVAGE_PLAN};
pub use self::records::RecordLine;
pub use self::replay::{LoggedRecord, ReplayLimit, ReplayObserver, Replayed, replay};
pub use self::summary::{EffectsSummary, GroupSummary, StateSummary, TopicSummary};
pub use self::topic_text::{parse_topic, topic_text};
pub use self::trace_message::{MessageDelivery, MessageEvent, MessageHistory};
