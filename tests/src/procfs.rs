//! CPU time, threads, memory and disk writes of a process, read from `/proc`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::time::Duration;

/// The unit of the times in `/proc/PID/stat`: `USER_HZ`, a hundredth of a second.
const TICK: Duration = Duration::from_millis(10);

/// A process's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident now.
    pub resident_bytes: u64,
    /// Resident now, without pages of files: code that runs for the first time is not memory that the process holds.
    pub anonymous_bytes: u64,
    /// The highest resident size so far.
    pub peak_bytes: u64,
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        write!(f, "RSS {:.1} MB (peak {:.1} MB)", megabytes(self.resident_bytes), megabytes(self.peak_bytes))
    }
}

/// User and system time of a process so far, all threads included.
pub fn cpu_time(pid: u32) -> Option<Duration> {
    parse_cpu(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// CPU time and context switches of a thread so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Thread {
    /// Its id; that of the main thread is the id of the process.
    pub id: u32,
    /// Its name, of which the kernel keeps 15 bytes.
    pub name: String,
    /// Time outside the kernel, in hundredths of a second.
    pub user: Duration,
    /// Time in the kernel, in hundredths of a second.
    pub system: Duration,
    /// Both, exactly if the kernel counts it.
    pub cpu: Duration,
    /// How often it waited.
    pub voluntary_switches: u64,
    /// How often it was interrupted.
    pub involuntary_switches: u64,
}

/// The threads of a process; nothing if it has exited.
pub fn threads(pid: u32) -> Option<Vec<Thread>> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let read = |task: &fs::DirEntry| {
        let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
        parse_thread(&read("stat")?, &read("status")?, read("schedstat").as_deref())
    };
    // A thread may end in between.
    Some(tasks.flatten().filter_map(|task| read(&task)).collect())
}

fn parse_thread(stat: &str, status: &str, schedstat: Option<&str>) -> Option<Thread> {
    let (id, rest) = stat.split_once(" (")?;
    let (name, _) = rest.rsplit_once(')')?;
    let [user, system, ..] = parse_times(stat)?;
    let nanos = schedstat.and_then(|counts| counts.split_ascii_whitespace().next()?.parse().ok());
    let switches = |field: &str| status.lines().find_map(|line| line.strip_prefix(field))?.trim().parse().ok();
    Some(Thread {
        id: id.parse().ok()?,
        name: name.to_owned(),
        user,
        system,
        cpu: nanos.map_or(user + system, Duration::from_nanos),
        voluntary_switches: switches("voluntary_ctxt_switches:")?,
        involuntary_switches: switches("nonvoluntary_ctxt_switches:")?,
    })
}

/// User and system time of this process so far.
pub fn own_cpu_time() -> Duration {
    cpu_time(std::process::id()).unwrap_or_default()
}

/// User and system time so far of processes and of everything that descends from them, processes that have ended
/// included.
pub fn tree_cpu_time(roots: &[u32]) -> Option<Duration> {
    let times = descendants(roots).into_iter().map(|pid| {
        // A process may end in between: its parent has its time then.
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok();
        stat.and_then(|stat| parse_cpu_with_ended_children(&stat)).unwrap_or_default()
    });
    roots.iter().all(|root| cpu_time(*root).is_some()).then(|| times.sum())
}

