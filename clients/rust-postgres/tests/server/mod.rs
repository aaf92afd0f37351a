//! A PostgreSQL server on a temporary folder and a unix socket: it can be killed and started again.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use driftq_postgres::PostgresStore;
use driftq_postgres::tokio_postgres::{self, Client, NoTls};
use rustix::process::{Pid, Signal, geteuid, kill_process};

const READY_WITHIN: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Whom the server runs as where the tests run as root, which it refuses.
const USERS: [&str; 2] = ["postgres", "daemon"];

/// A running server, gone when it is dropped.
pub(crate) struct Server {
    programs: PathBuf,
    user: Option<(u32, u32)>,
    process: Option<Child>,
    folder: tempfile::TempDir,
}

impl Server {
    /// Starts a server with the schema of the store. `None`, and a line that says so, where none is installed.
    pub(crate) async fn start() -> Option<Self> {
        let Some(programs) = programs() else {
            eprintln!("skipped: no PostgreSQL server is installed (initdb, postgres)");
            return None;
        };
        // Not that of the environment: the path of a socket has at most 107 bytes.
        let folder = tempfile::Builder::new().prefix("driftq-pg-").tempdir_in("/tmp").expect("a folder");
        let user = geteuid().is_root().then(unprivileged);
        if let Some((uid, gid)) = user {
            chown(folder.path(), Some(uid), Some(gid)).expect("the folder belongs to the server");
        }
        let mut server = Self { programs, user, process: None, folder };
        let initialised = server
            .command("initdb")
            .args(["-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-N", "-D", "data"])
            .output()
            .expect("initdb runs");
        assert!(initialised.status.success(), "{}", String::from_utf8_lossy(&initialised.stderr));
        server.launch().await;
        server.store().migrate().await.expect("migrated");
        Some(server)
    }

    pub(crate) fn store(&self) -> PostgresStore {
        PostgresStore::connect(&self.config()).expect("a store")
    }

    /// A connection beside those of the store.
    pub(crate) async fn client(&self) -> Client {
        connected(&self.config()).await.expect("connected")
    }

    pub(crate) fn config(&self) -> String {
        format!("host={} user=postgres dbname=postgres", self.folder.path().display())
    }

    /// Kills the server with all its processes, and starts it again.
    pub(crate) async fn crash(&mut self) {
        self.kill();
        self.launch().await;
    }

    async fn launch(&mut self) {
        let log = File::create(self.folder.path().join("log")).expect("a log");
        let socket = format!("unix_socket_directories={}", self.folder.path().display());
        let mut command = self.command("postgres");
        // Its processes are killed, not the machine: what they have written stays. Every recovery would sync the whole
        // folder.
        command.args(["-D", "data", "-c", "listen_addresses=", "-c", &socket, "-c", "fsync=off"]);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a log")).stderr(log);
        let mut process = command.spawn().expect("postgres starts");
        let started = Instant::now();
        while connected(&self.config()).await.is_err() {
            let is_running = process.try_wait().expect("its status").is_none();
            let is_late = started.elapsed() > READY_WITHIN;
            assert!(is_running && !is_late, "{}", fs::read_to_string(self.folder.path().join("log")).expect("a log"));
            tokio::time::sleep(POLL).await;
        }
        self.process = Some(process);
    }

    fn kill(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let id = Pid::from_child(&process);
        // Stopped meanwhile, so that it starts no other.
        kill_process(id, Signal::STOP).expect("it is there");
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", process.id())).expect("its children");
        for child in children.split_whitespace() {
            let child = child.parse().ok().and_then(Pid::from_raw).expect("a process");
            // One may have ended by itself.
            let _ = kill_process(child, Signal::KILL);
        }
        process.kill().expect("killed");
        process.wait().expect("reaped");
        // Until then they hold the shared memory, and no other server starts.
        let killed = Instant::now();
        while !children.split_whitespace().all(has_ended) {
            assert!(killed.elapsed() < READY_WITHIN, "killed processes have not ended");
            thread::sleep(POLL);
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.current_dir(self.folder.path());
        if let Some((uid, gid)) = self.user {
            command.uid(uid).gid(gid);
        }
        command
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a process is gone, or waits for its end to be noticed.
fn has_ended(process: &str) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{process}/stat")) else { return true };
    // The state follows the name, which is in parentheses and may have some itself.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X']))
}

pub(crate) async fn connected(config: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(config, NoTls).await?;
    // Ends with the client, or with the server.
    tokio::spawn(connection);
    Ok(client)
}

/// The folder with `initdb` and `postgres`, the newest version of those installed.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path)
        .filter_map(|folder| fs::canonicalize(folder.join("initdb")).ok()?.parent().map(Path::to_owned));
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<_> = on_path.chain(versions.map(|version| version.path().join("bin"))).collect();
    found.retain(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file());
    found.into_iter().max_by_key(|folder| {
        let version = folder.parent().and_then(Path::file_name).and_then(|name| name.to_str());
        version.and_then(|version| version.parse::<u32>().ok()).unwrap_or_default()
    })
}

/// User and group of whom the server can run as.
fn unprivileged() -> (u32, u32) {
    let users = fs::read_to_string("/etc/passwd").expect("the users");
    let fields = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut numbers = line.split(':').skip(2).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    USERS.iter().find_map(|name| fields(name)).expect("a user for the server, since root must not run it")
}
