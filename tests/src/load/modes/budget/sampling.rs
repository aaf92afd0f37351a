//! Samples of what the broker's threads do, taken by `perf` while it is driven.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::callgrind::Attribution;
use super::category::{Assigned, Category, of_kernel};
use super::threads::{Role, ThreadObserver, micros};
use super::traffic::{Amount, DAEMON_ARGS, Observer, Traffic};
use crate::daemon::Signal;
use crate::load::broker::Broker;
use crate::load::cli::BrokerOptions;
use crate::load::error::Result;
use crate::load::report::Failures;
use crate::load::tool::{self, Tool};

/// Samples of each thread per second of its CPU time.
const FREQUENCY: &str = "1999";
/// How long perf may take to begin, to end, and to print what it has recorded.
const WITHIN: Duration = Duration::from_secs(60);
/// Between the creation of perf's file and the first sample.
const ATTACHING: Duration = Duration::from_millis(200);

/// What perf can count here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// Cycles, by the processor's counters.
    Cycles,
    /// CPU time, by the kernel's clock.
    CpuClock,
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::CpuClock => "cpu-clock",
        }
    }
}

/// What perf can count, or why it cannot be used.
pub(super) async fn event() -> std::result::Result<Event, String> {
    for (counted, event) in [("instructions", Event::Cycles), ("cpu-clock", Event::CpuClock)] {
        let finished = tool::run(Command::new("perf").args(["stat", "-x,", "-e", counted, "true"]), WITHIN).await;
        let finished = finished.map_err(|_| "perf is not installed".to_owned())?;
        if is_counted(&finished.errors) {
            return Ok(event);
        }
    }
    Err("perf counts nothing here".to_owned())
}

/// Whether the first field of a line is a number: of an event that cannot be counted it is `<not supported>`.
fn is_counted(stat: &str) -> bool {
    stat.lines().any(|line| line.split(',').next().is_some_and(|count| count.parse::<f64>().is_ok()))
}

/// Drives a new broker while perf samples it. The costs are microseconds per message.
pub(super) async fn measure(
    event: Event,
    traffic: Traffic,
    amount: Amount,
    options: &BrokerOptions,
) -> Result<(Attribution, Failures)> {
    let folder = TempDir::new()?;
    let mut broker = Broker::open(options, &DAEMON_ARGS).await?;
    let mut recorder =
        Recorder { event, file: folder.path().join("perf.data"), perf: None, threads: ThreadObserver::default() };
    let driven = traffic.drive(&broker, amount, &mut recorder).await?;
    broker.warn_if_exited();
    let mut print = Command::new("perf");
    print.args(["script", "-F", "comm,pid,tid,ip,sym,dso", "-i"]).arg(&recorder.file);
    let samples = parse(&tool::run(&mut print, WITHIN).await?.successful()?)?;
    let attribution = attribute(&samples, recorder.threads.times.total(), driven.messages)?;
    Ok((attribution, driven.failures))
}

/// Records samples, and reads the times of the threads: what a sample stands for.
struct Recorder {
    event: Event,
    file: PathBuf,
    perf: Option<Tool>,
    threads: ThreadObserver,
}

impl Observer for Recorder {
    async fn begin(&mut self, broker: &Broker) -> Result<()> {
        let pid = broker.pid().ok_or("the broker has no process")?.to_string();
        let mut record = Command::new("perf");
        record.args(["record", "-q", "-e", self.event.name(), "-F", FREQUENCY, "-p", &pid, "-o"]).arg(&self.file);
        let mut perf = Tool::start(&mut record)?;
        wait_for_file(&self.file, &mut perf).await?;
        self.perf = Some(perf);
        self.threads.begin(broker).await
    }

    async fn end(&mut self, broker: &Broker) -> Result<()> {
        self.threads.end(broker).await?;
        let perf = self.perf.take().ok_or("perf was not started")?;
        // It writes its file when it is interrupted.
        perf.signal(Signal::INT);
        perf.finish(WITHIN).await?;
        Ok(())
    }
}

