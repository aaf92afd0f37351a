//! `driftqd keys`: creates, lists and revokes keys of a stopped broker.
//!
//! What it needs no key for is the access to the data folder. A running broker has the folder locked, and manages keys
//! over HTTP.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use driftq_core::command::{CreateKey, KeyExpiry, ListKeys, RevokeKey};
use driftq_core::pipeline::OpenError;
use driftq_core::reply::KeyInfo;
use driftq_core::types::{Grant, KeyId, KeyName, Millis, NameError, Now, TenantName, WallClock};
use driftq_core::{LogFault, OpenOptions, Pipeline, Refusal, Request};
use driftq_files::{DataFolder, FileStorage, FolderError, fresh_log_id};

use crate::access::{NewKey, execute};
use crate::clock::Clock;
use crate::rfc3339;
use crate::wal;

/// Keys that are listed at a time.
const PAGE: usize = driftq_core::command::ACCESS_PAGE_MAX;
/// What a key is called that is created with `--admin` and without a name.
const ADMIN: &str = "admin";

/// The subcommands of `driftqd keys`.
#[derive(Clone, Debug, PartialEq, Eq, clap::Subcommand)]
pub enum KeysCommand {
    /// Create a key and print it. It is not stored and cannot be printed again. As soon as there is a key, every
    /// request needs one.
    Create(CreateArgs),
    /// List the keys: id, tenant, name, grants, when they expire.
    List(FolderArgs),
    /// Revoke a key.
    Revoke {
        /// Its id: the 12 characters between `dq_` and `_`.
        id: String,
        /// Where it is.
        #[command(flatten)]
        folder: FolderArgs,
    },
    /// Print a new key for --admin-key-file, without creating it.
    Generate,
}

/// Where the keys are.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct FolderArgs {
    /// The data folder of the stopped broker.
    #[arg(long, env = "DRIFTQ_DATA_DIR", value_name = "DIR", default_value = "./driftq-data")]
    data_dir: PathBuf,
}

impl FolderArgs {
    /// A data folder.
    #[must_use]
    pub fn new(data_dir: &Path) -> Self {
        Self { data_dir: data_dir.to_owned() }
    }
}

/// What a key is created with.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct CreateArgs {
    /// Where it is stored; the folder and its log are created if absent.
    #[command(flatten)]
    pub folder: FolderArgs,
    /// Grant everything: every verb on every topic, and the management of all tenants.
    #[arg(long)]
    pub admin: bool,
    /// What it is called [default: admin, with --admin]
    #[arg(long, value_name = "NAME", required_unless_present = "admin")]
    pub name: Option<String>,
    /// Grant verbs (produce, consume, effects, inspect, operate, admin) on a topic, a prefix* or *; repeatable. Such as
    /// produce,consume:orders*
    #[arg(long = "grant", value_name = "VERBS:TOPICS", required_unless_present = "admin", conflicts_with = "admin")]
    pub grants: Vec<String>,
    /// The tenant in which it acts [default: the default tenant]
    #[arg(long, value_name = "NAME", conflicts_with = "admin")]
    pub tenant: Option<String>,
    /// How long it is valid: a number and s, m, h or d [default: forever]
    #[arg(long, value_name = "TIME")]
    pub expires_in: Option<String>,
}

/// Why the keys could not be managed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The folder is in use or cannot be opened.
    #[error("{0}; keys of a running broker are managed over HTTP: POST, GET and DELETE /v1/keys")]
    InUse(FolderError),
    /// The folder cannot be opened.
    #[error(transparent)]
    Folder(FolderError),
    /// A salvage of the data folder was interrupted.
    #[error("a salvage of {} was interrupted: complete it with `driftqd wal salvage`", .0.display())]
    SalvagePending(PathBuf),
    /// An argument is not valid.
    #[error("{0}")]
    Argument(String),
    /// Random numbers, or the output, are not available.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The log could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The broker refused the command.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The log failed.
    #[error(transparent)]
    Failed(#[from] LogFault),
}

impl From<NameError> for KeysError {
    fn from(error: NameError) -> Self {
        Self::Argument(error.to_string())
    }
}

/// Runs a command, with its output on standard output and errors on standard error. Exit codes: 0 if it is done, 2 if
/// not.
#[must_use]
pub fn run(command: &KeysCommand) -> ExitCode {
    match run_to(command, Clock::system().now(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            crate::report(&mut io::stderr(), &format!("driftqd keys: {error}\n"));
            ExitCode::from(2)
        }
    }
}

