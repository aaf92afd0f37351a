//! `driftqd`: the DriftQ broker as a process.
//!
//! The HTTP server is not part of this version. The program says so rather than pretending.

use std::process::ExitCode;

fn main() -> ExitCode {
    eprintln!("driftqd {}: the HTTP server is not part of this version yet.", env!("CARGO_PKG_VERSION"));
    eprintln!("The broker's core can be tried by hand: cargo run -p driftq-core --example by_hand");
    ExitCode::from(2)
}
