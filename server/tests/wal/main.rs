//! `driftqd wal` on logs that are whole, and on logs with every kind of damage.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used)]

mod classes;
mod crashes;
mod daemon;
mod damage;
mod inspect;
mod looking;
mod starts;
mod support;
mod sweep;
