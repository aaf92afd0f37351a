//! Signals that do not end the broker, and standard streams that are closed.

use std::path::Path;
use std::process::{Command, Stdio};

use driftq_tests::daemon::{Launcher, Signal, free_addr};
use driftq_tests::http::{Client, Request};

use crate::harness::{Server, TIMEOUT, config_file, driftqd, wait_until};

#[test]
fn hangup_reloads_the_log_level_and_no_other_signal_matters() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |toml: &str| config_file(folder.path(), toml);
    let config = write("[log]\nlevel = \"info\"\n");
    let mut server = Server::on(&folder.path().join("data"), &["--config", &config]);
    let malformed = |server: &Server| server.send_raw(b"\x00\x01\r\n\r\n");
    malformed(&server);
    for signal in [Signal::USR1, Signal::USR2, Signal::HUP] {
        server.signal(signal);
    }
    let log = server.log_with("the log level is reloaded");
    assert!(!log.contains("connection closed"), "logged at debug only: {log}");
    write("[log]\nlevel = \"debug\"\n");
    server.signal(Signal::HUP);
    server.log_with("level=\"debug\"");
    malformed(&server);
    server.log_with("connection closed");
    // A bad file is reported and changes nothing.
    write("[log]\nlevel = \"inof\"\n");
    server.signal(Signal::HUP);
    let log = server.log_with("nothing is reloaded");
    assert!(log.contains("ERROR SIGHUP") && log.contains("level = \"inof\""), "{log}");
    // Other settings are not reloaded, and that is said.
    write("[log]\nlevel = \"info\"\n[http]\nconnections_max = 7\n");
    server.signal(Signal::HUP);
    server.log_with("apply after a restart");
    assert_eq!(server.get("/v1/readyz").status, 200);
    assert!(server.is_running());
    assert_eq!(server.terminate().code(), Some(0));
}

#[test]
fn standard_streams_that_are_closed_at_the_start_are_not_taken_for_files() {
    let folder = tempfile::tempdir().expect("a folder");
    let addr = free_addr().expect("a port");
    let launcher = Launcher::new(driftqd(), &folder.path().join("data"), &folder.path().join("log")).addr(addr);
    let launcher = launcher.wrapper(&["sh", "-c", "exec \"$0\" \"$@\" <&- >&- 2>&-"]);
    let mut daemon = launcher.start().expect("it starts");
    for descriptor in 0..3 {
        let target = std::fs::read_link(format!("/proc/{}/fd/{descriptor}", daemon.pid())).expect("open");
        assert_eq!(target, Path::new("/dev/null"), "descriptor {descriptor}");
    }
    let client = Client::new(addr, TIMEOUT);
    let create = Request { method: "POST", target: "/v1/topics", headers: &[], body: r#"{"name":"t"}"# };
    assert_eq!(client.call(&create).expect("an answer").status, 201);
    assert_eq!(daemon.stop().expect("it stops").code(), Some(0));
}

#[test]
fn output_to_a_closed_pipe_is_no_panic() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let missing = missing.to_str().expect("a path in UTF-8");
    for (args, code) in [
        (&["config"][..], 0),
        (&["--addr", "nonsense"], 2),
        (&["--config", missing], 2),
        (&["wal", "verify", missing], 2),
        (&["clock", "rebase", missing], 2),
    ] {
        let mut command = Command::new(driftqd());
        command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it runs");
        drop((child.stdout.take(), child.stderr.take()));
        let mut status = None;
        wait_until("it exits", || {
            status = child.try_wait().expect("waited for");
            status.is_some()
        });
        assert_eq!(status.and_then(|status| status.code()), Some(code), "{args:?}");
    }
}
