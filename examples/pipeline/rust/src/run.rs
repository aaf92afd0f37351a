//! One run, from the start of the broker to the verdict.

use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::time::Duration;

use driftq_client::{Client, CreateTopic};
use tokio::time::{Instant, sleep};

use crate::broker::Broker;
use crate::crashes::crash;
use crate::evidence::{Evidence, unacked};
use crate::ledger::{Kind, Ledger};
use crate::metrics::{Metrics, Totals};
use crate::options::Options;
use crate::producer::produce;
use crate::programs::Programs;
use crate::random::Random;
use crate::report::Report;
use crate::workers::Workers;

const PARTITIONS: u32 = 3;
/// How long nothing may happen outside while there is something left. Far longer than a lease.
const STALLED_AFTER: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
const REQUESTS_STREAM: u64 = 0;

/// Runs the pipeline, and verifies what it did. Its folder is kept if something is wrong.
///
/// # Errors
/// If a program is missing, or a process ends that was not killed.
pub async fn run(options: &Options) -> Result<Report, String> {
    let programs = Programs::find(options)?;
    let folder = tempfile::Builder::new().prefix("driftq-pipeline-").tempdir().map_err(|error| error.to_string())?;
    let result = run_in(folder.path(), options, programs).await;
    if !result.as_ref().is_ok_and(|report| report.findings.is_empty()) {
        eprintln!("the logs and the data of the broker are in {}", folder.keep().display());
    }
    result
}

async fn run_in(folder: &Path, options: &Options, programs: Programs) -> Result<Report, String> {
    let seed = options.seed.unwrap_or_else(drawn_seed);
    let duration = Duration::from_secs(options.seconds);
    let ledger = Ledger::start(!(options.no_unique || options.no_store)).await?;
    let mut broker = Broker::start(&programs.driftqd, folder).await?;
    let client = Client::builder().url(broker.url()).build().map_err(|error| error.to_string())?;
    for kind in Kind::ALL {
        let topic = CreateTopic::new(kind.topic()).partitions(PARTITIONS);
        client.create_topic(&topic).await.map_err(|error| error.to_string())?;
    }
    let mut workers = Workers::start(programs.workers, folder, broker.url(), ledger.url())?;
    let metrics = Metrics::new(&broker.url())?;
    let mut totals = Totals::default();

    let (requests, kills) = tokio::try_join!(
        produce(&client, options.requests, duration, Random::new(seed, REQUESTS_STREAM)),
        crash(&mut broker, &mut workers, seed, duration, options.pauses, &metrics, &mut totals),
    )?;

    let calm = Instant::now();
    let (mut progress, mut progress_at) = (ledger.total(), calm);
    while !is_drained(&client, &ledger, requests.len()).await? && progress_at.elapsed() < STALLED_AFTER {
        broker.expect_running()?;
        workers.expect_running()?;
        sleep(POLL).await;
        if ledger.total() > progress {
            (progress, progress_at) = (ledger.total(), Instant::now());
        }
    }
    let drain = calm.elapsed();
    workers.stop().await?;
    totals.add(metrics.read().await);
    let evidence = Evidence::collect(&client, requests, ledger.effects()).await.map_err(|error| error.to_string())?;
    Ok(Report::new(seed, &evidence, kills, totals, drain))
}

async fn is_drained(client: &Client, ledger: &Ledger, requests: usize) -> Result<bool, String> {
    // The broker is asked only when it is about to be true.
    Ok(ledger.count(Kind::Report) >= requests && unacked(client).await.map_err(|error| error.to_string())? == 0)
}

/// A seed that is short enough to be typed.
fn drawn_seed() -> u64 {
    RandomState::new().hash_one(std::process::id()) % 1_000_000
}