/// Runs a command at `now`, with its output written to `out`.
///
/// # Errors
/// [`KeysError`]; nothing is changed then, unless the log has failed.
pub fn run_to(command: &KeysCommand, now: Now, out: &mut impl Write) -> Result<(), KeysError> {
    match command {
        KeysCommand::Create(args) => create(args, now, out),
        KeysCommand::List(FolderArgs { data_dir }) => list(data_dir, now, out),
        KeysCommand::Revoke { id, folder: FolderArgs { data_dir } } => {
            let id: KeyId = id.parse().map_err(|_| KeysError::Argument(format!("{id:?} is not the id of a key")))?;
            let mut log = Log::open(data_dir, now)?;
            log.ask(RevokeKey { id })?;
            log.close()
        }
        KeysCommand::Generate => Ok(writeln!(out, "{}", NewKey::random()?.text)?),
    }
}

fn create(args: &CreateArgs, now: Now, out: &mut impl Write) -> Result<(), KeysError> {
    let grant = |text: &String| {
        text.parse::<Grant>().map_err(|error| KeysError::Argument(format!("--grant {text:?}: {error}")))
    };
    let grants = match args.admin {
        true => vec![Grant::everything()],
        false => args.grants.iter().map(grant).collect::<Result<_, _>>()?,
    };
    let expiry = args.expires_in.as_deref().map(duration).transpose()?.map(KeyExpiry::After);
    let name = KeyName::new(args.name.as_deref().unwrap_or(ADMIN))?;
    let tenant = args.tenant.as_deref().map(TenantName::new).transpose()?;
    let new = NewKey::random()?;
    let mut log = Log::create(&args.folder.data_dir, now)?;
    log.ask(CreateKey { id: new.id, name, digest: new.digest, tenant, grants, expiry })?;
    log.close()?;
    Ok(writeln!(out, "{}", new.text)?)
}

fn list(data_dir: &Path, now: Now, out: &mut impl Write) -> Result<(), KeysError> {
    let mut log = Log::open(data_dir, now)?;
    let mut after = None;
    loop {
        let page = log.ask(ListKeys { tenant: None, limit: PAGE, after })?;
        let clock = log.pipeline.state().wall_clock();
        for key in &page.keys {
            writeln!(out, "{}", line(key, clock))?;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return log.close(),
        }
    }
}

fn line(key: &KeyInfo, clock: &WallClock) -> String {
    let grants: Vec<_> = key.grants.iter().map(ToString::to_string).collect();
    let expires = key.expires_at.map_or_else(|| "never".to_owned(), |at| rfc3339::format(clock.wall(at)));
    let KeyInfo { id, tenant, name, .. } = key;
    format!("{id}  tenant {tenant}  name {name}  grants {}  expires {expires}", grants.join(" "))
}

/// A number and a unit.
fn duration(text: &str) -> Result<Millis, KeysError> {
    const UNITS: [(&str, u64); 4] = [("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];
    let parsed = UNITS.iter().find_map(|(unit, ms)| {
        let number: u64 = text.strip_suffix(unit)?.parse().ok()?;
        number.checked_mul(*ms).filter(|ms| *ms > 0)
    });
    parsed.map(Millis).ok_or_else(|| {
        KeysError::Argument(format!("--expires-in {text:?}: want a number and s, m, h or d, such as 90d"))
    })
}

/// The log of a stopped broker.
struct Log {
    pipeline: Pipeline,
    storage: FileStorage,
    now: Now,
    /// Keeps the lock.
    _folder: DataFolder,
}

impl Log {
    /// The log of a folder that has one.
    fn open(data_dir: &Path, now: Now) -> Result<Self, KeysError> {
        Self::with(DataFolder::open_existing(data_dir).map_err(of_folder)?, OpenOptions::new(), now)
    }

    /// The log of a folder, both created if absent.
    fn create(data_dir: &Path, now: Now) -> Result<Self, KeysError> {
        let options = OpenOptions::new().create(fresh_log_id()?);
        Self::with(DataFolder::open(data_dir).map_err(of_folder)?, options, now)
    }

    fn with(folder: DataFolder, options: OpenOptions, now: Now) -> Result<Self, KeysError> {
        if wal::is_salvage_pending(folder.path())? {
            return Err(KeysError::SalvagePending(folder.path().to_owned()));
        }
        let mut storage = folder.storage();
        let (pipeline, _) = options.open(&mut storage, now)?;
        Ok(Self { pipeline, storage, now, _folder: folder })
    }

    fn ask<R: Request>(&mut self, request: R) -> Result<R::Reply, KeysError> {
        Ok(R::reply(execute(&mut self.pipeline, &mut self.storage, self.now, request.into())??))
    }

    /// Closes the log. What was asked is in it.
    fn close(mut self) -> Result<(), KeysError> {
        self.pipeline.close();
        self.pipeline.drive(self.now, &mut self.storage);
        self.pipeline.failure().map_or(Ok(()), |fault| Err(fault.clone().into()))
    }
}

fn of_folder(error: FolderError) -> KeysError {
    match error {
        FolderError::InUse { .. } => KeysError::InUse(error),
        error => KeysError::Folder(error),
    }
}
