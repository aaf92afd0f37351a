//! Many runs: clients, scenarios and seeds, several at a time, and the table of what came out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::judge::{Conviction, judge};
use crate::run::{RunError, Setting, run};
use crate::scenario::Scenario;
use crate::trace::{self, Entry, Seen};

/// So many convictions of a run are shown by one rule.
const SHOWN_MAX: usize = 3;
/// So many seeds of convicted runs are named in a cell of the table.
const SEEDS_MAX: usize = 3;

/// A run in which the machine stood still for so long is not held against a client.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// Nor one in which it did for this part of it.
const STOOD_STILL_PART: u32 = 3;
/// It is repeated so often.
const REPEATS_MAX: usize = 2;

/// What is run.
#[derive(Clone, Debug)]
pub struct Suite {
    /// The program of the broker.
    pub driftqd: PathBuf,
    /// The adapters, lines of the shell.
    pub adapters: Vec<String>,
    /// The scenarios.
    pub scenarios: Vec<Scenario>,
    /// The folder with the vectors of keys and hashes.
    pub vectors: PathBuf,
    /// Where traces and logs of convicted runs are kept.
    pub keep: PathBuf,
    /// Whether those of other runs are kept, too.
    pub keep_all: bool,
}

/// Which runs of a suite are made, and how many at a time.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seeds.
    pub seeds: Range<u64>,
    /// With how many of the scenarios each client meets each seed, in turn: with all of them, if it is not given.
    pub spread: Option<usize>,
    /// How many runs at a time. Most of a run is spent waiting, so more than there are cores.
    pub jobs: usize,
    /// No run is started later.
    pub until: Option<Instant>,
}

impl Plan {
    /// Positions of the scenarios of a seed, of so many. The next seed has those that come next, so that each scenario
    /// has as many seeds as any other, give or take one.
    fn scenarios(&self, seed: u64, count: usize) -> Vec<usize> {
        let spread = self.spread.unwrap_or(count).min(count);
        // Remainders of `count` fit its type, and so do their products with less than `count` the wider one.
        let (wide, width) = (u128::from(seed), count.max(1) as u128);
        let first = (wide % width * (spread as u128) % width) as usize;
        (0..spread).map(|next| (first + next) % count).collect()
    }
}

/// What came out of a run.
#[derive(Debug)]
pub struct RunResult {
    /// The name that the client gives to itself, or its command line where it did not.
    pub client: String,
    /// The scenario.
    pub scenario: String,
    /// The seed.
    pub seed: u64,
    /// What the client is convicted of, or why there was no run.
    pub verdict: Result<Vec<Conviction>, RunError>,
    /// The trace, if it was kept.
    pub trace: Option<PathBuf>,
    /// How often it was run again, because the machine stood still.
    pub repeats: usize,
}

impl RunResult {
    /// Whether there was a run without a conviction.
    #[must_use]
    pub fn passed(&self) -> bool {
        matches!(&self.verdict, Ok(convictions) if convictions.is_empty())
    }
}

impl fmt::Display for RunResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, seed {}: ", self.client, self.scenario, self.seed)?;
        match &self.verdict {
            Ok(convictions) if convictions.is_empty() => f.write_str("passed")?,
            Ok(convictions) => {
                write!(f, "{} convictions", convictions.len())?;
                let mut rules: Vec<&str> = convictions.iter().map(|conviction| conviction.rule).collect();
                rules.sort_unstable();
                rules.dedup();
                for rule in rules {
                    let of_rule: Vec<_> = convictions.iter().filter(|conviction| conviction.rule == rule).collect();
                    for conviction in of_rule.iter().take(SHOWN_MAX) {
                        write!(f, "\n  {rule}: {}", conviction.text)?;
                    }
                    if let Some(more @ 1..) = of_rule.len().checked_sub(SHOWN_MAX) {
                        write!(f, "\n  {rule}: and {more} more")?;
                    }
                }
            }
            Err(error) => write!(f, "not run: {error}")?,
        }
        match &self.trace {
            Some(path) => write!(f, "\n  trace: {}", path.display()),
            None => Ok(()),
        }
    }
}

