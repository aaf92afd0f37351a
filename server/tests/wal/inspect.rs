//! `driftqd wal inspect` on a real folder: its output, its exit codes, and that it changes nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command as Process, Output as Finished};
use std::time::SystemTime;

use driftq_core::command::Ack;
use driftq_core::command::{Claim, GroupLifetime, OnDisconnect, Subscribe, TokenClaim};
use driftq_core::reply::Delivery;
use driftq_core::types::{GroupName, GroupStart, Millis, OwnerName, TopicName};
use driftq_core::{Command, Output};
use driftq_files::DataFolder;
use serde_json::Value;

use super::support::Broker;

const LEASE_MS: u64 = 2_000;

fn inspect(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let run = Process::new(env!("CARGO_BIN_EXE_driftqd")).args(["wal", "inspect"]).arg(dir).args(args).output();
    let Finished { status, stdout, stderr } = run.unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

/// Subscribes a worker that receives one message of topic `orders` for group `billing`.
fn receive(broker: &mut Broker, owner: &str) -> Delivery {
    let outputs = broker.ask(Command::Subscribe(Subscribe {
        topic: TopicName::new("orders").unwrap(),
        group: GroupName::new("billing").unwrap(),
        owner: OwnerName::new(owner).unwrap(),
        lease: Some(Millis(LEASE_MS)),
        prefetch: 1,
        deliveries_max: Some(1),
        start: GroupStart::Earliest,
        on_disconnect: OnDisconnect::Keep,
        group_lifetime: GroupLifetime::Durable,
    }));
    let delivered = outputs.into_iter().find_map(|output| match output {
        Output::Deliver { delivery, .. } => Some(*delivery),
        _ => None,
    });
    delivered.expect("a message is delivered")
}

/// Makes a log in which `orders/0` was delivered twice: the lease of `w1` expired, `w2` acked. Returns the broker's
/// last digest.
fn make_redelivery(dir: &Path) -> String {
    let mut broker = Broker::open(dir, u64::MAX, 1_766_318_400_000);
    broker.topic("orders", 2);
    broker.produce("orders", 0);
    receive(&mut broker, "w1");
    broker.now = broker.now.after(Millis(LEASE_MS));
    broker.settle();
    let second = receive(&mut broker, "w2");
    broker.ask(Command::Ack(Ack(Claim {
        topic: TopicName::new("orders").unwrap(),
        group: GroupName::new("billing").unwrap(),
        partition: second.partition,
        offset: second.offset,
        owner: OwnerName::new("w2").unwrap(),
        token: TokenClaim::Shown(second.token),
    })));
    format!("{:016x}", broker.pipeline.state().digest())
}

/// Every file of a folder: its bytes and when it was last written.
fn contents(path: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let read = |entry: &std::fs::DirEntry| {
        (std::fs::read(entry.path()).unwrap(), entry.metadata().unwrap().modified().unwrap())
    };
    files.map(|entry| (entry.file_name().into_string().unwrap(), read(&entry))).collect()
}

#[test]
fn overview_ends_with_digest_of_broker_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let digest = make_redelivery(dir.path());
    let before = contents(dir.path());
    assert!(before.contains_key("lock"));
    let (code, out, err) = inspect(dir.path(), &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let last = out.lines().last().unwrap();
    assert!(last.starts_with(&format!("digest {digest} at LSN ")), "{out}");
    for text in ["records/s", "wal-00000000000000000001.seg", "orders: 2 partitions, 1 messages accepted", "expired"] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let (_, out, _) = inspect(dir.path(), &["--json"]);
    let overview: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(overview["digest"], Value::from(digest));
    assert!(overview["rates"]["rows"].is_array());
    assert!(contents(dir.path()) == before, "the folder has changed");
}

#[test]
fn message_history_lists_every_delivery_with_its_end() {
    let dir = tempfile::tempdir().unwrap();
    make_redelivery(dir.path());
    let before = contents(dir.path());
    let (code, out, _) = inspect(dir.path(), &["--message", "orders/0"]);
    assert_eq!(code, 0);
    for text in ["attempt 1: ", "to w1", ": lease expired after 2.0 s", "attempt 2: ", "to w2", ": acked after "] {
        assert!(out.contains(text), "{text}: {out}");
    }
    let (code, out, _) = inspect(dir.path(), &["--message", "orders/0", "--json"]);
    let history: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &history["deliveries"][1]["owner"]), (0, &Value::from("w2")));
    assert!(contents(dir.path()) == before, "the folder has changed");
}

#[test]
fn point_and_record_range_limit_what_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    make_redelivery(dir.path());
    let (code, out, _) = inspect(dir.path(), &["--at", "-1s"]);
    assert_eq!(code, 0);
    assert!(out.contains("billing") && !out.contains("files"), "{out}");
    let (code, out, _) = inspect(dir.path(), &["--records", "--from", "2", "--to", "3"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    let (code, out, _) = inspect(dir.path(), &["--records", "--from", "2", "--to", "3", "--json"]);
    let lsns = out.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["lsn"].as_u64());
    assert_eq!((code, lsns.collect::<Vec<_>>()), (0, vec![Some(2), Some(3)]), "{out}");
    let (code, _, err) = inspect(dir.path(), &["--from", "3"]);
    assert!(code == 2 && err.contains("--records"), "{err}");
}

#[test]
fn missing_log_topic_or_message_is_refused_with_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], text: &str| {
        let (code, out, err) = inspect(dir.path(), args);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.contains(text), "{text}: {err}");
    };
    refused(&[], "there is no log here");
    let (code, _, err) = inspect(&dir.path().join("none"), &[]);
    assert!(code == 2 && err.contains("there is no data folder"), "{err}");
    make_redelivery(dir.path());
    refused(&["--at", "1000000"], "LSN 1000000 is not in the log, which reaches from LSN 0 to LSN ");
    refused(&["--at", "2001-01-01T00:00:00Z"], "2001-01-01T00:00:00.000Z is not in the log");
    refused(&["--at", "soon"], "neither an LSN nor a time");
    refused(&["--message", "orders/1"], "there is no message orders/1");
    refused(&["--message", "invoices/0"], "its topics are: orders");
    refused(&["--message", "orders"], "is not a message");
    std::fs::create_dir_all(dir.path().join("salvage-tmp")).unwrap();
    std::fs::write(dir.path().join("salvage-tmp/plan"), "").unwrap();
    refused(&[], "`driftqd wal salvage`");
}

#[test]
fn folder_in_use_by_broker_is_refused_but_readers_share_it() {
    let dir = tempfile::tempdir().unwrap();
    make_redelivery(dir.path());
    let broker = DataFolder::open(dir.path()).unwrap();
    let (code, _, err) = inspect(dir.path(), &[]);
    assert!(code == 2 && err.contains("is in use by another driftqd"), "{err}");
    drop(broker);
    let reader = driftq_inspect::LogReader::open(dir.path()).unwrap();
    assert_eq!(inspect(dir.path(), &[]).0, 0);
    drop(reader);
}
