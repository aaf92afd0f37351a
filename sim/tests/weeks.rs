//! Worlds of simulated weeks: retention, sweeps and snapshots keep log and memory bounded, and the clock drifts.

use driftq_sim::run::{RunOptions, run_seed};
use driftq_sim::swarm::Profile;

const SEEDS: u64 = 40;
const WEEK_MS: u64 = 7 * 24 * 60 * 60 * 1_000;

#[test]
fn weeks_of_simulated_time_violate_no_invariant() {
    let options = RunOptions { profile: Profile::Weeks, ..RunOptions::default() };
    let mut weeks = 0;
    for seed in 0..SEEDS {
        let run = run_seed(seed, options);
        assert!(run.violation.is_none(), "seed {seed}: {:?}", run.violation);
        weeks += run.counters.simulated_ms / WEEK_MS;
    }
    assert!(weeks >= 4 * SEEDS, "{weeks} weeks in {SEEDS} worlds");
}
