//! What is done to the broker, one room for each kind of fault. Each gives the rows of the table that it is about.

mod canary;
mod clocks;
mod disks;
mod kills;
mod pauses;
mod power;
mod syscalls;

pub use self::canary::canary;
pub use self::clocks::clocks;
pub use self::disks::{failing_sync, failing_write, full_disk, short_write, slow_disk};
pub use self::kills::kills;
pub use self::pauses::{paused_server, second_server};
pub use self::power::power;
pub use self::syscalls::syscalls;

use std::time::Instant;

use super::judge::{Row, Verdict};
use super::stage::Stage;
use super::workload::Workload;

/// Told after every single fault, to show how far it is.
pub type Tick<'a> = &'a (dyn Fn() + Sync);

/// What came of one history: whoever breaks off because of the server hands back the stage, to be judged as it stands.
fn conclude(stage: Stage, harmed: Result<(), String>) -> Result<Verdict, String> {
    match harmed {
        Ok(()) => stage.finish(),
        Err(_) if super::interrupt::asked() => Err(super::interrupt::INTERRUPTED.to_owned()),
        Err(reason) => stage.give_up(reason),
    }
}

/// Does something to a server at work, and ends the work whatever came of it.
fn while_working(work: Workload, harm: impl FnOnce(&Workload) -> Result<(), String>) -> Result<(), String> {
    let harmed = harm(&work);
    work.stop().and(harmed)
}

/// A row with its time, made by `fill`.
fn timed(fault: &str, fill: impl FnOnce(&mut Row) -> Result<(), String>) -> Result<Row, String> {
    let (mut row, began) = (Row::of(fault), Instant::now());
    fill(&mut row)?;
    row.time = began.elapsed();
    Ok(row)
}

/// How many each of so many rounds gets, so that all of them together are `total`.
fn shares(total: u64, each_at_most: u64) -> impl Iterator<Item = u64> {
    let rounds = total.div_ceil(each_at_most.max(1));
    (0..rounds).map(move |round| total / rounds + u64::from(round < total % rounds))
}

#[cfg(test)]
mod tests {
    use super::shares;

    #[test]
    fn shares_add_up_and_none_is_too_large() {
        for (total, each) in [(200, 40), (7, 3), (1, 40), (0, 40), (41, 40)] {
            let shares: Vec<u64> = shares(total, each).collect();
            assert_eq!(shares.iter().sum::<u64>(), total, "{shares:?}");
            assert!(shares.iter().all(|share| *share <= each && *share > 0), "{shares:?}");
        }
    }
}
