//! A server that is paused for longer than its leases.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::support::{OnFault, timed, under_load};
use crate::torture::interrupt::sleep;
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::verdict::FaultSummary;
use crate::torture::workload::{Load, REDELIVERY_MS_MAX};

/// Pauses the server with SIGSTOP, each time for longer than any lease. Workers that held a lease are late then and
/// must be fenced.
///
/// # Errors
/// If the driver itself fails.
pub fn pauses(options: &Options, pauses: u64, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    timed("paused past its leases", |summary| {
        let mut scenario = Scenario::new(options, &options.driftqd, LogMode::Complete)?;
        let (mut runs, mut fenced) = (0, 0);
        let injected = (|| {
            scenario.start_with_topics()?;
            let workload = scenario.start_workload(Load::default(), "w", options.seed)?;
            under_load(workload, |workload| {
                for _ in 0..pauses {
                    sleep(Duration::from_millis(250))?;
                    scenario.pause()?;
                    sleep(Duration::from_millis(REDELIVERY_MS_MAX + 150))?;
                    scenario.resume()?;
                    runs += 1;
                    on_fault();
                }
                // Time for the late acks.
                sleep(Duration::from_millis(REDELIVERY_MS_MAX + 300))?;
                fenced = workload.shared().fenced.load(Ordering::Relaxed);
                Ok(())
            })
        })();
        let mut verdict = scenario.finish(injected)?;
        if fenced == 0 {
            verdict.add_violation("no late ack was fenced: leases never expire, or no ack was late".to_owned());
        }
        summary.add(runs, verdict);
        Ok(())
    })
}
