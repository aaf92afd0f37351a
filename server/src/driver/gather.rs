//! How long a batch of the log waits for more commands where syncs are slow.
//!
//! Clients that wait for their replies send the next request when a sync has ended. If the next sync begins at once,
//! it takes those that arrived meanwhile, and the others wait for the one after it: two groups take turns, and every
//! request waits for two syncs. So the next batch is held until as many commands have come as were replied to, for half
//! a sync at most. Where syncs are fast, that is not worth a timer; where too little comes, it is tried less often.

use std::time::{Duration, Instant};

/// Syncs that take less are not worth waiting for.
const SYNC_MIN: Duration = Duration::from_micros(500);
/// A batch waits for at most this fraction of a sync, and this long.
const FRACTION: u32 = 2;
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// The smoothed duration moves by this fraction of a difference.
const SMOOTHING: u32 = 8;
/// Most syncs in a row that nothing waits for, after waits in vain.
const SKIPS_MAX: u32 = 64;

/// A batch that waits.
#[derive(Clone, Copy, Debug)]
struct Wait {
    began: Instant,
    pause_max: Duration,
    /// Commands that were there when the wait began.
    before: usize,
    /// How many more end it.
    expected: usize,
}

impl Wait {
    /// Whether it was worth it that after `waited` these commands had come. Syncs of `sync` each would have taken the
    /// commands that were there at a better rate, or most that were expected did not come.
    fn was_in_vain(&self, gained: usize, waited: Duration, sync: Duration) -> bool {
        let nanos = |duration: Duration| duration.as_nanos();
        let has_cost = gained as u128 * nanos(sync) < self.before as u128 * nanos(waited);
        has_cost || gained < self.expected.div_ceil(2)
    }
}

/// The commands of the next batch, and how long it waits for more.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// How long a sync takes, smoothed.
    sync: Duration,
    /// Commands of the batch that is being synced.
    syncing: usize,
    /// Commands since that batch was started.
    commands: usize,
    wait: Option<Wait>,
    /// Syncs after which no batch waits.
    skips: u32,
    /// How many there are after the next wait in vain.
    skips_next: u32,
}

impl Gather {
    /// A command was decided.
    pub(super) fn add_command(&mut self) {
        self.commands += 1;
    }

    /// A batch with all commands so far is given to the disk.
    pub(super) fn start_batch(&mut self) {
        self.wait = None;
        self.syncing = std::mem::take(&mut self.commands);
    }

    /// The sync of the batch has ended after `took`. Returns how long the next one waits at most.
    pub(super) fn end_batch(&mut self, took: Duration, now: Instant) -> Option<Duration> {
        self.sync = match self.sync {
            Duration::ZERO => took,
            sync => sync - sync / SMOOTHING + took / SMOOTHING,
        };
        if self.sync < SYNC_MIN || self.syncing == 0 {
            return None;
        }
        if self.skips > 0 {
            self.skips -= 1;
            return None;
        }
        let pause_max = (self.sync / FRACTION).min(PAUSE_MAX);
        self.wait = Some(Wait { began: now, pause_max, before: self.commands, expected: self.syncing });
        Some(pause_max)
    }

    /// Whether the next batch still waits; `now` is asked only if one does.
    pub(super) fn is_waiting(&mut self, now: impl FnOnce() -> Instant) -> bool {
        let Some(wait) = self.wait else { return false };
        let (gained, waited) = (self.commands - wait.before, now().duration_since(wait.began));
        if gained < wait.expected && waited < wait.pause_max {
            return true;
        }
        self.wait = None;
        if wait.was_in_vain(gained, waited, self.sync) {
            self.skips_next = (self.skips_next * 2).clamp(1, SKIPS_MAX);
            self.skips = self.skips_next;
        } else {
            self.skips_next = 0;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYNC: Duration = Duration::from_millis(4);
    const PAUSE: Duration = Duration::from_millis(2);

    fn add(gather: &mut Gather, commands: usize) {
        (0..commands).for_each(|_| gather.add_command());
    }

    /// After a batch of `syncing` commands, `pending` others have come during its sync.
    fn synced(gather: &mut Gather, syncing: usize, pending: usize, took: Duration, now: Instant) -> Option<Duration> {
        add(gather, syncing);
        gather.start_batch();
        add(gather, pending);
        gather.end_batch(took, now)
    }

    #[test]
    fn batch_waits_until_as_many_commands_came_as_were_replied_to() {
        let (mut gather, now) = (Gather::default(), Instant::now());
        assert_eq!(synced(&mut gather, 32, 30, SYNC, now), Some(PAUSE));
        add(&mut gather, 31);
        assert!(gather.is_waiting(|| now));
        add(&mut gather, 1);
        assert!(!gather.is_waiting(|| now));
        gather.start_batch();
        assert_eq!(gather.syncing, 62);
    }

    #[test]
    fn wait_ends_after_half_a_sync() {
        let (mut gather, now) = (Gather::default(), Instant::now());
        assert_eq!(synced(&mut gather, 32, 30, SYNC, now), Some(PAUSE));
        add(&mut gather, 31);
        assert!(gather.is_waiting(|| now + PAUSE - Duration::from_nanos(1)));
        assert!(!gather.is_waiting(|| now + PAUSE));
    }

    #[test]
    fn no_batch_waits_where_syncs_are_fast_or_nothing_was_replied_to() {
        let (mut gather, now) = (Gather::default(), Instant::now());
        assert_eq!(synced(&mut gather, 32, 30, SYNC_MIN - Duration::from_nanos(1), now), None);
        assert!(!gather.is_waiting(|| unreachable!("nothing waits")));
        let mut gather = Gather::default();
        assert_eq!(synced(&mut gather, 0, 30, SYNC, now), None);
    }

    /// How many syncs pass before a batch waits again.
    fn skipped(gather: &mut Gather, now: Instant) -> usize {
        (0..=SKIPS_MAX as usize).take_while(|_| synced(gather, 8, 20, SYNC, now).is_none()).count()
    }

    #[test]
    fn waits_in_vain_become_rare_until_one_gains() {
        let (mut gather, now) = (Gather::default(), Instant::now());
        for expected in [0, 1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(skipped(&mut gather, now), expected);
            add(&mut gather, 3);
            assert!(!gather.is_waiting(|| now + PAUSE), "the time is over");
        }
        assert_eq!(skipped(&mut gather, now), 64);
        let expected = gather.syncing;
        add(&mut gather, expected);
        assert!(!gather.is_waiting(|| now + PAUSE / 8), "all have come");
        assert_eq!(skipped(&mut gather, now), 0, "it had gained");
    }

    #[test]
    fn wait_is_in_vain_if_too_few_come_or_too_late() {
        let wait = Wait { began: Instant::now(), pause_max: PAUSE, before: 40, expected: 20 };
        let cases = [(20, PAUSE, false), (19, PAUSE, true), (10, PAUSE / 2, false), (9, PAUSE / 2, true)];
        for (gained, waited, expected) in cases {
            assert_eq!(wait.was_in_vain(gained, waited, SYNC), expected, "{gained} after {waited:?}");
        }
        let alone = Wait { before: 0, ..wait };
        assert!(!alone.was_in_vain(10, PAUSE, SYNC));
        assert!(alone.was_in_vain(9, PAUSE, SYNC), "those that came could have been synced already");
    }

    #[test]
    fn pause_is_bounded_however_slow_a_sync_is() {
        let mut gather = Gather::default();
        assert_eq!(synced(&mut gather, 1, 0, Duration::from_secs(60), Instant::now()), Some(PAUSE_MAX));
    }
}
