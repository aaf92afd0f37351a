//! What all faults share.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::torture::interrupt;
use crate::torture::verdict::{FaultSummary, Verdict};
use crate::torture::workload::Workload;

/// Called after every injected fault, to show progress.
pub type OnFault<'a> = &'a (dyn Fn() + Sync);

/// Injects faults into a server under load, and stops the load whatever the result.
pub(super) fn under_load(
    workload: Workload,
    inject: impl FnOnce(&Workload) -> Result<(), String>,
) -> Result<(), String> {
    let injected = inject(&workload);
    workload.stop().and(injected)
}

/// A summary filled by `fill`, with the time it took.
pub(super) fn timed(
    fault: &str,
    fill: impl FnOnce(&mut FaultSummary) -> Result<(), String>,
) -> Result<FaultSummary, String> {
    let (mut summary, began) = (FaultSummary::new(fault), Instant::now());
    fill(&mut summary)?;
    summary.time = began.elapsed();
    Ok(summary)
}

/// A summary of one history per case, all of them at once: most of a history is waiting. `run` gets the number of a
/// history and its case.
pub(super) fn at_once<T: Sync>(
    fault: &str,
    cases: &[T],
    on_fault: OnFault<'_>,
    run: impl Fn(u64, &T) -> Result<Verdict, String> + Sync,
) -> Result<FaultSummary, String> {
    timed(fault, |summary| {
        let rounds: Vec<(u64, &T)> = (0..).zip(cases).collect();
        let summary = Mutex::new(summary);
        in_parallel(rounds.len(), &rounds, |&(round, case)| {
            let verdict = run(round, case)?;
            summary.lock().map_err(|_| "another history panicked")?.add(1, verdict);
            on_fault();
            Ok(())
        })
    })
}

/// Divides `total` into rounds of at most `each_max`.
pub(super) fn shares(total: u64, each_max: u64) -> impl Iterator<Item = u64> {
    let rounds = total.div_ceil(each_max.max(1));
    (0..rounds).map(move |round| total / rounds + u64::from(round < total % rounds))
}

/// Runs `task` for every item, several at a time: most of a scenario is waiting. Stops at the first error.
///
/// # Errors
/// That of a task, or the interrupt.
pub(super) fn in_parallel<T: Sync>(
    threads: usize,
    items: &[T],
    task: impl Fn(&T) -> Result<(), String> + Sync,
) -> Result<(), String> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let work = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = interrupt::check().and_then(|()| task(item)) {
                next.store(items.len(), Ordering::Relaxed);
                failure.lock().map(|mut failure| _ = failure.get_or_insert(error)).unwrap_or_default();
            }
        }
    };
    let panicked = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.min(items.len())).map(|_| scope.spawn(work)).collect();
        threads.into_iter().map(std::thread::ScopedJoinHandle::join).filter(Result::is_err).count() > 0
    });
    match failure.into_inner() {
        Ok(None) if !panicked => Ok(()),
        Ok(Some(error)) => Err(error),
        _ => Err("a thread that injects faults panicked".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_stay_within_maximum() {
        for (total, each) in [(200, 40), (7, 3), (1, 40), (0, 40), (41, 40)] {
            let shares: Vec<u64> = shares(total, each).collect();
            assert_eq!(shares.iter().sum::<u64>(), total, "{shares:?}");
            assert!(shares.iter().all(|share| *share <= each && *share > 0), "{shares:?}");
        }
    }

    #[test]
    fn in_parallel_runs_every_item_and_reports_errors() {
        let done = AtomicUsize::new(0);
        in_parallel(3, &[1; 10], |_| {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .expect("no error");
        assert_eq!(done.into_inner(), 10);
        assert_eq!(in_parallel(3, &[1; 10], |_| Err("no".to_owned())), Err("no".to_owned()));
    }
}
