//! Measures how long an adapter was kept from running by the machine: a client that gets no processor cannot be in
//! time, and is not to blame.

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crate::trace::{Recorder, Seen};

const EVERY: Duration = Duration::from_millis(50);
/// Less is not recorded.
const RECORDED_MIN: Duration = Duration::from_millis(20);

/// Records, until the process ends, how long its threads waited for a processor, or this one was late.
pub(crate) fn watch(process: u32, incarnation: usize, recorder: Arc<Recorder>) {
    thread::spawn(move || {
        let mut last = waited(process);
        while let Some(before) = last {
            let start = Instant::now();
            thread::sleep(EVERY);
            let elapsed = start.elapsed();
            last = waited(process);
            // Threads can wait one after the other for each other, but for no longer than the time that has passed.
            let delay = last.map_or(Duration::ZERO, |now| now.saturating_sub(before)).min(elapsed);
            let stall = elapsed.saturating_sub(EVERY).max(delay);
            if stall >= RECORDED_MIN {
                let us = u64::try_from(stall.as_micros()).unwrap_or(u64::MAX);
                recorder.record(Seen::Stalled { incarnation, us });
            }
        }
    });
}

/// How long the threads of a process have waited for a processor since its start; nothing if it has ended, or the
/// system does not say.
fn waited(process: u32) -> Option<Duration> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let waited = threads.flatten().filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    });
    waited.reduce(Duration::saturating_add)
}
