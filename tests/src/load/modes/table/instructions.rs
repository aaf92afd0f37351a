//! Rows of instructions: the core and the log alone, counted by callgrind in a bench of the core.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::measurement::Measured;
use super::names::RowName;
use super::rows::Reading;
use crate::load::error::Result;
use crate::load::tool::{self, Finished};
use crate::progress::Progress;

/// What cargo is asked to do.
const BENCH: [&str; 5] = ["bench", "-p", "driftq-core", "--bench", "instructions"];
/// How long it may take: the bench is linked as a whole program, and runs under valgrind.
const WITHIN: Duration = Duration::from_secs(3_600);
/// How long a program may take to print its version.
const VERSION_WITHIN: Duration = Duration::from_secs(60);

/// Rows, and their names in the output of the bench.
const COUNTED: [(RowName, &str); 3] = [
    (RowName::InstructionsPlain, "plain"),
    (RowName::InstructionsKeyed, "identity"),
    (RowName::InstructionsEffect, "effect"),
];

/// Runs the bench.
pub(super) async fn count() -> Result<Measured> {
    println!("\n# instructions");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    for (name, program) in [("cargo", cargo.as_os_str()), ("valgrind", "valgrind".as_ref())] {
        if !prints_its_version(Command::new(program)).await {
            return Ok(Measured::Skipped(format!("{name} is not installed")));
        }
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).parent().filter(|folder| folder.join("Cargo.toml").is_file());
    let Some(sources) = sources else {
        return Ok(Measured::Skipped("the sources that this program was built from are not there".to_owned()));
    };
    let _progress = Progress::spinner("building the bench of the core, counting instructions");
    let mut bench = Command::new(cargo);
    bench.args(BENCH).current_dir(sources);
    let output = tool::run(&mut bench, WITHIN).await?.successful()?;
    println!("{}", output.trim_end());
    readings_in(&output).map(Measured::Readings)
}

async fn prints_its_version(mut program: Command) -> bool {
    let finished = tool::run(program.arg("--version"), VERSION_WITHIN).await;
    finished.and_then(Finished::successful).is_ok()
}

fn readings_in(output: &str) -> Result<Vec<(RowName, Reading)>> {
    let reading = |(row, name): (RowName, &str)| {
        let figure = figure_of(output, name);
        let figure = figure.ok_or_else(|| format!("the bench of the core did not print {name}: {output}"))?;
        Ok((row, Reading::once(figure)))
    };
    COUNTED.into_iter().map(reading).collect()
}

/// The figure behind a name at the beginning of a line.
fn figure_of(output: &str, name: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_whole_names() {
        let output = "instructions per message\nplainest 7\nplain        11072\nidentity        21172\neffect 5\n";
        let readings = readings_in(output).expect("all are there");
        let expected = [11_072.0, 21_172.0, 5.0].map(Reading::once);
        assert_eq!(readings.into_iter().map(|(_, reading)| reading).collect::<Vec<_>>(), expected);
        let error = readings_in("instructions: not counted\n").expect_err("no figures").to_string();
        assert!(error.contains("did not print plain") && error.contains("not counted"), "{error}");
    }
}
