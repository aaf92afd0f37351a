//! `load jobs`: jobs beside a consumer that does not answer, a slow worker and a stalled disk, as a Markdown table.
//!
//! No worker fails a job in any of the cases. So none may become a dead letter, and few may be executed twice.

mod case;
mod figures;
mod worker;

use std::time::Duration;

use crate::load::cli::JobsOptions;
use crate::load::error::Result;
use crate::load::report::Failures;
use crate::progress::Progress;
use case::{Case, Limits, Trouble};
use figures::{Row, markdown};

/// Measures every case and prints the table.
pub(crate) async fn run(options: &JobsOptions) -> Result<Failures> {
    if options.broker.url.is_some() {
        return Err("each case starts its own broker; --url cannot be used".into());
    }
    let mut rows = Vec::new();
    for case in cases(options) {
        let progress = Progress::spinner(&case.name());
        let measured = case.measure(&options.broker, Duration::from_secs_f64(options.give_up_seconds)).await;
        drop(progress);
        if let Err(error) = &measured {
            eprintln!("load: {}: {error}", case.name());
        }
        rows.push(Row {
            case: case.name(),
            has_goal: case.has_goal(),
            measured: measured.map_err(|error| error.to_string()),
        });
    }
    println!("{}", markdown(&rows));
    let mut failures = Failures::default();
    for row in rows.iter().filter(|row| row.is_missed()) {
        failures.named(&format!("goal missed: {}", row.case));
    }
    println!("failures: {failures}");
    Ok(failures)
}

/// The cases. A lease that is given is shorter than the trouble lasts; the default one may be longer and hide it.
fn cases(options: &JobsOptions) -> Vec<Case> {
    let defaults = Limits { lease_ms: None, max_attempts: Some(options.max_attempts) };
    let short_lease = Limits { lease_ms: Some(options.lease_ms), ..defaults };
    let unlimited = Limits { max_attempts: None, ..defaults };
    let silent = |limits| Case { trouble: Trouble::SilentStream, jobs: options.jobs, limits };
    let work = Duration::from_millis(u64::from(options.work_ms));
    let sequential = |limits| Case { trouble: Trouble::SlowWorker(work), jobs: options.sequential_jobs, limits };
    let mut cases =
        vec![silent(unlimited), silent(defaults), silent(short_lease), sequential(defaults), sequential(short_lease)];
    cases.extend(options.stall_seconds.iter().map(|seconds| Case {
        trouble: Trouble::StalledDisk(Duration::from_secs_f64(*seconds)),
        jobs: options.stalled_jobs,
        limits: short_lease,
    }));
    cases
}
