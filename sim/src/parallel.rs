//! Many small pieces of work on a few threads, with results that do not tell how many threads there were.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// How many results may wait for an earlier one, for each thread.
const AHEAD: usize = 64;

/// How many threads the machine runs at once.
#[must_use]
pub fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Does `work` for every item, and gives what came of it to `take` in the order of the items, until there are no more or
/// `take` has enough. Items are drawn when a thread is free, so an endless row of them is fine.
pub fn in_order<T, R>(
    jobs: NonZeroUsize,
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
    mut take: impl FnMut(R) -> ControlFlow<()>,
) where
    T: Send,
    R: Send,
{
    let items = Mutex::new(items.enumerate());
    let enough = AtomicBool::new(false);
    let (results, arriving) = mpsc::sync_channel(AHEAD * jobs.get());
    thread::scope(|scope| {
        for _ in 0..jobs.get() {
            let results = results.clone();
            let (items, enough, work) = (&items, &enough, &work);
            scope.spawn(move || {
                while !enough.load(Ordering::Relaxed) {
                    let next = items.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((nth, item)) = next else { return };
                    if results.send((nth, work(item))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let (mut early, mut next) = (BTreeMap::new(), 0);
        'all: for (nth, result) in &arriving {
            early.insert(nth, result);
            while let Some(result) = early.remove(&next) {
                next += 1;
                if take(result).is_break() {
                    break 'all;
                }
            }
        }
        enough.store(true, Ordering::Relaxed);
        // Whoever waits to hand over a result that nobody wants is let go.
        drop(arriving);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_order_however_many_threads_there_are_and_stop_when_enough() {
        for jobs in 1..=4 {
            let mut seen = Vec::new();
            in_order(
                NonZeroUsize::new(jobs).expect("not zero"),
                0_u64..,
                |item| {
                    // Some take longer than others.
                    (0..(item * 7919) % 500).fold(item, |sum, _| std::hint::black_box(sum))
                },
                |result| {
                    seen.push(result);
                    if seen.len() == 200 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                },
            );
            assert_eq!(seen, (0..200).collect::<Vec<_>>(), "{jobs}");
        }
    }
}
