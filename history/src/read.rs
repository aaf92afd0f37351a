//! From lines to entries, refusing what no driver can have written.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::Path;

use super::{Entry, Phase};

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The system refused.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A line is not an entry.
    #[error("line {line} is not an entry of a history: {cause}")]
    Malformed {
        /// Its number, from 1.
        line: u64,
        /// What is wrong with it.
        cause: serde_json::Error,
    },
    /// A line does not come after the one before it.
    #[error("line {line} has seq {seq}, which does not come after {before}")]
    OutOfOrder {
        /// Its number, from 1.
        line: u64,
        /// Its place.
        seq: u64,
        /// The place of the line before it.
        before: u64,
    },
    /// A line answers what was never asked.
    #[error(
        "line {line} (seq {seq}): {client} (incarnation {incarnation}) is answered a {op} that it has not asked for"
    )]
    NeverInvoked {
        /// Its number, from 1.
        line: u64,
        /// Its place.
        seq: u64,
        /// Whose line it is.
        client: String,
        /// Which of its lives.
        incarnation: u64,
        /// What is answered.
        op: String,
    },
    /// A line asks before the same was answered.
    #[error(
        "line {line} (seq {seq}): {client} (incarnation {incarnation}) asks for a {op} while its last one, seq {open}, is open"
    )]
    StillOpen {
        /// Its number, from 1.
        line: u64,
        /// Its place.
        seq: u64,
        /// Whose line it is.
        client: String,
        /// Which of its lives.
        incarnation: u64,
        /// What is asked.
        op: String,
        /// The place of the call that is open.
        open: u64,
    },
}

/// What the driver did itself: lines that stand alone.
pub(super) const DRIVER_OPS: [&str; 11] =
    ["setup", "kill", "power", "stop", "start", "pause", "resume", "fault", "clock", "drain", "digest"];

/// Reads the history in a file.
///
/// A last line that was torn, because the driver was killed over it, is left out: what it would have said is not known.
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
    for line in 1.. {
        text.clear();
        if input.read_until(b'\n', &mut text)? == 0 {
            break;
        }
        if text.trim_ascii().is_empty() {
            continue;
        }
        let entry: Entry = match serde_json::from_slice(&text) {
            Ok(entry) => entry,
            // Only the last line can be without an end.
            Err(_) if text.last() != Some(&b'\n') => break,
            Err(cause) => return Err(ReadError::Malformed { line, cause }),
        };
        if let Some(before) = entries.last().map(|entry| entry.seq).filter(|before| *before >= entry.seq) {
            return Err(ReadError::OutOfOrder { line, seq: entry.seq, before });
        }
        pair(&mut open, &entry, line)?;
        entries.push(entry);
    }
    Ok(entries)
}

/// Sees to it that a call is asked before it is answered, and answered once.
fn pair(open: &mut HashMap<(String, u64, String), u64>, entry: &Entry, line: u64) -> Result<(), ReadError> {
    if entry.op == "deliver" || DRIVER_OPS.contains(&entry.op.as_str()) {
        return Ok(());
    }
    let (seq, client, incarnation, op) = (entry.seq, entry.client.clone(), entry.incarnation, entry.op.clone());
    let who = (client.clone(), incarnation, op.clone());
    match entry.phase {
        Phase::Invoke => match open.insert(who, seq) {
            Some(open) => Err(ReadError::StillOpen { line, seq, client, incarnation, op, open }),
            None => Ok(()),
        },
        Phase::Ok | Phase::Fail | Phase::Info => match open.remove(&who) {
            Some(_) => Ok(()),
            None => Err(ReadError::NeverInvoked { line, seq, client, incarnation, op }),
        },
    }
}
