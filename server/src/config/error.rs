//! Why settings are refused.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::exposure::ExposureError;

/// Why the broker does not start with these settings. The text names the file, key, flag or variable, the value and
/// what is allowed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {}: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        error: std::io::Error,
    },
    /// The configuration file is not TOML, or has an unknown key or an invalid value. The text shows the line.
    #[error("{}: {error}", .path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The parser's error, with line and column.
        error: Box<toml::de::Error>,
    },
    /// The value of a flag or variable is invalid.
    #[error("{origin}: {problem}")]
    Value {
        /// `--flag` or `DRIFTQ_VARIABLE`.
        origin: String,
        /// The value and what is expected.
        problem: String,
    },
    /// The address can be reached from other machines, and clients need no key or send it in plain text.
    #[error("will not listen on {addr}: {reason}")]
    Exposed {
        /// The address.
        addr: SocketAddr,
        /// Why it is refused.
        reason: ExposureError,
    },
    /// A value that was not loaded but set by code is invalid, or two settings contradict each other.
    #[error("{0}")]
    Invalid(String),
    /// A routing rule has no effect or can never match.
    #[error("routing rule {rule}: {problem}")]
    Rule {
        /// Its number, from 1.
        rule: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Logging cannot be initialized.
    #[error("cannot initialize logging: {0}")]
    Logging(String),
}
