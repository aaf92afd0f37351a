//! Records and snapshot images to bytes and back. One codec serves the log and snapshots.

mod effects;
mod fields;
pub(crate) mod image;
pub mod record;

use crate::types::Identity;
pub use crate::wire::Malformed;
use crate::wire::Reader;

/// The bytes of an identity as records contain it.
#[must_use]
pub fn encode_identity(identity: &Identity) -> Vec<u8> {
    let mut out = Vec::new();
    effects::put_identity(&mut out, identity);
    out
}

/// Reads what [`encode_identity`] wrote.
///
/// # Errors
/// [`Malformed`] for any other bytes.
pub fn decode_identity(bytes: &[u8]) -> Result<Identity, Malformed> {
    let mut reader = Reader::new(bytes);
    let identity = effects::identity(&mut reader)?;
    reader.finish()?;
    Ok(identity)
}
