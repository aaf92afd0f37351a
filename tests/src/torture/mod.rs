//! Torture: injects faults into a real broker process while clients use it, and verifies everything the clients
//! observed.
//!
//! A [`scenario`] has a server and a history. The [`workload`] makes calls, each recorded by the [`recorder`] before it
//! is sent. The [`faults`] kill the server, cut the power of its disk, make its system calls fail, or change its clock.
//! At the end the server is restarted and [drained](drain) twice, the history is checked and the log replayed: the
//! [`verdict`]. `docs/reliability.md` has the commands and the figures.

pub mod client;
pub mod disk;
pub mod drain;
pub mod faults;
pub mod interrupt;
pub mod recorder;
pub mod rng;
pub mod scenario;
pub mod syscall_injector;
pub mod table;
pub mod tools;
pub mod verdict;
pub mod workload;
