//! HTTP/1.1 over blocking sockets, as little of it as the runner needs: a parser for what passes through the proxy,
//! and a client for its own questions to the broker.

mod client;
mod parser;
mod server;

pub use self::client::{Answer, Client, ClientError};
pub use self::parser::{Event, Head, Parser, Side};
pub use self::server::{Request, serve};
