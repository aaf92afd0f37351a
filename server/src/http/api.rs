//! What request handlers share.

use std::rc::Rc;

use tokio::sync::Semaphore;

use crate::config::Settings;
use crate::driver::Driver;
use crate::metrics::Metrics;
use crate::router::Router;

/// The broker and everything else a handler needs.
pub(crate) struct Api {
    pub(crate) driver: Rc<Driver>,
    pub(crate) settings: Settings,
    pub(crate) metrics: Rc<Metrics>,
    pub(crate) router: Router,
    /// Permits one digest at a time, as each reads the whole state.
    pub(super) digests: Semaphore,
}

impl Api {
    pub(crate) fn new(driver: Rc<Driver>, settings: Settings, metrics: Rc<Metrics>) -> Rc<Self> {
        let router = Router::new(settings.router.clone());
        Rc::new(Self { driver, settings, metrics, router, digests: Semaphore::new(1) })
    }
}
