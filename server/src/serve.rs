//! Starts the broker, runs it until SIGTERM or SIGINT, and shuts it down.
//!
//! The listener is open before the log is recovered, so that probes see a live process that is not ready yet. On
//! SIGTERM or SIGINT nothing more is accepted, streams end, accepted requests get their responses and the log its
//! footer if they do not take longer than their timeouts, and the process exits within a second.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use driftq_core::OpenOptions;

use driftq_core::log::{Notice, Recovered, Storage};
use driftq_core::pipeline::OpenError;
use driftq_core::types::Now;
use driftq_core::{Pipeline, PipelineConfig};
use driftq_files::{DataFolder, FileStorage, FolderError, Prepare, VolatileStorage, fresh_log_id};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::LocalSet;

pub use crate::access::AdminKeyError;
use crate::access::ensure_admin_key;
use crate::clock::Clock;
use crate::config::{AuthSettings, ConfigError, Settings};
use crate::descriptors;
use crate::driver::{
    BrokerStatus, Crossing, Disk, DriverParts, IoThreads, RemoteSequencer, Sequencer, SequencerSignal, SequencerThread,
    Use, Wake,
};
use crate::http::Shared;
use crate::memory_log::MemoryLog;
use crate::metrics::Metrics;
use crate::otlp::Export;
use crate::reactor::{self, Phase, Reactor, ReactorParts};
use crate::signals::{Reload, Signals};
use crate::tls::{Tls, TlsError};
use crate::wal;

/// Wall time further ahead of the wall clock than this is warned of at the start, in milliseconds.
const CLOCK_AHEAD_WARNING_MS: i64 = 60 * 60 * 1_000;
/// How long accepted requests may take to get their responses during shutdown.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(400);
/// How long closing the log may take.
const CLOSE_TIMEOUT: Duration = Duration::from_millis(400);
/// How long the last responses may take to reach their sockets.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(50);
/// How long the last spans may take to be exported.
const EXPORT_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval at which shutdown checks its conditions.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of the first segment that are written with zeros before the broker is ready.
const FIRST_ZEROS_BYTES: u64 = 8 << 20;

/// Why a broker did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {error}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// The I/O error.
        error: std::io::Error,
    },
    /// The data folder cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A salvage of the data folder was interrupted.
    #[error("a salvage of {} was interrupted; finish it with `driftqd wal salvage {} --accept-loss`", .0.display(), .0.display())]
    SalvagePending(PathBuf),
    /// The old log cannot be moved aside.
    #[error("cannot reset the log: {0}")]
    Reset(#[from] wal::WalError),
    /// The log cannot be recovered or created.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A file of TLS cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The key of `auth.admin_key_file` cannot be used.
    #[error(transparent)]
    AdminKey(#[from] AdminKeyError),
    /// The address must not be listened on without keys, and the log has none.
    #[error(transparent)]
    Exposed(ConfigError),
    /// A broker in memory ended by itself; the text is its reason.
    #[error("{0}")]
    Ended(String),
    /// A thread, a random number or the runtime is not available.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
    /// The cause of the error is a lack of descriptors.
    #[error("{error}. {advice}")]
    NoDescriptors {
        /// What failed.
        error: Box<Self>,
        /// The limit, and how to raise it.
        advice: String,
    },
}

impl ServeError {
    /// Adds the limit on descriptors, if a lack of them is the cause.
    fn with_advice(self) -> Self {
        let lacks_descriptors = match &self {
            Self::Listen { error, .. } | Self::Folder(FolderError::Io { error, .. }) | Self::System(error) => {
                descriptors::is_lack_of_descriptors(error)
            }
            Self::Open(error) => descriptors::lacks_descriptors(error),
            _ => false,
        };
        if lacks_descriptors {
            return Self::NoDescriptors { error: Box::new(self), advice: descriptors::limit_advice() };
        }
        self
    }
}

/// Runs a broker until it is stopped by a signal; `reload` is what SIGHUP does.
///
/// # Errors
/// [`ServeError`] if it cannot be started.
pub fn run(settings: Settings, reload: Reload) -> Result<ExitCode, ServeError> {
    run_on(settings, Some(reload), |files| files)
}

/// [`run`] with every handle on the log's files wrapped by `wrap`. For tests that need a broker on a faulty disk.
///
/// # Errors
/// [`ServeError`] if it cannot be started.
pub fn run_with_storage<S>(settings: Settings, wrap: fn(FileStorage) -> S) -> Result<ExitCode, ServeError>
where
    S: Storage + Send + 'static,
{
    run_on(settings, None, wrap)
}

fn run_on<S>(settings: Settings, reload: Option<Reload>, wrap: fn(FileStorage) -> S) -> Result<ExitCode, ServeError>
where
    S: Storage + Send + 'static,
{
    assert!(!settings.memory, "a broker in memory is run by `memory_broker`");
    run_with_signals(settings, reload, async |settings, signals| serve(settings, signals, wrap).await)
}

/// Runs `serve` on a runtime of this thread, with the signals of the process, and with as many connections as there are
/// descriptors for.
pub(crate) fn run_with_signals(
    settings: Settings,
    reload: Option<Reload>,
    serve: impl AsyncFnOnce(Settings, Signals) -> Result<(), ServeError>,
) -> Result<ExitCode, ServeError> {
    let loaded = settings.clone();
    let settings = descriptors::fit(settings);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| ServeError::from(error).with_advice())?;
    let local = LocalSet::new();
    let result = local.block_on(&runtime, async {
        // First of all, so that no signal but the first two ends the process.
        let signals = Signals::register(loaded, reload)?;
        serve(settings, signals).await
    });
    // Cancels the tasks that still run; their time is up.
    drop(local);
    runtime.shutdown_background();
    result.map(|()| ExitCode::SUCCESS).map_err(ServeError::with_advice)
}

