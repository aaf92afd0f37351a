//! What came of looking at a history: how much was looked at, and every promise that it shows broken.

use std::collections::BTreeMap;
use std::fmt;

/// How many violations of one check are told in full; the rest is counted.
pub const LISTED_MAX: usize = 20;

/// A promise that a history is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Every line says what its kind of line must say.
    Form,
    /// What was accepted is delivered to every group that must see it.
    Lost,
    /// Nothing is delivered that nobody asked to be produced.
    Unexpected,
    /// What is delivered is what was produced: value, key and envelope.
    Altered,
    /// What a group has acked does not come back.
    Resurrected,
    /// Attempts of a message rise with every delivery; no token is given twice.
    Attempts,
    /// A message is leased to one worker of a group at a time.
    Overlap,
    /// Only the newest delivery's token settles a message.
    Stale,
    /// One message at an offset, one offset for a message, no offset missing.
    Offsets,
    /// First deliveries of a group and partition come in the order of their offsets.
    Order,
    /// No more messages are leased at a time than may be.
    InFlight,
    /// An idempotency key has one message.
    Identity,
    /// At the end everything is done in every group.
    Drained,
    /// An effect is granted to one at a time, and never again once it has succeeded.
    Effects,
    /// A completed step happened as a whole or not at all.
    Steps,
    /// The log has every message that was acknowledged, where the client was told and as it was sent.
    LogMessages,
    /// The log has every delivery that a client saw.
    LogDeliveries,
    /// The log has what every acknowledged ack, nack, extend, release and complete must have left in it.
    LogSettled,
    /// The log has every grant and end of an effect that a client was told of.
    LogEffects,
    /// The log has nothing of calls that failed, and no message that nobody asked for.
    LogFailed,
    /// The log, replayed, gives the state that the server said it had.
    LogDigest,
}

impl Check {
    /// Those that need nothing but the history.
    pub const OF_HISTORY: [Self; 15] = [
        Self::Form,
        Self::Lost,
        Self::Unexpected,
        Self::Altered,
        Self::Resurrected,
        Self::Attempts,
        Self::Overlap,
        Self::Stale,
        Self::Offsets,
        Self::Order,
        Self::InFlight,
        Self::Identity,
        Self::Drained,
        Self::Effects,
        Self::Steps,
    ];

    /// Those that hold the server's own log against the history.
    pub const OF_LOG: [Self; 6] =
        [Self::LogMessages, Self::LogDeliveries, Self::LogSettled, Self::LogEffects, Self::LogFailed, Self::LogDigest];

    /// Its short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Form => "form",
            Self::Lost => "lost",
            Self::Unexpected => "unexpected",
            Self::Altered => "altered",
            Self::Resurrected => "resurrected",
            Self::Attempts => "attempts",
            Self::Overlap => "overlap",
            Self::Stale => "stale",
            Self::Offsets => "offsets",
            Self::Order => "order",
            Self::InFlight => "in-flight",
            Self::Identity => "identity",
            Self::Drained => "drained",
            Self::Effects => "effects",
            Self::Steps => "steps",
            Self::LogMessages => "log-messages",
            Self::LogDeliveries => "log-deliveries",
            Self::LogSettled => "log-settled",
            Self::LogEffects => "log-effects",
            Self::LogFailed => "log-failed",
            Self::LogDigest => "log-digest",
        }
    }

    /// What it counts as looked at.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Form => "lines",
            Self::Lost | Self::Drained => "messages × groups",
            Self::Unexpected | Self::Altered | Self::Attempts | Self::LogDeliveries => "deliveries",
            Self::Resurrected => "acks",
            Self::Overlap => "pairs of deliveries",
            Self::Stale | Self::LogSettled => "settling calls",
            Self::Offsets => "offsets",
            Self::Order => "first deliveries",
            Self::InFlight => "leases",
            Self::Identity => "keys",
            Self::Effects | Self::LogEffects => "effects' calls",
            Self::Steps => "steps",
            Self::LogMessages => "messages",
            Self::LogFailed => "records and failed calls",
            Self::LogDigest => "digests",
        }
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which promise.
    pub check: Check,
    /// What happened, in one sentence, with the lines that show it.
    pub sentence: String,
    /// The `seq` of the lines that show it.
    pub seqs: Vec<u64>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.sentence)
    }
}

