//! `load budget` against the fake broker, with programs in the place of callgrind and perf.

use std::fs;

use tempfile::TempDir;

use super::{Finished, Running, assert_empty, fake_program, path_str, script_named};

/// Writes its counts at once, and becomes the broker.
const VALGRIND: &str = r#"
for arg; do
    case "$arg" in
        --version) echo valgrind-3; exit 0;;
        --callgrind-out-file=*) cat > "${arg#*=}" <<'END'
positions: line
events: Ir
fl=(1) /x/server/src/json.rs
fn=(1) driftq_server::json::string
1 60000
fl=(2) /rustc/1/library/core/src/ptr/mod.rs
fn=(2) planted::Function::run
1 40000
END
        shift; break;;
        --*) shift;;
    esac
done
exec "$@"
"#;

/// Records nothing and prints two samples.
const PERF: &str = r#"
case "$1" in
    stat) echo '1,,cycles' >&2;;
    record)
        trap 'exit 0' INT
        while [ "$1" != -o ]; do shift; done
        : > "$2"
        while :; do sleep 0.05; done;;
    script)
        echo 'driftqd 7/7 1f tokio::runtime::task::raw::poll (/x/driftqd)'
        echo 'driftqd 7/7 1f planted::sampled (/x/driftqd)';;
esac
"#;

struct Setup {
    folder: TempDir,
    disk: TempDir,
}

impl Setup {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder"), disk: TempDir::new().expect("a folder") }
    }

    /// A folder of programs that is searched first, or alone.
    fn tools(&self, programs: &[(&str, &str)]) -> String {
        let tools = self.folder.path().join("tools");
        fs::create_dir(&tools).expect("created");
        programs.iter().for_each(|(name, commands)| _ = script_named(&tools, name, commands));
        path_str(&tools).to_owned()
    }

    fn run(&self, args: &[&str], path: &str) -> Finished {
        let program = fake_program(self.folder.path());
        let common = ["budget", "--seconds", "0.05", "--turns", "1", "--messages", "100"];
        let broker = ["--driftqd", path_str(&program), "--dir", path_str(self.disk.path())];
        Running::start_with(&[&common[..], args, &broker].concat(), &[("PATH", Some(path))]).finish()
    }
}

/// The header of the first table with this title.
fn header<'a>(run: &'a Finished, title: &str) -> &'a str {
    let header = run.stdout.lines().find(|line| line.starts_with(&format!("| {title} |")));
    header.unwrap_or_else(|| panic!("no table {title} in\n{}{}", run.stdout, run.stderr))
}

#[test]
fn without_tools_threads_are_timed_and_the_rest_is_said_to_be_skipped() {
    let setup = Setup::new();
    let path = setup.tools(&[]);
    let run = setup.run(&[], &path);
    run.expect_success();
    assert_eq!(
        header(&run, "per message, by thread"),
        "| per message, by thread | produce | line of a batch | delivery | ack | ack line | complete | begin | finish |"
    );
    for expected in [" switches |", "| all: µs |", "Callgrind skipped: valgrind is not", "Perf skipped: perf"] {
        assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
    }
    assert_empty(setup.disk.path());
}

#[test]
fn counts_and_samples_are_tables_and_planted_functions_are_reported() {
    let setup = Setup::new();
    let tools = setup.tools(&[("valgrind", VALGRIND), ("callgrind_control", "echo OK."), ("perf", PERF)]);
    let path = format!("{tools}:{}", std::env::var("PATH").expect("a path"));
    let run = setup.run(&["--source", "callgrind,perf", "--kind", "produce,finish"], &path);
    run.expect_success();
    header(&run, "instructions per message");
    header(&run, "µs per message, perf by cycles");
    for expected in ["| JSON |", "| tokio, mio |", "| other |", "| all |", "  planted::Function::run\n"] {
        assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
    }
    assert!(run.stdout.contains("  planted::sampled (/x/driftqd)\n"), "{}", run.stdout);
    assert!(run.stderr.contains("40.0 % of what Produces costs has no category"), "{}", run.stderr);
    assert!(!run.stdout.contains("by thread"), "{}", run.stdout);
    assert_empty(setup.disk.path());
}

#[test]
fn old_figures_of_a_page_stand_in_front() {
    let setup = Setup::new();
    let page = setup.folder.path().join("page.md");
    fs::write(&page, "| instructions per message | produce |\n|---|--:|\n| JSON | 1,234 |\n").expect("written");
    let tools = setup.tools(&[("valgrind", VALGRIND), ("callgrind_control", "echo OK.")]);
    let path = format!("{tools}:{}", std::env::var("PATH").expect("a path"));
    let run = setup.run(&["--source", "callgrind", "--kind", "produce", "--old", path_str(&page)], &path);
    run.expect_success();
    assert!(run.stdout.contains("| JSON | 1,234 → 6"), "{}", run.stdout);
    assert!(run.stdout.contains("| other | – → 4"), "{}", run.stdout);
}

#[test]
fn callgrind_that_does_not_answer_ends_the_run() {
    let setup = Setup::new();
    let tools = setup.tools(&[("valgrind", VALGRIND), ("callgrind_control", "echo 'Error: no such process' >&2")]);
    let path = format!("{tools}:{}", std::env::var("PATH").expect("a path"));
    let run = setup.run(&["--source", "callgrind", "--kind", "produce"], &path);
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stderr.contains("no such process"), "{}", run.stderr);
    assert_empty(setup.disk.path());
}
