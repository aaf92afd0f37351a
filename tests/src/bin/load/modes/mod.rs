//! The modes: what each of them does to a broker, and what it prints.

pub(crate) mod backlog;
pub(crate) mod consume;
pub(crate) mod consumers;
pub(crate) mod effects;
pub(crate) mod end_to_end;
pub(crate) mod idle;
pub(crate) mod produce;
pub(crate) mod steps;
pub(crate) mod table;
mod turns;

use crate::Result;
use crate::broker::Broker;
use crate::client::MessageShape;
use crate::drive::{Drive, Lane, Produces, Shape, Stamp, Until, drive};
use crate::progress::Spinner;
use crate::report::Tally;

/// Connections and messages in a request with which backlogs are filled.
const FILL_CONNECTIONS: u32 = 16;
const FILL_BATCH: u32 = 100;

/// Fills a topic with at least so many messages, by batches, and returns what was counted.
async fn fill(broker: &Broker, message: MessageShape, messages: u64) -> Result<Tally> {
    let _spinner = Spinner::new("filling the backlog");
    let shape = Shape { message, batch: FILL_BATCH, stamp: Stamp::Number };
    let lanes = Lane::<Produces>::connect(broker.addr(), &shape, FILL_CONNECTIONS).await?;
    let (_, tally, _) = drive(lanes, Drive { until: Until::Messages(messages), rate: None }).await?;
    Ok(tally)
}
