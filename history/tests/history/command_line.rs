//! `driftq-history check` on files: output and exit codes.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::builder::History;
use crate::forgeries;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/histories")
}

/// Exit code, standard output and standard error.
fn check(path: &Path) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_driftq-history")).arg("check").arg(path).output().expect("the program starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("an exit code"), text(output.stdout), text(output.stderr))
}

/// Writes a file of the test's own.
fn write(name: &str, text: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, text).expect("the file is written");
    path
}

#[test]
fn forgery_files_are_up_to_date() {
    let mut names: Vec<String> = Vec::new();
    for forgery in forgeries::all() {
        let path = folder().join(forgery.name).with_extension("jsonl");
        if std::env::var_os("DRIFTQ_WRITE_HISTORIES").is_some() {
            std::fs::create_dir_all(folder()).expect("a folder");
            std::fs::write(&path, forgery.history.text()).expect("a file");
        }
        let text = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(
            text,
            forgery.history.text(),
            "{}: run this test once with DRIFTQ_WRITE_HISTORIES=1",
            path.display()
        );
        names.push(format!("{}.jsonl", forgery.name));
    }
    let listed = std::fs::read_dir(folder()).expect("the folder of forgeries");
    for file in listed {
        let name = file.expect("a file").file_name();
        assert!(names.iter().any(|known| **known == *name), "{} belongs to no forgery", name.display());
    }
}

#[test]
fn forged_file_fails_with_its_violation_and_exit_code_1() {
    for forgery in forgeries::all() {
        let (code, out, err) = check(&folder().join(forgery.name).with_extension("jsonl"));
        assert_eq!((code, err.as_str()), (1, ""), "{}: {out}", forgery.name);
        assert_eq!(out.lines().last(), Some("FAILED"), "{}", forgery.name);
        let prefix = format!("{}: ", forgery.check);
        let sentence = out.lines().find(|line| line.starts_with(&prefix) && line.contains(forgery.sentence));
        assert!(sentence.is_some(), "{}: {out}", forgery.name);
    }
}

#[test]
fn correct_file_passes_with_its_counts_and_exit_code_0() {
    let mut history = History::new();
    history.produced(0..3);
    history.consume("w1", "g");
    history.work("w1", 0..3, 0);
    let (code, out, err) = check(&write("correct.jsonl", &history.drained().text()));
    assert_eq!((code, out.lines().last(), err.as_str()), (0, Some("PASSED"), ""), "{out}");
    assert!(out.starts_with("22 lines: 7 calls (6 ok, 0 fail, 1 info), 3 deliveries\n"), "{out}");
    assert!(out.lines().any(|line| line.split_whitespace().eq("lost 3 messages × groups 0".split(' '))), "{out}");
}

#[test]
fn unreadable_file_is_refused_with_its_line_and_exit_code_2() {
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
            "line 1 (seq 4): producer (incarnation 0) has an answer to a produce without its invoke",
        ),
        (
            "open.jsonl",
            format!("{}\n{}\n", lines[2], lines[2].replace("\"seq\":3", "\"seq\":4")),
            "line 2 (seq 4): producer (incarnation 0) invokes a produce while its last one, seq 3, is open",
        ),
    ];
    for (name, text, error) in cases {
        let (code, out, err) = check(&write(name, &text));
        assert_eq!((code, out.as_str()), (2, ""), "{name}: {err}");
        assert!(err.starts_with("error: ") && err.contains(error), "{name}: {err}");
    }
    let (code, _, err) = check(Path::new("no/such/file.jsonl"));
    assert!(code == 2 && err.contains("no/such/file.jsonl"), "{err}");
}

#[test]
fn torn_last_line_is_ignored() {
    let mut history = History::new();
    history.produced(0..3);
    history.consume("w1", "g");
    history.work("w1", 0..3, 0);
    let mut text = history.drained().text();
    text.push_str("{\"seq\":23,\"t\":17663184");
    let (code, out, _) = check(&write("torn.jsonl", &text));
    assert_eq!((code, out.lines().last()), (0, Some("PASSED")), "{out}");
}

#[test]
fn several_files_are_reported_each_and_one_failure_fails_all() {
    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    let (correct, forged) = (write("first.jsonl", &history.drained().text()), folder().join("lost.jsonl"));
    let run = |args: &[&Path]| {
        let output = Command::new(env!("CARGO_BIN_EXE_driftq-history")).arg("check").args(args).output();
        let output = output.expect("the program starts");
        (output.status.code(), String::from_utf8(output.stdout).expect("text"))
    };
    let (code, out) = run(&[&correct, &forged]);
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with(&format!("{}\n", correct.display())) && out.ends_with("\nFAILED\n"), "{out}");
    assert!(out.contains(&format!("\nPASSED\n\n{}\n", forged.display())), "{out}");
    let (code, out) = run(&[&correct, &forged, Path::new("--data-dir"), &folder()]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
}

#[test]
fn empty_or_endless_file_is_refused_with_exit_code_2() {
    let blank = write("blank.jsonl", &"\n".repeat(200_000));
    for (path, error) in [
        (write("empty.jsonl", ""), "the file is empty"),
        (write("spaces.jsonl", " \n\n"), "the file is empty"),
        (write("only-torn.jsonl", "{\"seq\":1"), "the file is empty"),
        (PathBuf::from("/dev/null"), "the file is empty"),
        (PathBuf::from("/dev/zero"), "line 1 has more than 67108864 bytes"),
        (blank, "100000 blank lines in a row up to line 100000"),
    ] {
        let (code, out, err) = check(&path);
        assert_eq!((code, out.as_str()), (2, ""), "{}: {err}", path.display());
        assert!(err.starts_with("error: ") && err.contains(error), "{}: {err}", path.display());
    }
}

#[test]
fn every_example_of_a_help_text_runs() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut history = History::new();
    history.produced(0..1);
    history.consume("w1", "g");
    history.work("w1", 0..1, 0);
    std::fs::write(folder.path().join("history.jsonl"), history.drained().text()).expect("a file");
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_driftq-history")).args(arguments).current_dir(&folder).output();
        let output = output.expect("the program starts");
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    for help in [&["--help"][..], &["check", "--help"]] {
        let (_, text) = run(help);
        let examples: Vec<&str> = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("driftq-history "))
            .filter(|line| line.starts_with("check "))
            .collect();
        assert_eq!(examples.len(), 2, "{text}");
        for example in examples {
            let arguments: Vec<&str> = example.split_whitespace().collect();
            let (code, text) = run(&arguments);
            match example.contains("--data-dir") {
                false => assert_eq!(code, Some(0), "{example}: {text}"),
                // The history is forged, and there is no log that belongs to it.
                true => {
                    assert!(code == Some(2) && text.contains("driftq-data cannot be compared"), "{example}: {text}");
                }
            }
        }
    }
}