async fn serve<S>(settings: Settings, mut signals: Signals, wrap: fn(FileStorage) -> S) -> Result<(), ServeError>
where
    S: Storage + Send + 'static,
{
    let addr = settings.addr;
    // The folder before the listener: a second broker on the same folder is refused before clients can reach it.
    let source = LogSource::prepare(&settings)?;
    let (bound, listeners) =
        reactor::bind(addr, settings.http.reactors).map_err(|error| ServeError::Listen { addr, error })?;
    let settings = Settings { addr: bound, ..settings };
    announce(&settings);
    let hangups = signals.hangups();
    let stop = async {
        signals.stop().await;
        End::Stop
    };
    run_until(stop, &settings, (listeners, hangups), source, wrap, || {}).await.map(drop)
}

/// The one line of a start. The address ends it, so that scripts find it easily.
pub(crate) fn announce(settings: &Settings) {
    let log = match settings {
        Settings { wal: true, data_dir, .. } => format!("data folder {}", data_dir.display()),
        Settings { chaos: Some(chaos), .. } => format!("log in memory, chaos with seed {}", chaos.seed),
        Settings { memory: true, .. } => "log in memory".to_owned(),
        _ => "no log".to_owned(),
    };
    let (version, scheme, addr) = (env!("CARGO_PKG_VERSION"), settings.scheme(), settings.addr);
    tracing::info!("driftqd {version}, {log}, listening on {scheme}://{addr}");
}

/// How a broker ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Accepted requests get their responses, and the log its footer.
    Stop,
    /// At once, as by `kill -9`. What still runs on this thread is to be dropped by the caller.
    Crash,
}

