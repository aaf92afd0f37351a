//! `driftqd wal` on intact logs and on logs with every kind of damage.

mod daemon;
mod damage;
mod damage_classes;
mod damaged_snapshot;
mod damaged_starts;
mod formats;
mod inspect;
mod interrupted;
mod read_only;
mod references;
pub(crate) mod support;
mod sweep;
