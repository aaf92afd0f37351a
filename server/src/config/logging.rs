//! Logging of the process to standard error, as text or as JSON.

use super::error::ConfigError;
use super::settings::{LogFormat, LogSettings};
use super::text::{LEVEL_EXPECTED, parse_filter};

/// Starts logging to standard error for the whole process. Call it once, before the first event.
///
/// # Errors
/// [`ConfigError::Logging`] if the filter is invalid or the process logs already.
pub fn init_logging(settings: &LogSettings) -> Result<(), ConfigError> {
    let invalid = || ConfigError::Logging(format!("{:?} is not {LEVEL_EXPECTED}", settings.level));
    let filter = parse_filter(&settings.level).ok_or_else(invalid)?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // If standard error is closed, reporting that on standard error would panic.
    let builder = builder.log_internal_errors(false);
    match settings.format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(|error| ConfigError::Logging(error.to_string()))
}
