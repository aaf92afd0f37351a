//! What errors of PostgreSQL mean to a caller of the store.

use std::error::Error as _;

use deadpool_postgres::PoolError;
use driftq_client::{Error, ErrorKind};
use tokio_postgres::Error as PostgresError;

/// The refusals of the functions of the schema, with status and code as the broker gives them.
const REFUSALS: [(&str, ErrorKind, u16, &str); 5] = [
    ("QD400", ErrorKind::Invalid, 400, "INVALID_ARGUMENT"),
    ("QD404", ErrorKind::NotFound, 404, "NOT_FOUND"),
    ("QD409", ErrorKind::Conflict, 409, "FAILED_PRECONDITION"),
    ("QD410", ErrorKind::StaleLease, 409, "FAILED_PRECONDITION"),
    ("QD422", ErrorKind::Invalid, 422, "IDEMPOTENCY_MISMATCH"),
];

/// The error of the client for one of PostgreSQL.
pub(crate) fn error_of(error: &PostgresError) -> Error {
    let Some(database) = error.as_db_error() else {
        let message = error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
        // A call repeated has the same token or nonce: it cannot double.
        return Error::new(ErrorKind::Unknown, message).with_repeatable(true);
    };
    let (state, message) = (database.code().code(), database.message());
    if let Some((_, kind, status, code)) = REFUSALS.iter().find(|(known, ..)| *known == state) {
        return Error::new(*kind, message).answered(*status, *code);
    }
    let (kind, repeatable) = match state {
        "3F000" | "42883" | "42P01" => {
            let advice = format!("{message}: the database lacks the schema of the store; run PostgresStore::migrate");
            return Error::new(ErrorKind::Protocol, advice);
        }
        // The server says that the statement did nothing: serialization, deadlock, too many connections, a lock or
        // statement timeout, a server that starts or stops, or that is not the primary.
        "40001" | "40P01" | "53300" | "55P03" | "57014" | "57P03" | "25006" => (ErrorKind::Unavailable, true),
        "42501" => (ErrorKind::PermissionDenied, false),
        "53100" | "53200" => (ErrorKind::StorageFull, true),
        // The server ends the connection: before the statement, in it, or after its commit.
        "57P01" | "57P02" | "57P05" => (ErrorKind::Unknown, true),
        _ => match &state[..2] {
            "08" => (ErrorKind::Unknown, true),
            "22" | "23" => (ErrorKind::Invalid, false),
            "28" => (ErrorKind::Unauthenticated, false),
            _ => (ErrorKind::Unknown, false),
        },
    };
    Error::new(kind, message).answered(0, state).with_repeatable(repeatable)
}

/// The error of the client where there is no connection.
pub(crate) fn pool_error_of(error: &PoolError) -> Error {
    match error {
        // A refusal of the server is its own error; without an answer nothing was sent.
        PoolError::Backend(error) if error.as_db_error().is_some() => error_of(error),
        PoolError::Closed => Error::new(ErrorKind::Misuse, "the pool of the store is closed"),
        PoolError::NoRuntimeSpecified => Error::new(ErrorKind::Misuse, "the pool of the store has no runtime"),
        error => {
            let source = error.source().map_or_else(String::new, |source| format!(": {source}"));
            Error::new(ErrorKind::Unavailable, format!("no connection to PostgreSQL: {error}{source}"))
        }
    }
}
