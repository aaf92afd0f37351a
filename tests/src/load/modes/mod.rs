//! The modes: what each measures and prints.

pub(crate) mod backlog;
pub(crate) mod budget;
pub(crate) mod bulk;
pub(crate) mod compare;
pub(crate) mod consume;
pub(crate) mod consumers;
pub(crate) mod crowd;
pub(crate) mod effects;
pub(crate) mod end_to_end;
pub(crate) mod idle;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod produce;
mod slices;
pub(crate) mod steps;
pub(crate) mod table;

use crate::load::broker::Broker;
use crate::load::client::MessageShape;
use crate::load::drive::{Caller, Drive, Produces, Shape, Stamp, Until, drive};
use crate::load::error::Result;
use crate::load::report::Stats;
use crate::numbers::grouped;
use crate::progress::Progress;

/// Connections and messages in a request with which backlogs are filled.
const FILL_CONNECTIONS: u32 = 16;
const FILL_BATCH: u32 = 100;

/// Parts in which a backlog is filled, so that its progress can be shown.
const FILL_PARTS: u64 = 50;
/// The least messages of a part.
const FILL_PART_MIN: u64 = 50_000;
/// A part of which no message is stored is tried again this many times.
const FILL_TRIES: u32 = 50;

/// Produces at least this many messages to a topic in batches, and returns the statistics. The bytes of every value
/// are those that [`crate::load::client::Checked`] expects. Where the broker refuses messages for a moment, others are
/// produced in their place; standard error says how many.
async fn fill(broker: &Broker, message: MessageShape, messages: u64) -> Result<Stats> {
    fill_from(FILL_CONNECTIONS, broker, message, messages).await
}

/// The same from this many connections.
async fn fill_from(connections: u32, broker: &Broker, message: MessageShape, messages: u64) -> Result<Stats> {
    let progress = Progress::spinner("filling the backlog");
    let shape = Shape { message, batch: FILL_BATCH, stamp: Stamp::Checked { first: 0 } };
    let mut callers = Caller::<Produces>::connect(broker.addr(), &shape, connections).await?;
    let (mut stats, mut refused, mut tries) = (Stats::default(), 0, 0);
    while stats.messages < messages && tries < FILL_TRIES {
        let until = Until::Messages((messages / FILL_PARTS).max(FILL_PART_MIN).min(messages - stats.messages));
        let (back, mut part, _) = drive(callers, Drive { until, rate: None }).await?;
        callers = back;
        let refused_now = part.failures.take_status(429);
        refused += refused_now;
        tries = if part.messages == 0 { tries + 1 } else { 0 };
        let has_failed = !part.failures.is_empty();
        stats.merge(&part);
        if has_failed {
            break;
        }
        progress.message(&format!("filling the backlog: {} of {}", grouped(stats.messages), grouped(messages)));
    }
    stats.failures.add("message of the backlog not stored", messages.saturating_sub(stats.messages));
    if refused > 0 {
        eprintln!("load: {} messages were refused with 429 while the backlog was filled", grouped(refused));
    }
    Ok(stats)
}
