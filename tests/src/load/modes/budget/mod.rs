//! `load budget`: where the CPU time and the instructions of each kind of request go.
//!
//! Every kind of traffic is driven against a new broker, while threads are timed, callgrind counts or perf samples.
//! What cannot be driven alone is a difference: a delivery is what a flow of messages costs with consumers, less what
//! it costs without. Each source prints one Markdown table.

mod callgrind;
mod category;
mod kind;
mod options;
mod profile;
mod sampling;
mod settles;
mod symbol;
mod tables;
mod threads;
mod traffic;

use std::collections::BTreeMap;

use self::callgrind::Attribution;
use self::category::Category;
use self::kind::Kind;
pub(crate) use self::options::BudgetOptions;
use self::options::Source;
use self::profile::Profile;
use self::sampling::Event;
use self::tables::{OldTables, Unit};
pub(crate) use self::threads::{Role, measure as measure_threads};
pub(crate) use self::traffic::{Amount, Taking, Traffic};
use crate::load::error::Result;
use crate::load::report::Failures;
use crate::progress::Progress;

/// Functions without a category that are listed.
const LISTED: usize = 12;
/// A greater share without a category is a warning: the table does not say enough.
const OTHER_MAX: f64 = 0.05;

/// What one kind of traffic costs per message.
#[derive(Debug, Clone, Default)]
struct Measured {
    profile: Profile,
    /// Functions without a category.
    unassigned: BTreeMap<String, f64>,
}

/// A source that works here.
#[derive(Debug, Clone, Copy)]
enum Meter {
    Threads,
    Callgrind,
    Perf(Event),
}

impl Meter {
    /// The meter of a source, or why it is skipped.
    async fn of(source: Source) -> std::result::Result<Self, String> {
        match source {
            Source::Threads => Ok(Self::Threads),
            Source::Callgrind => callgrind::missing().await.map_or(Ok(Self::Callgrind), Err),
            Source::Perf => sampling::event().await.map(Self::Perf),
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Threads => "per message, by thread",
            Self::Callgrind => "instructions per message",
            Self::Perf(Event::Cycles) => "µs per message, perf by cycles",
            Self::Perf(Event::CpuClock) => "µs per message, perf by cpu-clock",
        }
    }

    fn unit(self) -> Unit {
        if matches!(self, Self::Callgrind) { Unit::Count } else { Unit::Hundredths }
    }

    /// Instructions are the same in every turn.
    fn turns(self, options: &BudgetOptions) -> u32 {
        if matches!(self, Self::Callgrind) { 1 } else { options.turns }
    }

    async fn measure(self, traffic: Traffic, options: &BudgetOptions) -> Result<(Measured, Failures)> {
        let (broker, seconds) = (&options.broker, Amount::Seconds(options.seconds));
        let (attribution, failures) = match self {
            Self::Threads => {
                let (profile, failures) = threads::measure_profile(traffic, seconds, broker).await?;
                return Ok((Measured { profile, ..Measured::default() }, failures));
            }
            Self::Callgrind => callgrind::measure(traffic, Amount::Messages(options.messages), broker).await?,
            Self::Perf(event) => sampling::measure(event, traffic, seconds, broker).await?,
        };
        Ok((Measured::of(attribution), failures))
    }
}

impl Measured {
    fn of(attribution: Attribution) -> Self {
        let mut profile = Profile::default();
        for (category, cost) in &attribution.costs {
            profile.add(category.position(), category.label(), *cost);
        }
        profile.add(u16::MAX, "all", attribution.costs.values().sum());
        Self { profile, unassigned: attribution.unassigned }
    }

    /// The medians of several turns.
    fn median(turns: &[Self]) -> Self {
        let profiles: Vec<Profile> = turns.iter().map(|turn| turn.profile.clone()).collect();
        let mut unassigned: BTreeMap<String, f64> = BTreeMap::new();
        for (name, cost) in turns.iter().flat_map(|turn| &turn.unassigned) {
            *unassigned.entry(name.clone()).or_default() += cost / turns.len() as f64;
        }
        Self { profile: Profile::median(&profiles), unassigned }
    }
}

/// Measures and prints.
pub(crate) async fn run(options: &BudgetOptions) -> Result<Failures> {
    if options.broker.url.is_some() {
        return Err("the budget starts its own brokers; --url cannot be used".into());
    }
    let old = options.old.as_deref().map(OldTables::read).transpose()?;
    let mut failures = Failures::default();
    for source in options.sources() {
        match Meter::of(source).await {
            Ok(meter) => {
                let measured = measure_all(meter, options, &mut failures).await?;
                print(meter, &options.kinds(), &measured, old.as_ref());
            }
            Err(reason) => println!("{source:?} skipped: {reason}\n"),
        }
    }
    println!("failures: {failures}");
    Ok(failures)
}

