//! What programs that look at a broker from outside have in common: a plain HTTP client and a daemon to start, stop and kill; and the
//! [`torture`] that is made of them.
//!
//! All of it is blocking and simple on purpose: what it is used for is proof, and a proof should not depend on a clever client.
#![forbid(unsafe_code)]

pub mod daemon;
pub mod http;
pub mod torture;
