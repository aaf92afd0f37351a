//! `driftq peek`.

use clap::Args;
use driftq_client::{Client, Error, Message};

use super::Broker;
use crate::failure::Failure;
use crate::output::remark;

/// The most messages that the broker returns to one request.
const PEEK_MAX: u32 = 1_000;

/// Flags of `peek`.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Name of the topic
    topic: String,
    /// Only this partition
    #[arg(long, short)]
    partition: Option<u32>,
    /// The first offset
    #[arg(long, short, default_value_t = 0)]
    offset: u64,
    /// At most so many messages of each partition
    #[arg(long, short = 'n', default_value_t = 10)]
    limit: u32,
}

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    let client = broker.client()?;
    let partitions = partitions(&client, &options.topic, options.partition).await?;
    let mut shown = 0_usize;
    for partition in partitions {
        for message in read(&client, &options.topic, partition, options.offset, options.limit).await? {
            broker.output.message(&message, &message)?;
            shown += 1;
        }
    }
    if shown == 0 && !broker.output.is_json() {
        remark(&format!("the topic {:?} has no message from offset {} on", options.topic, options.offset));
    }
    Ok(())
}

/// The partition that was given, or all of a topic.
pub(crate) async fn partitions(client: &Client, topic: &str, given: Option<u32>) -> Result<Vec<u32>, Failure> {
    match given {
        Some(partition) => Ok(vec![partition]),
        None => Ok(client.topic(topic).await?.partitions.iter().map(|partition| partition.partition).collect()),
    }
}

/// Reads up to `limit` messages of a partition, in as many requests as that takes.
pub(crate) async fn read(
    client: &Client,
    topic: &str,
    partition: u32,
    from: u64,
    limit: u32,
) -> Result<Vec<Message>, Error> {
    let (mut messages, mut from) = (Vec::new(), from);
    loop {
        let left = limit.saturating_sub(u32::try_from(messages.len()).unwrap_or(u32::MAX));
        if left == 0 {
            return Ok(messages);
        }
        // Fewer than asked for may come because of their bytes; the end is where none comes.
        let page = client.peek(topic, partition, from, left.min(PEEK_MAX)).await?;
        let Some(last) = page.last() else { return Ok(messages) };
        from = last.offset + 1;
        messages.extend(page);
    }
}
