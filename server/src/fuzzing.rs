//! Entry points for the fuzz targets: the request parsers and the core of a salvage, which are private otherwise. Not a
//! stable API.

use driftq_core::Command;
use driftq_core::log::MemoryStorage;

use crate::http::request_parsers;
pub use crate::http::request_parsers::ParsedRequest;
use crate::tls;
use crate::wal::{Contents, Loss, WalError, salvage_into};

/// The requests that [`request`] parses, by name.
pub const REQUESTS: &[&str] = request_parsers::REQUESTS;

/// Parses the request with this number in [`REQUESTS`], modulo their count, from its body or, if that is blank, its
/// query.
///
/// # Errors
/// The status of the error response.
pub fn request(number: usize, body: &[u8], query: Option<&str>) -> Result<ParsedRequest, u16> {
    request_parsers::parse_request(number, body, query).map_err(|error| error.status.as_u16())
}

/// Parses the lines of a batch of acks or of produces, without the blank ones.
#[must_use]
pub fn batch(acks: bool, lines: &[u8]) -> Vec<Result<Command, u16>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.iter().all(u8::is_ascii_whitespace));
    lines.map(|line| request_parsers::parse_line(acks, line).map_err(|error| error.status.as_u16())).collect()
}

/// Parses the files of `[tls]`: certificates and a private key.
pub fn tls_files(certificate: &[u8], key: &[u8]) {
    tls::parse_files(certificate, key);
}

/// Salvages the log in `from` into a new storage: what is kept and lost, and the new log. `None` if a broker starts on
/// the log as it is, or there is none.
///
/// # Errors
/// [`WalError`].
pub fn salvage(from: &mut MemoryStorage) -> Result<Option<(Contents, Loss, MemoryStorage)>, WalError> {
    let mut into = MemoryStorage::new();
    Ok(salvage_into(from, &mut into)?.map(|(kept, loss)| (kept, loss, into)))
}
