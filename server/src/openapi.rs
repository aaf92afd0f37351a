//! The API's description.

/// The document.
pub fn document() -> &'static str {
    "{}"
}
