//! A broker in memory on a thread of its own, which can crash and start again at the same address.
//!
//! What `--memory` and [`crate::testing`] run. A crash drops everything but the synced bytes of the log, and the next
//! start recovers from them. The listeners stay open meanwhile, so that the address stays the broker's. With chaos the
//! clients are served by a gateway, and the broker listens on a loopback address that only the gateway uses.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::LocalSet;

use crate::chaos::Gateway;
use crate::config::Settings;
use crate::memory_control::{Control, Order, State};
use crate::memory_log::MemoryLog;
use crate::reactor;
use crate::serve::{End, LogSource, ServeError, announce, run_until, run_with_signals};
use crate::signals::Reload;

/// Runs a broker in memory until it is stopped by a signal; `reload` is what SIGHUP does.
///
/// # Errors
/// [`ServeError`] if it cannot be started.
pub fn run(settings: Settings, reload: Reload) -> Result<ExitCode, ServeError> {
    run_with_signals(settings, Some(reload), async |settings, mut signals| {
        let mut broker = MemoryBroker::start(&settings, signals.hangups())?;
        announce(&Settings { addr: broker.addr(), ..settings });
        tokio::select! {
            reason = broker.ended() => return Err(ServeError::Ended(reason)),
            () = signals.stop() => {}
        }
        broker.stop().await;
        Ok(())
    })
}

/// A broker that runs until it is stopped, or dropped, which kills it.
#[derive(Debug)]
pub(crate) struct MemoryBroker {
    addr: SocketAddr,
    control: Control,
    thread: Option<JoinHandle<()>>,
    gateway: Option<Gateway>,
}

impl MemoryBroker {
    /// Starts a broker, which listens when this returns. Each notification of `hangups` reloads its TLS certificate. To
    /// be called within a runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on, or a thread cannot be started.
    pub(crate) fn start(settings: &Settings, hangups: Arc<Notify>) -> Result<Self, ServeError> {
        let bind = |addr, count| reactor::bind(addr, count).map_err(|error| ServeError::Listen { addr, error });
        let reactors = settings.http.reactors;
        let (addr, clients, (inner, listeners)) = match settings.chaos {
            None => {
                let (addr, listeners) = bind(settings.addr, reactors)?;
                (addr, None, (addr, listeners))
            }
            Some(chaos) => {
                let (addr, mut clients) = bind(settings.addr, 1)?;
                let inner = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), reactors)?;
                (addr, clients.pop().map(|listener| (listener, chaos)), inner)
            }
        };
        let settings = Settings { addr, ..settings.clone() };
        let (orders, received) = mpsc::unbounded_channel();
        let (publish, state) = watch::channel(State::Recovering(1));
        let control = Control::new(orders, state);
        let gateway =
            clients.map(|(listener, chaos)| Gateway::start(listener, chaos, &settings, inner, control.clone()));
        let gateway = gateway.transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let supervisor = Supervisor { settings, listeners, hangups, orders: received, state: publish };
        let run = move || supervisor.run(&runtime);
        let thread = std::thread::Builder::new().name("driftq-memory".into()).spawn(run)?;
        Ok(Self { addr, control, thread: Some(thread), gateway })
    }

    /// Where clients find it.
    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Waits until commands are accepted.
    ///
    /// # Errors
    /// The reason if it has ended.
    pub(crate) async fn ready(&mut self) -> Result<(), ServeError> {
        self.control.settled_after(0).await.map(drop)
    }

    /// Crashes the broker, and waits until it has recovered. What is not synced is lost.
    ///
    /// # Errors
    /// The reason if it has ended.
    pub(crate) async fn restart(&mut self) -> Result<(), ServeError> {
        let starts = self.control.restart().await?;
        if let Some(gateway) = &mut self.gateway {
            gateway.serves(starts).await;
        }
        Ok(())
    }

    /// Waits until it has ended by itself, and returns the reason.
    pub(crate) async fn ended(&mut self) -> String {
        self.control.ended().await
    }

    /// The faults that were played and have a number above `after`, as `GET /v1/chaos` answers; nothing without chaos.
    pub(crate) fn chaos_report(&self, after: u64) -> Option<String> {
        Some(self.gateway.as_ref()?.report(after))
    }

    /// Stops it. Accepted requests get their responses.
    pub(crate) async fn stop(&mut self) {
        if let Some(gateway) = &self.gateway {
            gateway.drain();
        }
        self.control.order(Order::Stop);
        let _ = self.control.ended().await;
        if let Some(gateway) = &mut self.gateway {
            gateway.drained().await;
        }
    }
}

impl Drop for MemoryBroker {
    fn drop(&mut self) {
        self.control.order(Order::Kill);
        if let Some(thread) = self.thread.take() {
            // It drops its connections and ends.
            let _ = thread.join();
        }
    }
}

/// Runs a broker again and again.
struct Supervisor {
    settings: Settings,
    listeners: Vec<TcpListener>,
    hangups: Arc<Notify>,
    orders: mpsc::UnboundedReceiver<Order>,
    state: watch::Sender<State>,
}

impl Supervisor {
    fn run(mut self, runtime: &tokio::runtime::Runtime) {
        let mut log = MemoryLog::new(self.settings.sync_delay);
        for number in 1.. {
            self.state.send_replace(State::Recovering(number));
            let local = LocalSet::new();
            let ended = local.block_on(runtime, self.run_once(number, log.clone()));
            // The crash: connections, requests and what is not synced are gone.
            drop(local);
            let reason = match ended {
                Ok(Some(Order::Restart)) => {
                    log = log.crash();
                    continue;
                }
                Ok(_) => None,
                Err(error) => Some(error.to_string()),
            };
            self.state.send_replace(State::Ended(reason));
            return;
        }
    }

    /// Runs the broker until an order ends it, which is returned; nothing if there can be no order any more.
    async fn run_once(&mut self, number: u64, log: MemoryLog) -> Result<Option<Order>, ServeError> {
        let listeners = self.listeners.iter().map(TcpListener::try_clone).collect::<Result<Vec<_>, _>>()?;
        let mut order = None;
        let end = async {
            order = self.orders.recv().await;
            if order == Some(Order::Stop) { End::Stop } else { End::Crash }
        };
        let on_ready = || {
            self.state.send_replace(State::Ready(number));
        };
        // No data folder is used.
        run_until(
            end,
            &self.settings,
            (listeners, Arc::clone(&self.hangups)),
            LogSource::Memory(log),
            |files| files,
            on_ready,
        )
        .await?;
        Ok(order)
    }
}
