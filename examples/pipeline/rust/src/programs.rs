//! Where the programs of a run are, and what has to be done where one is missing.

use std::env::{current_exe, var_os};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::options::{Language, Options};

/// How many workers there are.
const WORKERS: usize = 3;

/// The programs of a run.
#[derive(Debug)]
pub(crate) struct Programs {
    /// The broker.
    pub(crate) driftqd: PathBuf,
    /// The workers: a program and its arguments each.
    pub(crate) workers: Vec<(PathBuf, Vec<PathBuf>)>,
}

impl Programs {
    /// Finds all programs. Those written in Rust are built where cargo runs this program.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    pub(crate) fn find(options: &Options) -> Result<Self, String> {
        let driftqd = match &options.driftqd {
            Some(path) if path.is_file() => path.clone(),
            Some(path) => return Err(format!("there is no broker {}", path.display())),
            None => beside("driftqd").map_or_else(|| built("driftq-server", "driftqd"), Ok)?,
        };
        let languages = match options.language {
            _ if options.no_store => [Language::Rust; WORKERS],
            Language::Mixed => [Language::Rust, Language::Python, Language::Typescript],
            language => [language; WORKERS],
        };
        let workers = languages.into_iter().map(|language| worker(options, language)).collect::<Result<_, _>>()?;
        Ok(Self { driftqd, workers })
    }
}

fn worker(options: &Options, language: Language) -> Result<(PathBuf, Vec<PathBuf>), String> {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("this crate is in no folder")?;
    match language {
        Language::Python => {
            if !succeeds(&options.python, &["-c", "import driftq"]) {
                let python = options.python.display();
                return Err(format!(
                    "{python} has no package driftq: `pip install clients/python`, or --python another"
                ));
            }
            Ok((options.python.clone(), vec![example.join("python/worker.py")]))
        }
        Language::Typescript => {
            if !succeeds(&options.node, &["--version"]) {
                return Err(format!("{} cannot be run: install Node 20 or later", options.node.display()));
            }
            let folder = example.join("typescript");
            if !folder.join("node_modules/driftq/dist/index.js").is_file() {
                let install = "npm --prefix clients/typescript ci && npm --prefix clients/typescript run build && \
                               npm --prefix examples/pipeline/typescript install";
                return Err(format!("the package driftq is not built or not installed: `{install}`"));
            }
            Ok((options.node.clone(), vec![folder.join("worker.mjs")]))
        }
        Language::Rust | Language::Mixed => {
            let name = if options.no_store { "pipeline-at-least-once" } else { "pipeline-worker" };
            // Cargo has built this program alone: a worker that is there may be of an older version.
            let there = beside(name).filter(|_| options.no_build);
            Ok((there.map_or_else(|| built("driftq-examples", name), Ok)?, Vec::new()))
        }
    }
}

/// The program `name`, built now if cargo runs this program.
fn built(package: &str, name: &str) -> Result<PathBuf, String> {
    if let Some(cargo) = var_os("CARGO") {
        let mut build = Command::new(cargo);
        build.args(["build", "--quiet", "--locked", "-p", package, "--bin", name]);
        if !cfg!(debug_assertions) {
            build.arg("--release");
        }
        let status = build.status().map_err(|error| format!("cargo cannot be run: {error}"))?;
        if !status.success() {
            return Err(format!("cargo could not build {name}: {status}"));
        }
    }
    beside(name).ok_or_else(|| format!("there is no {name} beside this program: `cargo build -p {package}`"))
}

/// The program `name` in the folder of this program.
fn beside(name: &str) -> Option<PathBuf> {
    Some(current_exe().ok()?.with_file_name(name)).filter(|path| path.is_file())
}

fn succeeds(program: &Path, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
