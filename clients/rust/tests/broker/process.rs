//! The program `driftqd`, that of `DRIFTQD` or of this workspace, on a temporary folder and a free port.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// What `driftqd` logs in front of the address it listens on.
const LISTENING: &str = "listening on http://";

/// A broker's process, which is killed when it is dropped. It listens before it has read its log.
pub(crate) struct Process {
    child: Child,
    url: String,
    folder: tempfile::TempDir,
}

impl Process {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (child, url) = launch(folder.path(), "127.0.0.1:0");
        Self { child, url, folder }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("reaped");
    }

    /// Starts it again at the same address after [`kill`](Self::kill).
    pub(crate) fn start_again(&mut self) {
        let address = self.url.trim_start_matches("http://").to_owned();
        (self.child, self.url) = launch(self.folder.path(), &address);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the process is gone.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn launch(folder: &Path, address: &str) -> (Child, String) {
    let mut command = Command::new(driftqd());
    command.args(["serve", "--addr", address, "--data-dir"]).arg(folder);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DRIFTQ")) {
        command.env_remove(name);
    }
    let mut process =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("driftqd starts");
    let mut log = BufReader::new(process.stderr.take().expect("piped"));
    let mut seen = String::new();
    let url = loop {
        let start = seen.len();
        let read = log.read_line(&mut seen).expect("a line");
        assert!(read > 0, "driftqd ended: {seen}");
        if let Some((_, address)) = seen[start..].split_once(LISTENING) {
            break format!("http://{}", address.trim());
        }
    };
    // Reads on, so that it is never blocked.
    std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
    (process, url)
}

/// Found once, or built once.
fn driftqd() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        if let Some(path) = std::env::var_os("DRIFTQD").map(PathBuf::from) {
            assert!(path.is_file(), "DRIFTQD: there is no file {}", path.display());
            return path;
        }
        let own = std::env::current_exe().expect("the path of this test");
        let find = || own.ancestors().skip(1).take(2).map(|folder| folder.join("driftqd")).find(|path| path.is_file());
        find().unwrap_or_else(|| {
            let cargo = std::env::var_os("CARGO").expect("DRIFTQD, driftqd beside this test, or cargo to build it");
            let arguments = ["build", "--quiet", "--locked", "-p", "driftq-server", "--bin", "driftqd"];
            let status = Command::new(cargo).args(arguments).status().expect("cargo runs");
            assert!(status.success(), "cargo could not build driftqd: {status}");
            find().expect("driftqd beside this test")
        })
    })
}
