//! `driftq tail`: follows a topic by reading it, so that no group and no lease is concerned.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use driftq_client::{Client, ErrorKind, TopicInfo};

use super::Broker;
use super::peek::read;
use crate::failure::{Exit, Failure, meaning};
use crate::interrupt::Interrupt;
use crate::output::{Output, remark};
use crate::units::parse_duration;

/// The most messages that are read of a partition in a round.
const ROUND_MAX: u32 = 1_000;

/// Flags of `tail`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the topic
    topic: String,
    /// Begin with the last so many messages
    #[arg(long = "lines", short = 'n', default_value_t = 10)]
    last: u64,
    /// Only this partition
    #[arg(long, short)]
    partition: Option<u32>,
    /// End behind the newest message instead of waiting for more
    #[arg(long)]
    no_follow: bool,
    /// How often the broker is asked for more
    #[arg(long, value_name = "DURATION", default_value = "500ms", value_parser = parse_duration)]
    interval: Duration,
}

/// The next offset to read of each partition.
type Cursors = BTreeMap<u32, u64>;

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    let client = broker.client()?;
    let mut interrupt = Interrupt::new()?;
    let info = client.topic(&options.topic).await?;
    if let Some(partition) = options.partition
        && !info.partitions.iter().any(|known| known.partition == partition)
    {
        return Err(Failure::new(
            Exit::NotFound,
            format!("the topic {:?} has no partition {partition}", options.topic),
        ));
    }
    let mut cursors = start(&info, options.partition, options.last);
    let mut pending = Some(info);
    let mut is_away = false;
    loop {
        let round = async {
            let info = match pending.take() {
                Some(info) => info,
                None => client.topic(&options.topic).await?,
            };
            print_new(&client, broker.output, &info, &mut cursors).await
        };
        let ended = tokio::select! {
            ended = round => ended,
            () = interrupt.received() => return Ok(()),
        };
        match ended {
            Ok(()) => is_away = false,
            // A broker that restarts is waited for; a topic that is gone is not.
            Err(Round::Broker(error)) if is_temporary(&error) => {
                if !std::mem::replace(&mut is_away, true) {
                    remark(&format!("{}; waiting for it", error.message()));
                }
            }
            Err(Round::Broker(error)) => return Err(error.into()),
            Err(Round::Other(failure)) => return Err(failure),
        }
        if options.no_follow {
            return Ok(());
        }
        tokio::select! {
            () = tokio::time::sleep(options.interval) => {}
            () = interrupt.received() => return Ok(()),
        }
    }
}

/// Why a round ended early.
enum Round {
    Broker(driftq_client::Error),
    Other(Failure),
}

impl From<driftq_client::Error> for Round {
    fn from(error: driftq_client::Error) -> Self {
        Self::Broker(error)
    }
}

fn is_temporary(error: &driftq_client::Error) -> bool {
    meaning(error).0 == Exit::Unreachable && error.kind() != ErrorKind::Tls
}

/// Offsets count up over all partitions: the last `last` messages of a topic are those of its last `last` offsets.
fn start(info: &TopicInfo, partition: Option<u32>, last: u64) -> Cursors {
    let chosen = || info.partitions.iter().filter(|known| partition.is_none_or(|wanted| known.partition == wanted));
    let next = chosen().map(|known| known.next_offset).max().unwrap_or(0);
    chosen().map(|known| (known.partition, next.saturating_sub(last))).collect()
}

/// Prints what is behind the cursors, in the order of the offsets.
async fn print_new(client: &Client, output: Output, info: &TopicInfo, cursors: &mut Cursors) -> Result<(), Round> {
    let mut messages = Vec::new();
    for partition in &info.partitions {
        let Some(cursor) = cursors.get(&partition.partition).copied() else { continue };
        if partition.next_offset <= cursor {
            continue;
        }
        messages.extend(read(client, &info.name, partition.partition, cursor, ROUND_MAX).await?);
    }
    messages.sort_by_key(|message| message.offset);
    for message in &messages {
        cursors.insert(message.partition, message.offset + 1);
        output.message(message, message).map_err(Round::Other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_messages_are_those_of_the_last_offsets_of_all_partitions() {
        let info: TopicInfo = serde_json::from_value(serde_json::json!({
            "name": "t", "groups": [], "partitions": [
                {"partition": 0, "next_offset": 20, "messages": 0, "bytes": 0, "delayed": 0},
                {"partition": 1, "next_offset": 3, "messages": 0, "bytes": 0, "delayed": 0},
            ]
        }))
        .expect("a topic");
        assert_eq!(start(&info, None, 5), [(0, 15), (1, 15)].into());
        assert_eq!(start(&info, Some(1), 5), [(1, 0)].into());
        assert_eq!(start(&info, None, 50), [(0, 0), (1, 0)].into());
    }
}
