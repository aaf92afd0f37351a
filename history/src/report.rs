//! The report of a check: how much was examined, and every violation.

use std::collections::BTreeMap;
use std::fmt;

/// The most violations of one check that are listed; the rest is counted.
pub const LISTED_MAX: usize = 20;

/// A rule that a history must satisfy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Check {
    /// Every line has the fields that its operation requires.
    Form,
    /// Every accepted message is delivered to every group of the setup.
    Lost,
    /// Every delivered message was produced by a call.
    Unexpected,
    /// Deliveries have the value, key and envelope of the produced message.
    Altered,
    /// A message acked in a group is not delivered to it again.
    Resurrected,
    /// The attempt of a message increases with every delivery; no token is used twice.
    Attempts,
    /// A message is leased to one consumer of a group at a time.
    Overlap,
    /// Only the token of the newest delivery settles a message.
    Stale,
    /// One message per offset, one offset per message, no gaps.
    Offsets,
    /// First deliveries of a group and partition are in offset order.
    Order,
    /// No more messages are in flight than the limit.
    InFlight,
    /// An idempotency key has one message.
    Identity,
    /// At the end every message is acked or dead in every group of the setup.
    Drained,
    /// An effect is granted to one owner at a time, and not again after it has succeeded.
    Effects,
    /// A complete takes effect as a whole or not at all.
    Steps,
    /// The log has every acknowledged message at the acknowledged offset, with the key and value that were sent.
    LogMessages,
    /// The log has every delivery that a client saw.
    LogDeliveries,
    /// The log has the record of every acknowledged ack, nack, extend, release and complete.
    LogSettled,
    /// The log has every acknowledged grant and finish of an effect.
    LogEffects,
    /// The log has no record of a failed call, and no message that no call produced.
    LogFailed,
    /// The replayed log has the digests that the broker reported.
    LogDigest,
}

impl Check {
    /// The checks that need only the history.
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

    /// The checks that compare the history with the broker's log.
    pub const OF_LOG: [Self; 6] =
        [Self::LogMessages, Self::LogDeliveries, Self::LogSettled, Self::LogEffects, Self::LogFailed, Self::LogDigest];

    /// Its name in reports.
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

    /// What it counts as examined.
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

/// A rule that the history breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub check: Check,
    /// What happened, in one sentence that names the lines.
    pub sentence: String,
    /// The `seq` of the lines that prove it.
    pub seqs: Vec<u64>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.check, self.sentence)
    }
}

/// The size of a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines.
    pub entries: u64,
    /// Calls, without deliveries and actions of the driver.
    pub calls: u64,
    /// Calls that ended as `ok`.
    pub ok: u64,
    /// Calls that ended as `fail`.
    pub fail: u64,
    /// Calls that ended as `info` or have no answer.
    pub info: u64,
    /// Deliveries, redeliveries included.
    pub deliveries: u64,
    /// Messages known to exist.
    pub messages: u64,
    /// Successful acks and completes.
    pub acks: u64,
    /// Pairs of topic and group in the setup, in deliveries and in settling calls.
    pub groups: u64,
    /// How often the broker was killed or lost power.
    pub kills: u64,
    /// How often it was started.
    pub starts: u64,
}

/// The figures of one check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How many items were examined.
    pub looked_at: u64,
    /// How many violations were found.
    pub violations: u64,
}

/// The result of checking a history.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The size of the history.
    pub counts: Counts,
    /// The figures of each check.
    pub tallies: BTreeMap<Check, Tally>,
    /// The violations; at most [`LISTED_MAX`] of each check.
    pub violations: Vec<Violation>,
    /// What could not be checked, and why.
    pub notes: Vec<String>,
}

impl Report {
    /// Whether there is no violation.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.violations_total() == 0
    }

    /// The number of violations, those not listed included.
    #[must_use]
    pub fn violations_total(&self) -> u64 {
        self.tallies.values().map(|tally| tally.violations).sum()
    }

    /// The figures of a check.
    #[must_use]
    pub fn tally(&self, check: Check) -> Tally {
        self.tallies.get(&check).copied().unwrap_or_default()
    }

    /// Merges another report on the same history into this one.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        for (check, tally) in other.tallies {
            let merged = self.tallies.entry(check).or_default();
            merged.looked_at += tally.looked_at;
            merged.violations += tally.violations;
        }
        self.violations.extend(other.violations);
        self.notes.extend(other.notes);
        self
    }

    /// Lists the checks even if they examine nothing.
    pub(crate) fn list(&mut self, checks: &[Check]) {
        for check in checks {
            self.tallies.entry(*check).or_default();
        }
    }

    /// Adds to the items that a check has examined.
    pub(crate) fn count(&mut self, check: Check, count: usize) {
        self.tallies.entry(check).or_default().looked_at += count as u64;
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// Adds a violation. The sentence is built only if it will be listed.
    pub(crate) fn add_violation(&mut self, check: Check, seqs: impl Into<Vec<u64>>, sentence: impl FnOnce() -> String) {
        let tally = self.tallies.entry(check).or_default();
        tally.violations += 1;
        if tally.violations <= LISTED_MAX as u64 {
            let seqs = seqs.into();
            let sentence = format!("{}{}", sentence(), lines(&seqs));
            self.violations.push(Violation { check, sentence, seqs });
        }
    }
}

/// The lines that prove a violation, for the end of its sentence.
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
    /// A table of the checks, then one line per note and violation.
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
