//! `load compare`: DriftQ and other brokers, in turns, as one Markdown table.
//!
//! Every server runs alone, on an empty folder of the same disk, set so that its answers wait for the disk where it has
//! such a setting. All are driven by the same loops with as many connections, values of the same size, and clients that
//! do as little as the protocol allows. In each turn every system does all the work, in another order than in the turn
//! before.

mod deliveries;
mod entry;
#[cfg(test)]
mod fake;
mod figures;
mod machine;
mod measure;
mod pair;
mod protocols;
mod server;
mod system;
mod systems;
mod template;
mod wire;

use std::time::Duration;

use crate::load::cli::{CompareOptions, Competitor};
use crate::load::disk::{self, SyncProbe};
use crate::load::error::Result;
use crate::load::modes::slices::QUIET_CORES;
use crate::load::report::{Failures, time};
use crate::numbers::grouped;
use crate::progress::Progress;
use entry::Entry;
use figures::{Row, failures, markdown, others_cores};
pub(crate) use measure::Work;
pub(crate) use pair::{beside_redis, program_of_redis};
use system::Site;

/// Those that are driven if none are named.
const DEFAULT: [Competitor; 5] =
    [Competitor::Redis, Competitor::Nats, Competitor::Postgres, Competitor::Beanstalkd, Competitor::Rabbitmq];
/// Producers and consumers of the work with both, and connections of the work in batches.
const FEW: u32 = 16;
/// Messages in a batch.
const BATCH: u32 = 100;
/// Samples of the disk in each turn.
const SYNCS: u32 = 50;

/// Drives every system in turns, and prints the table.
pub(crate) async fn run(options: &CompareOptions) -> Result<Failures> {
    if options.broker.url.is_some() {
        return Err("the comparison starts its own servers; --url cannot be used".into());
    }
    let site = Site {
        parent: options.broker.parent_folder()?.canonicalize()?,
        value_bytes: options.size,
        connections: options.connections.max(2 * FEW),
        broker: options.broker.clone(),
    };
    let works = works(options.connections);
    disk::print_file_system(&site.parent);
    let mut probe = SyncProbe::new(&site.parent)?;
    let competitors = if options.only.is_empty() { &DEFAULT[..] } else { &options.only };
    let mut entries = vec![Entry::new(None, works.len())];
    entries.extend(competitors.iter().map(|competitor| Entry::new(Some(*competitor), works.len())));
    for turn in 0..options.turns {
        probe.sample(SYNCS)?;
        let first = turn as usize % entries.len();
        let (later, sooner) = entries.split_at_mut(first);
        for entry in sooner.iter_mut().chain(later) {
            let _progress = Progress::spinner(&format!("turn {} of {}: {}", turn + 1, options.turns, entry.name()));
            entry.take_turn(turn, &site, &works, Duration::from_secs_f64(options.seconds)).await?;
        }
        entries.retain(|entry| !entry.is_skipped());
    }

    let notes: Vec<String> = entries.iter().map(Entry::note).collect();
    let rows: Vec<Row> = entries.into_iter().map(Entry::into_row).collect();
    let names: Vec<&str> = works.iter().map(|(name, _)| name.as_str()).collect();
    println!("\n{}", markdown(&names, &rows));
    println!("{}\n", machine::wrapped(&about_the_run(options)));
    for note in notes {
        println!("{}", machine::bullet(&note));
    }
    let disk = probe.p50().map_or_else(|| "unknown".to_owned(), time);
    let file_system = disk::file_system(&site.parent).unwrap_or_else(|| "unknown".to_owned());
    let others = others_cores(&rows);
    let others_use = others.map_or_else(|| "an unknown part".to_owned(), |cores| format!("{:.0} %", cores * 100.0));
    let about_the_machine = format!(
        "{}, {file_system}, fdatasync p50 {disk}; other programs used {others_use} of a core",
        machine::describe()
    );
    println!("{}\n", machine::bullet(&about_the_machine));
    if others.is_some_and(|cores| cores > QUIET_CORES) {
        eprintln!("warning: other programs were running; compare the CPU per million rather than the rates");
    }
    let failures = failures(&names, &rows);
    println!("failures: {failures}");
    Ok(failures)
}

/// The kinds of work, with their names.
fn works(connections: u32) -> Vec<(String, Work)> {
    vec![
        (
            format!("single produces, {connections} connections"),
            Work { producers: connections, consumers: 0, batch: 1 },
        ),
        (
            format!("produce → deliver → ack, {FEW} producers, {FEW} consumers"),
            Work { producers: FEW, consumers: FEW, batch: 1 },
        ),
        (
            format!("batches of {BATCH}, {FEW} connections, messages"),
            Work { producers: FEW, consumers: 0, batch: BATCH },
        ),
    ]
}

/// What the figures of the table are.
fn about_the_run(options: &CompareOptions) -> String {
    format!(
        "Values of {} bytes, {} turns of {} s for each kind of work. Medians over the turns; the ratio is DriftQ's \
         rate divided by the system's, the median of that of each turn. CPU is the server's, all its processes, in \
         seconds per million messages. Times are those of a request, with consumers those from produce to delivery; \
         at most {} messages are produced and not acked there. `checked` counts the messages of which every byte was \
         compared at a consumer: all where there are consumers, else some that are read back.",
        options.size,
        options.turns,
        options.seconds,
        grouped(u64::from(FEW) * system::PREFETCH as u64)
    )
}