/// Recovers the log and serves until `end` resolves, which it returns; `on_ready` is called once commands are accepted.
/// Each notification of `hangups` reloads the TLS certificate.
/// To be called within a [`LocalSet`].
pub(crate) async fn run_until<S>(
    end: impl Future<Output = End>,
    settings: &Settings,
    (listeners, hangups): (Vec<std::net::TcpListener>, Arc<Notify>),
    source: LogSource,
    wrap: fn(FileStorage) -> S,
    on_ready: impl FnOnce(),
) -> Result<End, ServeError>
where
    S: Storage + Send + 'static,
{
    let mut end = pin!(end);
    let mut reactors = Reactors::start(settings, listeners, hangups)?;
    let began = Instant::now();
    let recovery = source.recover(settings, reactors.clock.now(), wrap)?;
    let recovered = tokio::select! {
        recovered = recovery => recovered.expect("the recovery thread sends its result")?,
        end = &mut end => {
            reactors.abandon();
            return Ok(end);
        }
    };
    reactors.shared.metrics.set_recovery(began.elapsed());
    recovered.log_summary(began.elapsed());
    let has_keys = !recovered.pipeline.state().access().keys().is_empty();
    if let Err(error) = settings.check_exposure(has_keys) {
        reactors.abandon();
        return Err(ServeError::Exposed(error));
    }
    let disk = match recovered.storage {
        RecoveredStorage::Files(storage) => {
            let open = |purpose| match purpose {
                Use::Jobs => wrap(storage.clone()),
                Use::Reads => wrap(storage.clone().with_reads_by_position()),
            };
            Disk::Threads(IoThreads::start(open, &reactors.sequencer_wake)?)
        }
        RecoveredStorage::Volatile(storage) => Disk::Volatile(storage),
        RecoveredStorage::Memory(log) => Disk::Threads(IoThreads::start(|_| log.clone(), &reactors.sequencer_wake)?),
    };
    warn_of_clock_ahead(recovered.pipeline.broker().clock_ahead_ms(reactors.clock.now()));
    let _sequencer = reactors.start_sequencer(recovered.pipeline, disk)?;
    // The thread of the sequencer may not have begun yet.
    wait_until(CLOSE_TIMEOUT, || reactors.status.unready().is_none()).await;
    tracing::debug!("ready");
    on_ready();

    let end = end.await;
    match end {
        End::Crash => reactors.abandon(),
        End::Stop => {
            tracing::info!("stopping");
            reactors.shut_down().await;
            tracing::info!("stopped");
        }
    }
    Ok(end)
}

/// The reactors of the process, the first of which is this thread's.
struct Reactors {
    clock: Clock,
    status: Arc<BrokerStatus>,
    shared: Arc<Shared>,
    first: Reactor,
    others: Vec<JoinHandle<()>>,
    /// Stops the others.
    phase: watch::Sender<Phase>,
    /// Wakes the thread that drives the broker.
    sequencer_wake: Wake,
    /// The ways to the sequencer's thread; empty if there is one reactor, which drives the broker itself.
    crossings: Arc<[Arc<Crossing>]>,
    signal: Arc<SequencerSignal>,
    /// Sends spans and metrics; `None` if nothing is exported.
    export: Option<Export>,
}

impl Reactors {
    /// Starts a reactor for each listener.
    fn start(
        settings: &Settings,
        listeners: Vec<std::net::TcpListener>,
        hangups: Arc<Notify>,
    ) -> Result<Self, ServeError> {
        let count = listeners.len();
        let (clock, status, signal) = (Clock::system(), Arc::new(BrokerStatus::default()), Arc::default());
        let tls = Tls::load(&settings.tls)?;
        let export = Export::start(&settings.otlp, fresh_log_id()?.0)?;
        let recorder = export.as_ref().map(|export| Arc::clone(&export.recorder));
        let shared = Shared::new(settings, Metrics::new(), tls.clone(), recorder, count);
        if let Some(tls) = tls {
            tokio::task::spawn_local(tls.follow_files(Arc::clone(&shared.metrics), hangups));
        }
        let wakes: Vec<_> = (0..count).map(|_| Arc::new(Notify::new())).collect();
        // Deliveries that cross have one half, what streams have not taken the other.
        let stream_bytes_max = settings.http.stream_bytes_max() / if count > 1 { 2 * count } else { 1 };
        let crossing = |wake: &Arc<Notify>| Crossing::new(Arc::clone(wake), stream_bytes_max);
        let crossings: Arc<[_]> = if count > 1 { wakes.iter().map(crossing).collect() } else { Vec::new().into() };
        let sequencer_wake = match &wakes[..] {
            [only] => Wake::Reactor(Arc::clone(only)),
            _ => Wake::Sequencer(Arc::clone(&signal)),
        };
        let phase = watch::Sender::new(Phase::default());
        let mut first = None;
        let mut others = Vec::new();
        for (index, (listener, wake)) in listeners.into_iter().zip(wakes).enumerate() {
            let remote =
                || RemoteSequencer { reactor: index, crossings: Arc::clone(&crossings), signal: Arc::clone(&signal) };
            let parts = ReactorParts {
                listener,
                settings: settings.clone(),
                shared: Arc::clone(&shared),
                driver: DriverParts {
                    clock: clock.clone(),
                    status: Arc::clone(&status),
                    figures: Arc::clone(&shared.reactors[index]),
                    wake,
                    stream_bytes_max,
                    sequencer: (count > 1).then(remote),
                },
                request_id_seed: u64::from_le_bytes(fresh_log_id()?.0[..8].try_into().expect("eight of sixteen bytes")),
            };
            match first {
                None => first = Some(Reactor::start(parts)?),
                Some(_) => others.push(reactor::spawn(parts, phase.subscribe())?),
            }
        }
        let first = first.expect("there is at least one listener");
        if let Some(export) = &export {
            first.export_metrics(Arc::clone(&export.recorder));
        }
        Ok(Self { clock, status, shared, first, others, phase, sequencer_wake, crossings, signal, export })
    }

