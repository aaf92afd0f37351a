//! The broker with TLS: handshakes, certificates, reloads, and what holds of plain connections.

mod certificates;
mod handshakes;
mod limits;
mod openssl;
mod reload;
mod streams;
pub mod support;
