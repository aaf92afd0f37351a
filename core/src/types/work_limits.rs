//! How much one call, record or page handles, so that nothing delays other commands for long.

use crate::command::REDRIVE_SLICE;

/// The most that one call, record or page handles. What is left is handled by the next.
///
/// These are not configurable in production. Simulations make them so small that every bound is reached; all are at
/// least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkLimits {
    /// Timers fired in one call.
    pub timers_per_call: usize,
    /// Entries that one record expires: dedupe keys, effects, completions, winners, retained messages.
    pub swept_per_record: u64,
    /// Messages dispatched in one call.
    pub dispatched_per_call: usize,
    /// Messages dispatched to one group before the next group's turn.
    pub dispatched_per_turn: usize,
    /// Records of one call that remove retained messages because the disk is full.
    pub reclaims_per_call: usize,
    /// Records of one call that remove retained messages beyond the memory for them.
    pub frees_per_call: usize,
    /// Groups without consumers that one refusal marks, and that one call deletes.
    pub groups_deleted_per_call: usize,
    /// Dead letters that one command goes through to redrive them.
    pub redriven_per_command: u64,
    /// Delivered messages that one cumulative ack looks at; more are refused.
    pub acked_per_command: usize,
    /// Effects that one page looks at.
    pub effects_seen_per_page: usize,
    /// Effects in one page.
    pub effects_per_page: usize,
    /// A page ends with the effect that makes its results and errors exceed this.
    pub bytes_per_page: usize,
    /// Groups of a topic that a refusal examines.
    pub groups_examined: usize,
    /// Unacked messages that are examined to tell why a group gets none.
    pub unacked_examined: usize,
    /// Parts of deleted topics and groups whose memory is freed in one call.
    pub parts_freed_per_call: usize,
}

impl WorkLimits {
    /// The limits of every broker outside simulations.
    #[must_use]
    pub const fn production() -> Self {
        Self {
            timers_per_call: 1_024,
            swept_per_record: 1_024,
            dispatched_per_call: 1_024,
            dispatched_per_turn: 64,
            reclaims_per_call: 64,
            frees_per_call: 64,
            groups_deleted_per_call: 16,
            redriven_per_command: REDRIVE_SLICE,
            acked_per_command: 16_384,
            effects_seen_per_page: 4_096,
            effects_per_page: 1_000,
            bytes_per_page: 1 << 20,
            groups_examined: 1_024,
            unacked_examined: 64,
            parts_freed_per_call: 512,
        }
    }
}

impl Default for WorkLimits {
    fn default() -> Self {
        Self::production()
    }
}
