//! A world that crashes DriftQ's core, lies to it about its disk and clock, and checks what it promised.
//!
//! Everything in `driftq-core` runs here as it runs in production: the state machine, the codec, segments, snapshots,
//! recovery and the commit pipeline. Only what surrounds it is made up: a [`disk`] that keeps its promises and not one
//! more, a clock that is set, a network that delays and repeats, producers that send again and workers that die.
//!
//! A [`world`] takes one [step](steps) after the other and draws nothing, so that a life can be written down as a [`trace`]
//! and lived again. What comes next is drawn by the [`swarm`], from a seed. What is promised is watched by the
//! [`invariants`], by a naive [`oracle`] that predicts every answer, and by the log's own [`shadow`]. A life in which a
//! promise was broken is made [shorter](shrink) until it is a story, and [explained](explain) by what else could have
//! happened; [`mutants`] shows that it would have been noticed. Of a small world [`exhaust`] lives not some lives but all, as far
//! as it gets.
//!
//! What real servers leave behind is looked at with the same core: what their clients saw as a [`history`], their log as
//! a [`wal`].

pub mod actions;
pub mod campaign;
pub mod cli;
pub mod coverage;
pub mod digest_chain;
pub mod disk;
pub mod exhaust;
pub mod explain;
pub mod file_disk;
pub mod history;
pub mod invariants;
pub mod mutants;
pub mod names;
pub mod oracle;
pub mod panic_capture;
pub mod parallel;
pub mod progress;
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
pub mod wal;
pub mod world;
