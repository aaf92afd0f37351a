//! Workload profiles.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The workload profile of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// All features, about half of them off in every world
    #[default]
    Default,
    /// Workers that use the idempotency store, in every world
    Effects,
    /// Weeks of simulated time with few faults: retention, sweeps, snapshots
    Weeks,
}

impl Profile {
    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Effects => "effects",
            Self::Weeks => "weeks",
        }
    }
}
