//! CPU time and context switches of each of the broker's threads.

use std::collections::BTreeMap;
use std::time::Duration;

use super::profile::Profile;
use super::traffic::{Amount, DAEMON_ARGS, Observer, Traffic};
use crate::load::broker::Broker;
use crate::load::cli::BrokerOptions;
use crate::load::error::Result;
use crate::load::report::Failures;
use crate::procfs::{self, Thread};

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Role {
    /// HTTP; with one reactor the decisions too.
    Reactor,
    /// The decisions, if there is more than one reactor.
    Sequencer,
    /// Writes and syncs the log.
    Log,
    /// Prepares segments, writes snapshots.
    Files,
    /// Reads payloads.
    Reads,
    /// Anything else.
    Other,
}

const ROLES: [Role; 6] = [Role::Reactor, Role::Sequencer, Role::Log, Role::Files, Role::Reads, Role::Other];

impl Role {
    /// Of a thread, by its name, of which the kernel keeps 15 bytes. The main thread is the first reactor.
    pub(crate) fn of(name: &str, is_main: bool) -> Self {
        match name {
            _ if is_main => Self::Reactor,
            "driftq-reactor" => Self::Reactor,
            "driftq-sequence" => Self::Sequencer,
            "driftq-log" => Self::Log,
            "driftq-files" => Self::Files,
            "driftq-read" => Self::Reads,
            _ => Self::Other,
        }
    }

    /// Whether it does nothing but files.
    pub(crate) fn is_for_files(self) -> bool {
        matches!(self, Self::Log | Self::Files | Self::Reads)
    }

    fn label(self) -> &'static str {
        match self {
            Self::Reactor => "reactors",
            Self::Sequencer => "sequencer",
            Self::Log => "log",
            Self::Files => "files",
            Self::Reads => "reads",
            Self::Other => "others",
        }
    }
}

/// What the threads of a role used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// Time outside the kernel.
    user: Duration,
    /// Time in the kernel.
    system: Duration,
    voluntary_switches: u64,
    involuntary_switches: u64,
}

/// What all threads of a broker used while it was driven.
#[derive(Debug, Clone, Default)]
pub(crate) struct ThreadTimes {
    /// By what they do; nothing for a role that no thread has.
    used: BTreeMap<Role, Used>,
    /// Messages or effects in that time.
    pub(crate) messages: u64,
}

impl ThreadTimes {
    /// The difference between two readings.
    fn between(pid: u32, before: &[Thread], after: &[Thread]) -> Self {
        let mut used: BTreeMap<Role, Used> = BTreeMap::new();
        for now in after {
            let earlier = before.iter().find(|thread| thread.id == now.id);
            let role = used.entry(Role::of(&now.name, now.id == pid)).or_default();
            let since = |of: fn(&Thread) -> Duration| of(now).saturating_sub(earlier.map(of).unwrap_or_default());
            let more = |of: fn(&Thread) -> u64| of(now).saturating_sub(earlier.map(of).unwrap_or_default());
            let (user, system) =
                divided(since(|thread| thread.cpu), since(|thread| thread.user), since(|thread| thread.system));
            role.user += user;
            role.system += system;
            role.voluntary_switches += more(|thread| thread.voluntary_switches);
            role.involuntary_switches += more(|thread| thread.involuntary_switches);
        }
        Self { used, messages: 0 }
    }

    /// Time of all threads of a role; nothing if there is none.
    pub(crate) fn cpu_of(&self, role: Role) -> Option<Duration> {
        self.used.get(&role).map(|used| used.user + used.system)
    }

    /// User and system time of all threads.
    pub(super) fn total(&self) -> (Duration, Duration) {
        (self.used.values().map(|used| used.user).sum(), self.used.values().map(|used| used.system).sum())
    }

    /// Per message, in microseconds and in switches. Rows of threads that did nothing are left out.
    fn profile(&self) -> Profile {
        let mut profile = Profile::default();
        let (user, system) = self.total();
        for (position, role) in (0..).step_by(10).zip(ROLES) {
            let Some(used) = self.used.get(&role).filter(|used| **used != Used::default()) else { continue };
            let label = role.label();
            profile.add(position, &format!("{label}: user µs"), micros(used.user));
            profile.add(position + 1, &format!("{label}: system µs"), micros(used.system));
            profile.add(position + 2, &format!("{label}: voluntary switches"), used.voluntary_switches as f64);
            profile.add(position + 3, &format!("{label}: involuntary switches"), used.involuntary_switches as f64);
        }
        profile.add(u16::MAX, "all: µs", micros(user + system));
        profile.per(self.messages)
    }
}

