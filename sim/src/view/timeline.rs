//! The data of the viewer's page: a timeline of actions or records on tracks. Recorded from a simulated run or from a
//! server's log.

use serde::Serialize;

/// A timeline.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// The title, such as a file name.
    pub title: String,
    /// A description in a sentence or two.
    pub about: String,
    /// Facts about the whole, such as the planted bug or the number of crashes: names and values.
    pub facts: Vec<(String, String)>,
    /// The tracks, from top to bottom.
    pub tracks: Vec<Track>,
    /// What a step is.
    pub unit: Unit,
    /// The steps, in order.
    pub steps: Vec<TimelineStep>,
    /// All leases.
    pub leases: Vec<Lease>,
    /// The violated invariant.
    pub violation: Option<TimelineViolation>,
    /// The explanation of the violation.
    pub explained: Option<Explained>,
}

/// What a step of the timeline is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// An action of a trace.
    #[default]
    Action,
    /// A record of a log.
    Record,
}

/// A track: one participant.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Track {
    /// Its kind.
    pub kind: TrackKind,
    /// Its name.
    pub name: String,
}

/// The kind of a track.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackKind {
    /// Producers and administrators.
    Producers,
    /// The broker: its timers, crashes and starts.
    Broker,
    /// The log and the disk.
    Disk,
    /// One worker.
    Worker,
}

/// One action of a trace, or one record of a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineStep {
    /// Its number: of the action, from 1, or the LSN.
    pub number: u64,
    /// The time since the start, in milliseconds.
    pub at_ms: u64,
    /// The index of its track.
    pub track: usize,
    /// The indices of other tracks it concerns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<usize>,
    /// Its symbol.
    pub glyph: Glyph,
    /// A short label.
    pub label: String,
    /// The action or record in full.
    pub detail: String,
    /// Replies and deliveries.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// State changes, one per line.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<String>,
    /// The topics it concerns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// The groups it concerns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The messages it concerns, by the names that leases use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
}

/// The symbol of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Glyph {
    /// A request.
    Call,
    /// A request that was sent and has not arrived.
    Sent,
    /// A request that arrives again.
    Duplicate,
    /// A message was stored.
    Produce,
    /// A delivery was read or dispatched.
    Delivery,
    /// A message was acked.
    Ack,
    /// A message was nacked.
    Nack,
    /// A message was dead-lettered.
    Dead,
    /// An effect was granted, run or finished.
    Effect,
    /// Time passed or a timer fired.
    Time,
    /// The clock was set.
    ClockJump,
    /// Data was written or synced.
    Io,
    /// A write or a sync failed.
    IoFault,
    /// A write was torn.
    Torn,
    /// A snapshot.
    Snapshot,
    /// A crash.
    Crash,
    /// A start.
    Boot,
    /// A probe of damage.
    Probe,
    /// Everything else.
    Other,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lease {
    /// The index of its worker's track.
    pub track: usize,
    /// The message.
    pub message: String,
    /// The topic.
    pub topic: String,
    /// The group.
    pub group: String,
    /// The token.
    pub token: String,
    /// The attempt.
    pub attempt: u32,
    /// The index of the step in which it was granted.
    pub from: usize,
    /// The index of the step in which it ended, if it did.
    pub to: Option<usize>,
    /// When it expires, in milliseconds since the start.
    pub until_ms: u64,
    /// How it ended.
    pub end: LeaseEnd,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// It is running.
    Open,
    /// The message was acked.
    Acked,
    /// The message was nacked.
    Nacked,
    /// It expired.
    Expired,
    /// It was released.
    Released,
    /// The message was dead-lettered.
    Dead,
    /// A crash undid it before it was released to a worker.
    Undone,
    /// A seek, a deletion or a withdrawal ended it.
    Taken,
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineViolation {
    /// The index of the violating step.
    pub step: usize,
    /// The invariant's number.
    pub invariant: u8,
    /// Its sentence.
    pub sentence: String,
    /// What was found.
    pub found: String,
}

/// The explanation of a violation.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explained {
    /// After this many actions, this share of all futures violates the same invariant, from 0 to 1. By actions,
    /// ascending.
    pub curve: Vec<(usize, f64)>,
    /// After this many actions every future does.
    pub inevitable: Option<usize>,
    /// The actions, from 1, that the violation depends on.
    pub slice: Vec<usize>,
}
