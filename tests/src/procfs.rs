//! CPU time, memory and disk writes of a process, read from `/proc`.

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

/// User and system time of this process so far.
pub fn own_cpu_time() -> Duration {
    cpu_time(std::process::id()).unwrap_or_default()
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
    // The name in parentheses may itself contain parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(TICK * (user + system))
}

fn parse_memory(status: &str) -> Option<Memory> {
    let bytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
    };
    Some(Memory { resident_bytes: bytes("VmRSS:")?, peak_bytes: bytes("VmHWM:")? })
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
    }

    #[test]
    fn machine_cpu_time_excludes_idle() {
        assert_eq!(parse_machine("cpu  10 20 30 4000 500 1 2 37 9 9\ncpu0 1\n"), Some(Duration::from_secs(1)));
        assert_eq!(parse_machine("intr 1"), None);
        assert!(machine_cpu_time().is_some());
    }

    #[test]
    fn memory_parses_into_bytes() {
        let status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n";
        assert_eq!(parse_memory(status), Some(Memory { resident_bytes: 1 << 20, peak_bytes: 2 << 20 }));
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
