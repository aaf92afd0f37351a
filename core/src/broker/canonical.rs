//! Canonical encoding of a broker; see [`Pipeline::canonical`](crate::Pipeline::canonical).

use std::fmt::{Result, Write};

use super::Broker;
use crate::faults::Faults;

impl<F: Faults> Broker<F> {
    pub(crate) fn canonical(&self, out: &mut impl Write) -> Result {
        let Self {
            state,
            index,
            limits: _,
            faults: _,
            now,
            origin,
            check_clock_at,
            appended,
            durable,
            held,
            withdrawn,
            next_ticket,
            next_consumer,
            next_token,
            stalled_until,
            disk_was_full,
            failure,
            closing,
            counters: _,
            dead_letters: _,
        } = self;
        index.canonical(out)?;
        write!(out, "{} {now:?} {origin:?} {check_clock_at:?} {appended:?} {durable:?} ", state.digest())?;
        write!(out, "{held:?} {withdrawn:?} ")?;
        write!(
            out,
            "{next_ticket:?} {next_consumer:?} {next_token} {stalled_until:?} {failure:?} {closing} {disk_was_full} "
        )
    }
}
