//! The disk below the broker: its file system, and the cost of a sync without a broker.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::load::error::Result;

const BLOCK: [u8; 4096] = [0; 4096];
/// Blocks of the file, overwritten from the front once its end is reached.
const BLOCKS: usize = 200;

/// Measures the cost of a sync: an fdatasync after 4 KiB written into a file that was filled with zeros beforehand.
///
/// A shared disk is fast in one second and slow in the next, so samples are spread over the whole run.
#[derive(Debug)]
pub(crate) struct SyncProbe {
    file: File,
    times: Vec<Duration>,
}

impl SyncProbe {
    /// A probe on the disk of this folder. Its file is anonymous.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        for _ in 0..BLOCKS {
            file.write_all(&BLOCK)?;
        }
        file.sync_all()?;
        Ok(Self { file, times: Vec::new() })
    }

    /// Takes samples.
    pub(crate) fn sample(&mut self, samples: u32) -> Result<()> {
        for _ in 0..samples {
            if self.times.len().is_multiple_of(BLOCKS) {
                self.file.seek(SeekFrom::Start(0))?;
            }
            let begun = Instant::now();
            self.file.write_all(&BLOCK)?;
            self.file.sync_data()?;
            self.times.push(begun.elapsed());
        }
        Ok(())
    }

    /// The median of all samples.
    pub(crate) fn p50(mut self) -> Option<Duration> {
        self.times.sort_unstable();
        self.times.get(self.times.len() / 2).copied()
    }

    /// Takes samples at this interval on a thread of its own.
    pub(crate) fn sample_every(mut self, interval: Duration) -> SyncSampler {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            // At least one sample, however soon it is stopped.
            loop {
                self.sample(1).map_err(|error| error.to_string())?;
                if is_stopped.load(Ordering::Relaxed) {
                    return Ok(self);
                }
                thread::sleep(interval);
            }
        });
        SyncSampler { stop, thread: Some(thread) }
    }
}

/// Samples the cost of a sync beside other work, until it is dropped.
#[derive(Debug)]
pub(crate) struct SyncSampler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Sampled>>,
}

type Sampled = std::result::Result<SyncProbe, String>;

impl SyncSampler {
    /// Ends, and returns all samples.
    pub(crate) fn finish(mut self) -> Result<Vec<Duration>> {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or("it is finished once")?;
        let probe = thread.join().map_err(|_| "the thread that samples syncs panicked")??;
        Ok(probe.times)
    }
}

impl Drop for SyncSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// Bytes of disk that the files of a folder take, as `du` counts them. Files that vanish meanwhile count nothing.
pub(crate) fn used_bytes(folder: &Path) -> Result<u64> {
    let mut used = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let Ok(about) = entry.metadata() else { continue };
        used += if about.is_dir() { used_bytes(&entry.path())? } else { about.blocks() * 512 };
    }
    Ok(used)
}

/// Bytes that the kernel counted as written, as far as its counters can be read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Written {
    /// By the broker's process. A page cache of large folios is counted by the folio, so this is an upper bound.
    pub(crate) process: Option<u64>,
    /// To the device of its folder, by all processes.
    pub(crate) device: Option<u64>,
}

impl Written {
    /// What was written since an earlier time.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let since = |now: Option<u64>, then: Option<u64>| Some(now?.saturating_sub(then?));
        Self { process: since(self.process, earlier.process), device: since(self.device, earlier.device) }
    }
}

/// Bytes written to the device of a folder since the system began, by all processes.
pub(crate) fn device_written(folder: &Path) -> Option<u64> {
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    device_written_in(&fs::read_to_string("/proc/diskstats").ok()?, major, minor)
}

/// The tenth column, in sectors of 512 bytes.
fn device_written_in(stats: &str, major: u32, minor: u32) -> Option<u64> {
    stats.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_device = columns.first()?.parse() == Ok(major) && columns.get(1)?.parse() == Ok(minor);
        let sectors: u64 = columns.get(9)?.parse().ok()?;
        is_device.then_some(sectors * 512)
    })
}

/// The kernel's name for the type of a folder's file system.
pub(crate) fn file_system(folder: &Path) -> Option<String> {
    let folder = folder.canonicalize().ok()?;
    file_system_in(&fs::read_to_string("/proc/self/mounts").ok()?, &folder)
}

fn file_system_in(mounts: &str, folder: &Path) -> Option<String> {
    let mut best: Option<(usize, &str)> = None;
    for line in mounts.lines() {
        let mut fields = line.split(' ').skip(1);
        let (Some(point), Some(kind)) = (fields.next(), fields.next()) else { continue };
        let point = point.replace("\\040", " ");
        // Of two mounts at the same path the later one is visible.
        if folder.starts_with(&point) && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Prints the file system of the data folder, and warns if it is in memory.
pub(crate) fn print_file_system(folder: &Path) {
    let kind = file_system(folder).unwrap_or_else(|| "unknown".to_owned());
    println!("data on  {kind} ({})", folder.display());
    if matches!(kind.as_str(), "tmpfs" | "ramfs") {
        eprintln!("warning: {kind} is in memory, so a sync costs nothing there; choose a disk with --dir");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_bytes_are_those_of_the_device() {
        let stats = " 254 0 vda 9 9 9 9 5 6 20 7 8\n 254 16 vdb 9 9 9 9 5 6 30 7 8\n";
        assert_eq!(device_written_in(stats, 254, 16), Some(30 * 512));
        assert_eq!(device_written_in(stats, 8, 0), None);
    }

    #[test]
    fn sync_probe_wraps_at_end_of_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut probe = SyncProbe::new(folder.path()).expect("a probe");
        probe.sample(200).expect("samples");
        probe.sample(2).expect("samples");
        assert_eq!(probe.times.len(), BLOCKS + 2);
        assert!(probe.file.metadata().is_ok_and(|file| file.len() == (BLOCKS * BLOCK.len()) as u64));
        assert!(probe.p50().is_some());
    }

    #[test]
    fn sampler_samples_until_it_is_finished() {
        let folder = tempfile::tempdir().expect("a folder");
        let sampler = SyncProbe::new(folder.path()).expect("a probe").sample_every(Duration::from_millis(1));
        assert!(!sampler.finish().expect("samples").is_empty());
    }

    #[test]
    fn file_system_is_that_of_the_nearest_mount() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/my\\040disk xfs rw 0 0\n";
        let kind = |folder| file_system_in(mounts, Path::new(folder));
        assert_eq!(kind("/home/x").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/tmpx").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/my disk/x").as_deref(), Some("xfs"));
    }
}
