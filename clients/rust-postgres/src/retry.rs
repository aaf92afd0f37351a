//! Repeats calls that failed because the server or the connection did.

use std::future::Future;
use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use driftq_client::Error;
use tokio::time::Instant;

/// The longest pause after the first failure.
const FIRST: Duration = Duration::from_millis(50);
/// The longest pause at all.
const LONGEST: Duration = Duration::from_secs(5);
/// No bound of a pause grows beyond this many doublings.
const DOUBLINGS_MAX: u32 = 16;

/// Calls until it succeeds, fails for good, or `retry_for` is over. Pauses are drawn evenly from 0 to a bound that
/// doubles.
pub(crate) async fn repeated<T, F: Future<Output = Result<T, Error>>>(
    retry_for: Duration,
    mut call: impl FnMut() -> F,
) -> Result<T, Error> {
    let started = Instant::now();
    let mut failures = 0_u32;
    loop {
        let error = match call().await {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let bound = FIRST.saturating_mul(1 << failures.min(DOUBLINGS_MAX)).min(LONGEST);
        let pause = bound.mul_f64((random() >> 32) as f64 / f64::from(u32::MAX));
        failures = failures.saturating_add(1);
        if !error.retry_is_safe() || started.elapsed() + pause > retry_for {
            return Err(error);
        }
        tokio::time::sleep(pause).await;
    }
}

/// A number unlike others: the keys of a `RandomState` are random, and differ for each.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use driftq_client::ErrorKind;

    use super::*;

    #[tokio::test]
    async fn call_is_repeated_until_it_succeeds_and_only_where_that_is_safe() {
        let calls = Cell::new(0);
        let failing = |kind: ErrorKind, times: u32| {
            calls.set(0);
            let calls = &calls;
            repeated(Duration::from_secs(30), move || async move {
                calls.set(calls.get() + 1);
                if calls.get() > times { Ok(calls.get()) } else { Err(Error::new(kind, "no")) }
            })
        };
        assert_eq!(failing(ErrorKind::Unavailable, 2).await.expect("repeated"), 3);
        assert_eq!(failing(ErrorKind::Unknown, 2).await.expect_err("not repeated").kind(), ErrorKind::Unknown);
        assert_eq!(calls.get(), 1);
    }

    #[tokio::test]
    async fn repetition_ends() {
        let refuse = || async { Err::<(), _>(Error::new(ErrorKind::Unavailable, "no")) };
        let ended = repeated(Duration::from_millis(100), refuse).await;
        assert_eq!(ended.expect_err("given up").kind(), ErrorKind::Unavailable);
    }
}
