//! Records and snapshot images to bytes and back. One codec serves the log and snapshots.

mod effects;
mod fields;
pub(crate) mod image;
pub mod record;

pub use crate::wire::Malformed;
