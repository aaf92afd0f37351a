//! Torture: the real broker is killed, cut off from its disk, lied to about the time, and has its system calls fail, while clients
//! work with it; and everything they were told is held against what the broker promises.
//!
//! A [`stage`] has a server and a history. The [`workload`] makes calls, each written down by the [`recorder`] before it leaves. The
//! [`faults`] say what is done to the server meanwhile. In the end the server is healed, restarted and [drained](drain), twice, and
//! the [`judge`] has the history checked and the log replayed. `docs/reliability.md` has the commands and the figures.

pub mod client;
pub mod dice;
pub mod disk;
pub mod drain;
pub mod faults;
pub mod interrupt;
pub mod judge;
pub mod meddler;
pub mod recorder;
pub mod stage;
pub mod table;
pub mod tools;
pub mod workload;
