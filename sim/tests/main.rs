//! The simulator: its worlds, checks, searches, traces, pages and command line.

mod cli;
mod coverage;
mod data_folder;
mod determinism;
mod exhaust;
mod explain;
mod file_disk;
mod help;
mod oracle;
mod planted;
mod reads;
mod regressions;
mod seeds;
mod sequences;
mod soak;
mod viewer;
mod weeks;
