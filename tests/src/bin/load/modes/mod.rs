//! The modes: what each of them does to a broker, and what it prints.

pub(crate) mod backlog;
pub(crate) mod consume;
pub(crate) mod consumers;
pub(crate) mod end_to_end;
pub(crate) mod idle;
pub(crate) mod produce;
pub(crate) mod table;

use crate::Result;
use crate::broker::Broker;
use crate::drive::{Drive, Lane, Shape, Stamp, Until, drive};
use crate::progress::Spinner;
use crate::report::Tally;

/// Connections and messages in a request with which backlogs are filled.
const FILL_CONNECTIONS: u32 = 16;
const FILL_BATCH: u32 = 100;

/// Fills a topic with at least so many messages, by batches, and returns what was counted.
async fn fill(broker: &Broker, topic: &str, messages: u64, size: u32, partitions: u32) -> Result<Tally> {
    let _spinner = Spinner::new("filling the backlog");
    let shape = Shape { topic: topic.to_owned(), size, batch: FILL_BATCH, partitions };
    let lanes = Lane::connect(broker.addr(), &shape, FILL_CONNECTIONS).await?;
    let plan = Drive { until: Until::Messages(messages), rate: None, stamp: Stamp::Number };
    let (_, tally, _) = drive(lanes, plan).await?;
    Ok(tally)
}
