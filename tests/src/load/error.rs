//! The error that ends a run.

/// What ends a run; single failed requests are counted in [`Failures`](crate::load::report::Failures) instead.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;
/// The result of a part of a run.
pub(crate) type Result<T> = std::result::Result<T, Error>;
