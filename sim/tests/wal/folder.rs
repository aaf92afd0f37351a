//! The program on a real folder: what it prints, what it refuses, and that it changes nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};
use std::time::SystemTime;

use driftq_core::record::Retention;
use driftq_files::DataFolder;
use serde_json::Value;

use crate::rig::Rig;

fn wal(dir: &Path, args: &[&str]) -> (i32, String, String) {
    let run = Command::new(env!("CARGO_BIN_EXE_driftq-sim")).arg("wal").arg(dir).args(args).output();
    let Output { status, stdout, stderr } = run.expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("the program writes text");
    (status.code().expect("it ends by itself"), text(stdout), text(stderr))
}

/// A folder in which a message was delivered twice. Gives the broker's last digest.
fn redelivered(path: &Path) -> String {
    let mut rig = Rig::on(DataFolder::open(path).unwrap().storage());
    rig.create("orders", 2, Retention::default());
    rig.create_group("orders", "billing");
    rig.produce("orders");
    rig.take("orders", "billing", "w1");
    rig.pass(2_000);
    let second = rig.take("orders", "billing", "w2");
    rig.ack("orders", "billing", "w2", &second);
    format!("{:016x}", rig.broker.state().digest())
}

/// Every file: its bytes and when it was last written.
fn contents(path: &Path) -> BTreeMap<String, (Vec<u8>, SystemTime)> {
    let files = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let read = |entry: &std::fs::DirEntry| {
        (std::fs::read(entry.path()).unwrap(), entry.metadata().unwrap().modified().unwrap())
    };
    files.map(|entry| (entry.file_name().into_string().unwrap(), read(&entry))).collect()
}

#[test]
fn the_program_tells_a_log_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let digest = redelivered(folder.path());
    let before = contents(folder.path());
    assert!(before.contains_key("lock"));
    let (code, out, err) = wal(folder.path(), &[]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    let last = out.lines().last().unwrap();
    assert!(last.starts_with(&format!("digest {digest} at LSN ")), "{out}");
    for words in ["records/s", "wal-00000000000000000001.seg", "orders: 2 partitions, 1 messages taken", "lease ended"]
    {
        assert!(out.contains(words), "{words}: {out}");
    }

    let (code, out, _) = wal(folder.path(), &["--message", "orders/0"]);
    assert_eq!(code, 0);
    for words in ["attempt 1: ", "to w1", ": lease ended after 2.0 s", "attempt 2: ", "to w2", ": acked after 0 ms"] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let (code, out, _) = wal(folder.path(), &["--message", "orders/0", "--json"]);
    let life: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &life["deliveries"][1]["owner"]), (0, &Value::from("w2")));
    let (_, out, _) = wal(folder.path(), &["--json"]);
    let overview: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(overview["digest"], Value::from(digest));
    assert!(overview["rates"]["rows"].is_array());

    let (code, out, _) = wal(folder.path(), &["--at", "-1s"]);
    assert_eq!(code, 0);
    assert!(out.contains("billing") && !out.contains("files"), "{out}");
    let (code, out, _) = wal(folder.path(), &["--records", "--from", "2", "--to", "3"]);
    assert_eq!((code, out.lines().count()), (0, 2), "{out}");
    assert!(contents(folder.path()) == before, "something in the folder has changed");
}

#[test]
fn a_log_is_shown_by_the_same_page_as_a_life() {
    let (folder, pages) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    redelivered(folder.path());
    let page = pages.path().join("made/for/it.html");
    let show = |args: &[&str]| {
        let args = [args, &["--view", page.to_str().unwrap()]].concat();
        let (code, out, err) = wal(folder.path(), &args);
        assert_eq!(code, 0, "{err}");
        let page = std::fs::read_to_string(&page).unwrap();
        let (_, story) = page.split_once("application/json").and_then(|(_, rest)| rest.split_once('>')).unwrap();
        let story: Value = serde_json::from_str(story.split_once("</script>").unwrap().0).unwrap();
        (out, story)
    };
    let (out, story) = show(&[]);
    let moments = story["steps"].as_array().unwrap();
    assert!(out.starts_with(&format!("{} records\nwritten to ", moments.len())), "{out}");
    let mut view = Command::new(env!("CARGO_BIN_EXE_driftq-sim"));
    let told = view.arg("view").arg(folder.path()).arg("--out").arg(&page).output().unwrap().stdout;
    assert_eq!(String::from_utf8(told).unwrap(), out, "a folder can be given to view as well");
    assert_eq!((&story["unit"], story["leases"].as_array().unwrap().len()), (&Value::from("record"), 2));
    let (_, some) = show(&["--from", "3", "--to", "4"]);
    assert_eq!(some["steps"].as_array().unwrap().len(), 2);
    let (_, one) = show(&["--message", "orders/0"]);
    assert_eq!(one["title"], Value::from("orders/0"));
    assert!(one["steps"].as_array().unwrap().len() < moments.len());
    let (code, _, err) = wal(folder.path(), &["--from", "3"]);
    assert!(code == 2 && err.contains("--records"), "{err}");
}

#[test]
fn what_is_no_log_or_not_in_it_is_misuse() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |args: &[&str], words: &str| {
        let (code, out, err) = wal(folder.path(), args);
        assert_eq!((code, out.as_str()), (2, ""), "{err}");
        assert!(err.starts_with("error: ") && err.contains(words), "{words}: {err}");
    };
    refused(&[], "there is no log here");
    let (code, _, err) = wal(&folder.path().join("none"), &[]);
    assert!(code == 2 && err.contains("there is no data folder"), "{err}");
    redelivered(folder.path());
    refused(&["--at", "100000"], "LSN 100000 is not there: what is left of the log reaches from LSN 0 to LSN ");
    refused(&["--at", "2001-01-01T00:00:00Z"], "2001-01-01T00:00:00.000Z is not there");
    refused(&["--at", "yesterday"], "is neither an LSN nor a time");
    refused(&["--message", "orders/7"], "there is no message orders/7");
    refused(&["--message", "invoices/0"], "there are orders");
    refused(&["--message", "orders"], "is not a message");
    std::fs::create_dir_all(folder.path().join("salvage-tmp")).unwrap();
    std::fs::write(folder.path().join("salvage-tmp/plan"), "").unwrap();
    refused(&[], "finish it with `driftqd wal salvage`");
}

#[test]
fn a_folder_in_use_is_refused_and_one_that_is_read_can_be_read_by_others() {
    let folder = tempfile::tempdir().unwrap();
    redelivered(folder.path());
    let broker = DataFolder::open(folder.path()).unwrap();
    let (code, _, err) = wal(folder.path(), &[]);
    assert!(code == 2 && err.contains("is in use by another driftqd"), "{err}");
    drop(broker);
    let reader = driftq_sim::wal::Wal::open(folder.path()).unwrap();
    assert_eq!(wal(folder.path(), &[]).0, 0);
    drop(reader);
}
