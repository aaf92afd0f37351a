//! The faults, one module per kind. Each returns the summary that is its row of the table.

mod canary;
mod clock_jumps;
mod crashes;
mod disks;
mod exact_syscalls;
mod kills;
mod pauses;
mod power;
mod second_server;
mod support;

pub use self::canary::canary;
pub use self::clock_jumps::clock_jumps;
pub use self::disks::{failing_sync, failing_write, full_disk, short_write, slow_disk};
pub use self::exact_syscalls::exact_syscalls;
pub use self::kills::kills;
pub use self::pauses::pauses;
pub use self::power::power;
pub use self::second_server::second_server;
pub use self::support::OnFault;
