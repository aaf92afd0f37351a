//! What is printed on a terminal: a pseudo-terminal of 80 columns.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::broker::Broker;
use crate::program::Driftq;

/// Runs it on a terminal at which `typed` is typed. Returns what is then on the terminal, and the exit code.
fn on_terminal(mut driftq: Driftq, typed: &str) -> (String, i32) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&controller).expect("granted");
    unlockpt(&controller).expect("unlocked");
    let path = ptsname(&controller, Vec::new()).expect("its name").into_string().expect("UTF-8");
    let terminal: OwnedFd = OpenOptions::new().read(true).write(true).open(path).expect("the terminal").into();
    tcsetwinsize(&terminal, Winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 }).expect("its size");
    let copy = || terminal.try_clone().expect("copied");
    driftq.command.stdin(copy()).stdout(copy()).stderr(copy()).env("TERM", "xterm-256color");
    let mut process = driftq.command.spawn().expect("driftq starts");
    // With the command's own copies the terminal would stay open.
    drop((driftq, terminal));
    let mut controller = File::from(controller);
    controller.write_all(typed.as_bytes()).expect("typed");
    let (mut shown, mut chunk) = (Vec::new(), [0; 4_096]);
    // It fails when the last process has closed the terminal.
    while let Ok(read @ 1..) = controller.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..read]);
    }
    let code = process.wait().expect("it ends").code().expect("no signal ended it");
    (String::from_utf8(shown).expect("UTF-8").replace("\r\n", "\n"), code)
}

#[test]
fn terminal_gets_colored_tables_and_none_with_no_color() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "orders"]);
    broker.run(&["groups", "create", "orders", "kitchen"]);
    let (shown, code) = on_terminal(broker.driftq(&["topics", "list"]), "");
    let expected = "\u{1b}[2mTOPIC\u{1b}[0m   \u{1b}[2mPARTITIONS\u{1b}[0m  \u{1b}[2mUNACKED\u{1b}[0m  \
        \u{1b}[2mBYTES\u{1b}[0m  \u{1b}[2mGROUPS\u{1b}[0m  \u{1b}[2mLAG\u{1b}[0m  \u{1b}[2mIN FLIGHT\u{1b}[0m\n\
        orders           1        0    0 B       1    0          0\n";
    assert_eq!((shown.as_str(), code), (expected, 0));
    let (shown, _) = on_terminal(broker.driftq(&["groups", "list"]).variable("NO_COLOR", "1"), "");
    let expected = "TOPIC   GROUP    STREAMS  LAG  IN FLIGHT  WAITING  OLDEST  SKIPPED  STATE\n\
        orders  kitchen        0    0          0        0                0  ok\n";
    assert_eq!(shown, expected);
    let (shown, _) = on_terminal(broker.driftq(&["topics", "list", "--names", "--json"]), "");
    assert_eq!(shown, "{\"topics\":[\"orders\"]}\n");
}

#[test]
fn payload_cannot_control_the_terminal_and_is_cut_to_its_width() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    broker.run(&["produce", "t", "a\u{1b}]0;title\u{7}\nb"]);
    broker.run(&["produce", "t", &"x".repeat(200)]);
    let (shown, _) = on_terminal(broker.driftq(&["peek", "t"]).variable("NO_COLOR", "1"), "");
    let cut = format!("  0         1  {}…", "x".repeat(64));
    assert_eq!(shown, format!("  0         0  a\\u{{1b}}]0;title\\u{{7}}\\nb\n{cut}\n"));
    assert_eq!(cut.chars().count(), 80);
}

#[test]
fn deletion_is_asked_for_and_done_with_yes_alone() {
    let broker = Broker::start();
    broker.run(&["topics", "create", "t"]);
    let (shown, code) = on_terminal(broker.driftq(&["topics", "delete", "t"]), "n\n");
    assert!(shown.contains("Delete the topic \"t\" with 0 messages and 0 groups? [y/N]"), "{shown}");
    assert_eq!(code, 2);
    assert_eq!(broker.json(&["topics", "list", "--names"])["topics"], serde_json::json!(["t"]));
    let (shown, code) = on_terminal(broker.driftq(&["topics", "delete", "t"]), "y\n");
    assert!(shown.ends_with("deleted the topic \"t\"\n"), "{shown}");
    assert_eq!(code, 0);
    assert_eq!(broker.json(&["topics", "list", "--names"])["topics"], serde_json::json!([]));
}

#[test]
fn bench_draws_a_bar_and_leaves_a_table() {
    let broker = Broker::start();
    let (shown, code) = on_terminal(broker.driftq(&["bench", "-n", "200"]).variable("NO_COLOR", "1"), "");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("producing") && shown.contains("consume and ack"), "{shown:?}");
}
