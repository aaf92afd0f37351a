//! From settings to a running broker, and from SIGTERM to its end.
//!
//! The socket is open before the log is read, so that whoever watches sees a live process that is not ready yet. On SIGTERM or
//! SIGINT nothing more is accepted, streams end, what was let in is answered, the log gets its footer, and the process ends, all
//! of it within a second.

use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driftq_core::faults::NoFaults;
use driftq_core::log::{Notice, Recovered, Storage};
use driftq_core::pipeline::OpenError;
use driftq_core::types::Timestamp;
use driftq_core::{Pipeline, PipelineConfig};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, oneshot};
use tokio::task::LocalSet;

use crate::clock::Clock;
use crate::config::Settings;
use crate::driver::{Disk, Driver, IoThreads};
use crate::http::{Api, edge};
use crate::metrics::Metrics;
use crate::wal;
use driftq_files::{DataFolder, FileStorage, FolderError, NullStorage, Prepare, fresh_log_id};

/// How long requests that were let in have to be answered once the process is to end.
const GRACE: Duration = Duration::from_millis(400);
/// How long the log has to be closed.
const CLOSING: Duration = Duration::from_millis(400);
/// How much of the first segment is written with zeros before anything else happens.
const FIRST_ZEROS_BYTES: u64 = 8 << 20;
const LOOK: Duration = Duration::from_millis(5);

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {error}")]
    Listen {
        /// The address.
        addr: std::net::SocketAddr,
        /// What the system said.
        error: std::io::Error,
    },
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Somebody began to salvage the folder and did not finish.
    #[error("a salvage of {} was interrupted; finish it with `driftqd wal salvage {} --accept-loss`", .0.display(), .0.display())]
    SalvagePending(PathBuf),
    /// The log cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The system gives no thread, no random number, no runtime.
    #[error("starting: {0}")]
    System(#[from] std::io::Error),
}

/// Runs a broker until it is told to stop.
///
/// # Errors
/// [`ServeError`] if it cannot be started.
pub fn run(settings: Settings) -> Result<ExitCode, ServeError> {
    run_over(settings, |files| files)
}

/// Runs a broker whose files are reached through something else, which `wrap` puts around every handle on them. For proofs that
/// need a broker on a disk that breaks its promises; [`run`] is the one that keeps them.
///
/// # Errors
/// [`ServeError`] if it cannot be started.
pub fn run_over<S>(settings: Settings, wrap: fn(FileStorage) -> S) -> Result<ExitCode, ServeError>
where
    S: Storage + Send + 'static,
{
    raise_file_limit();
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        "driftqd; settings in force:\n{}",
        settings.to_toml().trim_end()
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, serve(settings, wrap));
    // Whatever still runs is cut off here: everybody has been answered, or has had their time.
    drop(local);
    runtime.shutdown_background();
    result
}

/// Each connection is an open file; as many as the system allows this process are wanted.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
    {
        tracing::warn!("the limit on open files stays at {current:?}: {error}");
    }
}

