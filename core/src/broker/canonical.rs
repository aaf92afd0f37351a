//! Canonical encoding of a broker; see [`Pipeline::canonical`](crate::Pipeline::canonical).

use std::fmt::{Result, Write};

use super::Broker;
use crate::faults::Faults;
use crate::types::{Body, PayloadId};

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
            in_step_at: _,
            appended,
            durable,
            outputs,
            payloads,
            read_ahead,
            next_ticket,
            next_consumer,
            next_token,
            stalled_until,
            failure,
            closing,
            access_generation: _,
            counters: _,
            dead_letters: _,
            damaged,
            dropped,
        } = self;
        index.canonical(out)?;
        // A payload that is not in memory counts by its place: an output would wait for it.
        let place = |payload: PayloadId| !(payload.lsn.0 << 8 | u64::from(payload.part));
        let digest = state.digest_by_content(|id| payloads.peek(id).map_or_else(|| place(id), Body::content_hash));
        write!(out, "{} {now:?} {origin:?} {check_clock_at:?} {appended:?} {durable:?} ", digest)?;
        outputs.canonical(out)?;
        read_ahead.canonical(out)?;
        write!(
            out,
            "{next_ticket:?} {next_consumer:?} {next_token} {stalled_until:?} {failure:?} {closing} {damaged:?} {dropped:?} "
        )
    }
}
