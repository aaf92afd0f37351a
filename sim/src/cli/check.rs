//! `driftq-sim check`.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::args::Check;
use super::{Ending, Misuse, say};
use crate::history::{self, Entry, ReadError};
use crate::progress::Progress;

/// From how many bytes on reading takes long enough to say how far it is.
const LONG_BYTES: u64 = 64 << 20;

pub(super) fn check(args: &Check) -> Result<Ending, Misuse> {
    let path = &args.history;
    let entries = read(path).map_err(|cause| Misuse::History { path: path.clone(), cause })?;
    let mut report = history::check(&entries);
    if let Some(folder) = &args.data_dir {
        let compared = history::compare(&entries, folder);
        report = report.and(compared.map_err(|cause| Misuse::Log { path: folder.clone(), cause })?);
    }
    say!("{}", report.to_string().trim_end());
    say!();
    let (ending, word) = if report.passed() { (Ending::Passed, "PASSED") } else { (Ending::Failed, "FAILED") };
    say!("{word}");
    Ok(ending)
}

fn read(path: &Path) -> Result<Vec<Entry>, ReadError> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    if len < LONG_BYTES {
        return history::read(path);
    }
    let mut told = Told { file, read: 0, progress: Progress::begin("MiB", Some(len >> 20)) };
    let entries = history::read_from(BufReader::with_capacity(1 << 20, &mut told));
    told.progress.end();
    entries
}

/// A file that tells how far it is read.
struct Told {
    file: File,
    read: u64,
    progress: Progress,
}

impl Read for Told {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.read += count as u64;
        self.progress.at(self.read >> 20, || "being read".to_owned());
        Ok(count)
    }
}
