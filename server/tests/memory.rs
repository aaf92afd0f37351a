//! `driftqd --memory` and `--chaos` as flags of a process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// The error message of `driftqd` with these flags and variables.
fn refused(flags: &[&str], env: &[(&str, &str)]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_driftqd"));
    // Were they accepted, it would listen on a free port, and not end.
    let output = command.arg("config").args(flags).env_clear().envs(env.iter().copied()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{flags:?} {env:?}");
    let message = String::from_utf8(output.stderr).unwrap();
    message.strip_prefix("driftqd: ").unwrap_or(&message).trim_end().to_owned()
}

#[test]
fn chaos_without_memory_is_refused() {
    let message = "--chaos needs --memory: simulated crashes must not touch a data folder";
    assert_eq!(refused(&["--chaos", "seed=1"], &[]), message);
    assert_eq!(refused(&["--chaos", "seed=1", "--no-wal"], &[]), message);
    assert_eq!(refused(&["--chaos", "seed=1", "--memory=false"], &[]), message);
    assert_eq!(refused(&[], &[("DRIFTQ_CHAOS", "seed=1")]), message);
}

#[test]
fn invalid_chaos_is_refused_with_the_flag_or_variable_and_the_field() {
    let of_flag = |chaos: &str| refused(&["--memory", "--chaos", chaos], &[]);
    assert_eq!(of_flag("duplicate=0.1"), "--chaos: seed is required, for example seed=42");
    assert_eq!(of_flag("seed=1,delay=2"), "--chaos: delay: \"2\" is not a probability from 0 to 1");
    assert_eq!(of_flag("seed=1,seed=2"), "--chaos: seed is given twice");
    assert!(of_flag("seed=1,crash=0.1").starts_with("--chaos: unknown field \"crash\"; fields are seed, "));
    let of_variable = refused(&["--memory"], &[("DRIFTQ_CHAOS", "seed=x")]);
    assert!(of_variable.starts_with("DRIFTQ_CHAOS: seed: \"x\" is not an integer"), "{of_variable}");
}

#[test]
fn memory_contradicts_what_names_a_log_on_disk() {
    assert_eq!(refused(&["--memory", "--data-dir", "d"], &[]), "--memory contradicts --data-dir");
    assert_eq!(refused(&["--memory", "--no-wal"], &[]), "--memory contradicts --no-wal");
    assert_eq!(refused(&["--memory"], &[("DRIFTQ_DATA_DIR", "d")]), "--memory contradicts DRIFTQ_DATA_DIR");
    assert_eq!(refused(&["--no-wal"], &[("DRIFTQ_MEMORY", "yes")]), "DRIFTQ_MEMORY contradicts --no-wal");
    let reset = refused(&["--memory", "--reset-wal"], &[]);
    assert!(reset.starts_with("--reset-wal contradicts wal = false, --no-wal and --memory"), "{reset}");
}

/// A running `driftqd`, killed when dropped.
struct Daemon {
    child: Child,
    addr: String,
}

impl Daemon {
    /// Starts it in a folder, with no flags but these, and waits until it listens.
    fn start(folder: &Path, flags: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_driftqd"));
        command.args(["--addr", "127.0.0.1:0"]).args(flags).current_dir(folder).env_clear();
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let log = BufReader::new(child.stderr.take().unwrap());
        let line = log.lines().map(Result::unwrap).find(|line| line.contains("listening on http://"));
        let line = line.expect("it listens");
        assert!(line.contains("log in memory"), "{line}");
        Self { child, addr: line.rsplit_once("http://").unwrap().1.to_owned() }
    }

    fn get(&self, target: &str) -> String {
        let mut socket = TcpStream::connect(&self.addr).unwrap();
        let host = &self.addr;
        write!(socket, "GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
fn broker_in_memory_uses_no_folder_and_stops_when_it_is_told_to() {
    for flags in [&["--memory"][..], &["--memory", "--chaos", "seed=42,duplicate=0.5"]] {
        let folder = tempfile::tempdir().unwrap();
        let mut daemon = Daemon::start(folder.path(), flags);
        let version = daemon.get("/v1/version");
        assert!(version.starts_with("HTTP/1.1 200") && version.contains("\"wal_enabled\":false"), "{version}");
        let chaos = daemon.get("/v1/chaos");
        match flags.len() {
            1 => assert!(chaos.starts_with("HTTP/1.1 404"), "{chaos}"),
            _ => assert!(chaos.contains("\"seed\":42,\"duplicate\":0.5"), "{chaos}"),
        }
        kill_process(Pid::from_child(&daemon.child), Signal::TERM).unwrap();
        assert!(daemon.child.wait().unwrap().success());
        assert_eq!(folder.path().read_dir().unwrap().count(), 0);
    }
}
