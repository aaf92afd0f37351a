//! How much memory the process may use: the least limit of its control groups, or what the machine has.

use std::path::{Path, PathBuf};

/// A limit of a control group of version 1 that is at least this high means none.
const UNLIMITED: u64 = 1 << 60;

/// The bytes that the process may use; `None` if the system does not say.
pub(crate) fn available() -> Option<u64> {
    available_by(|path| std::fs::read_to_string(path).ok())
}

fn available_by(read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let limits = groups.lines().filter_map(|line| limit_of(line, &read));
    let total = read(Path::new("/proc/meminfo")).and_then(|text| total_of(&text));
    limits.chain(total).min()
}

/// The bytes of the process that are resident; `None` if the system does not say.
pub(crate) fn resident() -> Option<u64> {
    resident_of(&std::fs::read_to_string("/proc/self/status").ok()?)
}

/// `VmRSS` in bytes.
fn resident_of(status: &str) -> Option<u64> {
    kibibytes(status, "VmRSS:")
}

/// The least limit of a control group, given as `ID:CONTROLLERS:PATH`, and of those above it.
fn limit_of(line: &str, read: &impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (root, file) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max"),
        _ if controllers.split(',').any(|name| name == "memory") => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        _ => return None,
    };
    let path = PathBuf::from(root).join(path.trim_start_matches('/'));
    let groups = path.ancestors().take_while(|folder| folder.starts_with(root));
    let limits = groups.filter_map(|folder| read(&folder.join(file))?.trim().parse().ok());
    limits.filter(|limit| *limit < UNLIMITED).min()
}

/// `MemTotal` in bytes.
fn total_of(meminfo: &str) -> Option<u64> {
    kibibytes(meminfo, "MemTotal:")
}

/// The number behind `name`, which the kernel gives in KiB, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn available(files: &[(&str, &str)]) -> Option<u64> {
        available_by(|path| {
            let found = files.iter().find(|(name, _)| Path::new(name) == path);
            found.map(|(_, text)| (*text).to_owned())
        })
    }

    const TOTAL: (&str, &str) = ("/proc/meminfo", "MemTotal:       16000 kB\nMemFree: 1 kB\n");

    #[test]
    fn least_limit_of_the_control_groups_counts() {
        let group = ("/proc/self/cgroup", "0::/system.slice/driftqd.service\n");
        let outer = ("/sys/fs/cgroup/system.slice/memory.max", "2000000\n");
        let inner = ("/sys/fs/cgroup/system.slice/driftqd.service/memory.max", "3000000\n");
        assert_eq!(available(&[TOTAL, group, outer, inner]), Some(2_000_000));
        let unlimited = ("/sys/fs/cgroup/system.slice/memory.max", "max\n");
        assert_eq!(available(&[TOTAL, group, unlimited, inner]), Some(3_000_000));
        assert_eq!(available(&[TOTAL, group, unlimited]), Some(16_000 * 1024));
    }

    #[test]
    fn container_has_its_limit_at_the_root() {
        let files = [TOTAL, ("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/memory.max", "1000000\n")];
        assert_eq!(available(&files), Some(1_000_000));
    }

    #[test]
    fn limit_of_version_1_counts_unless_it_is_none() {
        let group = ("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n");
        let limited = ("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "4096000\n");
        let none = ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(available(&[TOTAL, group, limited, none]), Some(4_096_000));
        assert_eq!(available(&[TOTAL, group, none]), Some(16_000 * 1024));
    }

    #[test]
    fn resident_bytes_are_those_of_the_process() {
        assert_eq!(resident_of("Name:\tdriftqd\nVmRSS:\t    2048 kB\nRssAnon:\t 1 kB\n"), Some(2_048 * 1024));
        assert_eq!(resident_of("Name:\tdriftqd\n"), None);
    }

    #[test]
    fn system_that_does_not_say_has_no_limit() {
        assert_eq!(available(&[]), None);
        assert_eq!(available(&[("/proc/meminfo", "MemTotal: many kB")]), None);
    }
}
