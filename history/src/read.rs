//! Reads the lines of a history and refuses those that no driver can have written.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;

use crate::entry::{Entry, Phase};

/// Most bytes of a line: the largest message of a broker, escaped as JSON.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Most blank lines in a row.
const BLANK_LINES_MAX: u64 = 100_000;

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// There is no entry.
    #[error("the file is empty; a history has one JSON object per line, see docs/histories.md")]
    Empty,
    /// A line does not end.
    #[error("line {line} has more than {LINE_BYTES_MAX} bytes; this is not a history")]
    LineTooLong {
        /// Its number, from 1.
        line: u64,
    },
    /// Blank lines do not end.
    #[error("{BLANK_LINES_MAX} blank lines in a row up to line {line}; this is not a history")]
    Blank {
        /// The number of the last of them.
        line: u64,
    },
    /// A line is not an [`Entry`].
    #[error("line {line} is not an entry of a history: {cause}")]
    Malformed {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// The `seq` of a line does not increase.
    #[error("line {line} has seq {seq}, which does not come after {before}")]
    OutOfOrder {
        /// Its number, from 1.
        line: u64,
        /// Its `seq`.
        seq: u64,
        /// The `seq` of the line before.
        before: u64,
    },
    /// A line answers a call that is not open.
    #[error("line {line} (seq {seq}): {client} (incarnation {incarnation}) has an answer to a {op} without its invoke")]
    NeverInvoked {
        /// Its number, from 1.
        line: u64,
        /// Its `seq`.
        seq: u64,
        /// The client.
        client: String,
        /// The incarnation of the client.
        incarnation: u64,
        /// The operation.
        op: String,
    },
    /// A line invokes an operation before the previous call of it was answered.
    #[error(
        "line {line} (seq {seq}): {client} (incarnation {incarnation}) invokes a {op} while its last one, seq {open}, is open"
    )]
    StillOpen {
        /// Its number, from 1.
        line: u64,
        /// Its `seq`.
        seq: u64,
        /// The client.
        client: String,
        /// The incarnation of the client.
        incarnation: u64,
        /// The operation.
        op: String,
        /// The `seq` of the open call.
        open: u64,
    },
}

/// Reads the history in a file.
///
/// A torn last line, as left by a driver that was killed while it wrote, is ignored. Lines are bounded, so a file that
/// is not a history is refused before it fills the memory.
///
/// # Errors
/// [`ReadError`], which names the line.
pub fn read(path: &Path) -> Result<Vec<Entry>, ReadError> {
    read_from(BufReader::with_capacity(1 << 20, File::open(path)?))
}

/// Reads a history; see [`read`].
///
/// # Errors
/// [`ReadError`], which names the line.
pub fn read_from(mut input: impl BufRead) -> Result<Vec<Entry>, ReadError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut open: HashMap<(String, u64, String), u64> = HashMap::new();
    let mut text = Vec::new();
    let mut blank = 0;
    for line in 1.. {
        text.clear();
        if input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut text)? == 0 {
            break;
        }
        if text.len() as u64 > LINE_BYTES_MAX {
            return Err(ReadError::LineTooLong { line });
        }
        if text.trim_ascii().is_empty() {
            blank += 1;
            if blank == BLANK_LINES_MAX {
                return Err(ReadError::Blank { line });
            }
            continue;
        }
        blank = 0;
        let entry: Entry = match serde_json::from_slice(&text) {
            Ok(entry) => entry,
            // Only the last line can lack its line end.
            Err(_) if text.last() != Some(&b'\n') => break,
            Err(cause) => return Err(ReadError::Malformed { line, cause }),
        };
        if let Some(before) = entries.last().map(|entry| entry.seq).filter(|before| *before >= entry.seq) {
            return Err(ReadError::OutOfOrder { line, seq: entry.seq, before });
        }
        pair(&mut open, &entry, line)?;
        entries.push(entry);
    }
    if entries.is_empty() { Err(ReadError::Empty) } else { Ok(entries) }
}

/// Checks that every answer follows its invoke, and every invoke the answer to the one before.
fn pair(open: &mut HashMap<(String, u64, String), u64>, entry: &Entry, line: u64) -> Result<(), ReadError> {
    if entry.op == "deliver" || entry.is_driver_action() {
        return Ok(());
    }
    let (seq, client, incarnation, op) = (entry.seq, entry.client.clone(), entry.incarnation, entry.op.clone());
    let call = (client.clone(), incarnation, op.clone());
    match entry.phase {
        Phase::Invoke => match open.insert(call, seq) {
            Some(open) => Err(ReadError::StillOpen { line, seq, client, incarnation, op, open }),
            None => Ok(()),
        },
        Phase::Ok | Phase::Fail | Phase::Info => match open.remove(&call) {
            Some(_) => Ok(()),
            None => Err(ReadError::NeverInvoked { line, seq, client, incarnation, op }),
        },
    }
}
