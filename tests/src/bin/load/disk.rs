//! The disk below the broker: what file system it is, and what a sync costs there without any broker.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;

const BLOCK: [u8; 4096] = [0; 4096];
/// Blocks of the file, written over from the front once its end is reached.
const BLOCKS: usize = 200;

/// Measures what a sync costs: an fdatasync after 4 KiB written into a file that was filled with zeros beforehand.
///
/// A disk that others use too is fast in one second and slow in the next, so samples are taken all along a run.
#[derive(Debug)]
pub(crate) struct SyncProbe {
    file: File,
    times: Vec<Duration>,
}

impl SyncProbe {
    /// A probe on the disk of this folder; its file has no name and is gone with it.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let mut file = tempfile::tempfile_in(folder)?;
        for _ in 0..BLOCKS {
            file.write_all(&BLOCK)?;
        }
        file.sync_all()?;
        Ok(Self { file, times: Vec::new() })
    }

    /// Takes so many samples.
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
}

/// The type of the file system a folder lies on, as the kernel names it.
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
        // Of two mounts at one place the later one is seen.
        if folder.starts_with(&point) && best.is_none_or(|(length, _)| point.len() >= length) {
            best = Some((point.len(), kind));
        }
    }
    best.map(|(_, kind)| kind.to_owned())
}

/// Says on which file system the data lies, and warns where a sync is free because nothing is kept.
pub(crate) fn print_file_system(folder: &Path) {
    let kind = file_system(folder).unwrap_or_else(|| "unknown".to_owned());
    println!("data on  {kind} ({})", folder.display());
    if matches!(kind.as_str(), "tmpfs" | "ramfs") {
        eprintln!("warning: {kind} keeps nothing, so a sync costs nothing there; choose a disk with --dir");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_samples_beyond_its_files_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut probe = SyncProbe::new(folder.path()).expect("a probe");
        probe.sample(200).expect("samples");
        probe.sample(2).expect("samples");
        assert_eq!(probe.times.len(), BLOCKS + 2);
        assert!(probe.file.metadata().is_ok_and(|file| file.len() == (BLOCKS * BLOCK.len()) as u64));
        assert!(probe.p50().is_some());
    }

    #[test]
    fn the_nearest_mount_tells_the_file_system() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/my\\040disk xfs rw 0 0\n";
        let kind = |folder| file_system_in(mounts, Path::new(folder));
        assert_eq!(kind("/home/x").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/tmpx").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/my disk/x").as_deref(), Some("xfs"));
    }
}