async fn serve<S>(settings: Settings, wrap: fn(FileStorage) -> S) -> Result<ExitCode, ServeError>
where
    S: Storage + Send + 'static,
{
    let addr = settings.addr;
    // First the folder: two brokers on one are refused before either is heard of.
    let opening = Opening::prepare(&settings)?;
    let listener = TcpListener::bind(addr).await.map_err(|error| ServeError::Listen { addr, error })?;
    let bound = listener.local_addr()?;
    let settings = Settings { addr: bound, ..settings };
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;

    let metrics = Metrics::new();
    let wake = Arc::new(Notify::new());
    let driver = Driver::new(Clock::start(), Rc::clone(&metrics), Arc::clone(&wake));
    let seed = u64::from_le_bytes(fresh_log_id()?.0[..8].try_into().expect("eight of sixteen bytes"));
    let api = Api::new(Rc::clone(&driver), settings.clone(), Rc::clone(&metrics), seed);
    let stop = Rc::new(edge::Stop::default());
    let listening = tokio::task::spawn_local(edge::listen(listener, api, Rc::clone(&stop)));
    tracing::info!("listening on http://{bound}");

    let began = Instant::now();
    let mut opened = opening.start(&settings, driver.now(), wrap)?;
    let (pipeline, recovered, storage) = tokio::select! {
        opened = &mut opened => opened.expect("the thread that reads the log always answers")?,
        _ = terminate.recv() => return Ok(ExitCode::SUCCESS),
        _ = interrupt.recv() => return Ok(ExitCode::SUCCESS),
    };
    metrics.recovered(began.elapsed());
    report(&recovered, &pipeline, began.elapsed());
    let disk = match storage {
        Some(storage) => Disk::Threads(IoThreads::start(wrap(storage.clone()), wrap(storage), &wake)?),
        None => Disk::None(NullStorage),
    };
    driver.start(pipeline, disk);
    let driving = tokio::task::spawn_local(Rc::clone(&driver).run());
    tracing::info!("ready");

    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping");
    stop.announce();
    let _ = listening.await;
    driver.drain();
    wait_until(GRACE, || metrics.connections() == 0 || driver.awaited() + driver.stream_count() == 0).await;
    driver.close();
    if !wait_until(CLOSING, || driver.is_closed()).await {
        tracing::warn!("the disk did not take the log's end in time; the next start will find it");
    }
    // The last answers are on their way to their sockets.
    wait_until(LOOK * 10, || metrics.connections() == 0).await;
    driving.abort();
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

/// Waits for something to be so, and says whether it came to that.
async fn wait_until(limit: Duration, so: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !so() {
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}

type Opened = Result<(Pipeline, Recovered, Option<FileStorage>), ServeError>;

/// A log about to be read.
enum Opening {
    Folder(FileStorage),
    Nowhere,
}

impl Opening {
    fn prepare(settings: &Settings) -> Result<Self, ServeError> {
        if !settings.wal {
            return Ok(Self::Nowhere);
        }
        let folder = DataFolder::open(&settings.data_dir)?;
        if wal::is_salvage_pending(folder.path())? {
            return Err(ServeError::SalvagePending(folder.path().to_owned()));
        }
        Ok(Self::Folder(folder.storage().with_sync_delay(settings.sync_delay)))
    }

    /// Reads the log on a thread of its own.
    fn start<S: Storage + 'static>(
        self,
        settings: &Settings,
        now: Timestamp,
        wrap: fn(FileStorage) -> S,
    ) -> Result<oneshot::Receiver<Opened>, ServeError> {
        let (send, opened) = oneshot::channel();
        let config = settings.pipeline();
        let read = move || {
            // Whoever waited may be gone: the process is ending.
            let _ = send.send(self.open(config, now, wrap));
        };
        std::thread::Builder::new().name("driftq-recovery".into()).spawn(read)?;
        Ok(opened)
    }

    fn open<S: Storage>(self, config: PipelineConfig, now: Timestamp, wrap: fn(FileStorage) -> S) -> Opened {
        let new_log = Some(fresh_log_id()?);
        match self {
            Self::Nowhere => {
                let (pipeline, recovered) = Pipeline::open(&mut NullStorage, config, new_log, now, NoFaults)?;
                Ok((pipeline, recovered, None))
            }
            Self::Folder(storage) => {
                // Everybody waits for the segment a start begins, so only its beginning is written with zeros.
                let mut first = wrap(storage.clone().with_prepare(Prepare::ZerosThenReserve(FIRST_ZEROS_BYTES)));
                let (pipeline, recovered) = Pipeline::open(&mut first, config, new_log, now, NoFaults)?;
                Ok((pipeline, recovered, Some(storage)))
            }
        }
    }
}

fn report(recovered: &Recovered, pipeline: &Pipeline, took: Duration) {
    for notice in &recovered.notices {
        match notice {
            // Every stop leaves one; nothing is amiss.
            Notice::NeverBegun { .. } => tracing::debug!("{notice}"),
            _ => tracing::warn!("{notice}"),
        }
    }
    tracing::info!(
        lsn = recovered.last_lsn.0,
        records = recovered.frames_read,
        bytes = recovered.bytes_read,
        topics = pipeline.state().topic_count(),
        clean = recovered.clean,
        took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        "log read"
    );
}
