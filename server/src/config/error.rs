//! What may be wrong with a configuration, said in one sentence that names the place.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The command line.
    Flag(&'static str),
    /// The environment.
    Variable(&'static str),
    /// A key of the configuration file.
    Key {
        /// The file.
        path: PathBuf,
        /// The key with its sections, `limits.in_flight_max`.
        key: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) | Self::Variable(name) => f.write_str(name),
            Self::Key { path, key } => write!(f, "{}: {key}", path.display()),
        }
    }
}

/// Why the daemon does not start with these settings. Each says what is wrong, where, and what would be right.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The configuration file cannot be read.
    #[error("the configuration file {} cannot be read: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// The configuration file is not TOML.
    #[error("{}, line {line}: {problem}", .path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        problem: String,
    },
    /// The configuration file has a key nobody reads: most likely misspelt, so that ignoring it would change a setting silently.
    #[error("{}: unknown key {key}; known here: {known}", .path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key with its sections.
        key: String,
        /// The keys that section has.
        known: String,
    },
    /// A value is of the wrong kind or outside of what is allowed.
    #[error("{origin}: {found} is not {allowed}")]
    Value {
        /// Where it was given.
        origin: Origin,
        /// What was given.
        found: String,
        /// What could have been.
        allowed: String,
    },
    /// The address can be reached from other machines, and nothing would keep them out.
    #[error("keys and TLS are not part of this version; give --insecure to listen on {addr}")]
    Exposed {
        /// The address.
        addr: SocketAddr,
    },
    /// Two settings that exclude each other.
    #[error("{0}")]
    Contradiction(String),
    /// A routing rule that makes no sense.
    #[error("routing rule {rule}: {problem}")]
    Rule {
        /// Which, counted from 1.
        rule: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// The process has a log already.
    #[error("logging cannot be set up: {0}")]
    Logging(String),
}
