//! The forged histories as files, through the program itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::builder::History;
use crate::forgeries;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories")
}

/// Exit code, what was printed, what was complained about.
fn check(path: &Path) -> (i32, String, String) {
    let ended = Command::new(env!("CARGO_BIN_EXE_driftq-history")).arg("check").arg(path).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("it writes text");
    (ended.status.code().expect("it ends by itself"), text(ended.stdout), text(ended.stderr))
}

/// A file of the test's own.
fn written(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("the test may write");
    path
}

#[test]
fn the_files_are_the_forgeries_word_for_word() {
    let mut names: Vec<String> = Vec::new();
    for forgery in forgeries::all() {
        let path = folder().join(forgery.name).with_extension("jsonl");
        if std::env::var_os("DRIFTQ_WRITE_HISTORIES").is_some() {
            std::fs::create_dir_all(folder()).expect("a folder");
            std::fs::write(&path, forgery.history.text()).expect("a file");
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            kept,
            forgery.history.text(),
            "{}: run this test once with DRIFTQ_WRITE_HISTORIES=1",
            path.display()
        );
        names.push(format!("{}.jsonl", forgery.name));
    }
    let listed = std::fs::read_dir(folder()).expect("the folder is there");
    for file in listed {
        let name = file.expect("it can be listed").file_name();
        assert!(names.iter().any(|known| **known == *name), "{} belongs to no forgery", name.display());
    }
}

#[test]
fn a_forged_file_fails_with_its_sentence_and_exit_code_1() {
    for forgery in forgeries::all() {
        let (code, out, err) = check(&folder().join(forgery.name).with_extension("jsonl"));
        assert_eq!((code, err.as_str()), (1, ""), "{}: {out}", forgery.name);
        assert_eq!(out.lines().last(), Some("FAILED"), "{}", forgery.name);
        let told = format!("{}: ", forgery.check);
        let sentence = out.lines().find(|line| line.starts_with(&told) && line.contains(forgery.sentence));
        assert!(sentence.is_some(), "{}: {out}", forgery.name);
    }
}

#[test]
fn an_honest_file_passes_with_its_figures_and_exit_code_0() {
    let mut history = History::new();
    history.produced(0..3);
    history.consume("w1", "g");
    history.work("w1", 0..3, 0);
    let (code, out, err) = check(&written("honest.jsonl", &history.drained().text()));
    assert_eq!((code, out.lines().last(), err.as_str()), (0, Some("PASSED"), ""), "{out}");
    assert!(out.starts_with("22 lines: 7 calls (6 ok, 0 fail, 1 info), 3 deliveries\n"), "{out}");
    assert!(out.lines().any(|line| line.split_whitespace().eq("lost 3 messages × groups 0".split(' '))), "{out}");
}

#[test]
fn what_cannot_be_read_is_named_by_its_line_and_exit_code_2() {
    let mut history = History::new();
    history.produced(0..1);
    let text = history.text();
    let lines: Vec<&str> = text.lines().collect();
    let cases = [
        (
            "torn-inside.jsonl",
            format!("{}\n{{\"seq\":\n{}\n", lines[0], lines[1]),
            "line 2 is not an entry of a history",
        ),
        ("backwards.jsonl", format!("{}\n{}\n", lines[1], lines[0]), "line 2 has seq 1, which does not come after 2"),
        (
            "answer.jsonl",
            format!("{}\n", lines[3]),
            "line 1 (seq 4): producer (incarnation 0) is answered a produce that it has not asked for",
        ),
        (
            "open.jsonl",
            format!("{}\n{}\n", lines[2], lines[2].replace("\"seq\":3", "\"seq\":4")),
            "line 2 (seq 4): producer (incarnation 0) asks for a produce while its last one, seq 3, is open",
        ),
    ];
    for (name, text, complaint) in cases {
        let (code, out, err) = check(&written(name, &text));
        assert_eq!((code, out.as_str()), (2, ""), "{name}: {err}");
        assert!(err.starts_with("error: ") && err.contains(complaint), "{name}: {err}");
    }
    let (code, _, err) = check(Path::new("no/such/file.jsonl"));
    assert!(code == 2 && err.contains("no/such/file.jsonl"), "{err}");
}

#[test]
fn a_torn_last_line_is_left_out() {
    let mut history = History::new();
    history.produced(0..3);
    history.consume("w1", "g");
    history.work("w1", 0..3, 0);
    let mut text = history.drained().text();
    text.push_str("{\"seq\":23,\"t\":17663184");
    let (code, out, _) = check(&written("torn.jsonl", &text));
    assert_eq!((code, out.lines().last()), (0, Some("PASSED")), "{out}");
}
