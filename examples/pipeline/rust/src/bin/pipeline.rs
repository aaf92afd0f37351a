//! Runs the pipeline under crashes and prints what happened. Fails if an effect is missing or happened twice.

use std::process::ExitCode;

use clap::Parser as _;
use driftq_examples::{Options, run};
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    let result = tokio::select! {
        result = run(&options) => result,
        // The processes of the run end with it.
        () = terminated() => Err("interrupted".to_owned()),
    };
    match result {
        Ok(report) => {
            println!("{report}");
            if report.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn terminated() {
    let Ok(mut terminate) = signal(SignalKind::terminate()) else { return drop(ctrl_c().await) };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = ctrl_c() => {}
    }
}
