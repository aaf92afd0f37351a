//! What programs that look at a broker from outside have in common: a plain HTTP client and a daemon to start, stop and kill; the
//! conformance suite, which asks any broker for every clause of the specification; and the [`torture`] of our own.
//!
//! Client and daemon are blocking and simple on purpose: what they are used for is proof, and a proof should not depend on a clever client.
#![forbid(unsafe_code)]

pub mod conformance;
pub mod daemon;
pub mod http;
pub mod torture;
