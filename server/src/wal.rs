//! `driftqd wal`: looking at a log, and saving what can be saved of a damaged one.

/// Does what `command` says.
pub fn run(_command: &crate::config::WalCommand) -> std::process::ExitCode {
    std::process::ExitCode::FAILURE
}
