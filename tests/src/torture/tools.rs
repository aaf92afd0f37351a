//! What of the machine a torture needs, and words for what is missing.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why something cannot be tried here, if it cannot; one line that says what is missing.
pub type Missing = Option<String>;

/// What it takes to see system calls fail.
#[must_use]
pub fn missing_for_syscalls() -> Missing {
    has("strace", &["-V"]).then_some(()).map_or_else(|| Some("there is no strace".to_owned()), |()| None)
}

/// What it takes to make disks of our own.
#[must_use]
pub fn missing_for_mounts() -> Missing {
    if !rustix::process::geteuid().is_root() {
        return Some("it takes root to mount a disk".to_owned());
    }
    if !Path::new("/dev/loop-control").exists() {
        return Some("there are no loop devices".to_owned());
    }
    None
}

/// What it takes to cut the power of a disk with this file system.
#[must_use]
pub fn missing_for_power(mkfs: &str) -> Missing {
    let tool = [(mkfs, "-V"), ("xfs_io", "-V")].into_iter().find(|(tool, flag)| !has(tool, &[flag]));
    missing_for_mounts().or_else(|| tool.map(|(tool, _)| format!("there is no {tool}")))
}

/// The library that lies about the time.
#[must_use]
pub fn lying_clock() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

fn has(tool: &str, flags: &[&str]) -> bool {
    let found =
        Command::new(tool).args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Runs a tool to its end.
///
/// # Errors
/// What it said, if it did not succeed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}