/// The exact time, divided as the two inexact ones are.
fn divided(cpu: Duration, user: Duration, system: Duration) -> (Duration, Duration) {
    let share = user.as_secs_f64() / (user + system).as_secs_f64();
    let user = if share.is_nan() { cpu } else { cpu.mul_f64(share) };
    (user, cpu.saturating_sub(user))
}

/// As a number of microseconds.
pub(super) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Reads the times of the broker's threads.
#[derive(Debug, Default)]
pub(super) struct ThreadObserver {
    before: Vec<Thread>,
    /// What was used between the two.
    pub(super) times: ThreadTimes,
}

impl Observer for ThreadObserver {
    async fn begin(&mut self, broker: &Broker) -> Result<()> {
        (_, self.before) = threads_of(broker)?;
        Ok(())
    }

    async fn end(&mut self, broker: &Broker) -> Result<()> {
        let (pid, after) = threads_of(broker)?;
        self.times = ThreadTimes::between(pid, &self.before, &after);
        Ok(())
    }
}

fn threads_of(broker: &Broker) -> Result<(u32, Vec<Thread>)> {
    let threads = broker.pid().and_then(|pid| Some((pid, procfs::threads(pid)?)));
    threads.ok_or_else(|| "the broker's threads cannot be read".into())
}

/// Drives a new broker, and returns what its threads used.
pub(crate) async fn measure(
    traffic: Traffic,
    amount: Amount,
    options: &BrokerOptions,
    daemon_args: &[&str],
) -> Result<(ThreadTimes, Failures)> {
    let mut broker = Broker::open(options, &[&DAEMON_ARGS, daemon_args].concat()).await?;
    let mut observer = ThreadObserver::default();
    let driven = traffic.drive(&broker, amount, &mut observer).await?;
    broker.warn_if_exited();
    Ok((ThreadTimes { messages: driven.messages, ..observer.times }, driven.failures))
}

/// The same as rows of a table.
pub(super) async fn measure_profile(
    traffic: Traffic,
    amount: Amount,
    options: &BrokerOptions,
) -> Result<(Profile, Failures)> {
    let (times, failures) = measure(traffic, amount, options, &[]).await?;
    Ok((times.profile(), failures))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(id: u32, name: &str, user_ms: u64, switches: u64) -> Thread {
        Thread {
            id,
            name: name.to_owned(),
            user: Duration::from_millis(user_ms),
            system: Duration::from_millis(user_ms / 2),
            cpu: Duration::from_millis(user_ms + user_ms / 2),
            voluntary_switches: switches,
            involuntary_switches: 1,
        }
    }

    #[test]
    fn times_of_threads_of_one_role_add_up() {
        let before = [thread(7, "driftqd", 100, 5), thread(8, "driftq-log", 10, 1)];
        let after = [
            thread(7, "driftqd", 300, 9),
            thread(8, "driftq-log", 20, 3),
            thread(9, "driftq-reactor", 100, 2),
            thread(10, "driftq-read", 0, 0),
            thread(11, "planted", 4, 2),
        ];
        let mut times = ThreadTimes::between(7, &before, &after);
        times.messages = 1_000;
        assert_eq!(times.cpu_of(Role::Log), Some(Duration::from_millis(15)));
        assert_eq!(times.cpu_of(Role::Sequencer), None);
        let profile = times.profile();
        assert!((profile.get(&(0, "reactors: user µs".to_owned())) - 300.0).abs() < 1e-9);
        assert!((profile.get(&(2, "reactors: voluntary switches".to_owned())) - 0.006).abs() < 1e-9);
        assert!((profile.get(&(u16::MAX, "all: µs".to_owned())) - 471.0).abs() < 1e-9);
        assert!(profile.rows().any(|(_, label)| label == "others: user µs"), "{profile:?}");
    }

    #[test]
    fn exact_time_is_divided_like_the_inexact_ones() {
        let ms = Duration::from_millis;
        assert_eq!(divided(ms(33), ms(20), ms(10)), (ms(22), ms(11)));
        assert_eq!(divided(ms(3), ms(0), ms(0)), (ms(3), ms(0)));
    }

    #[test]
    fn role_follows_from_the_name_that_the_kernel_keeps() {
        assert_eq!(Role::of(&"driftq-sequencer"[..15], false), Role::Sequencer);
        assert_eq!(Role::of("any", true), Role::Reactor);
        assert_eq!(Role::of("any", false), Role::Other);
    }
}