    /// Starts to accept commands, over a recovered log. The thread that decides them ends when it is dropped.
    fn start_sequencer(&self, pipeline: Pipeline, disk: Disk) -> Result<Option<SequencerThread>, ServeError> {
        let (metrics, status) = (Arc::clone(&self.shared.metrics), Arc::clone(&self.status));
        let sequencer = Sequencer::new(pipeline, disk, metrics, Arc::clone(&status));
        if self.crossings.is_empty() {
            self.first.driver.start(sequencer);
            return Ok(None);
        }
        let (crossings, signal) = (self.crossings.to_vec(), Arc::clone(&self.signal));
        Ok(Some(SequencerThread::start(sequencer, self.clock.clone(), status, crossings, signal)?))
    }

    /// Ends the other reactors at once. Whatever they do until then is dropped with them.
    fn abandon(self) {
        self.phase.send_replace(Phase::Ended);
        self.status.drain();
        for reactor in self.others {
            // It has no more to do than to drop its connections.
            let _ = reactor.join();
        }
    }

    /// Waits for pending responses and closes the log, each within its timeout.
    async fn shut_down(&mut self) {
        let is_drained = |shared: &Shared| {
            let under_way = shared.reactor_totals();
            shared.metrics.connections() == 0 || under_way.pending_replies + under_way.streams == 0
        };
        self.phase.send_replace(Phase::Draining);
        self.first.stop_listening().await;
        self.status.drain();
        self.first.driver.end_streams();
        wait_until(DRAIN_TIMEOUT, || is_drained(&self.shared)).await;
        self.first.driver.close();
        if !wait_until(CLOSE_TIMEOUT, || self.status.is_closed()).await {
            tracing::warn!("the log was not closed in time; the next start recovers it");
        }
        wait_until(FLUSH_TIMEOUT, || self.shared.metrics.connections() == 0).await;
        self.phase.send_replace(Phase::Ended);
        wait_until(FLUSH_TIMEOUT, || self.others.iter().all(JoinHandle::is_finished)).await;
        if let Some(export) = &self.export {
            export.end();
            wait_until(EXPORT_TIMEOUT, || export.has_ended()).await;
        }
    }
}

/// Warns of wall time far ahead of the wall clock: deadlines pass too early until it is mended.
fn warn_of_clock_ahead(ahead_ms: i64) {
    if ahead_ms > CLOCK_AHEAD_WARNING_MS {
        tracing::warn!(
            ahead_ms,
            "wall time in the log is ahead of the wall clock: deadlines and deliver_at come early by that much; if the \
                wall clock is right, stop the broker and run `driftqd clock rebase`"
        );
    }
}