/// These processes and everything that descends from them now, parents first.
pub fn descendants(roots: &[u32]) -> Vec<u32> {
    let mut children = BTreeMap::<u32, Vec<u32>>::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // A process may end in between.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(parent) = parse_parent(&stat) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let mut found: Vec<u32> = roots.to_vec();
    let mut next = 0;
    while let Some(pid) = found.get(next) {
        found.extend(children.remove(pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// When a process was started, in ticks since the system was. With its id it names a process for good.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Whether the process that was started at this time still runs: its id may belong to another one now.
pub fn runs_since(pid: u32, started: u64) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).ok().and_then(|stat| parse_state(&stat));
    // One that was not waited for has ended too.
    start_time(pid) == Some(started) && state.is_some_and(|state| state != 'Z')
}

fn parse_parent(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Memory of a process.
pub fn memory(pid: u32) -> Option<Memory> {
    parse_memory(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// Bytes that a process had the kernel write to disks so far. Only its owner and root may read that.
pub fn written_bytes(pid: u32) -> Option<u64> {
    parse_written(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?)
}

fn parse_written(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("write_bytes:"))?.trim().parse().ok()
}

/// Whether every thread of a process waits for something other than a disk or a tracer. False if it has exited.
pub fn is_asleep(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let states = threads.flatten().map(|thread| fs::read_to_string(thread.path().join("stat")));
    // A thread may end in between.
    states.flatten().all(|stat| parse_state(&stat) == Some('S'))
}

fn parse_state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Time all cores together were not idle.
pub fn machine_cpu_time() -> Option<Duration> {
    parse_machine(&fs::read_to_string("/proc/stat").ok()?)
}

fn parse_machine(stat: &str) -> Option<Duration> {
    let times = stat.lines().next()?.strip_prefix("cpu ")?;
    let times = times.split_ascii_whitespace().map(|ticks| ticks.parse().ok()).collect::<Option<Vec<u64>>>()?;
    // The fourth and fifth are idle and iowait; guest times, from the ninth on, are included in the first two.
    let busy =
        times.iter().enumerate().filter(|(at, _)| !matches!(at, 3 | 4 | 8..)).map(|(_, ticks)| ticks).sum::<u64>();
    Some(Duration::from_millis(busy * 10))
}

fn parse_cpu(stat: &str) -> Option<Duration> {
    let [user, system, ..] = parse_times(stat)?;
    Some(user + system)
}

fn parse_cpu_with_ended_children(stat: &str) -> Option<Duration> {
    Some(parse_times(stat)?.iter().sum())
}

/// User and system time of a process or a thread, then those of children that were waited for.
fn parse_times(stat: &str) -> Option<[Duration; 4]> {
    // The name in parentheses may itself contain parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let mut times = [Duration::ZERO; 4];
    for time in &mut times {
        *time = TICK * fields.next()?.parse::<u32>().ok()?;
    }
    Some(times)
}

fn parse_memory(status: &str) -> Option<Memory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    Some(Memory { resident_bytes: bytes("VmRSS:")?, anonymous_bytes: bytes("RssAnon:")?, peak_bytes: bytes("VmHWM:")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_of_a_thread_follows_its_name() {
        assert_eq!(parse_state("12 (a) (b) S 1 2"), Some('S'));
        assert_eq!(parse_state("12 (driftq-log) D 1 2"), Some('D'));
        assert_eq!(parse_state("12"), None);
        assert!(!is_asleep(std::process::id()), "this thread runs");
    }

    #[test]
    fn cpu_time_parses_name_with_parentheses() {
        let stat = "12 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 99";
        assert_eq!(parse_cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(parse_cpu("12 (a"), None);
        assert_eq!(parse_parent(stat), Some(1));
    }

    #[test]
    fn cpu_time_of_a_tree_includes_ended_children() {
        let stat = "12 (a) S 1 2 3 4 5 6 7 8 9 10 150 50 20 30 20 0 1 0 99";
        assert_eq!(parse_cpu_with_ended_children(stat), Some(Duration::from_millis(2_500)));
        let own = std::process::id();
        assert!(tree_cpu_time(&[own]).is_some());
        assert_eq!(tree_cpu_time(&[own, u32::MAX]), None);
    }

    #[test]
    fn child_is_a_descendant() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a child");
        let found = descendants(&[std::process::id()]);
        assert!(found.first() == Some(&std::process::id()) && found.contains(&child.id()), "{found:?}");
        let started = start_time(child.id()).expect("a child");
        assert!(runs_since(child.id(), started) && !runs_since(child.id(), started + 1));
        child.kill().expect("a child");
        while runs_since(child.id(), started) {
            std::thread::sleep(Duration::from_millis(1));
        }
        child.wait().expect("it ends");
    }

    #[test]
    fn thread_has_name_times_and_switches() {
        let stat = "12 (driftq-(log)) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 99";
        let status = "Name:\tdriftq-(log)\nvoluntary_ctxt_switches:\t7\nnonvoluntary_ctxt_switches:\t3\n";
        let thread = parse_thread(stat, status, Some("2001000000 5 9\n")).expect("a thread");
        assert_eq!((thread.id, thread.name.as_str()), (12, "driftq-(log)"));
        assert_eq!((thread.user, thread.system), (Duration::from_millis(1_500), Duration::from_millis(500)));
        assert_eq!(thread.cpu, Duration::from_millis(2_001));
        let inexact = parse_thread(stat, status, None).expect("a thread");
        assert_eq!(inexact.cpu, Duration::from_secs(2));
        assert_eq!((thread.voluntary_switches, thread.involuntary_switches), (7, 3));
        assert_eq!(parse_thread(stat, "Name:\tx\n", None), None);
        let own = threads(std::process::id()).expect("this process runs");
        assert!(own.iter().any(|thread| thread.id == std::process::id()), "the main thread is among {own:?}");
    }

    #[test]
    fn machine_cpu_time_excludes_idle() {
        assert_eq!(parse_machine("cpu  10 20 30 4000 500 1 2 37 9 9\ncpu0 1\n"), Some(Duration::from_secs(1)));
        assert_eq!(parse_machine("intr 1"), None);
        assert!(machine_cpu_time().is_some());
    }

    #[test]
    fn memory_parses_into_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\nRssAnon:\t     512 kB\n";
        let memory = Memory { resident_bytes: 1 << 20, anonymous_bytes: 512 << 10, peak_bytes: 2 << 20 };
        assert_eq!(parse_memory(status), Some(memory));
        assert_eq!(parse_memory("Name:\tx\n"), None);
    }

    #[test]
    fn written_bytes_are_not_the_cancelled_ones() {
        let io = "wchar: 9\nread_bytes: 1\nwrite_bytes: 4096\ncancelled_write_bytes: 7\n";
        assert_eq!(parse_written(io), Some(4096));
        assert_eq!(parse_written("wchar: 9\n"), None);
    }

    #[test]
    fn own_process_has_memory_and_cpu_time() {
        assert!(memory(std::process::id()).is_some_and(|memory| memory.resident_bytes > 0));
        assert!(cpu_time(std::process::id()).is_some());
    }
}
