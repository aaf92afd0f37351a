//! What a viewer is given: something that happened, moment by moment, whoever it happened to. A simulated life is told as
//! one, and so is a real log.

use serde::Serialize;

/// What happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// What it is called, such as the file it was read from.
    pub title: String,
    /// What it is about, in a sentence or two.
    pub about: String,
    /// What is worth knowing about it as a whole, such as the planted bug or the number of crashes; a name and a value each.
    pub facts: Vec<(String, String)>,
    /// To whom things happen, from top to bottom.
    pub tracks: Vec<Track>,
    /// What a moment is.
    pub unit: Unit,
    /// What happens, in order.
    pub steps: Vec<TimelineStep>,
    /// Who held what, and how it ended.
    pub leases: Vec<Lease>,
    /// The promise that was broken.
    pub violation: Option<TimelineViolation>,
    /// How it came to that.
    pub explained: Option<Explained>,
}

/// What a moment is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A step of a trace.
    #[default]
    Action,
    /// A record of a log.
    Record,
}

/// To whom things happen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Track {
    /// What it is.
    pub kind: TrackKind,
    /// What it is called.
    pub name: String,
}

/// What a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TrackKind {
    /// Whoever produces and administers.
    Producers,
    /// The broker: its timers, its deaths and its starts.
    Broker,
    /// The log and its disk.
    Disk,
    /// One worker.
    Worker,
}

/// One step of a trace, or one record of a log.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TimelineStep {
    /// The number people know it by: of the step, from 1, or the LSN.
    pub number: u64,
    /// When, in milliseconds from the beginning.
    pub at_ms: u64,
    /// To whom, as an index into the lanes.
    pub track: usize,
    /// Whom else it concerns: where a delivery goes, whose call it was.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<usize>,
    /// What it looks like.
    pub glyph: Glyph,
    /// A few words.
    pub label: String,
    /// All of it, as it stands in the trace or the log.
    pub detail: String,
    /// What was answered and delivered.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// What it changed, a line for each thing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<String>,
    /// The topics it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub topics: Vec<String>,
    /// The groups it is about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// The messages it is about, by the names the leases use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<String>,
}

/// What a moment looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Glyph {
    /// A call.
    Call,
    /// A call that was sent and has not arrived.
    Sent,
    /// A call that arrives once more.
    Duplicate,
    /// A message was stored.
    Produce,
    /// A delivery was read, or made.
    Delivery,
    /// A message is done.
    Ack,
    /// A message has failed.
    Nack,
    /// A message is dead.
    Dead,
    /// An effect was run, granted or finished.
    Effect,
    /// Time passes, or the broker is told of it.
    Time,
    /// The clock was set.
    ClockJump,
    /// Something was written or synced.
    Io,
    /// A write or a sync went wrong.
    IoFault,
    /// A write was torn: part of it is there.
    Torn,
    /// A snapshot.
    Snapshot,
    /// The process or the machine died.
    Crash,
    /// A start.
    Boot,
    /// A look at what damage would do.
    Probe,
    /// Everything else.
    Other,
}

/// A message in somebody's hands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lease {
    /// In whose, as an index into the lanes.
    pub track: usize,
    /// Which message.
    pub message: String,
    /// Of which topic.
    pub topic: String,
    /// For which group.
    pub group: String,
    /// By which token.
    pub token: String,
    /// Which attempt it is.
    pub attempt: u32,
    /// The moment in which it was made, as an index into the moments.
    pub from: usize,
    /// The moment in which it ended, if it did.
    pub to: Option<usize>,
    /// When it would have ended by itself, in milliseconds from the beginning.
    pub until_ms: u64,
    /// How it ended.
    pub end: LeaseEnd,
}

/// How a lease ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LeaseEnd {
    /// Not yet.
    Open,
    /// With the message done.
    Acked,
    /// By a failure that its worker told.
    Nacked,
    /// Nobody said anything.
    Expired,
    /// It was given back.
    Released,
    /// Its message is dead.
    Dead,
    /// A crash undid it: nobody had been told.
    Undone,
    /// Something else took it: a seek, a deletion.
    Taken,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TimelineViolation {
    /// In which moment, as an index into the moments.
    pub step: usize,
    /// The invariant's number.
    pub invariant: u8,
    /// Its sentence.
    pub sentence: String,
    /// What was found instead.
    pub found: String,
}

/// How it came to a broken promise.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Explained {
    /// After so many steps, this share of all futures breaks the same promise: from 0 to 1. By steps, which rise.
    pub curve: Vec<(usize, f64)>,
    /// After so many steps every future does.
    pub inevitable: Option<usize>,
    /// The steps, counted from 1, without which it does not happen.
    pub slice: Vec<usize>,
}
