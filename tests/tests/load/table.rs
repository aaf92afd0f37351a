//! `load table` against the fake broker: its rows, and what it does with those that cannot be measured.

use std::fs;
use std::path::Path;

use driftq_tests::daemon;
use tempfile::TempDir;

use super::{Finished, Running, assert_empty, fake_program, load, path_str, script, script_named};

/// What a run of all rows has: short turns, small stores.
const SMALL: [&str; 10] =
    ["--seconds", "0.1", "--turns", "1", "--backlog", "500", "--streams", "10", "--records", "500"];

/// Short names and works of all rows but those of instructions, in their order.
const ROWS: [(&str, &str); 26] = [
    ("produces-hyper", "single produces, 64 connections ÷ bare hyper"),
    ("produces-redis", "single produces, 64 connections ÷ Redis Streams, `appendfsync always`"),
    ("batches", "NDJSON batches of 100, 16 connections, 16 partitions"),
    ("end-to-end-redis", "produce → stream → ack, 16 + 16 clients, one ack request each ÷ Redis (XREADGROUP + XACK)"),
    ("end-to-end", "produce → stream → ack, 16 + 16 clients, NDJSON acks"),
    ("end-to-end-p99", "p99 from produce to delivery at 20,000/s, NDJSON acks"),
    ("produces-cpu", "server CPU per million single produces"),
    ("end-to-end-cpu", "server CPU per million produce → stream → ack, NDJSON acks"),
    ("sequencer-produce", "sequencer's own CPU per produce, 2 reactors"),
    ("sequencer-settle", "sequencer's own CPU per delivery + ack, 2 reactors"),
    ("keys-cpu", "server CPU per produce with a key, 500 remembered ÷ none"),
    ("effects-cpu", "server CPU per begin or finish, 500 effects ÷ none"),
    ("reactors-produces", "2 reactors ÷ 1: single produces, 64 connections"),
    ("reactors-batches", "2 reactors ÷ 1: NDJSON batches of 100, 16 connections"),
    ("reactors-end-to-end", "2 reactors ÷ 1: produce → stream → ack, one ack request each"),
    ("one-connection", "single produces, 1 connection: p50 beyond hyper's + 1.3 × fdatasync p50"),
    ("slow-sync-64", "single produces, sync slowed to 2 ms, 64 connections"),
    ("slow-sync-1024", "single produces, sync slowed to 2 ms, 1,024 connections"),
    ("backlog-memory", "500 × 200 B queued: RSS, 16 MiB of payloads in memory"),
    ("backlog-p50", "500 × 200 B queued: produce p50 ÷ an empty broker's"),
    ("restart", "500 × 200 B queued: restart (`kill -9`), exec to first delivery"),
    ("idle-streams", "10 idle streams: memory each"),
    ("idle-broker", "idle broker: share of a core"),
    ("effects-memory", "500 effects: memory each beyond key and result"),
    ("steps", "complete with two outputs, 16 workers: steps"),
    ("effects-hyper", "begin + finish of an effect, 64 connections ÷ bare hyper"),
];

/// Prints what the bench of the core prints; anything else it is asked for is an error.
const CARGO: &str = r#"
case "$*" in
    --version) echo cargo 1;;
    'bench -p driftq-core --bench instructions') echo 'per message'; echo 'plain 7000'; echo 'identity 12000'; echo 'effect 9';;
    *) echo "unexpected: $*" >&2; exit 2;;
esac
"#;

/// Folders of a run: of programs, and of data, in which nothing may be left.
struct Setup {
    folder: TempDir,
    disk: TempDir,
}

impl Setup {
    fn new() -> Self {
        Self { folder: TempDir::new().expect("a folder"), disk: TempDir::new().expect("a folder") }
    }

    /// A folder of programs.
    fn tools(&self, programs: &[(&str, &str)]) -> String {
        let tools = self.folder.path().join("tools");
        fs::create_dir(&tools).expect("created");
        programs.iter().for_each(|(name, commands)| _ = script_named(&tools, name, commands));
        path_str(&tools).to_owned()
    }

    fn run(&self, program: &Path, args: &[&str], variables: &[(&str, Option<&str>)]) -> Finished {
        let broker = ["--driftqd", path_str(program), "--dir", path_str(self.disk.path())];
        let run = Running::start_with(&[&["table"], args, &broker].concat(), variables);
        let finished = run.finish_within(super::TIMEOUT * 4);
        assert_empty(self.disk.path());
        finished
    }

    /// Against the fake broker. `PATH` has only these programs.
    fn run_fake(&self, args: &[&str], tools: &str) -> Finished {
        self.run(&fake_program(self.folder.path()), args, &[("PATH", Some(tools))])
    }
}

