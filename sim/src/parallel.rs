//! Parallel work whose results do not depend on the number of threads.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;

/// How many results per thread may wait for an earlier one.
const AHEAD: usize = 64;

/// The number of threads the machine runs in parallel.
#[must_use]
pub fn cores() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Applies `work` to every item and passes the results to `take` in item order, until there are no more items or `take`
/// breaks. Items are drawn when a thread is free, so the iterator may be endless.
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
        // Dropping the receiver unblocks threads that wait to send a result.
        drop(arriving);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_arrive_in_item_order_for_any_thread_count_until_break() {
        for jobs in 1..=4 {
            let mut seen = Vec::new();
            in_order(
                NonZeroUsize::new(jobs).expect("not zero"),
                0_u64..,
                |item| {
                    // Items differ in duration.
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
