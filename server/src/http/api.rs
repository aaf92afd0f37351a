//! What request handlers share.

use std::rc::Rc;

use tokio::sync::Semaphore;

use super::body_budget::BodyBudget;
use super::unsent::UnsentBudget;
use crate::config::Settings;
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::router::RouterChain;

/// The broker and everything else a handler needs.
pub(crate) struct Api {
    pub(crate) driver: Rc<Driver>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) router: RouterChain,
    /// Memory of unfinished request bodies.
    pub(crate) bodies: Rc<BodyBudget>,
    /// Memory of unsent responses.
    pub(crate) unsent: Rc<UnsentBudget>,
    /// Permits one digest at a time, as each reads the whole state.
    pub(super) digests: Semaphore,
}

impl Api {
    pub(crate) fn new(driver: Rc<Driver>, settings: Settings, metrics: Rc<Metrics>) -> Rc<Self> {
        let router = RouterChain::new(settings.router.clone());
        let bodies = BodyBudget::new(settings.http.bodies_bytes_max);
        let unsent = UnsentBudget::new(settings.http.unsent_bytes_max);
        Rc::new(Self { driver, settings, metrics, router, bodies, unsent, digests: Semaphore::new(1) })
    }
}
