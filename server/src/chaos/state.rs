//! What all connections of the gateway share.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use driftq_core::types::{Limits, Millis};
use hyper::header::{HOST, HeaderValue};
use hyper::http::request;
use hyper::{Method, Request, Uri};
use tokio::sync::watch;
use tokio::time::Instant;

use super::arrivals::Arrivals;
use super::deliveries::{Expiries, ExpiryKey};
use super::draw::{Fault, Hit, RequestKind, Subject, draw, fingerprint};
use super::occurrences::Occurrences;
use super::outage::Outage;
use super::played::{DeliveryRef, Detail, PlayedList, SufferedBy};
use super::upstream::Upstream;
use crate::config::{ChaosSettings, Settings};
use crate::json::object;
use crate::memory_control::{Control, Order};

/// The longest delay, in milliseconds.
const DELAY_MS_MAX: u64 = 250;
/// For how long a broker that has crashed refuses requests, in milliseconds.
const OUTAGE_MS_MIN: u64 = 20;
const OUTAGE_MS_MAX: u64 = 200;

/// The faults, what they depend on, and the way to the broker.
pub(super) struct Chaos {
    settings: ChaosSettings,
    limits: Limits,
    /// Bytes of a request body, or of a line of a batch.
    pub(super) body_bytes_max: usize,
    /// Longest pause within a request body.
    pub(super) body_timeout: Duration,
    occurrences: RefCell<Occurrences>,
    played: Arc<PlayedList>,
    expiries: Expiries,
    pub(super) arrivals: Arrivals,
    pub(super) outage: Outage,
    /// When the broker accepts requests again at the earliest.
    outage_until: Cell<Instant>,
    pub(super) upstream: Upstream,
    control: Control,
    /// The number of the recovery after which requests are passed on.
    serving: watch::Sender<u64>,
    /// The number of the next request that has no id.
    next_id: Cell<u64>,
}

/// A request, or a line of a batch, and how often it has come.
#[derive(Clone, Debug)]
pub(super) struct KnownRequest {
    pub(super) subject: Subject,
    suffered_by: SufferedBy,
}

impl Chaos {
    /// Faults in front of the broker at `inner`.
    pub(super) fn new(
        chaos: ChaosSettings,
        settings: &Settings,
        inner: SocketAddr,
        control: Control,
        serving: watch::Sender<u64>,
        played: Arc<PlayedList>,
    ) -> Rc<Self> {
        Rc::new(Self {
            settings: chaos,
            limits: settings.limits.clone(),
            body_bytes_max: settings.http.body_bytes_max,
            body_timeout: settings.http.body_timeout,
            occurrences: RefCell::default(),
            played,
            expiries: Expiries::default(),
            arrivals: Arrivals::default(),
            outage: Outage::default(),
            outage_until: Cell::new(Instant::now()),
            upstream: Upstream::new(inner, settings.http.head_timeout),
            control,
            serving,
            next_id: Cell::new(1),
        })
    }

    /// Whether a subject suffers a fault.
    pub(super) fn draw(&self, fault: Fault, subject: Subject) -> Option<Hit> {
        draw(&self.settings, fault, subject)
    }

    /// Notes that a fault is played.
    pub(super) fn play(&self, fault: Fault, suffered_by: SufferedBy, detail: Detail) {
        self.played.add(fault, suffered_by, detail);
    }

    /// The faults that were played and have a number above `after`, as JSON.
    pub(super) fn report(&self, after: u64) -> String {
        self.played.to_json(&self.settings, after)
    }

    /// Counts a request, or a line of a batch.
    pub(super) fn know(&self, kind: RequestKind, head: &request::Parts, digest: u64) -> KnownRequest {
        let (method, target) = (head.method.as_str(), target(&head.uri));
        let fingerprint = fingerprint(kind, method, target, digest);
        let occurrence = self.occurrences.borrow_mut().count(fingerprint);
        let suffered_by = SufferedBy::request(method, target, digest, occurrence);
        KnownRequest { subject: Subject::request(fingerprint, occurrence), suffered_by }
    }

    /// How long something is held, in milliseconds.
    pub(super) fn delay_ms(&self, hit: Hit) -> u64 {
        1 + hit.pick(0, DELAY_MS_MAX)
    }

