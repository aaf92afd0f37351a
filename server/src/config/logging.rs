//! What the process says about itself, and where: standard error, as text or as JSON.

use tracing_subscriber::EnvFilter;

use super::error::ConfigError;
use super::{LogFormat, LogSettings};

/// What a log level may be.
pub(super) const LEVEL_ALLOWED: &str =
    "off, error, warn, info, debug or trace, nor a filter such as info,driftq_server=debug";

/// Starts logging to standard error for the whole process. To be called once, before anything is worth saying.
///
/// # Errors
/// [`ConfigError::Logging`] where the filter is none, or the process logs already.
pub fn init_logging(settings: &LogSettings) -> Result<(), ConfigError> {
    let refused = || ConfigError::Logging(format!("{:?} is not {LEVEL_ALLOWED}", settings.level));
    let filter = filter(&settings.level).ok_or_else(refused)?;
    // Whoever reads the log may go; complaining to standard error that standard error is gone would end the process.
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let builder = builder.log_internal_errors(false);
    match settings.format {
        LogFormat::Text => builder.with_target(false).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    }
    .map_err(|error| ConfigError::Logging(error.to_string()))
}

/// The filter that `level` names. A single word must be a level: it would pass as the name of a module otherwise, and
/// `--log-level inof` would log nothing.
pub(super) fn filter(level: &str) -> Option<EnvFilter> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |word: &str| LEVELS.iter().any(|level| word.trim().eq_ignore_ascii_case(level));
    let sound = |part: &str| part.contains(['=', '[']) || is_level(part);
    if !level.split(',').all(sound) {
        return None;
    }
    EnvFilter::builder().parse(level).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn levels_and_filters_are_known_and_misspelt_ones_refused() {
        for good in
            ["off", "INFO", "debug", "info,driftq_server=debug", "driftq_server::http=trace,warn", "[span{a}]=info"]
        {
            assert!(filter(good).is_some(), "{good}");
        }
        for bad in ["", "inof", "info,", "info,debgu", "driftq_server=loud", "a=b=c", "[x"] {
            assert!(filter(bad).is_none(), "{bad}");
        }
    }
}
