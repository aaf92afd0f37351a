//! A reactor: one thread that accepts connections and serves their requests.
//!
//! The first reactor runs on the main thread, with the signals. Each of the others has a thread and a runtime of its
//! own, and its own listener on the same address, among which the system distributes connections (`SO_REUSEPORT`).

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use driftq_core::types::Principal;
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::config::Settings;
use crate::driver::{Driver, DriverParts};
use crate::http::connection::{Stop, listen};
use crate::http::{Api, Service, Shared, render_metrics};
use crate::otlp::Recorder;

/// Connections that wait to be accepted; the system may limit it further (`net.core.somaxconn`).
const LISTEN_BACKLOG: u32 = 4_096;

/// How far the process is on its way to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    #[default]
    Running,
    /// No connection is accepted any more, and streams are about to end.
    Draining,
    /// The time of all requests is up.
    Ended,
}

/// What a reactor is made of. It can be given to the reactor's thread.
pub(crate) struct ReactorParts {
    pub(crate) listener: std::net::TcpListener,
    pub(crate) settings: Settings,
    pub(crate) shared: Arc<Shared>,
    pub(crate) driver: DriverParts,
    /// What the ids of its requests begin with.
    pub(crate) request_id_seed: u64,
}

/// A reactor that accepts connections on the current thread.
pub(crate) struct Reactor {
    pub(crate) driver: Rc<Driver>,
    api: Rc<Api>,
    stop: Rc<Stop>,
    listening: tokio::task::JoinHandle<()>,
}

impl Reactor {
    /// Starts to accept connections. To be called within a runtime and a [`LocalSet`].
    ///
    /// # Errors
    /// If the runtime does not take the listener.
    pub(crate) fn start(parts: ReactorParts) -> std::io::Result<Self> {
        let ReactorParts { listener, settings, shared, driver, request_id_seed } = parts;
        let listener = TcpListener::from_std(listener)?;
        let figures = Arc::clone(&driver.figures);
        let driver = Driver::new(driver);
        let api = Api::new(Rc::clone(&driver), settings, shared, request_id_seed.rotate_left(32));
        let stop = Rc::new(Stop::default());
        let service = Service::new(Rc::clone(&api), request_id_seed, figures);
        let listening = tokio::task::spawn_local(listen(listener, service, Rc::clone(&stop)));
        tokio::task::spawn_local(Rc::clone(&driver).run());
        Ok(Self { driver, api, stop, listening })
    }

    /// Passes the metrics of the process to the export again and again, until the [`LocalSet`] is dropped.
    pub(crate) fn export_metrics(&self, recorder: Arc<Recorder>) {
        let api = Rc::clone(&self.api);
        tokio::task::spawn_local(async move {
            loop {
                tokio::time::sleep(recorder.interval()).await;
                // What the program itself asks for is not refused.
                if let Ok(metrics) = render_metrics(&api, Principal::Trusted).await {
                    recorder.metrics(metrics);
                }
            }
        });
    }

    /// Accepts nothing more. Each connection is closed after its current request.
    pub(crate) async fn stop_listening(&mut self) {
        self.stop.stop();
        let _ = (&mut self.listening).await;
    }
}

/// Starts a reactor on a thread of its own, which ends with [`Phase::Ended`].
///
/// # Errors
/// If the thread or its runtime cannot be started.
pub(crate) fn spawn(parts: ReactorParts, mut phase: watch::Receiver<Phase>) -> std::io::Result<JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = move || {
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            let mut reactor = match Reactor::start(parts) {
                Ok(reactor) => reactor,
                Err(error) => return tracing::error!("a reactor cannot start: {error}"),
            };
            // An error means that the process ends.
            let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
            reactor.stop_listening().await;
            reactor.driver.status().draining().await;
            reactor.driver.end_streams();
            let _ = phase.wait_for(|phase| *phase >= Phase::Ended).await;
        });
        // Cancels the tasks that still run; their time is up.
        drop(local);
        runtime.shutdown_background();
    };
    std::thread::Builder::new().name("driftq-reactor".into()).spawn(work)
}

/// Listens on `addr` with `count` listeners, each with a queue for many clients that connect at once. Returns the
/// address, whose port may have been chosen by the system.
///
/// # Errors
/// If the address cannot be listened on, for instance because another process does.
pub(crate) fn bind(addr: SocketAddr, count: usize) -> std::io::Result<(SocketAddr, Vec<std::net::TcpListener>)> {
    let socket = socket(addr)?;
    // Without SO_REUSEPORT, so that an address in use is an error, by a broker of the same user too.
    socket.bind(addr)?;
    let addr = socket.local_addr()?;
    if count > 1 {
        socket.set_reuseport(true)?;
    }
    let mut listeners = vec![socket.listen(LISTEN_BACKLOG)?.into_std()?];
    for _ in 1..count {
        let socket = self::socket(addr)?;
        socket.set_reuseport(true)?;
        socket.bind(addr)?;
        listeners.push(socket.listen(LISTEN_BACKLOG)?.into_std()?);
    }
    Ok((addr, listeners))
}

fn socket(addr: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A restart may take the address while connections of its predecessor linger.
    socket.set_reuseaddr(true)?;
    Ok(socket)
}
