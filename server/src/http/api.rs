//! What request handlers share.

use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::body_budget::BodyBudget;
use super::unsent::{UnsentBudget, UnsentTotals};
use crate::config::Settings;
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::reactor_figures::{ReactorFigures, ReactorTotals};
use crate::router::{RouterChain, SharedCircuit};

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
    /// What each reactor has under way.
    pub(crate) reactors: Vec<Arc<ReactorFigures>>,
}

impl Shared {
    /// For so many reactors.
    pub(crate) fn new(settings: &Settings, metrics: Arc<Metrics>, reactors: usize) -> Arc<Self> {
        Arc::new(Self {
            metrics,
            bodies: BodyBudget::new(settings.http.bodies_bytes_max),
            unsent: UnsentTotals::new(settings.http.unsent_bytes_max),
            circuit: SharedCircuit::new(&settings.router),
            digests: Semaphore::new(1),
            reactors: (0..reactors).map(|_| Arc::default()).collect(),
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
    pub(crate) shared: Arc<Shared>,
}

impl Api {
    pub(crate) fn new(driver: Rc<Driver>, settings: Settings, shared: Arc<Shared>) -> Rc<Self> {
        let router = RouterChain::sharing(settings.router.clone(), &shared.circuit);
        let (metrics, bodies) = (Arc::clone(&shared.metrics), Arc::clone(&shared.bodies));
        let unsent = UnsentBudget::new(Arc::clone(&shared.unsent));
        Rc::new(Self { driver, settings, metrics, router, bodies, unsent, shared })
    }
}
