//! `driftq consume`.

use std::collections::VecDeque;
use std::time::Duration;

use clap::Args;
use driftq_client::{Claim, Client, Consume, Message};
use serde::Serialize;
use tokio::task::JoinHandle;

use super::Broker;
use super::groups::From;
use crate::failure::{Exit, Failure, meaning};
use crate::interrupt::Interrupt;
use crate::output::remark;
use crate::units::parse_duration;

/// The owner of streams and claims that name none: what `consume` was given, `ack` can settle.
pub(crate) const DEFAULT_OWNER: &str = "driftq-cli";
/// Acks on the wire at a time.
const ACKS_AT_A_TIME: usize = 32;
/// Failed acks that are reported one by one.
const REPORTED_MAX: u64 = 3;
/// A stream is worth waiting for: how long one that was never open is tried.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// Flags of `consume`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Without --ack the leases of the messages continue: settle them with `driftq ack`, which takes the printed lines:
  driftq consume orders -g kitchen -n 5 --json | tee batch.jsonl
  driftq ack --lines < batch.jsonl")]
pub(crate) struct Options {
    /// Name of the topic
    topic: String,
    /// Name of the group; it is created if it does not exist
    #[arg(long, short)]
    group: String,
    /// Ack each message when it has been printed
    #[arg(long, short)]
    ack: bool,
    /// Go on for ever, instead of ending when nothing comes
    #[arg(long, short)]
    follow: bool,
    /// End after so many messages
    #[arg(long, short = 'n', value_parser = clap::value_parser!(u64).range(1..))]
    max: Option<u64>,
    /// Without --follow: end when nothing has come for so long
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration, conflicts_with = "follow")]
    wait: Duration,
    /// Where a new group starts
    #[arg(long, value_enum, default_value = "earliest")]
    from: From,
    /// Lease of each message [default: the server's, 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    lease: Option<Duration>,
    /// The most messages that are leased at a time [default: the server's, 100]
    #[arg(long)]
    prefetch: Option<u32>,
    /// Name of this consumer
    #[arg(long, default_value = DEFAULT_OWNER)]
    owner: String,
    /// Release what is not acked when the stream is cut off
    #[arg(long)]
    release_on_disconnect: bool,
    /// Delete a new group with its last stream
    #[arg(long)]
    ephemeral: bool,
}

/// A delivery with what a claim on it needs beside the message.
#[derive(Serialize)]
struct Delivery<'a> {
    group: &'a str,
    owner: &'a str,
    #[serde(flatten)]
    message: &'a Message,
}

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    // Says at once what is wrong. A stream would wait for the broker, and a claim needs the topic to exist.
    broker.client()?.groups(&options.topic).await?;
    let client = broker.settings.patient_client(RETRY_FOR)?;
    let mut interrupt = Interrupt::new()?;
    let mut consumer = client.consume(&request(&options));
    let mut acks = Acks::new(&client);
    let ended = loop {
        let message = tokio::select! {
            message = consumer.next() => message,
            () = interrupt.received() => break Ok(()),
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        };
        let delivery = Delivery { group: &options.group, owner: &options.owner, message: &message };
        // Acked only once it has been printed: what the output did not take is delivered again.
        if let Err(failure) = broker.output.message(&delivery, &message) {
            break Err(failure);
        }
        if options.ack {
            acks.send(consumer.claim(&message)).await;
        }
    };
    // Acks before the end of the stream: that may release what is not acked. A second signal ends the wait for them.
    let refused = tokio::select! {
        refused = acks.finish() => refused,
        () = interrupt.received() => {
            remark("some acks have no answer: their messages may be delivered again");
            Some(Exit::Unreachable)
        }
    };
    consumer.close();
    ended?;
    refused.map_or(Ok(()), |exit| Err(Failure::Told(exit)))
}

fn request(options: &Options) -> Consume {
    let mut request = Consume::new(&options.topic, &options.group, &options.owner);
    if let Some(lease) = options.lease {
        request = request.lease(lease);
    }
    if let Some(prefetch) = options.prefetch {
        request = request.prefetch(prefetch);
    }
    if let Some(max) = options.max {
        request = request.max(max);
    }
    if !options.follow {
        request = request.wait(options.wait);
    }
    if options.from == From::Latest {
        request = request.from_latest();
    }
    // With --ack, what was not printed is for others at once.
    if options.release_on_disconnect || options.ack {
        request = request.release_on_disconnect();
    }
    if options.ephemeral {
        request = request.ephemeral();
    }
    request
}

/// Acks that are on their way, the oldest first.
struct Acks {
    client: Client,
    waiting: VecDeque<JoinHandle<Result<(), driftq_client::Error>>>,
    failed: u64,
    /// The exit code of the first that failed.
    exit: Option<Exit>,
}

impl Acks {
    fn new(client: &Client) -> Self {
        Self { client: client.clone(), waiting: VecDeque::new(), failed: 0, exit: None }
    }

    async fn send(&mut self, claim: Claim) {
        if self.waiting.len() >= ACKS_AT_A_TIME {
            self.settle_oldest().await;
        }
        let client = self.client.clone();
        self.waiting.push_back(tokio::spawn(async move { client.ack(&claim).await }));
    }

    async fn settle_oldest(&mut self) {
        let Some(oldest) = self.waiting.pop_front() else { return };
        if let Err(error) = oldest.await.expect("an ack neither panics nor is cancelled") {
            self.failed += 1;
            if self.failed <= REPORTED_MAX {
                remark(&format!("an ack failed: {}", error.message()));
            }
            self.exit.get_or_insert(meaning(&error).0);
        }
    }

    /// Waits for all of them. Returns the exit code of the first that failed.
    async fn finish(mut self) -> Option<Exit> {
        while !self.waiting.is_empty() {
            self.settle_oldest().await;
        }
        if self.failed > REPORTED_MAX {
            remark(&format!("{} acks failed", self.failed));
        }
        self.exit
    }
}
