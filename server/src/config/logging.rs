//! Logging of the process to standard error, as text or as JSON.

use std::fmt;

use tracing_subscriber::EnvFilter;

use super::error::ConfigError;
use super::settings::{LogFormat, LogSettings};
use super::text::{LEVEL_EXPECTED, parse_filter};

/// Changes the log level of the process while it runs.
pub struct LogLevel(Box<dyn Fn(EnvFilter) -> Result<(), String>>);

impl LogLevel {
    /// Sets the level, or the filter.
    ///
    /// # Errors
    /// [`ConfigError::Logging`] if the filter is invalid; then nothing changes.
    pub fn set(&self, settings: &LogSettings) -> Result<(), ConfigError> {
        (self.0)(filter(settings)?).map_err(ConfigError::Logging)
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
    let builder = tracing_subscriber::fmt().with_env_filter(filter(settings)?).with_writer(std::io::stderr);
    // If standard error is closed, reporting that on standard error would panic.
    let builder = builder.log_internal_errors(false);
    match settings.format {
        LogFormat::Text => {
            let builder = builder.with_target(false).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.try_init().map(|()| level(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let builder = builder.json().flatten_event(true).with_current_span(false).with_filter_reloading();
            let handle = builder.reload_handle();
            builder.try_init().map(|()| level(move |filter| handle.reload(filter)))
        }
    }
    .map_err(|error| ConfigError::Logging(error.to_string()))
}

fn filter(settings: &LogSettings) -> Result<EnvFilter, ConfigError> {
    let invalid = || ConfigError::Logging(format!("{:?} is not {LEVEL_EXPECTED}", settings.level));
    parse_filter(&settings.level).ok_or_else(invalid)
}

fn level<E: fmt::Display>(reload: impl Fn(EnvFilter) -> Result<(), E> + 'static) -> LogLevel {
    LogLevel(Box::new(move |filter| reload(filter).map_err(|error| error.to_string())))
}
