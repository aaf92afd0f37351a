//! The tools and rights that faults need, and why a fault is skipped without them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Why something cannot be tried on this machine, if it cannot.
pub type Missing = Option<String>;

/// What is missing to inject into system calls.
#[must_use]
pub fn missing_for_syscalls() -> Missing {
    (!runs("strace", "-V")).then(|| "there is no strace".to_owned())
}

/// What is missing to mount disks.
#[must_use]
pub fn missing_for_mounts() -> Missing {
    if !rustix::process::geteuid().is_root() {
        return Some("mounting a disk requires root".to_owned());
    }
    (!Path::new("/dev/loop-control").exists()).then(|| "there are no loop devices".to_owned())
}

/// What is missing to cut the power of a disk with this file system.
#[must_use]
pub fn missing_for_power(mkfs: &str) -> Missing {
    let tool = [mkfs, "xfs_io"].into_iter().find(|tool| !runs(tool, "-V"));
    missing_for_mounts().or_else(|| tool.map(|tool| format!("there is no {tool}")))
}

/// The library that fakes the wall clock.
#[must_use]
pub fn faketime_library() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1")).find(|library| library.exists())
}

/// Whether a tool can be run with this flag.
#[must_use]
pub fn runs(tool: &str, flag: &str) -> bool {
    let found = Command::new(tool).arg(flag).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

/// Runs a tool and waits for it.
///
/// # Errors
/// Its standard error, if it does not succeed.
pub fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{name} cannot be run: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}
