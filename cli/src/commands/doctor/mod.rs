//! `driftq doctor`: checks a broker, and says what to do about what it finds.

mod checks;
mod date;

use std::time::Duration;

use clap::Args;
use driftq_client::{Client, Probe, TopicInfo};
use serde::Serialize;
use serde_json::json;

use self::checks::{Facts, Readiness};
use super::Broker;
use super::topics::describe;
use crate::failure::{Exit, Failure};
use crate::metrics::Metrics;
use crate::output::Output;
use crate::table::Tone;
use crate::units::parse_duration;

/// Columns in front of what was found.
const INDENT: usize = 21;

/// Flags of `doctor`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// A group is stuck if its oldest message has waited for so long and nothing is acked meanwhile
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    stuck_after: Duration,
    /// How long groups are watched for progress
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    watch: Duration,
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// As it should be.
    Ok,
    /// Worth knowing; no failure.
    Note,
    /// It needs an action: the exit code says so.
    Wrong,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Finding {
    check: &'static str,
    level: Level,
    what: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn ok(check: &'static str, what: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, what: what.into(), advice: None }
    }

    fn note(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Note, what: what.into(), advice: Some(advice.into()) }
    }

    fn wrong(check: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, level: Level::Wrong, what: what.into(), advice: Some(advice.into()) }
    }
}

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    let mut findings = Vec::new();
    let mut reached = 0;
    for url in &broker.settings.urls {
        let client = broker.settings.client_of(url)?;
        match examine_server(url, &client).await {
            Ok(found) => {
                reached += 1;
                findings.extend(found);
            }
            Err(error) => findings.push(Finding::wrong(
                "reachable",
                format!("{url}: {}", error.message()),
                "start the broker, or correct --url, DRIFTQ_URL or the context",
            )),
        }
    }
    if reached > 0 {
        findings.extend(examine_groups(&broker.client()?, &options).await);
    }
    report(broker.output, &findings)?;
    let wrong = findings.iter().any(|finding| finding.level == Level::Wrong);
    match (reached, wrong) {
        (0, _) => Err(Failure::Told(Exit::Unreachable)),
        (_, true) => Err(Failure::Told(Exit::Unhealthy)),
        (_, false) => Ok(()),
    }
}

/// What one server says about itself.
async fn examine_server(url: &str, client: &Client) -> Result<Vec<Finding>, driftq_client::Error> {
    // Before all others: it also opens the connection, which the clocks must not be compared across.
    let version = client.version().await;
    let asked = date::now();
    let ready = client.probe("/v1/readyz").await?;
    let answered = date::now();
    let metrics = client.probe("/metrics").await?;
    let facts = Facts {
        url,
        version: version.ok(),
        readiness: readiness(&ready),
        // The header has whole seconds: the clock is somewhere in that second.
        date: ready.date.as_deref().and_then(date::parse),
        asked,
        answered,
        metrics: Metrics::parse(&String::from_utf8_lossy(&metrics.body)),
    };
    Ok(checks::server(&facts))
}

fn readiness(probe: &Probe) -> Readiness {
    let body: serde_json::Value = serde_json::from_slice(&probe.body).unwrap_or_default();
    let text = |name: &str| body[name].as_str().map(ToOwned::to_owned);
    Readiness {
        is_ready: probe.status == 200,
        status: text("message").or_else(|| text("status")).unwrap_or_else(|| format!("status {}", probe.status)),
        clock_ahead_ms: body["clock_ahead_ms"].as_u64().unwrap_or(0),
    }
}

/// Looks at all groups, and again after a while if some of them may be stuck.
async fn examine_groups(client: &Client, options: &Options) -> Vec<Finding> {
    let described = async {
        let names = client.topics().await?;
        let described = describe(client, &names).await?;
        Ok::<Vec<TopicInfo>, driftq_client::Error>(described.into_iter().filter_map(|(_, info)| info).collect())
    };
    let before = match described.await {
        Ok(topics) => topics,
        Err(error) => {
            let what = format!("topics cannot be described: {}", error.message());
            return vec![Finding::wrong("groups", what, "see `ready` above")];
        }
    };
    let waiting = checks::waiting_too_long(&before, options.stuck_after);
    if waiting.is_empty() {
        return vec![Finding::ok("groups", "no group has waited too long")];
    }
    tokio::time::sleep(options.watch).await;
    let mut names: Vec<String> = waiting.iter().map(|(topic, _)| topic.clone()).collect();
    names.dedup();
    match describe(client, &names).await {
        Ok(after) => {
            let after: Vec<_> = after.into_iter().filter_map(|(_, info)| info).collect();
            checks::stuck_groups(&before, &after, &waiting)
        }
        Err(error) => vec![Finding::wrong("groups", error.message(), "see `ready` above")],
    }
}

fn report(output: Output, findings: &[Finding]) -> Result<(), Failure> {
    let count = |level| findings.iter().filter(|finding| finding.level == level).count();
    let (notes, wrong) = (count(Level::Note), count(Level::Wrong));
    output.show(&json!({"wrong": wrong, "notes": notes, "findings": findings}), |output| {
        let mut text = String::new();
        for finding in findings {
            let (mark, tone) = match finding.level {
                Level::Ok => ("ok   ", Tone::Good),
                Level::Note => ("note ", Tone::Warn),
                Level::Wrong => ("WRONG", Tone::Bad),
            };
            let what = crate::text::visible(&finding.what);
            text.push_str(&format!("{}  {:<13} {what}\n", output.toned(mark, tone), finding.check));
            if let Some(advice) = &finding.advice {
                let advice = format!("-> {}", crate::text::visible(advice));
                for line in crate::text::wrapped(&advice, output.columns().saturating_sub(INDENT)) {
                    text.push_str(&format!("{:INDENT$}{}\n", "", output.toned(&line, Tone::Faint)));
                }
            }
        }
        let summary = match wrong {
            0 => output.toned("nothing is wrong", Tone::Good),
            1 => output.toned("1 thing is wrong", Tone::Bad),
            wrong => output.toned(&format!("{wrong} things are wrong"), Tone::Bad),
        };
        text + "\n" + &summary + "\n"
    })
}
