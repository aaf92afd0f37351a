//! A door for the fuzz targets, and for nobody else: the parsers of requests and the heart of a salvage, which are private, as plain
//! functions. Nothing here is promised to stay as it is.

use driftq_core::Command;
use driftq_core::log::MemoryStorage;

use crate::http::fuzzing;
use crate::wal::{Contents, Loss, WalError, salvage_into};

/// The requests whose bodies are read, by name.
pub const REQUESTS: &[&str] = fuzzing::REQUESTS;

/// What a request was understood as: the command, where reading it comes to one, and what was read in words.
#[derive(Debug, PartialEq)]
pub struct Understood {
    /// The command.
    pub command: Option<Command>,
    /// What was read, for comparing.
    pub read: String,
}

/// Reads the request with this number in [`REQUESTS`] (counted round), a body winning over the query, as the server does.
///
/// # Errors
/// The status of the refusal.
pub fn request(number: usize, body: &[u8], query: Option<&str>) -> Result<Understood, u16> {
    fuzzing::request(number, body, query).map_err(|error| error.status.as_u16())
}

/// Reads the lines of a batch, of produces or of acks: what each that is not blank asks for.
#[must_use]
pub fn batch(acks: bool, lines: &[u8]) -> Vec<Result<Command, u16>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.iter().all(u8::is_ascii_whitespace));
    lines.map(|line| fuzzing::line(acks, line).map_err(|error| error.status.as_u16())).collect()
}

/// Salvages the log in `from` into another storage: what it says is kept and lost, and the new log. `None` where a broker starts on
/// the log as it is, or there is none.
///
/// # Errors
/// [`WalError`].
pub fn salvage(from: &mut MemoryStorage) -> Result<Option<(Contents, Loss, MemoryStorage)>, WalError> {
    let mut into = MemoryStorage::new();
    Ok(salvage_into(from, &mut into)?.map(|(kept, loss)| (kept, loss, into)))
}
