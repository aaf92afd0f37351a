//! How much one call, record or page handles in a world: little, so that runs reach the ends of it.

use driftq_core::log::ReadSizes;
use driftq_core::types::WorkLimits;
use serde::{Deserialize, Serialize};

/// The limits of [`WorkLimits`], and how many bytes recovery reads at once. A field that a trace does not name has the
/// value of production.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Work {
    /// [`WorkLimits::timers_per_call`].
    #[serde(skip_serializing_if = "is_production::timers")]
    pub timers: usize,
    /// [`WorkLimits::swept_per_record`].
    #[serde(skip_serializing_if = "is_production::swept")]
    pub swept: u64,
    /// [`WorkLimits::dispatched_per_call`].
    #[serde(skip_serializing_if = "is_production::dispatched")]
    pub dispatched: usize,
    /// [`WorkLimits::dispatched_per_turn`].
    #[serde(skip_serializing_if = "is_production::turn")]
    pub turn: usize,
    /// [`WorkLimits::reclaims_per_call`].
    #[serde(skip_serializing_if = "is_production::reclaims")]
    pub reclaims: usize,
    /// [`WorkLimits::frees_per_call`].
    #[serde(skip_serializing_if = "is_production::frees")]
    pub frees: usize,
    /// [`WorkLimits::groups_deleted_per_call`].
    #[serde(skip_serializing_if = "is_production::groups")]
    pub groups: usize,
    /// [`WorkLimits::redriven_per_command`].
    #[serde(skip_serializing_if = "is_production::redriven")]
    pub redriven: u64,
    /// [`WorkLimits::acked_per_command`].
    #[serde(skip_serializing_if = "is_production::acked")]
    pub acked: usize,
    /// [`WorkLimits::effects_seen_per_page`].
    #[serde(skip_serializing_if = "is_production::seen")]
    pub seen: usize,
    /// [`WorkLimits::effects_per_page`].
    #[serde(skip_serializing_if = "is_production::page")]
    pub page: usize,
    /// [`WorkLimits::bytes_per_page`].
    #[serde(skip_serializing_if = "is_production::page_bytes")]
    pub page_bytes: usize,
    /// [`WorkLimits::groups_examined`].
    #[serde(skip_serializing_if = "is_production::examined")]
    pub examined: usize,
    /// [`WorkLimits::unacked_examined`].
    #[serde(skip_serializing_if = "is_production::unacked")]
    pub unacked: usize,
    /// [`WorkLimits::parts_freed_per_call`].
    #[serde(skip_serializing_if = "is_production::parts")]
    pub parts: usize,
    /// The bytes of every read of recovery; 0 for the sizes of production.
    #[serde(skip_serializing_if = "is_production::read_bytes")]
    pub read_bytes: usize,
}

impl Work {
    pub(crate) const PRODUCTION: Self = {
        let work = WorkLimits::production();
        Self {
            timers: work.timers_per_call,
            swept: work.swept_per_record,
            dispatched: work.dispatched_per_call,
            turn: work.dispatched_per_turn,
            reclaims: work.reclaims_per_call,
            frees: work.frees_per_call,
            groups: work.groups_deleted_per_call,
            redriven: work.redriven_per_command,
            acked: work.acked_per_command,
            seen: work.effects_seen_per_page,
            page: work.effects_per_page,
            page_bytes: work.bytes_per_page,
            examined: work.groups_examined,
            unacked: work.unacked_examined,
            parts: work.parts_freed_per_call,
            read_bytes: 0,
        }
    };

    /// The broker's limits.
    #[must_use]
    pub fn limits(&self) -> WorkLimits {
        WorkLimits {
            timers_per_call: self.timers,
            swept_per_record: self.swept,
            dispatched_per_call: self.dispatched,
            dispatched_per_turn: self.turn,
            reclaims_per_call: self.reclaims,
            frees_per_call: self.frees,
            groups_deleted_per_call: self.groups,
            redriven_per_command: self.redriven,
            acked_per_command: self.acked,
            effects_seen_per_page: self.seen,
            effects_per_page: self.page,
            bytes_per_page: self.page_bytes,
            groups_examined: self.examined,
            unacked_examined: self.unacked,
            parts_freed_per_call: self.parts,
        }
    }

    /// The sizes in which files are read.
    #[must_use]
    pub fn read_sizes(&self) -> ReadSizes {
        match self.read_bytes {
            0 => ReadSizes::default(),
            bytes => ReadSizes { first: bytes, max: bytes, window: bytes },
        }
    }

    /// Whether a broker works with them.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let work = self.limits();
        let counts = [
            work.timers_per_call,
            work.dispatched_per_call,
            work.dispatched_per_turn,
            work.reclaims_per_call,
            work.frees_per_call,
            work.groups_deleted_per_call,
            work.acked_per_command,
            work.effects_seen_per_page,
            work.effects_per_page,
            work.bytes_per_page,
            work.groups_examined,
            work.unacked_examined,
            work.parts_freed_per_call,
        ];
        work.swept_per_record > 0 && work.redriven_per_command > 0 && counts.iter().all(|count| *count > 0)
    }
}

impl Default for Work {
    fn default() -> Self {
        Self::PRODUCTION
    }
}

/// Whether a field has the value of production, one function each.
mod is_production {
    use super::Work;

    macro_rules! is_production {
        ($($field:ident: $type:ty),* $(,)?) => {
            $(pub(super) fn $field(value: &$type) -> bool {
                *value == Work::PRODUCTION.$field
            })*
        };
    }
    is_production! {
        timers: usize, swept: u64, dispatched: usize, turn: usize, reclaims: usize, frees: usize, groups: usize,
        redriven: u64, acked: usize, seen: usize, page: usize, page_bytes: usize, examined: usize, unacked: usize,
        parts: usize, read_bytes: usize,
    }
}
