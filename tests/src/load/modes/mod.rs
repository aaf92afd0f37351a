//! The modes: what each measures and prints.

pub(crate) mod backlog;
pub(crate) mod bulk;
pub(crate) mod consume;
pub(crate) mod consumers;
pub(crate) mod effects;
pub(crate) mod end_to_end;
pub(crate) mod idle;
pub(crate) mod jobs;
pub(crate) mod produce;
mod slices;
pub(crate) mod steps;
pub(crate) mod table;

use crate::load::broker::Broker;
use crate::load::client::MessageShape;
use crate::load::drive::{Caller, Drive, Produces, Shape, Stamp, Until, drive};
use crate::load::error::Result;
use crate::load::report::Stats;
use crate::progress::Progress;

/// Connections and messages in a request with which backlogs are filled.
const FILL_CONNECTIONS: u32 = 16;
const FILL_BATCH: u32 = 100;

/// Produces at least this many messages to a topic in batches, and returns the statistics.
async fn fill(broker: &Broker, message: MessageShape, messages: u64) -> Result<Stats> {
    let _progress = Progress::spinner("filling the backlog");
    let shape = Shape { message, batch: FILL_BATCH, stamp: Stamp::Number };
    let callers = Caller::<Produces>::connect(broker.addr(), &shape, FILL_CONNECTIONS).await?;
    let (_, stats, _) = drive(callers, Drive { until: Until::Messages(messages), rate: None }).await?;
    Ok(stats)
}
