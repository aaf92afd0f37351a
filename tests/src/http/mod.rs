//! The HTTP client of all tests and test programs.
//!
//! [`Client`] is a blocking client on hyper. It reports whether a request failed before it was sent or may have reached
//! the server, which histories depend on. [`RawConnection`] writes bytes as given, for tests that send malformed
//! requests or need control of the socket.

mod client;
mod message;
mod raw;

pub use self::client::{Client, Connection, Stream};
pub use self::message::{CallError, Reply, Request, is_timeout};
pub use self::raw::{RawConnection, slow_reader_socket};
