//! A second server on the folder of a running one.

use std::time::Duration;

use serde_json::json;

use super::support::{OnFault, timed, under_load};
use crate::daemon::free_addr;
use crate::torture::interrupt::sleep;
use crate::torture::scenario::{LogMode, Options, Scenario};
use crate::torture::verdict::FaultSummary;
use crate::torture::workload::Load;

/// Starts a second server on the folder of one under load. It must be refused, and the first one unaffected.
///
/// # Errors
/// If the driver itself fails.
pub fn second_server(options: &Options, on_fault: OnFault<'_>) -> Result<FaultSummary, String> {
    timed("two servers, one folder", |summary| {
        let mut scenario = Scenario::new(options, &options.driftqd, LogMode::Complete)?;
        let mut violation = None;
        let injected = (|| {
            scenario.start_with_topics()?;
            let workload = scenario.start_workload(Load::default(), "w", options.seed)?;
            under_load(workload, |_| {
                sleep(Duration::from_millis(200))?;
                scenario.recorder().driver("fault", &json!({ "second": "server" }));
                let addr = free_addr().map_err(|error| error.to_string())?;
                let second = scenario.launcher().clone().addr(addr).log(&scenario.home().join("second.log"));
                match second.start().map_err(|error| error.to_string()) {
                    Ok(_) => violation = Some("a second server started on the same folder".to_owned()),
                    Err(error) if error.contains("in use") => {}
                    Err(error) => {
                        violation = Some(format!("a second server was refused without naming the cause: {error}"));
                    }
                }
                sleep(Duration::from_millis(200))
            })
        })();
        let mut verdict = scenario.finish(injected)?;
        violation.into_iter().for_each(|violation| verdict.add_violation(violation));
        summary.add(1, verdict);
        on_fault();
        Ok(())
    })
}