async fn wait_for_file(file: &Path, perf: &mut Tool) -> Result<()> {
    let give_up = Instant::now() + WITHIN;
    while !file.exists() {
        if let Some(finished) = perf.exited()? {
            return Err(finished.failure());
        }
        if Instant::now() > give_up {
            return Err("perf did not begin to record".into());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(ATTACHING).await;
    Ok(())
}

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sample {
    role: Role,
    symbol: String,
    /// The file that contains the function.
    object: String,
}

impl Sample {
    /// Parses `name pid/tid address symbol (object)`.
    fn parse(line: &str) -> Option<Self> {
        let (front, object) = line.trim().strip_suffix(')')?.rsplit_once(" (")?;
        // A name may contain spaces: the ids are the first part that contains a slash between two numbers.
        let mut parts = front.split_whitespace();
        let mut name: Vec<&str> = Vec::new();
        let (pid, tid) = loop {
            let part = parts.next()?;
            match part.split_once('/').and_then(|(pid, tid)| Some((pid.parse().ok()?, tid.parse().ok()?))) {
                Some(ids) => break ids,
                None => name.push(part),
            }
        };
        let (pid, tid): (u32, u32) = (pid, tid);
        let _address = parts.next()?;
        let symbol: Vec<&str> = parts.collect();
        Some(Self { role: Role::of(&name.join(" "), pid == tid), symbol: symbol.join(" "), object: object.to_owned() })
    }

    fn is_in_kernel(&self) -> bool {
        let is_module = self.object.starts_with('[') && !matches!(self.object.as_str(), "[vdso]" | "[unknown]");
        is_module || self.object.ends_with(".ko")
    }

    /// The category; nothing if the function is not known.
    fn category(&self) -> Option<Category> {
        if self.is_in_kernel() {
            return Some(of_kernel(&self.symbol, self.role.is_for_files()));
        }
        if self.role.is_for_files() {
            return Some(Category::LogThreads);
        }
        if self.object == "[vdso]" {
            return Some(Category::Shared);
        }
        match Assigned::by_symbol(&self.symbol) {
            Assigned::To(category) => Some(category),
            // Samples have no callers.
            Assigned::Caller => Some(Category::Shared),
            Assigned::Nothing => None,
        }
    }
}

fn parse(script: &str) -> Result<Vec<Sample>> {
    let lines = script.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let samples = lines.map(|line| Sample::parse(line).ok_or_else(|| format!("perf printed no sample: {line}").into()));
    samples.collect()
}

/// Divides the CPU time by the samples, in microseconds per message.
fn attribute(samples: &[Sample], total: (Duration, Duration), messages: u64) -> Result<Attribution> {
    let in_kernel = samples.iter().filter(|sample| sample.is_in_kernel()).count();
    if samples.len() == in_kernel {
        return Err("perf has no sample of the broker outside the kernel".into());
    }
    let (user, system) = total;
    let mut attribution = Attribution::default();
    // Without the right to sample the kernel its time is known, but not what it was for.
    let (sampled, count) = match in_kernel {
        0 => {
            attribution.costs.insert(Category::KernelOther, micros(system) / messages.max(1) as f64);
            (user, samples.len())
        }
        _ => (user + system, samples.len()),
    };
    let cost = micros(sampled) / count as f64 / messages.max(1) as f64;
    for sample in samples {
        let category = sample.category();
        *attribution.costs.entry(category.unwrap_or(Category::Other)).or_default() += cost;
        if category.is_none() {
            let name = format!("{} ({})", sample.symbol, sample.object);
            *attribution.unassigned.entry(name).or_default() += cost;
        }
    }
    Ok(attribution)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "\
driftqd 14463/14463      559b923772b0 http::header::name::parse_hdr (/x/driftqd)
driftqd 14463/14463  ffffffff81ff2481 tcp_sendmsg_locked ([kernel.kallsyms])
driftq-log 14463/14466  ffffffff81b9218c iowrite16 ([kernel.kallsyms])
driftq-log 14463/14466      559b921e1902 core::slice::index::range (/x/driftqd)
a name 14463/14467      559b921e1902 <T as planted::A<(), B>>::run (/x/driftqd)
driftqd 14463/14463      7fff1e1902 __vdso_clock_gettime ([vdso])
driftqd 14463/14463      7fafabe3c803 __memmove_avx512_unaligned_erms (/usr/lib/libc.so.6)
driftqd 14463/14463      7fafabe3c803 [unknown] ([unknown])
";

    fn costs(attribution: &Attribution) -> Vec<(Category, f64)> {
        attribution.costs.iter().map(|(category, cost)| (*category, *cost)).collect()
    }

    #[test]
    fn samples_divide_the_time_and_unknown_functions_are_reported() {
        let samples = parse(SCRIPT).expect("samples");
        let total = (Duration::from_millis(6), Duration::from_millis(2));
        let found = attribute(&samples, total, 1_000).expect("samples of both");
        let expected = [
            (Category::Http, 1.0),
            (Category::LogThreads, 1.0),
            (Category::Copies, 1.0),
            (Category::Shared, 1.0),
            (Category::KernelNetwork, 1.0),
            (Category::KernelDisk, 1.0),
            (Category::Other, 2.0),
        ];
        assert_eq!(costs(&found), expected);
        let unknown: Vec<&str> = found.unassigned.keys().map(String::as_str).collect();
        assert_eq!(unknown, ["<T as planted::A<(), B>>::run (/x/driftqd)", "[unknown] ([unknown])"]);
    }

    #[test]
    fn kernel_that_cannot_be_sampled_counts_by_its_time() {
        let samples = parse(SCRIPT.lines().next().expect("a line")).expect("a sample");
        let found = attribute(&samples, (Duration::from_millis(6), Duration::from_millis(2)), 1_000).expect("a sample");
        assert_eq!(costs(&found), [(Category::Http, 6.0), (Category::KernelOther, 2.0)]);
        assert!(attribute(&[], (Duration::ZERO, Duration::ZERO), 1).is_err());
    }

    #[test]
    fn line_without_a_sample_is_an_error() {
        assert!(parse("driftqd 1/1 1f a (b)\nnonsense\n").is_err());
    }

    #[test]
    fn counted_event_begins_with_a_number() {
        assert!(is_counted("810338,,instructions:u,512130,100.00,,\n"));
        assert!(!is_counted("<not supported>,,instructions,0,100.00,,\n"));
    }
}