    /// The lease of a delivery to a stream that asked for this one.
    pub(super) fn lease(&self, requested: Option<Millis>) -> Millis {
        self.limits.lease(requested)
    }

    /// Crashes the broker after this request: from now on everything is cut or refused.
    pub(super) fn crash(&self, hit: Hit, request: &KnownRequest) {
        let ms = OUTAGE_MS_MIN + hit.pick(0, OUTAGE_MS_MAX - OUTAGE_MS_MIN + 1);
        if self.outage.begin() {
            request.play(self, Fault::Restart, Detail::of("broker").with_ms(ms));
            self.outage_until.set(Instant::now() + Duration::from_millis(ms));
            self.control.order(Order::Restart);
        }
    }

    /// Ends each outage when the broker has recovered and its time is over. Returns when the broker has ended.
    pub(super) async fn follow_broker(&self) {
        let mut control = self.control.clone();
        let mut starts = *self.serving.borrow();
        while control.started_after(starts).await.is_ok() {
            // It is known already if the crash was a fault.
            self.outage.begin();
            let Ok(number) = control.settled_after(starts).await else { return };
            starts = number;
            tokio::time::sleep_until(self.outage_until.get()).await;
            self.upstream.forget_idle();
            self.outage.end();
            self.serving.send_replace(starts);
        }
    }

    /// Ends the lease of a delivery after a time, unless the message is delivered again before.
    pub(super) fn expire_after(self: &Rc<Self>, after: Duration, delivery: DeliveryRef) {
        let (key, attempts) = expiry_of(&delivery);
        self.expiries.borrow_mut().insert(key.clone(), attempts);
        let chaos = Rc::clone(self);
        tokio::task::spawn_local(async move {
            tokio::time::sleep(after).await;
            if chaos.take_expiry(&key, attempts) {
                // The message may have been acked, or the broker may have crashed: then there is no lease to end.
                let _ = chaos.upstream.call(&expire_head(), expire_body(&delivery)).await;
            }
        });
    }

    /// Whether the expiry of this attempt still concerns the message; it does not any more.
    fn take_expiry(&self, key: &ExpiryKey, attempts: u64) -> bool {
        let mut expiries = self.expiries.borrow_mut();
        let is_due = expiries.get(key) == Some(&attempts);
        if is_due {
            expiries.remove(key);
        }
        is_due
    }

    /// The message is delivered: an expiry of an earlier delivery does not concern it.
    pub(super) fn forget_expiry(&self, delivery: &DeliveryRef) {
        let (key, attempts) = expiry_of(delivery);
        let mut expiries = self.expiries.borrow_mut();
        if expiries.get(&key).is_some_and(|earlier| *earlier < attempts) {
            expiries.remove(&key);
        }
    }

    /// An id for a request that has none.
    pub(super) fn fresh_id(&self) -> HeaderValue {
        let number = self.next_id.replace(self.next_id.get() + 1);
        HeaderValue::from_str(&format!("chaos-{number}")).expect("it is ASCII")
    }
}

impl KnownRequest {
    /// Notes that it suffers a fault.
    pub(super) fn play(&self, chaos: &Chaos, fault: Fault, detail: Detail) {
        chaos.play(fault, self.suffered_by.clone(), detail);
    }

    pub(super) fn into_suffered_by(self) -> SufferedBy {
        self.suffered_by
    }
}

/// Path and query.
pub(super) fn target(uri: &Uri) -> &str {
    uri.path_and_query().map_or("/", |target| target.as_str())
}

fn expiry_of(delivery: &DeliveryRef) -> (ExpiryKey, u64) {
    let DeliveryRef { topic, group, partition, offset, attempts } = delivery;
    ((topic.clone(), group.clone(), *partition, *offset), *attempts)
}

fn expire_head() -> request::Parts {
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static("/v1/groups/expire");
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    request.into_parts().0
}

fn expire_body(delivery: &DeliveryRef) -> Bytes {
    let mut body = Vec::new();
    object(&mut body, |json| {
        json.text("topic", &delivery.topic);
        json.text("group", &delivery.group);
        json.number("partition", delivery.partition);
        json.number("offset", delivery.offset);
    });
    body.into()
}