/// The cells of each row of the printed table.
fn rows(run: &Finished) -> Vec<Vec<&str>> {
    let rows = run.stdout.lines().skip_while(|line| *line != "| work | must | goal | measured | met |").skip(2);
    let rows = rows.take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn table_has_every_row_and_marks_what_failed_and_what_was_skipped() {
    let setup = Setup::new();
    let own = std::env::current_exe().expect("the test binary");
    let own = own.display();
    let program = script(
        setup.folder.path(),
        &format!(
            "case \"$*\" in *--sync-delay-ms*) echo 'unknown flag' >&2; exit 2;; esac\n\
             FAKE_ARGS=\"$*\" exec '{own}' --exact load::fake_driftqd --ignored --nocapture"
        ),
    );
    let run = setup.run(&program, &SMALL, &[("PATH", Some(&setup.tools(&[])))]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let rows = rows(&run);
    assert_eq!(rows.len(), ROWS.len(), "{}{}", run.stdout, run.stderr);
    for (row, (_, work)) in rows.iter().zip(ROWS) {
        let &[found, must, goal, measured, met] = &row[..] else { panic!("{row:?}") };
        assert_eq!(found, work);
        assert!(must.starts_with(['≤', '≥']) && (goal == "–" || goal.starts_with(['≤', '≥'])), "{row:?}");
        let (is_slow, is_beside_redis) = (work.contains("slowed"), work.contains("Redis"));
        assert_eq!(measured.contains("failed: ") && measured.contains("unknown flag"), is_slow, "{row:?}");
        assert_eq!(measured == "skipped: redis-server is not installed", is_beside_redis, "{row:?}");
        let expected = if is_slow {
            &["no"][..]
        } else if is_beside_redis {
            &["–"][..]
        } else {
            &["goal", "must", "no"]
        };
        assert!(expected.contains(&met), "{row:?}");
    }
    let failures = "failures: 1 × sync slowed to 2 ms, 1,024 connections: failed, \
                    1 × sync slowed to 2 ms, 64 connections: failed\n";
    assert!(run.stdout.ends_with(failures), "{}", run.stdout);
}

#[test]
fn chosen_rows_are_measured_in_turns_and_no_others() {
    let setup = Setup::new();
    let args = ["--rows", "reactors-batches,produces-cpu", "--seconds", "0.1", "--turns", "3"];
    let run = setup.run_fake(&args, &setup.tools(&[]));
    run.expect_success();
    let rows = rows(&run);
    let works: Vec<&str> = rows.iter().map(|row| row[0]).collect();
    assert_eq!(
        works,
        ["server CPU per million single produces", "2 reactors ÷ 1: NDJSON batches of 100, 16 connections"]
    );
    for row in &rows {
        assert!(row[3].contains(" (") && row[3].contains(" to "), "the range of the turns is missing in {row:?}");
    }
    for turn in 1..=3 {
        assert!(run.stdout.contains(&format!("# reactors, batches, turn {turn} of 3\n")), "{}", run.stdout);
    }
    // Each of the two begins in every other turn.
    let brokers: Vec<&str> = run.stdout.lines().filter_map(|line| line.strip_prefix("--reactors ")).collect();
    assert_eq!(brokers, ["1", "2", "2", "1", "1", "2"]);
}

#[test]
fn help_lists_the_short_names_of_all_rows() {
    let run = load(&["table", "--help"]);
    assert_eq!(run.code, Some(0));
    let instructions = ["instructions-plain", "instructions-keyed", "instructions-effect"];
    for name in ROWS.iter().map(|(name, _)| *name).chain(instructions) {
        assert!(run.stdout.contains(&format!("- {name}:")), "{name} is missing in\n{}", run.stdout);
    }
}

#[test]
fn failed_requests_of_a_row_are_counted_and_exit_code_is_1() {
    let setup = Setup::new();
    let args = ["--rows", "batches,end-to-end", "--seconds", "0.1", "--turns", "2"];
    let run = setup.run_fake(&[&args[..], &["--daemon-arg=--every-tenth-produce"]].concat(), &setup.tools(&[]));
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert_eq!(rows(&run).len(), 2, "{}", run.stdout);
    for expected in ["× batches: 500 INTERNAL", "× produce → stream → ack: 500 INTERNAL"] {
        assert!(run.stdout.lines().last().is_some_and(|line| line.contains(expected)), "{}", run.stdout);
    }
}

#[test]
fn sequencer_without_a_thread_is_a_failed_row() {
    let setup = Setup::new();
    let own = std::env::current_exe().expect("the test binary");
    let own = own.display();
    // Without the flag the fake has no such thread.
    let program = script(
        setup.folder.path(),
        &format!(
            "args=$(echo \"$*\" | sed 's/--reactors [0-9]*//')\n\
             FAKE_ARGS=\"$args\" exec '{own}' --exact load::fake_driftqd --ignored --nocapture"
        ),
    );
    let args = ["--rows", "sequencer-produce,sequencer-settle", "--seconds", "0.1", "--turns", "1"];
    let run = setup.run(&program, &args, &[]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let rows = rows(&run);
    assert_eq!(rows.len(), 2, "{}", run.stdout);
    for row in rows {
        assert!(row[3].contains("no thread of the sequencer") && row[4] == "no", "{row:?}");
    }
}

#[test]
fn redis_that_does_not_start_is_a_failed_row() {
    let setup = Setup::new();
    let tools = setup.tools(&[("redis-server", "echo 'no such option' >&2; exit 3")]);
    let args = ["--rows", "produces-redis,batches", "--seconds", "0.1", "--turns", "1"];
    let run = setup.run_fake(&args, &tools);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let rows = rows(&run);
    assert!(rows[0][3].starts_with("failed: Redis Streams: ") && rows[0][3].contains("no such option"), "{rows:?}");
    assert_eq!((rows[0][4], rows.len()), ("no", 2), "{rows:?}");
    assert!(run.stdout.ends_with("failures: 1 × single produces beside Redis: failed\n"), "{}", run.stdout);
}

#[test]
fn redis_is_driven_in_turns_where_it_is_installed() {
    let setup = Setup::new();
    let args = ["--rows", "produces-redis,end-to-end-redis", "--seconds", "0.2", "--turns", "2"];
    // The real broker: the fake does not count what is acked.
    let run = setup.run(&daemon::driftqd().expect("the broker"), &args, &[]);
    run.expect_success();
    let rows = rows(&run);
    assert_eq!(rows.len(), 2, "{}", run.stdout);
    if rows[0][3] == "skipped: redis-server is not installed" {
        println!("{}", rows[0][3]);
        return;
    }
    for row in rows {
        assert!(row[3].contains(" to ") && row[3].contains("/s, Redis ") && !row[3].contains("Redis 0/s"), "{row:?}");
    }
}

#[test]
fn instructions_are_counted_if_asked_for_and_skipped_where_a_tool_is_missing() {
    let setup = Setup::new();
    let tools = setup.tools(&[("cargo", CARGO), ("valgrind", "echo valgrind-3")]);
    let program = fake_program(setup.folder.path());
    let cargo = format!("{tools}/cargo");
    let args = ["--rows", "instructions-plain,instructions-keyed,instructions-effect", "--instructions"];
    let run = setup.run(&program, &args, &[("PATH", Some(&tools)), ("CARGO", Some(&cargo))]);
    run.expect_success();
    let measured: Vec<(&str, &str)> = rows(&run).iter().map(|row| (row[3], row[4])).collect();
    assert_eq!(measured, [("7,000", "must"), ("12,000", "no"), ("9", "–")]);

    fs::remove_file(Path::new(&tools).join("valgrind")).expect("removed");
    let run = setup.run(&program, &args, &[("PATH", Some(&tools)), ("CARGO", Some(&cargo))]);
    run.expect_success();
    let rows_without = rows(&run);
    assert_eq!(rows_without.len(), 3);
    assert!(rows_without.iter().all(|row| row[3..] == ["skipped: valgrind is not installed", "–"]), "{}", run.stdout);

    let run = setup.run(&program, &args[..2], &[]);
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stderr.contains("need --instructions"), "{}", run.stderr);
}

#[test]
fn bench_that_fails_is_a_failed_row() {
    let setup = Setup::new();
    let failing = r#"[ "$1" = --version ] || { echo 'it does not compile' >&2; exit 101; }"#;
    let tools = setup.tools(&[("cargo", failing), ("valgrind", "echo valgrind-3")]);
    let cargo = format!("{tools}/cargo");
    let args = ["--rows", "instructions-plain", "--instructions"];
    let program = fake_program(setup.folder.path());
    let run = setup.run(&program, &args, &[("PATH", Some(&tools)), ("CARGO", Some(&cargo))]);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let rows = rows(&run);
    assert!(rows[0][3].starts_with("failed: ") && rows[0][3].contains("it does not compile"), "{rows:?}");
}

#[test]
fn running_broker_cannot_be_driven() {
    let run = load(&["table", "--url", "http://127.0.0.1:1"]);
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("--url cannot be used"), "{}", run.stderr);
}

#[test]
fn keys_are_compared_with_brokers_that_remember_none() {
    let setup = Setup::new();
    let program = fake_program(setup.folder.path());
    let args = ["keys", "--keys", "1000", "--connections", "4", "--seconds", "0.1", "--turns", "2"];
    let args = [&args[..], &["--driftqd", path_str(&program), "--dir", path_str(setup.disk.path())]].concat();
    let run = load(&args);
    run.expect_success();
    for expected in ["1,000 remembered", "server CPU per produce", " × that beside none"] {
        assert!(run.stdout.contains(expected), "{expected} is missing in\n{}", run.stdout);
    }
    assert_empty(setup.disk.path());

    let run = load(&[&args[..], &["--daemon-arg=--forgotten-keys"]].concat());
    assert_eq!(run.code, Some(1), "{}", run.stdout);
    assert!(run.stderr.contains("the broker does not remember its keys"), "{}", run.stderr);
    assert_empty(setup.disk.path());
}
