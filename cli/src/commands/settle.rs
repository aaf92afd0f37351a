//! `driftq ack`, `nack`, `extend` and `release`: what a worker says about a delivery.

use std::io::BufRead as _;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use driftq_client::{Claim, Client, Failing};
use serde::Deserialize;
use serde_json::json;

use super::Broker;
use super::consume::DEFAULT_OWNER;
use crate::args::MessageAt;
use crate::failure::{Failure, meaning};
use crate::output::{Output, remark};
use crate::text::counted;
use crate::units::parse_duration;

/// Which deliveries.
#[derive(Args, Clone, Debug)]
pub(crate) struct Claims {
    /// The message: TOPIC/PARTITION/OFFSET
    #[arg(required_unless_present = "lines", conflicts_with = "lines")]
    message: Option<MessageAt>,
    /// Name of the group it was delivered to
    #[arg(long, short, required_unless_present = "lines", conflicts_with = "lines")]
    group: Option<String>,
    /// Lease token of the delivery; without it only the owner is compared
    #[arg(long, short, value_name = "LEASE_TOKEN", conflicts_with = "lines")]
    token: Option<String>,
    /// Owner of the stream it was delivered to
    #[arg(long, default_value = DEFAULT_OWNER, conflicts_with = "lines")]
    owner: String,
    /// Read the deliveries from standard input: the JSON lines that `driftq consume --json` prints
    #[arg(long)]
    lines: bool,
}

/// Flags of `ack`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Ack {
    #[command(flatten)]
    claims: Claims,
    /// Ack all messages of the partition up to this one that were last delivered to the owner
    #[arg(long, conflicts_with_all = ["token", "lines"])]
    cumulative: bool,
}

/// Flags of `nack`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Nack {
    #[command(flatten)]
    claims: Claims,
    /// Why it failed
    #[arg(long, short, default_value = "")]
    reason: String,
    /// When it is delivered again, instead of what its retry policy says
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    delay: Option<Duration>,
    /// Dead-letter it at once
    #[arg(long, conflicts_with = "delay")]
    permanent: bool,
}

/// Flags of `extend`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Extend {
    #[command(flatten)]
    claims: Claims,
    /// The lease from now on
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = parse_duration)]
    lease: Duration,
}

/// Flags of `release`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Release {
    #[command(flatten)]
    claims: Claims,
}

/// What is said about each delivery.
enum Verdict {
    Ack,
    AckCumulative,
    Nack(Failing),
    Extend(Duration),
    Release,
}

impl Verdict {
    fn name(&self) -> &'static str {
        match self {
            Self::Ack | Self::AckCumulative => "acked",
            Self::Nack(_) => "nacked",
            Self::Extend(_) => "extended",
            Self::Release => "released",
        }
    }

    async fn tell(&self, client: &Client, claim: &Claim) -> Result<(), driftq_client::Error> {
        match self {
            Self::Ack => client.ack(claim).await,
            Self::AckCumulative => client.ack_cumulative(claim).await,
            Self::Nack(failing) => client.nack(claim, failing).await,
            Self::Extend(lease) => client.extend(claim, *lease).await,
            Self::Release => client.release(claim).await,
        }
    }
}

pub(crate) async fn ack(broker: &Broker, options: Ack) -> Result<(), Failure> {
    let verdict = if options.cumulative { Verdict::AckCumulative } else { Verdict::Ack };
    settle(broker, options.claims, &verdict).await
}

pub(crate) async fn nack(broker: &Broker, options: Nack) -> Result<(), Failure> {
    let failing = match (options.permanent, options.delay) {
        (true, _) => Failing::permanent(options.reason),
        (false, Some(delay)) => Failing::retryable(options.reason).delay(delay),
        (false, None) => Failing::retryable(options.reason),
    };
    settle(broker, options.claims, &Verdict::Nack(failing)).await
}

pub(crate) async fn extend(broker: &Broker, options: Extend) -> Result<(), Failure> {
    settle(broker, options.claims, &Verdict::Extend(options.lease)).await
}

pub(crate) async fn release(broker: &Broker, options: Release) -> Result<(), Failure> {
    settle(broker, options.claims, &Verdict::Release).await
}

async fn settle(broker: &Broker, claims: Claims, verdict: &Verdict) -> Result<(), Failure> {
    let client = broker.client()?;
    let Claims { message, group, token, owner, lines } = claims;
    if lines {
        return settle_lines(broker.output, &client, verdict).await;
    }
    let (Some(MessageAt { topic, partition, offset }), Some(group)) = (message, group) else {
        return Err(Failure::usage("a message and its group are needed"));
    };
    let claim =
        Claim { topic: topic.into(), group: group.into(), partition, offset, owner: owner.into(), lease_token: token };
    verdict.tell(&client, &claim).await?;
    let result = json!({"status": verdict.name(), "topic": claim.topic.as_ref(), "group": claim.group.as_ref(),
        "partition": partition, "offset": offset});
    broker.output.show(&result, |_| format!("{} {}/{partition}/{offset}\n", verdict.name(), claim.topic))
}

/// A line that `driftq consume --json` has printed. Other fields do not matter here.
#[derive(Deserialize)]
struct Delivery {
    topic: String,
    group: String,
    owner: String,
    partition: u32,
    offset: u64,
    lease_token: Option<String>,
}

/// Settles one delivery per line, and goes on after one that is refused. The first refusal decides the exit code.
async fn settle_lines(output: Output, client: &Client, verdict: &Verdict) -> Result<(), Failure> {
    let (mut settled, mut refused, mut first) = (0_u64, 0_u64, None);
    for (index, line) in std::io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
        if line.trim().is_empty() {
            continue;
        }
        let delivery: Delivery = serde_json::from_str(&line).map_err(|error| {
            Failure::usage(format!("line {} is no delivery: {error}", index + 1))
                .advise("give the lines that `driftq consume --json` prints")
        })?;
        let claim = Claim {
            topic: delivery.topic.into(),
            group: delivery.group.into(),
            partition: delivery.partition,
            offset: delivery.offset,
            owner: Arc::from(delivery.owner),
            lease_token: delivery.lease_token,
        };
        match verdict.tell(client, &claim).await {
            Ok(()) => settled += 1,
            Err(error) => {
                remark(&format!("{}/{}/{}: {}", claim.topic, claim.partition, claim.offset, error.message()));
                refused += 1;
                first.get_or_insert(meaning(&error).0);
            }
        }
    }
    let result = json!({"status": verdict.name(), "settled": settled, "refused": refused});
    output.show(&result, |_| format!("{} {}, {refused} refused\n", verdict.name(), counted(settled, "message")))?;
    first.map_or(Ok(()), |exit| Err(Failure::Told(exit)))
}
