//! Instructions by category: the broker runs under callgrind, which counts while it is driven.

mod attribution;
mod parser;

use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

pub(crate) use self::attribution::Attribution;
use super::traffic::{Amount, DAEMON_ARGS, Observer, Traffic};
use crate::load::broker::Broker;
use crate::load::cli::BrokerOptions;
use crate::load::error::Result;
use crate::load::report::Failures;
use crate::load::tool;

/// How long valgrind may take to answer. It is asked while the broker is idle.
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// Why callgrind cannot be used here, if so.
pub(super) async fn missing() -> Option<String> {
    for program in ["valgrind", "callgrind_control"] {
        match tool::run(Command::new(program).arg("--version"), ANSWER_WITHIN).await {
            Ok(finished) => match finished.successful() {
                Ok(_) => {}
                Err(error) => return Some(error.to_string()),
            },
            Err(_) => return Some(format!("{program} is not installed")),
        }
    }
    None
}

/// Drives a new broker under callgrind. The costs are per message.
pub(super) async fn measure(
    traffic: Traffic,
    amount: Amount,
    options: &BrokerOptions,
) -> Result<(Attribution, Failures)> {
    let folder = TempDir::new()?;
    let counts = folder.path().join("callgrind.out");
    let tool = ["valgrind", "--tool=callgrind", "--instr-atstart=no"].map(str::to_owned);
    let file = format!("--callgrind-out-file={}", counts.display());
    let options = BrokerOptions { wrapper: [&tool[..], &[file]].concat(), ..options.clone() };
    let broker = Broker::open(&options, &DAEMON_ARGS).await?;
    let driven = traffic.drive(&broker, amount, &mut Switch).await?;
    broker.stop().await?;

    let text = std::fs::read_to_string(&counts).map_err(|error| format!("callgrind wrote no file: {error}"))?;
    let parsed = parser::parse(&text)?;
    if parsed.total() == 0 {
        return Err("callgrind counted no instruction".into());
    }
    let mut attribution = attribution::attribute(&parsed);
    let messages = driven.messages.max(1) as f64;
    attribution.costs.values_mut().for_each(|cost| *cost /= messages);
    attribution.unassigned.values_mut().for_each(|cost| *cost /= messages);
    Ok((attribution, driven.failures))
}

/// Has callgrind count while the broker is driven.
struct Switch;

impl Observer for Switch {
    async fn begin(&mut self, broker: &Broker) -> Result<()> {
        switch(broker, "on").await
    }

    async fn end(&mut self, broker: &Broker) -> Result<()> {
        switch(broker, "off").await
    }
}

async fn switch(broker: &Broker, to: &str) -> Result<()> {
    let pid = broker.pid().ok_or("the broker has no process")?.to_string();
    let finished = tool::run(Command::new("callgrind_control").args(["-i", to, &pid]), ANSWER_WITHIN).await?;
    // It succeeds also if there is no such process.
    if finished.output.contains("OK") { Ok(()) } else { Err(finished.failure()) }
}
