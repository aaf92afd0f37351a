//! What a world has executed, as numbers.

use driftq_core::record::Event;

/// What a world has executed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All events: commands, timeouts, I/O operations, outputs, reads, crashes, starts.
    pub events: u64,
    /// Commands sent to the broker.
    pub commands: u64,
    /// Replies.
    pub replies: u64,
    /// Outputs predicted by the oracle.
    pub predicted: u64,
    /// Deliveries.
    pub deliveries: u64,
    /// Streams that the broker closed.
    pub closed: u64,
    /// Messages stored.
    pub messages: u64,
    /// Effects run by workers.
    pub effects: u64,
    /// Effects run more than once.
    pub reruns: u64,
    /// Grants of the idempotency store.
    pub grants: u64,
    /// Outcomes replayed by the idempotency store.
    pub replays: u64,
    /// Messages skipped because their identity was committed, once per group.
    pub skips: u64,
    /// Steps completed.
    pub completed: u64,
    /// Crashes of the process or the machine.
    pub crashes: u64,
    /// Starts attempted.
    pub boots: u64,
    /// Simulated time, in milliseconds.
    pub simulated_ms: u64,
}

impl Counters {
    /// Counts a written record.
    pub(super) fn count(&mut self, event: &Event) {
        match event {
            Event::Produced { skipped, .. } => {
                self.messages += 1;
                self.skips += skipped.len() as u64;
            }
            Event::Completed(step) => {
                self.completed += 1;
                self.skips += step.skips();
                self.messages += step.outputs.iter().filter(|output| output.stored.is_some()).count() as u64;
            }
            _ => {}
        }
    }

    /// Adds the counters of another world.
    pub fn add(&mut self, other: &Self) {
        self.events += other.events;
        self.commands += other.commands;
        self.replies += other.replies;
        self.predicted += other.predicted;
        self.deliveries += other.deliveries;
        self.closed += other.closed;
        self.messages += other.messages;
        self.effects += other.effects;
        self.reruns += other.reruns;
        self.grants += other.grants;
        self.replays += other.replays;
        self.skips += other.skips;
        self.completed += other.completed;
        self.crashes += other.crashes;
        self.boots += other.boots;
        self.simulated_ms = self.simulated_ms.saturating_add(other.simulated_ms);
    }
}
