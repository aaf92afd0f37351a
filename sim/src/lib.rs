//! A deterministic simulator for DriftQ's broker core.
//!
//! The simulator runs everything in `driftq-core` as it runs in production: the state machine, the codec, segments,
//! snapshots, recovery and the commit pipeline. Everything around it is simulated: a disk that loses unsynced data and
//! injects faults, a clock that can be set, a network that delays and repeats requests, producers that resend and
//! workers that fail. A *run* is one simulated execution. It is generated from a *seed* or recorded as a *trace* of
//! [actions] and replayed. The same seed or trace gives the same run, byte for byte.
//!
//! # Modules, top-down
//!
//! | what | modules |
//! |---|---|
//! | the program | [`cli`], with [`progress`] and [`report`] |
//! | many runs | [`campaign`] runs seeds in [parallel]; [`soak`] does so without end; [`exhaust`] explores all runs of a small world; [`mutants`] measures how soon planted bugs are detected |
//! | one failing run | [`shrink`] makes it short; [`explain`] finds when the violation became inevitable; [`view`] shows it as a timeline; [`regression`] checks kept traces |
//! | one run | [`run`] executes a seed or a [`trace`]; [`swarm`] generates the actions of a seed |
//! | the world | [`world`] executes [actions] on a broker with simulated clients; [`setup`] has its limits, [`names`] the names in its actions |
//! | the disk | [`disk`] is the simulated one, [`file_disk`] puts real files in its place; both implement [`sim_storage`] |
//! | the checks | [`invariants`] lists and checks what must always hold; [`oracle`] predicts every output; [`shadow`] replays the written log |
//! | the evidence | [`coverage`] counts rare situations, [`digest_chain`] identifies a run, [`panic_capture`] turns panics into violations |
//!
//! # Example
//!
//! ```
//! use driftq_sim::run::{RunOptions, run_seed};
//!
//! let run = run_seed(7, RunOptions::default());
//! assert_eq!(run.violation, None);
//! assert_eq!(run.chain, run_seed(7, RunOptions::default()).chain);
//! ```

pub mod actions;
pub mod campaign;
pub mod cli;
pub mod coverage;
pub mod digest_chain;
pub mod disk;
pub mod exhaust;
pub mod explain;
pub mod file_disk;
pub mod invariants;
pub mod mutants;
pub mod names;
pub mod oracle;
pub mod panic_capture;
pub mod parallel;
pub mod progress;
pub mod reconfiguration;
pub mod regression;
pub mod report;
pub mod run;
pub mod setup;
pub mod shadow;
pub mod shrink;
pub mod sim_storage;
pub mod soak;
pub mod swarm;
pub mod trace;
pub mod view;
pub mod work;
pub mod world;