/// How much there was in a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines.
    pub entries: u64,
    /// Calls, deliveries and what the driver did not counted.
    pub calls: u64,
    /// Calls that were answered with success.
    pub ok: u64,
    /// Calls that certainly did nothing.
    pub fail: u64,
    /// Calls that may have done something, those without an answer included.
    pub info: u64,
    /// Messages that clients received, repeated deliveries included.
    pub deliveries: u64,
    /// Messages known to exist.
    pub messages: u64,
    /// Successful acks and completes.
    pub acks: u64,
    /// Pairs of topic and group that were delivered to or had to be.
    pub groups: u64,
    /// How often the server was killed or lost its power.
    pub kills: u64,
    /// How often it was started.
    pub starts: u64,
}

/// How one check went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many things were looked at.
    pub looked_at: u64,
    /// How many of them broke the promise.
    pub violations: u64,
}

/// What came of looking at a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// How much there was.
    pub counts: Counts,
    /// How each check went that was made.
    pub tallies: BTreeMap<Check, Tally>,
    /// What was broken; at most [`LISTED_MAX`] of each check.
    pub violations: Vec<Violation>,
    /// What could not be judged, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether no promise is broken.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.violations_total() == 0
    }

    /// How many violations there are, those not listed included.
    #[must_use]
    pub fn violations_total(&self) -> u64 {
        self.tallies.values().map(|tally| tally.violations).sum()
    }

    /// How a check went.
    #[must_use]
    pub fn tally(&self, check: Check) -> Tally {
        self.tallies.get(&check).copied().unwrap_or_default()
    }

    /// This report and another one of the same history.
    #[must_use]
    pub fn and(mut self, other: Self) -> Self {
        for (check, tally) in other.tallies {
            let mine = self.tallies.entry(check).or_default();
            mine.looked_at += tally.looked_at;
            mine.violations += tally.violations;
        }
        self.violations.extend(other.violations);
        self.notes.extend(other.notes);
        self
    }

    pub(super) fn begin(&mut self, checks: &[Check]) {
        for check in checks {
            self.tallies.entry(*check).or_default();
        }
    }

    pub(super) fn looked_at(&mut self, check: Check, count: usize) {
        self.tallies.entry(check).or_default().looked_at += count as u64;
    }

    pub(super) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Notes a broken promise. The sentence is made only if it will be told.
    pub(super) fn accuse(&mut self, check: Check, seqs: impl Into<Vec<u64>>, sentence: impl FnOnce() -> String) {
        let tally = self.tallies.entry(check).or_default();
        tally.violations += 1;
        if tally.violations <= LISTED_MAX as u64 {
            let seqs = seqs.into();
            let sentence = format!("{}{}", sentence(), lines(&seqs));
            self.violations.push(Violation { check, sentence, seqs });
        }
    }
}

/// The lines that show something, for the end of a sentence.
fn lines(seqs: &[u64]) -> String {
    match seqs {
        [] => String::new(),
        [one] => format!(" (seq {one})"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(u64::to_string).collect();
            format!(" (seq {} and {last})", most.join(", "))
        }
    }
}

impl fmt::Display for Report {
    /// What was looked at, as a table, then what was broken, one sentence a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { entries, calls, ok, fail, info, deliveries, messages, acks, groups, kills, starts } = self.counts;
        writeln!(f, "{entries} lines: {calls} calls ({ok} ok, {fail} fail, {info} info), {deliveries} deliveries")?;
        writeln!(f, "{messages} messages, {groups} groups, {acks} acks, {starts} starts, {kills} kills")?;
        writeln!(f)?;
        writeln!(f, "{:<16}{:>12}  {:<26}{:>10}", "check", "looked at", "", "violations")?;
        for (check, tally) in &self.tallies {
            writeln!(f, "{check:<16}{:>12}  {:<26}{:>10}", tally.looked_at, check.unit(), tally.violations)?;
        }
        if !(self.notes.is_empty() && self.violations.is_empty()) {
            writeln!(f)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        for (check, tally) in &self.tallies {
            if tally.violations > LISTED_MAX as u64 {
                writeln!(f, "{check}: and {} more", tally.violations - LISTED_MAX as u64)?;
            }
        }
        Ok(())
    }
}
