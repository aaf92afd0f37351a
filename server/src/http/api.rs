//! What request handlers share.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::address_limit::AddressLimit;
use super::authentication::AccessLimits;
use super::body_budget::BodyBudget;
use super::unsent::{UnsentBudget, UnsentTotals};
use crate::config::Settings;
use crate::disk_space::DiskSpace;
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::otlp::{Recorder, Tracer};
use crate::reactor_figures::{ReactorFigures, ReactorTotals};
use crate::router::{RouterChain, SharedCircuit};
use crate::tls::Tls;

/// What the handlers of all reactors share.
pub(crate) struct Shared {
    pub(crate) metrics: Arc<Metrics>,
    /// Memory of unfinished request bodies.
    pub(crate) bodies: Arc<BodyBudget>,
    /// Memory of unsent responses.
    pub(crate) unsent: Arc<UnsentTotals>,
    /// The circuit breaker of the router's webhook.
    pub(crate) circuit: SharedCircuit,
    /// Permits one digest at a time, as each reads the whole state.
    pub(super) digests: Semaphore,
    /// Room for the log.
    pub(crate) disk_space: Arc<DiskSpace>,
    /// TLS of all connections; `None` if they are plain.
    pub(crate) tls: Option<Arc<Tls>>,
    /// Connections by their addresses.
    pub(super) addresses: Arc<AddressLimit>,
    /// What bounds failed authentications and refusals.
    pub(super) access: AccessLimits,
    /// What each reactor has under way.
    pub(crate) reactors: Vec<Arc<ReactorFigures>>,
    /// Records spans and metrics; `None` if nothing is exported.
    pub(crate) recorder: Option<Arc<Recorder>>,
}

impl Shared {
    /// For so many reactors.
    pub(crate) fn new(
        settings: &Settings,
        metrics: Arc<Metrics>,
        tls: Option<Arc<Tls>>,
        recorder: Option<Arc<Recorder>>,
        reactors: usize,
    ) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            bodies: BodyBudget::new(settings.http.bodies_bytes_max),
            unsent: UnsentTotals::new(settings.http.unsent_bytes_max),
            circuit: SharedCircuit::new(&settings.router),
            digests: Semaphore::new(1),
            disk_space: DiskSpace::of(settings.wal.then(|| settings.data_dir.clone())),
            tls,
            addresses: AddressLimit::new(&settings.http),
            access: AccessLimits::new(&settings.auth),
            reactors: (0..reactors).map(|_| Arc::default()).collect(),
            recorder,
        })
    }

    /// What all reactors have under way.
    pub(crate) fn reactor_totals(&self) -> ReactorTotals {
        ReactorTotals::sum(self.reactors.iter().map(|figures| &**figures))
    }
}

/// The broker and everything else a handler needs.
pub(crate) struct Api {
    pub(crate) driver: Rc<Driver>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) router: RouterChain,
    /// Memory of unfinished request bodies.
    pub(crate) bodies: Arc<BodyBudget>,
    /// Memory of unsent responses.
    pub(crate) unsent: Rc<UnsentBudget>,
    /// Records the spans of this reactor; `None` if nothing is exported.
    pub(crate) tracer: Option<Rc<Tracer>>,
    pub(crate) shared: Arc<Shared>,
}

impl Api {
    /// What the handlers of one reactor share. The ids of its spans follow from `seed`.
    pub(crate) fn new(driver: Rc<Driver>, settings: Settings, shared: Arc<Shared>, seed: u64) -> Rc<Self> {
        let router = RouterChain::sharing(settings.router.clone(), &shared.circuit);
        let (metrics, bodies) = (Arc::clone(&shared.metrics), Arc::clone(&shared.bodies));
        let unsent = UnsentBudget::new(Arc::clone(&shared.unsent));
        let tracer = shared.recorder.as_ref().map(|recorder| Rc::new(recorder.tracer(seed)));
        Rc::new(Self { driver, settings, metrics, router, bodies, unsent, tracer, shared })
    }
}
