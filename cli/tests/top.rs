//! `driftq top` in a terminal of tmux.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::broker::Broker;

const LIMIT: Duration = Duration::from_secs(30);

/// A tmux server of its own, with one session. It ends when this is dropped.
struct Tmux {
    folder: tempfile::TempDir,
}

impl Tmux {
    /// Starts a shell command at 80×24; none where there is no tmux.
    fn start(command: &str) -> Option<Self> {
        if !Command::new("tmux").arg("-V").output().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: there is no tmux");
            return None;
        }
        let tmux = Self { folder: tempfile::tempdir().expect("a folder") };
        tmux.run(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-s", "top", command]);
        Some(tmux)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn run(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.socket()).args(arguments).env_remove("TMUX").env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("tmux runs");
        assert!(output.status.success(), "tmux {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    fn keys(&self, keys: &str) {
        self.run(&["send-keys", "-t", "top", keys]);
    }

    /// Waits until the screen is as it should be. tmux reports no changes, so it is looked at again and again.
    fn wait_for(&self, what: &str, is_right: impl Fn(&str) -> bool) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let screen = self.run(&["capture-pane", "-p", "-t", "top"]);
            if is_right(&screen) {
                return screen;
            }
            assert!(Instant::now() < until, "{what} did not appear within {LIMIT:?}:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = Command::new("tmux").arg("-S").arg(self.socket()).arg("kill-server").output();
    }
}

fn top(broker: &Broker) -> Option<Tmux> {
    // The shell stays, so that the exit code and the restored terminal can be seen.
    let program = env!("CARGO_BIN_EXE_driftq");
    Tmux::start(&format!("{program} top --url {} --interval 200ms; echo ended with $?; read line", broker.url()))
}

#[test]
fn top_shows_topics_survives_a_killed_broker_resizes_and_quits() {
    let mut broker = Broker::start();
    for topic in ["orders", "receipts"] {
        broker.run(&["topics", "create", topic]);
    }
    broker.driftq(&["produce", "orders", "--lines"]).input("a\nb\nc\n").run().succeeded();
    broker.run(&["groups", "create", "orders", "kitchen"]);
    broker.run(&["produce", "receipts", "v"]);
    let printed = broker.run(&["consume", "receipts", "-g", "archive", "-n", "1"]);
    broker.driftq(&["nack", "--lines", "--permanent"]).input(printed).run().succeeded();
    let Some(tmux) = top(&broker) else { return };
    let screen = tmux.wait_for("the topics", |screen| screen.contains("receipts"));
    assert!(screen.lines().next().is_some_and(|line| line.ends_with("ready")), "{screen}");
    let kitchen = screen.lines().find(|line| line.contains("  kitchen")).expect("the group");
    assert!(kitchen.contains(" 3 ") && kitchen.trim_end().ends_with("no stream"), "{screen}");
    let receipts = screen.lines().find(|line| line.starts_with("receipts")).expect("the topic");
    assert!(receipts.ends_with(" 1"), "its dead letter: {screen}");
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    let order = |screen: &str, first: &str, second: &str| screen.find(first) < screen.find(second);
    assert!(order(&screen, "\norders", "\nreceipts"), "the longest lag first: {screen}");
    tmux.keys("t");
    tmux.wait_for("the order of names", |screen| screen.contains("sort: topic"));
    tmux.keys("t");
    tmux.wait_for("the reversed order", |screen| order(screen, "\nreceipts", "\norders"));
    tmux.keys("p");
    tmux.wait_for("the pause", |screen| screen.contains("PAUSED"));
    broker.run(&["produce", "orders", "d"]);
    tmux.keys("p");
    tmux.wait_for("the new lag", |screen| screen.contains(" 4 ") && !screen.contains("PAUSED"));
    broker.kill();
    let screen = tmux.wait_for("the loss of the broker", |screen| screen.contains("no answer for"));
    assert!(screen.contains("orders"), "the last figures stay: {screen}");
    broker.start_again();
    tmux.wait_for("the return of the broker", |screen| !screen.contains("no answer for") && screen.contains("orders"));
    tmux.run(&["resize-window", "-t", "top", "-x", "120", "-y", "10"]);
    let wide = tmux.wait_for("the wide table", |screen| screen.contains("WAITING"));
    assert!(wide.lines().nth(9).is_some_and(|line| line.starts_with("q quit")), "{wide}");
    tmux.keys("q");
    let ended = tmux.wait_for("the end", |screen| screen.contains("ended with 0"));
    assert!(!ended.contains("driftq top"), "the screen is restored: {ended}");
}

#[test]
fn top_without_a_broker_says_so_and_waits_for_it() {
    let mut broker = Broker::start();
    broker.run(&["topics", "create", "orders"]);
    broker.kill();
    let Some(tmux) = top(&broker) else { return };
    tmux.wait_for("the message", |screen| screen.contains("no answer for") && screen.contains("refused"));
    broker.start_again();
    tmux.wait_for("the topic", |screen| screen.contains("orders"));
    tmux.keys("C-c");
    tmux.wait_for("the end", |screen| screen.contains("ended with 0"));
}
