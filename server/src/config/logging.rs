//! Logging of the process to standard error, as text or as JSON.

use std::fmt;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt as output, registry, reload};

use super::error::ConfigError;
use super::settings::{LogFormat, LogSettings};
use super::text::{LEVEL_EXPECTED, parse_filter};

/// Changes the log level of the process while it runs.
pub struct LogLevel(reload::Handle<Targets, Registry>);

impl LogLevel {
    /// Sets the level, or the filter.
    ///
    /// # Errors
    /// [`ConfigError::Logging`] if the filter is invalid; then nothing changes.
    pub fn set(&self, settings: &LogSettings) -> Result<(), ConfigError> {
        self.0.reload(filter(settings)?).map_err(|error| ConfigError::Logging(error.to_string()))
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevel").finish_non_exhaustive()
    }
}

/// Starts logging to standard error for the whole process. Call it once, before the first event.
///
/// # Errors
/// [`ConfigError::Logging`] if the filter is invalid or the process logs already.
pub fn init_logging(settings: &LogSettings) -> Result<LogLevel, ConfigError> {
    let (filter, handle) = reload::Layer::new(filter(settings)?);
    // If standard error is closed, reporting that on standard error would panic.
    let output = output::layer().with_writer(std::io::stderr).log_internal_errors(false);
    let logged = registry().with(filter);
    match settings.format {
        LogFormat::Text => logged.with(output.with_target(false)).try_init(),
        LogFormat::Json => logged.with(output.json().flatten_event(true).with_current_span(false)).try_init(),
    }
    .map_err(|error| ConfigError::Logging(error.to_string()))?;
    Ok(LogLevel(handle))
}

fn filter(settings: &LogSettings) -> Result<Targets, ConfigError> {
    let invalid = || ConfigError::Logging(format!("{:?} is not {LEVEL_EXPECTED}", settings.level));
    parse_filter(&settings.level).ok_or_else(invalid)
}
