//! The thread that serves clients in front of the broker.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::LocalSet;

use super::exchange::{is_exempt, respond};
use super::played::PlayedList;
use super::state::Chaos;
use crate::config::{ChaosSettings, Settings};
use crate::memory_control::Control;

/// Pause after the system could not provide another socket.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(20);
/// How long the last answers may take to reach their clients.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(50);

/// Serves clients with the faults of a network until dropped.
#[derive(Debug)]
pub(crate) struct Gateway {
    phase: watch::Sender<Phase>,
    /// How many connections are open.
    open: watch::Receiver<usize>,
    /// The number of the recovery after which requests are passed on.
    serving: watch::Receiver<u64>,
    settings: ChaosSettings,
    played: Arc<PlayedList>,
    thread: Option<JoinHandle<()>>,
}

/// How far it is on its way to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Running,
    /// Each connection is closed after its current request.
    Draining,
    Ended,
}

impl Gateway {
    /// Serves the clients of `listener` by the broker at `inner`.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        listener: std::net::TcpListener,
        chaos: ChaosSettings,
        settings: &Settings,
        inner: SocketAddr,
        control: Control,
    ) -> std::io::Result<Self> {
        let (phase, phases) = watch::channel(Phase::Running);
        let (opened, open) = watch::channel(0);
        let (serve, serving) = watch::channel(1);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (chaos_settings, played) = (chaos, Arc::new(PlayedList::default()));
        let shared = Arc::clone(&played);
        let (settings, head_timeout) = (settings.clone(), settings.http.head_timeout);
        let work = move || {
            let local = LocalSet::new();
            local.block_on(&runtime, async {
                let listener = match TcpListener::from_std(listener) {
                    Ok(listener) => listener,
                    Err(error) => return tracing::error!("the gateway of --chaos cannot start: {error}"),
                };
                let chaos = Chaos::new(chaos, &settings, inner, control, serve, shared);
                let followed = Rc::clone(&chaos);
                tokio::task::spawn_local(async move { followed.follow_broker().await });
                let mut http = auto::Builder::new(LocalExecutor);
                http.http1().timer(TokioTimer::new()).header_read_timeout(head_timeout);
                http.http2().timer(TokioTimer::new());
                let clients = Clients { chaos, http, phases: phases.clone(), opened: Rc::new(opened) };
                let mut phases = phases;
                tokio::select! {
                    () = clients.accept(listener) => {}
                    _ = phases.wait_for(|phase| *phase == Phase::Ended) => {}
                }
            });
            drop(local);
        };
        let thread = std::thread::Builder::new().name("driftq-chaos".into()).spawn(work)?;
        Ok(Self { phase, open, serving, settings: chaos_settings, played, thread: Some(thread) })
    }

    /// The faults that were played and have a number above `after`, as `GET /v1/chaos` answers.
    pub(crate) fn report(&self, after: u64) -> String {
        self.played.to_json(&self.settings, after)
    }

    /// Waits until requests are passed on to the broker after its recovery with this number.
    pub(crate) async fn serves(&mut self, starts: u64) {
        // An error means that the broker has ended.
        let _ = self.serving.wait_for(|serving| *serving >= starts).await;
    }

    /// Closes each connection after its current request.
    pub(crate) fn drain(&self) {
        self.phase.send_replace(Phase::Draining);
    }

    /// Waits until the last answers have reached their clients, within bounds.
    pub(crate) async fn drained(&mut self) {
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, self.open.wait_for(|open| *open == 0)).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.phase.send_replace(Phase::Ended);
        if let Some(thread) = self.thread.take() {
            // It drops its connections and ends.
            let _ = thread.join();
        }
    }
}

/// Spawns hyper's HTTP/2 tasks on the current thread.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// What connections are served with.
#[derive(Clone)]
struct Clients {
    chaos: Rc<Chaos>,
    http: auto::Builder<LocalExecutor>,
    phases: watch::Receiver<Phase>,
    opened: Rc<watch::Sender<usize>>,
}

impl Clients {
    async fn accept(&self, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((socket, _)) => {
                    let clients = self.clone();
                    self.opened.send_modify(|open| *open += 1);
                    tokio::task::spawn_local(async move {
                        clients.serve(socket).await;
                        clients.opened.send_modify(|open| *open -= 1);
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_BACKOFF).await,
            }
        }
    }

    /// Serves a connection until it ends or the broker crashes. What suffers no faults is answered all the same.
    async fn serve(&self, socket: TcpStream) {
        let _ = socket.set_nodelay(true);
        let exempt = Rc::new(Cell::new(0_usize));
        let service = service_fn(|request: Request<Incoming>| {
            let exempt = is_exempt(request.uri().path()).then(|| InProgress::begin(&exempt));
            let answer = respond(Rc::clone(&self.chaos), request);
            async move {
                let answer = answer.await;
                drop(exempt);
                answer
            }
        });
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(socket), service));
        let crash = self.chaos.outage.crash_after(self.chaos.outage.epoch());
        let mut phases = self.phases.clone();
        // Nothing is to be done about a connection that fails.
        tokio::select! {
            biased;
            () = crash => {
                if exempt.get() > 0 {
                    connection.as_mut().graceful_shutdown();
                    let _ = connection.await;
                }
            }
            _ = connection.as_mut() => {}
            _ = phases.wait_for(|phase| *phase >= Phase::Draining) => {
                connection.as_mut().graceful_shutdown();
                let _ = connection.await;
            }
        }
    }
}

/// A request that suffers no faults is in progress.
struct InProgress(Rc<Cell<usize>>);

impl InProgress {
    fn begin(count: &Rc<Cell<usize>>) -> Self {
        count.set(count.get() + 1);
        Self(Rc::clone(count))
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}
