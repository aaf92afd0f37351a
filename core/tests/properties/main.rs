//! What must hold of any record's bytes, of any log that was damaged or forged, and of the files of every version, for ever.
//!
//! `scenario` tells one story that leaves every kind of record behind, `tales` tells any number of small ones. What must hold
//! of any sequence of commands, crashes and restarts is tested where such sequences are lived: in the simulator.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::needless_pass_by_value)]

mod arbitrary;
mod cases;
mod codec;
mod contradictions;
mod damage;
mod forged;
mod golden;
mod scenario;
mod tales;
