//! DriftQ and one other system in one turn, for figures of both that can be divided.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use crate::load::cli::BrokerOptions;
use crate::load::error::Result;
use crate::load::modes::compare::FEW;
use crate::load::modes::compare::entry::line;
use crate::load::modes::compare::measure::{Figures, Work, measure};
use crate::load::modes::compare::system::{Site, System};
use crate::load::modes::compare::systems::driftq::DriftQ;
use crate::load::modes::compare::systems::redis::{self, Redis};

/// What both did in a turn.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) driftq: Figures,
    pub(crate) other: Figures,
}

/// The program of Redis; an error that says so if it is not installed.
pub(crate) fn program_of_redis() -> Result<PathBuf> {
    redis::program()
}

/// Has DriftQ and Redis do the same work, each started for it; who is first changes with the turn.
pub(crate) async fn beside_redis(
    broker: &BrokerOptions,
    value_bytes: u32,
    work: Work,
    turn: u32,
    length: Duration,
) -> Result<Pair> {
    let site = Site {
        parent: broker.parent_folder()?.canonicalize()?,
        value_bytes,
        connections: work.producers.max(2 * FEW),
        broker: broker.clone(),
    };
    let (driftq, other) = both::<DriftQ, Redis>(["DriftQ", "Redis Streams"], &site, work, turn, length).await?;
    Ok(Pair { driftq, other })
}

async fn both<A: System, B: System>(
    names: [&str; 2],
    site: &Site,
    work: Work,
    turn: u32,
    length: Duration,
) -> Result<(Figures, Figures)> {
    if turn.is_multiple_of(2) {
        let first = one::<A>(names[0], site, work, turn, length).await?;
        return Ok((first, one::<B>(names[1], site, work, turn, length).await?));
    }
    let first = one::<B>(names[1], site, work, turn, length).await?;
    Ok((one::<A>(names[0], site, work, turn, length).await?, first))
}

/// Starts a system, has it do the work, and stops it.
async fn one<S: System>(name: &str, site: &Site, work: Work, turn: u32, length: Duration) -> Result<Figures> {
    // What the server before has left to be written would be written while this one is measured.
    rustix::fs::syncfs(File::open(&site.parent)?)?;
    let mut system = S::start(site).await.map_err(|error| format!("{name}: {error}"))?;
    let figures = measure(&mut system, work, site.value_bytes, length).await;
    let figures = figures.map_err(|error| format!("{name}: {error}"))?;
    println!("{}", line(turn, name, &work.to_string(), &figures));
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::load::modes::compare::fake::{Fake, Puts, Takes};

    thread_local! {
        /// The order in which systems were started.
        static STARTED: RefCell<Vec<char>> = const { RefCell::new(Vec::new()) };
    }

    /// A system in memory with a name.
    struct Named<const NAME: char>(Fake);

    impl<const NAME: char> System for Named<NAME> {
        type Producer = Puts;
        type Consumer = Takes;
        const HAS_BATCHES: bool = true;

        async fn start(site: &Site) -> Result<Self> {
            STARTED.with_borrow_mut(|started| started.push(NAME));
            Ok(Self(Fake::start(site).await?))
        }

        fn version(&self) -> String {
            self.0.version()
        }

        fn settings(&self) -> String {
            self.0.settings()
        }

        fn cpu(&self) -> Option<Duration> {
            (NAME == 'a').then_some(Duration::ZERO)
        }

        fn exited(&mut self) -> Option<String> {
            self.0.exited()
        }

        async fn create(&self) -> Result<String> {
            self.0.create().await
        }

        async fn producer(&self, queue: &str, batch: u32) -> Result<Puts> {
            self.0.producer(queue, batch).await
        }

        async fn consumer(&self, queue: &str, index: u32) -> Result<Takes> {
            self.0.consumer(queue, index).await
        }

        async fn unacked(&self, queue: &str) -> Result<u64> {
            self.0.unacked(queue).await
        }
    }

    #[tokio::test]
    async fn order_changes_with_the_turn_and_figures_stay_with_their_system() {
        let folder = tempfile::tempdir().expect("a folder");
        let site = Site {
            parent: folder.path().to_owned(),
            value_bytes: 50,
            connections: 2,
            broker: BrokerOptions::default(),
        };
        let work = Work { producers: 2, consumers: 1, batch: 1 };
        for turn in 0..2 {
            let length = Duration::from_millis(30);
            let (a, b) = both::<Named<'a'>, Named<'b'>>(["a", "b"], &site, work, turn, length).await.expect("figures");
            assert!(a.server_cpu.is_some() && b.server_cpu.is_none(), "{a:?} {b:?}");
            assert!(a.rate > 0.0 && b.rate > 0.0 && a.failures.is_empty(), "{a:?} {b:?}");
        }
        assert_eq!(STARTED.take(), ['a', 'b', 'b', 'a']);
    }
}
