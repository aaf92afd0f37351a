//! `driftq-sim`: see [`driftq_sim::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    driftq_sim::cli::main()
}