impl Suite {
    /// Makes the runs of a plan, with each client, and passes on the result of each.
    pub fn run(&self, plan: &Plan, take: &(dyn Fn(RunResult) + Sync)) {
        let mut runs = Vec::new();
        for seed in plan.seeds.clone() {
            for scenario in plan.scenarios(seed, self.scenarios.len()) {
                runs.extend(self.adapters.iter().map(|adapter| (seed, &self.scenarios[scenario], adapter)));
            }
        }
        let is_over = || plan.until.is_some_and(|until| Instant::now() >= until);
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..plan.jobs.clamp(1, runs.len().max(1)) {
                scope.spawn(|| {
                    while let Some((seed, scenario, adapter)) = runs.get(next.fetch_add(1, Ordering::SeqCst)) {
                        if is_over() {
                            return;
                        }
                        take(self.one(*seed, scenario, adapter));
                    }
                });
            }
        });
    }

    fn one(&self, seed: u64, scenario: &Scenario, adapter: &str) -> RunResult {
        let name = format!("{}-{seed}-{:08x}", scenario.name, short_hash(adapter));
        let log = self.keep.join(format!("{name}.log"));
        let setting = Setting {
            driftqd: self.driftqd.clone(),
            adapter: adapter.to_owned(),
            seed,
            vectors: self.vectors.clone(),
            log: log.clone(),
        };
        let mut ran = fs::create_dir_all(&self.keep).map_err(RunError::from).and_then(|()| run(scenario, &setting));
        let mut repeats = 0;
        while repeats < REPEATS_MAX {
            if !ran.as_ref().is_ok_and(|entries| stood_still(entries) && !judge(entries).is_empty()) {
                break;
            }
            ran = run(scenario, &setting);
            repeats += 1;
        }
        let mut result = RunResult {
            client: adapter.to_owned(),
            scenario: scenario.name.clone(),
            seed,
            verdict: Ok(Vec::new()),
            trace: None,
            repeats,
        };
        match ran {
            Ok(entries) => {
                if let Some(client) = client_of(&entries) {
                    result.client = client;
                }
                let convictions = judge(&entries);
                if self.keep_all || !convictions.is_empty() {
                    let path = self.keep.join(format!("{name}.jsonl"));
                    result.trace = kept(&entries, &path).is_ok().then_some(path);
                }
                result.verdict = Ok(convictions);
            }
            Err(error) => result.verdict = Err(error),
        }
        if result.passed() && !self.keep_all {
            // Fails only where there was none.
            let _ = fs::remove_file(log);
            let _ = fs::remove_dir(&self.keep);
        }
        result
    }
}

/// Whether the machine kept an adapter from running for so long that the times of the run mean nothing: at once, or as
/// a part of the run.
fn stood_still(entries: &[Entry]) -> bool {
    let stalls = || entries.iter().filter_map(Entry::stall);
    let run = Duration::from_micros(entries.last().map_or(0, |entry| entry.t));
    stalls().any(|stall| stall >= STOOD_STILL) || stalls().sum::<Duration>() > run / STOOD_STILL_PART
}

fn kept(entries: &[Entry], path: &Path) -> io::Result<()> {
    trace::write(entries, &mut BufWriter::new(File::create(path)?))
}

fn client_of(entries: &[Entry]) -> Option<String> {
    entries.iter().find_map(|entry| match &entry.seen {
        Seen::Run { adapter, .. } => Some(adapter.clone()),
        _ => None,
    })
}

/// Distinguishes the files of adapters: FNV-1a.
fn short_hash(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Clients and scenarios as a table in Markdown: in each cell how many runs passed, of how many, and which did not.
#[must_use]
pub fn table<'a>(results: impl IntoIterator<Item = &'a RunResult>) -> String {
    let mut cells: BTreeMap<(&str, &str), Vec<&RunResult>> = BTreeMap::new();
    let mut clients = BTreeMap::new();
    for result in results {
        cells.entry((&result.scenario, &result.client)).or_default().push(result);
        let seeds: &mut BTreeSet<u64> = clients.entry(result.client.as_str()).or_default();
        seeds.insert(result.seed);
    }
    let mut scenarios: Vec<&str> = cells.keys().map(|(scenario, _)| *scenario).collect();
    scenarios.dedup();
    let names: Vec<&str> = clients.keys().copied().collect();
    let mut text = format!("| scenario | {} |\n|---|{}\n", names.join(" | "), "---|".repeat(names.len()));
    for scenario in scenarios {
        let row: Vec<String> = names.iter().map(|client| cell(cells.get(&(scenario, *client)))).collect();
        text.push_str(&format!("| {scenario} | {} |\n", row.join(" | ")));
    }
    let totals: Vec<String> = names.iter().map(|client| total(&cells, client, &clients[client])).collect();
    text.push_str(&format!("| *all* | {} |\n", totals.join(" | ")));
    text
}

/// How many of a client's runs passed, with how many seeds.
fn total(cells: &BTreeMap<(&str, &str), Vec<&RunResult>>, client: &str, seeds: &BTreeSet<u64>) -> String {
    let of_client = cells.iter().filter(|((_, of), _)| *of == client).flat_map(|(_, runs)| runs);
    let passed = of_client.clone().filter(|run| run.passed()).count();
    format!("{passed}/{}, {} seeds", of_client.count(), seeds.len())
}

fn cell(runs: Option<&Vec<&RunResult>>) -> String {
    let Some(runs) = runs else { return "–".to_owned() };
    let mut failed: Vec<&&RunResult> = runs.iter().filter(|run| !run.passed()).collect();
    let passed = format!("{}/{}", runs.len() - failed.len(), runs.len());
    if failed.is_empty() {
        return passed;
    }
    failed.sort_unstable_by_key(|run| run.seed);
    let named = failed.iter().take(SEEDS_MAX).map(|run| {
        let rule = match &run.verdict {
            Ok(convictions) => convictions.first().map_or("", |conviction| conviction.rule),
            Err(_) => "not run",
        };
        format!("{}: {rule}", run.seed)
    });
    format!("{passed} ({})", named.collect::<Vec<_>>().join(", "))
}
