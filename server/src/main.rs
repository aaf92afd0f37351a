//! `driftqd`: the DriftQ broker as a process.
fn main() {}
