//! A system in the comparison: its turns, and what is said about it.

use std::fs::File;
use std::time::Duration;

use crate::load::cli::Competitor;
use crate::load::error::Result;
use crate::load::modes::compare::figures::Row;
use crate::load::modes::compare::measure::{Figures, Work, measure};
use crate::load::modes::compare::system::{Site, System};
use crate::load::modes::compare::systems::beanstalkd::Beanstalkd;
use crate::load::modes::compare::systems::driftq::DriftQ;
use crate::load::modes::compare::systems::nats::Nats;
use crate::load::modes::compare::systems::postgres::Postgres;
use crate::load::modes::compare::systems::rabbitmq::Rabbitmq;
use crate::load::modes::compare::systems::redis::Redis;
use crate::load::report::time;
use crate::numbers::grouped;

/// A system and its figures so far.
#[derive(Debug)]
pub(crate) struct Entry {
    /// None for DriftQ, with which the others are compared.
    competitor: Option<Competitor>,
    version: String,
    settings: String,
    works: Vec<Vec<Option<Figures>>>,
    is_skipped: bool,
}

impl Entry {
    /// A system without figures, for so many kinds of work.
    pub(crate) fn new(competitor: Option<Competitor>, works: usize) -> Self {
        let works = vec![Vec::new(); works];
        Self { competitor, version: String::new(), settings: String::new(), works, is_skipped: false }
    }

    /// Its name.
    pub(crate) fn name(&self) -> &'static str {
        self.competitor.map_or("DriftQ", Competitor::name)
    }

    /// Whether it cannot be run here.
    pub(crate) fn is_skipped(&self) -> bool {
        self.is_skipped
    }

    /// Its name, version and settings.
    pub(crate) fn note(&self) -> String {
        format!("{} ({}): {}.", self.name(), self.version, self.settings)
    }

    /// Its row of the table.
    pub(crate) fn into_row(self) -> Row {
        Row { system: self.name().to_owned(), works: self.works }
    }

    /// Starts the server, does all the work, and stops it. Fails only if DriftQ cannot be run.
    pub(crate) async fn take_turn(
        &mut self,
        turn: u32,
        site: &Site,
        works: &[(String, Work)],
        length: Duration,
    ) -> Result<()> {
        // What the server before has left to be written would be written while this one is measured.
        rustix::fs::syncfs(File::open(&site.parent)?)?;
        match self.competitor {
            None => self.drive::<DriftQ>(turn, site, works, length).await,
            Some(Competitor::Redis) => self.drive::<Redis>(turn, site, works, length).await,
            Some(Competitor::Nats) => self.drive::<Nats<true>>(turn, site, works, length).await,
            Some(Competitor::NatsUnsynced) => self.drive::<Nats<false>>(turn, site, works, length).await,
            Some(Competitor::Postgres) => self.drive::<Postgres>(turn, site, works, length).await,
            Some(Competitor::Beanstalkd) => self.drive::<Beanstalkd>(turn, site, works, length).await,
            Some(Competitor::Rabbitmq) => self.drive::<Rabbitmq>(turn, site, works, length).await,
        }
    }

    async fn drive<S: System>(
        &mut self,
        turn: u32,
        site: &Site,
        works: &[(String, Work)],
        length: Duration,
    ) -> Result<()> {
        let mut system = match S::start(site).await {
            Ok(system) => system,
            Err(error) if self.competitor.is_none() => return Err(error),
            Err(error) if turn == 0 => {
                println!("skipped: {}: {error}", self.name());
                self.is_skipped = true;
                return Ok(());
            }
            Err(error) => {
                eprintln!("load: {} did not start: {error}", self.name());
                self.note_failed_works::<S>(works, 0);
                return Ok(());
            }
        };
        (self.version, self.settings) = (system.version(), system.settings());
        for (index, (name, work)) in works.iter().enumerate() {
            if work.batch > 1 && !S::HAS_BATCHES {
                continue;
            }
            match measure(&mut system, *work, site.value_bytes, length).await {
                Ok(figures) => {
                    println!("{}", line(turn, self.name(), name, &figures));
                    self.works[index].push(Some(figures));
                }
                Err(error) => {
                    eprintln!("load: {}, {name}: {error}", self.name());
                    self.note_failed_works::<S>(works, index);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Notes that there are no figures of this kind of work and of those after it.
    fn note_failed_works<S: System>(&mut self, works: &[(String, Work)], first: usize) {
        for (turns, (_, work)) in self.works.iter_mut().zip(works).skip(first) {
            if work.batch == 1 || S::HAS_BATCHES {
                turns.push(None);
            }
        }
    }
}

/// The figures of a turn as a line.
pub(super) fn line(turn: u32, system: &str, work: &str, figures: &Figures) -> String {
    let cpu = figures.server_cpu.map_or_else(String::new, |seconds| format!("  CPU {seconds:.1} s/million"));
    let latency = figures.latency.map(|latency| format!("  p50 {}  p99 {}", time(latency.p50), time(latency.p99)));
    let latency = latency.unwrap_or_default();
    format!(
        "turn {}  {system}, {work}: {}/s{latency}{cpu}  {} checked  failures: {}",
        turn + 1,
        grouped(figures.rate as u64),
        grouped(figures.checked),
        figures.failures,
    )
}