/// Waits until `condition` holds. False if it does not within `limit`.
async fn wait_until(limit: Duration, condition: impl Fn() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !condition() {
        if Instant::now() >= end {
            return false;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    true
}

/// Where the log is recovered from.
pub(crate) enum LogSource {
    Folder(FileStorage),
    Memory(MemoryLog),
    /// No log on disk.
    Nothing,
}

/// A recovered log.
struct RecoveredLog {
    pipeline: Pipeline,
    recovered: Recovered,
    storage: RecoveredStorage,
}

/// What holds the log.
enum RecoveredStorage {
    Files(FileStorage),
    /// Memory, without a log on disk.
    Volatile(VolatileStorage),
    /// Memory, from which the process can recover.
    Memory(MemoryLog),
}

type RecoveryResult = Result<RecoveredLog, ServeError>;

impl LogSource {
    /// Locks the data folder.
    fn prepare(settings: &Settings) -> Result<Self, ServeError> {
        if !settings.wal {
            return Ok(Self::Nothing);
        }
        let folder = DataFolder::open(&settings.data_dir)?;
        if settings.reset_wal
            && let Some(aside) = wal::reset(&folder)?
        {
            tracing::warn!("--reset-wal: the files of the old log are now in {}", aside.display());
        }
        if wal::is_salvage_pending(folder.path())? {
            return Err(ServeError::SalvagePending(folder.path().to_owned()));
        }
        Ok(Self::Folder(folder.storage().with_sync_delay(settings.sync_delay)))
    }

    /// Starts recovery on its own thread, which sends the result.
    fn recover<S: Storage + 'static>(
        self,
        settings: &Settings,
        now: Now,
        wrap: fn(FileStorage) -> S,
    ) -> Result<oneshot::Receiver<RecoveryResult>, ServeError> {
        let (send, result) = oneshot::channel();
        let (config, auth) = (settings.pipeline(), settings.auth.clone());
        let work = move || {
            // The receiver is gone if the process is stopping.
            let _ = send.send(self.open(config, &auth, now, wrap));
        };
        std::thread::Builder::new().name("driftq-recovery".into()).spawn(work)?;
        Ok(result)
    }

    fn open<S: Storage>(
        self,
        config: PipelineConfig,
        auth: &AuthSettings,
        now: Now,
        wrap: fn(FileStorage) -> S,
    ) -> RecoveryResult {
        let new_log = Some(fresh_log_id()?);
        match self {
            Self::Nothing => {
                let mut storage = VolatileStorage::default();
                let (mut pipeline, recovered) =
                    OpenOptions::new().config(config).create(new_log).open(&mut storage, now)?;
                ensure_keys(auth, &mut pipeline, &mut storage, now)?;
                Ok(RecoveredLog { pipeline, recovered, storage: RecoveredStorage::Volatile(storage) })
            }
            Self::Memory(mut log) => {
                let (mut pipeline, recovered) =
                    OpenOptions::new().config(config).create(new_log).open(&mut log, now)?;
                ensure_keys(auth, &mut pipeline, &mut log, now)?;
                Ok(RecoveredLog { pipeline, recovered, storage: RecoveredStorage::Memory(log) })
            }
            Self::Folder(storage) => {
                // The broker is not ready before its first segment is, so only the beginning of that is written with
                // zeros.
                let (mut pipeline, recovered) = descriptors::open_log(|| {
                    let mut first = wrap(storage.clone().with_prepare(Prepare::ZerosThenReserve(FIRST_ZEROS_BYTES)));
                    OpenOptions::new().config(config.clone()).create(new_log).open(&mut first, now)
                })?;
                ensure_keys(auth, &mut pipeline, &mut wrap(storage.clone()), now)?;
                Ok(RecoveredLog { pipeline, recovered, storage: RecoveredStorage::Files(storage) })
            }
        }
    }
}

/// Creates the keys that the settings give, before anyone can do without.
fn ensure_keys(
    auth: &AuthSettings,
    pipeline: &mut Pipeline,
    storage: &mut impl Storage,
    now: Now,
) -> Result<(), AdminKeyError> {
    match &auth.admin_key_file {
        Some(path) => ensure_admin_key(path, pipeline, storage, now),
        None => Ok(()),
    }
}

impl RecoveredLog {
    fn log_summary(&self, took: Duration) {
        for notice in &self.recovered.notices {
            match notice {
                // Every stop leaves such a segment.
                Notice::NeverBegun { .. } => tracing::debug!("{notice}"),
                _ => tracing::warn!("{notice}"),
            }
        }
        tracing::debug!(
            lsn = self.recovered.last.lsn.0,
            records = self.recovered.frames_read,
            bytes = self.recovered.bytes_read,
            topics = self.pipeline.state().topic_count(),
            clean = self.recovered.clean,
            took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
            "log recovered"
        );
    }
}
