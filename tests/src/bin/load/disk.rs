//! The disk below the broker: what file system it is, and what a sync costs there without any broker.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::Result;

const BLOCK: [u8; 4096] = [0; 4096];
const SYNCS: usize = 200;

/// The median of 200 fdatasyncs, each after 4 KiB written into a file that was filled with zeros beforehand.
pub(crate) fn fdatasync_p50(folder: &Path) -> Result<Duration> {
    let mut file = tempfile::tempfile_in(folder)?;
    for _ in 0..SYNCS {
        file.write_all(&BLOCK)?;
    }
    file.sync_all()?;
    file.seek(SeekFrom::Start(0))?;
    let mut times = (0..SYNCS).map(|_| one_sync(&mut file)).collect::<Result<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

fn one_sync(file: &mut File) -> Result<Duration> {
    let begun = Instant::now();
    file.write_all(&BLOCK)?;
    file.sync_data()?;
    Ok(begun.elapsed())
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
    fn the_nearest_mount_tells_the_file_system() {
        let mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/my\\040disk xfs rw 0 0\n";
        let kind = |folder| file_system_in(mounts, Path::new(folder));
        assert_eq!(kind("/home/x").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/x").as_deref(), Some("tmpfs"));
        assert_eq!(kind("/tmpx").as_deref(), Some("ext4"));
        assert_eq!(kind("/tmp/my disk/x").as_deref(), Some("xfs"));
    }
}
