//! Test kit and test programs that use a broker over HTTP, as a process.
//!
//! The kit is one [HTTP client](http), one [launcher of `driftqd`](daemon), one [progress display](progress) and
//! readers of [`/proc`](procfs). On it are built the [`conformance`] suite, which checks any server against the
//! specification, [`torture`], which injects faults under load and verifies the recorded history, and [`load`], which
//! measures.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod daemon;
pub mod http;
pub mod load;
pub mod numbers;
pub mod procfs;
pub mod progress;
pub mod torture;
