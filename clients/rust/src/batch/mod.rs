//! Batches of requests to one route, a line each: what waits while a batch is on the wire is the next one. What the
//! lines ask for is known to their callers alone.

mod answer;
mod batcher;
mod flight;
mod queue;
mod ticket;

pub(crate) use self::answer::{Answer, read_json, scan_stored};
pub(crate) use self::batcher::Batchers;
pub(crate) use self::flight::{Batch, SingleLine};
pub(crate) use self::queue::{Limits, Queue};
pub(crate) use self::ticket::{Ticket, stopped};
