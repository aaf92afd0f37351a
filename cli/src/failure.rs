//! Failures of a command: one line for people, and a stable exit code.

use std::io::{self, Write as _};
use std::process::ExitCode;

use driftq_client::{Error, ErrorKind};

/// What `driftq help exit-codes` prints, and `docs/cli.md` repeats.
pub(crate) const EXIT_CODES: &str = "\
Exit codes are stable:

  0  done; also a stream that was interrupted, and a reader that closed the pipe
  1  refused by the broker: invalid, not permitted, over a limit, disk full
  2  usage: a flag, a value, a context or a file is wrong; nothing was sent
  3  not reachable: no connection, no answer in time, not ready, TLS
  4  not found: no such topic, group, message or effect
  5  conflict: exists with other settings, stale lease, in progress elsewhere
  6  something is wrong (doctor)";

/// Exit codes other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The broker refuses.
    Refused = 1,
    /// The command line, a context or a file is wrong.
    Usage = 2,
    /// There is no answer.
    Unreachable = 3,
    /// There is no such thing.
    NotFound = 4,
    /// The state contradicts the request.
    Conflict = 5,
    /// `doctor` has found something.
    Unhealthy = 6,
}

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of the output has closed it: no error.
    Closed,
    /// All has been said in the output; only the code is left.
    Told(Exit),
    /// To be reported in one line.
    Failed {
        /// The exit code.
        exit: Exit,
        /// What failed, on what.
        message: String,
        /// What to do about it.
        advice: Option<&'static str>,
    },
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self::Failed { exit, message: message.into(), advice: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    /// The same, with what to do.
    pub(crate) fn advise(self, text: &'static str) -> Self {
        match self {
            Self::Failed { exit, message, advice: None } => Self::Failed { exit, message, advice: Some(text) },
            failure => failure,
        }
    }

    /// Prints the failure to standard error.
    pub(crate) fn report(&self) -> ExitCode {
        match self {
            Self::Closed => ExitCode::SUCCESS,
            Self::Told(exit) => ExitCode::from(*exit as u8),
            Self::Failed { exit, .. } => {
                // There is no other place for it.
                let _ = writeln!(io::stderr(), "driftq: {self}");
                ExitCode::from(*exit as u8)
            }
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => f.write_str("the output was closed"),
            Self::Told(exit) => write!(f, "exit code {}", *exit as u8),
            Self::Failed { message, advice, .. } => {
                f.write_str(&crate::text::visible(message))?;
                advice.map_or(Ok(()), |advice| write!(f, "; {advice}"))
            }
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::Closed;
        }
        Self::new(Exit::Refused, format!("the output cannot be written: {error}"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (exit, advice) = meaning(&error);
        let reason = error.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
        Self::Failed { exit, message: format!("{}{reason}", error.message()), advice }
    }
}

/// The exit code of an error of the client, and what to do about it.
pub(crate) fn meaning(error: &Error) -> (Exit, Option<&'static str>) {
    match error.kind() {
        ErrorKind::Misuse => (Exit::Usage, None),
        ErrorKind::NotFound => (Exit::NotFound, None),
        ErrorKind::Conflict => (Exit::Conflict, None),
        ErrorKind::StaleLease => {
            (Exit::Conflict, Some("another delivery of the message is newer, or it has ended; consume it again"))
        }
        ErrorKind::InProgress => (Exit::Conflict, Some("try again when its lease has ended")),
        ErrorKind::Unavailable if error.status() == 0 => {
            (Exit::Unreachable, Some("is the broker running? check --url, DRIFTQ_URL or `driftq context show`"))
        }
        ErrorKind::Unavailable => (Exit::Unreachable, Some("the broker is not ready; see `driftq doctor`")),
        ErrorKind::Unknown if error.status() == 500 => (Exit::Refused, None),
        ErrorKind::Unknown => (Exit::Unreachable, Some("the request may have been carried out; look before repeating")),
        ErrorKind::Tls => (Exit::Unreachable, Some("check --ca and the certificate of the broker")),
        ErrorKind::Unauthenticated => (Exit::Refused, Some("give a key: --key-file, DRIFTQ_KEY or a context")),
        ErrorKind::PermissionDenied => (Exit::Refused, Some("the key or the host name is not permitted")),
        ErrorKind::Overloaded => (Exit::Refused, Some("try again later, or let the consumers catch up")),
        ErrorKind::StorageFull => (Exit::Refused, Some("free disk space on the broker; acks are still accepted")),
        ErrorKind::Protocol => (Exit::Refused, Some("is this the URL of a DriftQ broker?")),
        _ => (Exit::Refused, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_errors_have_their_exit_codes() {
        let exit = |kind, status| meaning(&Error::new(kind, "m").answered(status, "")).0;
        for (kind, status, expected) in [
            (ErrorKind::Invalid, 400, Exit::Refused),
            (ErrorKind::Misuse, 0, Exit::Usage),
            (ErrorKind::Unavailable, 0, Exit::Unreachable),
            (ErrorKind::Unavailable, 503, Exit::Unreachable),
            (ErrorKind::Unknown, 0, Exit::Unreachable),
            (ErrorKind::Unknown, 500, Exit::Refused),
            (ErrorKind::NotFound, 404, Exit::NotFound),
            (ErrorKind::Conflict, 409, Exit::Conflict),
            (ErrorKind::StaleLease, 409, Exit::Conflict),
            (ErrorKind::InProgress, 409, Exit::Conflict),
            (ErrorKind::Overloaded, 429, Exit::Refused),
        ] {
            assert_eq!(exit(kind, status), expected, "{kind}");
        }
    }

    #[test]
    fn failure_is_one_line() {
        let failure = Failure::from(Error::new(ErrorKind::Unavailable, "http://h: no\nway"));
        let text = failure.to_string();
        assert!(text.starts_with("http://h: no\\nway; is the broker running?"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
