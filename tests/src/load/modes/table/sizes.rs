//! Rows of memory and of restarts. Each is measured once.

use super::measurement::Turns;
use super::names::RowName;
use super::rows::Reading;
use crate::load::cli::{BacklogOptions, IdleOptions};
use crate::load::error::Result;
use crate::load::modes::{backlog, idle};
use crate::load::report::time;

type Readings = Vec<(RowName, Reading)>;

pub(super) async fn backlog(turns: &mut Turns<'_>) -> Result<Readings> {
    turns.begin_all()?;
    let options = turns.options;
    let plan = BacklogOptions {
        messages: options.backlog,
        size: 200,
        partitions: 1,
        seconds: options.seconds,
        memory_bytes: Some(16 << 20),
        cold: false,
        warm: false,
        warm_messages: options.backlog,
        consumers: 16,
        memory_limit: None,
        steady: None,
        rate: 20_000.0,
        broker: options.broker.clone(),
    };
    let figures = backlog::measure(&plan).await?;
    figures.print();
    turns.failures.merge(&figures.failures);
    let restart = Reading::once(figures.delivery_after.as_secs_f64());
    Ok(vec![
        (RowName::BacklogMemory, Reading::once(figures.memory.resident_bytes as f64 / 1e6)),
        (RowName::BacklogP50, Reading::once(figures.p50_ratio())),
        (RowName::Restart, restart.remark(format!("ready {}", time(figures.ready_after)))),
    ])
}

pub(super) async fn idle(turns: &mut Turns<'_>) -> Result<Readings> {
    turns.begin_all()?;
    let options = turns.options;
    let seconds = options.seconds * 2.0;
    let figures =
        idle::measure(&IdleOptions { streams: options.streams, seconds, broker: options.broker.clone() }).await?;
    figures.print();
    turns.failures.merge(&figures.failures);
    let with_streams = format!("{:.2} % with the streams open", figures.cpu_with * 100.0);
    Ok(vec![
        (RowName::IdleStreams, Reading::once(figures.bytes_each() as f64 / 1024.0)),
        (RowName::IdleBroker, Reading::once(figures.cpu_without * 100.0).remark(with_streams)),
    ])
}
