//! A delivery that the worker holds, and its heartbeat.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::Plant;
use crate::broker::{Broker, Repeat};

/// What belongs to every request about the delivery.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) owner: String,
}

#[derive(Debug, Default)]
struct State {
    is_lost: bool,
    is_ended: bool,
    grant: Option<String>,
}

/// A delivery.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) item: Value,
    pub(crate) identity: Identity,
    state: Mutex<State>,
    changed: Condvar,
}

impl Held {
    pub(crate) fn new(item: Value, identity: Identity) -> Arc<Self> {
        Arc::new(Self { item, identity, state: Mutex::default(), changed: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.state().is_lost
    }

    pub(crate) fn lose(&self) {
        self.state().is_lost = true;
        self.changed.notify_all();
    }

    /// Ends the heartbeat.
    pub(crate) fn end(&self) {
        self.state().is_ended = true;
        self.changed.notify_all();
    }

    pub(crate) fn granted(&self, token: &str) {
        self.state().grant = Some(token.to_owned());
    }

    pub(crate) fn grant(&self) -> Option<String> {
        self.state().grant.clone()
    }

    /// The idempotency key of the message.
    pub(crate) fn key(&self) -> Option<&str> {
        self.item["envelope"]["idempotency_key"].as_str()
    }

    /// `topic/partition/offset`.
    pub(crate) fn message(&self) -> String {
        format!("{}/{}/{}", self.identity.topic, self.item["partition"], self.item["offset"])
    }

    /// The identity of its effect.
    pub(crate) fn effect(&self) -> Value {
        let Identity { topic, group, .. } = &self.identity;
        json!({"scope": {"kind": "consume", "topic": topic, "group": group}, "key": self.key()})
    }

    /// A body about the delivery, with further fields.
    pub(crate) fn body(&self, further: Value) -> Value {
        let Identity { topic, group, owner } = &self.identity;
        let mut body = json!({
            "topic": topic,
            "group": group,
            "owner": owner,
            "partition": self.item["partition"],
            "offset": self.item["offset"],
            "lease_token": self.item["lease_token"],
        });
        add(&mut body, further);
        body
    }

    /// Extends lease and effect every third of the lease, until the delivery is ended or lost.
    pub(crate) fn keep(self: &Arc<Self>, plant: Plant, broker: &Broker, lease: Duration) {
        if plant == Plant::NoHeartbeat {
            return;
        }
        let (held, broker) = (Arc::clone(self), broker.clone());
        let received = Instant::now();
        thread::spawn(move || held.heartbeats(plant, &broker, lease, received));
    }

    fn heartbeats(&self, plant: Plant, broker: &Broker, lease: Duration, received: Instant) {
        let mut last = received;
        loop {
            let mut state = self.state();
            while !state.is_ended && !state.is_lost {
                let left = (last + lease / 3).saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
            }
            if state.is_ended || state.is_lost {
                return;
            }
            let grant = state.grant.clone();
            drop(state);
            let sent = Instant::now();
            let lease_ms = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX);
            let mut beats = broker.call("/v1/extend", &self.body(json!({"lease_ms": lease_ms})), Repeat::Safe).is_ok();
            if let Some(token) = grant.filter(|_| beats && plant != Plant::NoRenew) {
                let mut body = self.effect();
                add(&mut body, json!({"lease_token": token, "lease_ms": lease_ms}));
                beats = broker.call("/v1/idempotency/renew", &body, Repeat::Safe).is_ok();
            }
            last = sent;
            // It may have been ended while the heartbeat was on its way, and be refused for that.
            if (!beats || sent.elapsed() > lease) && plant != Plant::ResultAfterLostLease && !self.state().is_ended {
                self.lose();
            }
        }
    }
}

/// Adds the fields of `further`.
pub(crate) fn add(body: &mut Value, further: Value) {
    if let (Some(body), Value::Object(further)) = (body.as_object_mut(), further) {
        body.extend(further);
    }
}