/// Drives all traffic that the kinds need, in turns.
async fn measure_all(
    meter: Meter,
    options: &BudgetOptions,
    failures: &mut Failures,
) -> Result<Vec<(Traffic, Measured)>> {
    let traffic = Kind::traffic_of(&options.kinds());
    let progress = Progress::spinner("measuring the budget");
    let mut all: Vec<(Traffic, Vec<Measured>)> = traffic.iter().map(|traffic| (*traffic, Vec::new())).collect();
    let turns = meter.turns(options);
    for turn in 1..=turns {
        for (index, (traffic, measured)) in all.iter_mut().enumerate() {
            let (part, parts) = (index + 1, Kind::traffic_of(&options.kinds()).len());
            progress.message(&format!("{}: turn {turn} of {turns}, part {part} of {parts}", meter.title()));
            let (this, failed) = meter.measure(*traffic, options).await?;
            failures.merge(&failed);
            measured.push(this);
        }
    }
    Ok(all.into_iter().map(|(traffic, turns)| (traffic, Measured::median(&turns))).collect())
}

fn print(meter: Meter, kinds: &[Kind], measured: &[(Traffic, Measured)], old: Option<&OldTables>) {
    let costs: Vec<(Kind, Profile)> =
        kinds.iter().filter_map(|kind| Some((*kind, cost_of(*kind, measured)?))).collect();
    println!("{}", tables::markdown(meter.title(), &costs, meter.unit(), old));
    if matches!(meter, Meter::Threads) {
        return;
    }
    for (traffic, measured) in measured {
        let of = |category: Category| measured.profile.get(&(category.position(), category.label().to_owned()));
        let all: f64 = Category::ALL.into_iter().map(of).sum();
        if of(Category::Other) > OTHER_MAX * all {
            let percent = of(Category::Other) / all * 100.0;
            eprintln!("warning: {percent:.1} % of what {traffic:?} costs has no category");
        }
    }
    print_unassigned(measured, meter.unit());
}

fn print_unassigned(measured: &[(Traffic, Measured)], unit: Unit) {
    let mut most: BTreeMap<&str, f64> = BTreeMap::new();
    for (name, cost) in measured.iter().flat_map(|(_, measured)| &measured.unassigned) {
        let most = most.entry(name).or_default();
        *most = most.max(*cost);
    }
    let mut listed: Vec<(&str, f64)> = most.into_iter().collect();
    if listed.is_empty() {
        return;
    }
    listed.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    println!("functions without a category, the most per message of any traffic:");
    for (name, cost) in listed.iter().take(LISTED) {
        println!("{:>10}  {name}", unit.text(*cost));
    }
    println!();
}

/// What a kind costs; nothing if its traffic was not driven.
fn cost_of(kind: Kind, measured: &[(Traffic, Measured)]) -> Option<Profile> {
    let of = |wanted: Traffic| measured.iter().find(|(traffic, _)| *traffic == wanted).map(|(_, found)| &found.profile);
    let (with, without) = kind.difference();
    let with = of(with)?.clone();
    without.map_or(Some(with.clone()), |without| Some(with.less(of(without)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(cost: f64) -> Measured {
        let mut attribution = Attribution::default();
        attribution.costs.insert(Category::Json, cost);
        attribution.costs.insert(Category::Other, 1.0);
        attribution.unassigned.insert("planted::run".to_owned(), 1.0);
        Measured::of(attribution)
    }

    #[test]
    fn cost_of_a_kind_is_a_difference_of_traffic() {
        let (with, without) = Kind::Finish.difference();
        let all = [(with, measured(70.0)), (without.expect("it is a difference"), measured(20.0))];
        let cost = cost_of(Kind::Finish, &all).expect("both were driven");
        let of = |category: Category| cost.get(&(category.position(), category.label().to_owned()));
        assert!((of(Category::Json) - 50.0).abs() < 1e-9 && of(Category::Other).abs() < 1e-9);
        assert!((cost.get(&(u16::MAX, "all".to_owned())) - 50.0).abs() < 1e-9);
        assert!(cost_of(Kind::Produce, &all).is_none());
    }

    #[test]
    fn functions_without_a_category_survive_the_median() {
        let median = Measured::median(&[measured(1.0), measured(5.0), measured(3.0)]);
        assert!((median.unassigned["planted::run"] - 1.0).abs() < 1e-9);
        assert!((median.profile.get(&(Category::Json.position(), "JSON".to_owned())) - 3.0).abs() < 1e-9);
    }
}
