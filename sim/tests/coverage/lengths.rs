//! Lengths, counts and durations of commands near the limits for them.

use std::collections::BTreeMap;

use driftq_core::Command;
use driftq_core::command::{
    Begin, Complete, CreateTopic, Extend, Finish, Forget, Lookup, Nack, Produce, Reacquire, Renew, Retry, StoreCommand,
    Subscribe,
};
use driftq_core::types::{Identity, Limits, Millis, Scope};

/// The limits of what a command holds.
pub(crate) const LENGTHS: [&str; 12] = [
    "delay_max",
    "error_text_bytes_max",
    "id_bytes_max",
    "idempotency_key_bytes_max",
    "key_bytes_max",
    "lease_max",
    "lease_min",
    "message_bytes_max",
    "metadata_bytes_max",
    "outputs_max",
    "partitions_max",
    "result_bytes_max",
];

const OF_STATE: &str = "a limit of the state, drawn from 1 on";
const DURATION: &str = "a duration, compared with the clock";
const SWITCH: &str = "no limit";

/// The other limits, and why.
pub(crate) const NOT_LENGTHS: &[(&str, &str)] = &[
    ("adaptive_credit", SWITCH),
    ("completion_ttl", DURATION),
    ("completions_max", OF_STATE),
    ("consumers_max", OF_STATE),
    ("keys_max", OF_STATE),
    ("tenants_max", OF_STATE),
    ("dedupe_keys_max", OF_STATE),
    ("dedupe_ttl", DURATION),
    ("effect_ttl", DURATION),
    ("effects_max", OF_STATE),
    ("group_idle", DURATION),
    ("group_idle_max", DURATION),
    ("groups_max", OF_STATE),
    ("in_flight_max", OF_STATE),
    ("job_ttl", DURATION),
    ("lease_default", DURATION),
    ("partition_bytes_max", OF_STATE),
    ("partition_messages_max", OF_STATE),
    ("retained_bytes_max", OF_STATE),
    ("retention_age", DURATION),
    ("retention_bytes", OF_STATE),
    ("retry_after", SWITCH),
    ("topics_max", OF_STATE),
    ("work", SWITCH),
];

/// How often a length was one below its limit, at it and one above.
#[derive(Default)]
pub(crate) struct Lengths(BTreeMap<&'static str, [u64; 3]>);

impl Lengths {
    /// The entries of the table.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (String, u64)> {
        LENGTHS.iter().flat_map(|limit| {
            let counts = self.0.get(limit).copied().unwrap_or_default();
            let of = |nth: usize, what: &str| (format!("Limits.{limit} {what}"), counts[nth]);
            [of(0, "one below"), of(1, "at the limit"), of(2, "one above")]
        })
    }

    fn note(&mut self, limit: &'static str, len: u64, max: u64) {
        assert!(LENGTHS.contains(&limit), "{limit} is listed");
        if let Some(nth) = (len + 1).checked_sub(max).filter(|nth| *nth < 3) {
            self.0.entry(limit).or_default()[nth as usize] += 1;
        }
    }

    pub(crate) fn observe(&mut self, command: &Command, limits: &Limits) {
        match command {
            Command::Produce(produce) => self.produce(produce, limits),
            Command::Complete(complete) => {
                let Complete { claim: _, result, produce, failed } = &**complete;
                self.text("result_bytes_max", result.as_deref(), limits.result_bytes_max);
                self.text("error_text_bytes_max", failed.as_deref(), limits.error_text_bytes_max);
                self.note("outputs_max", produce.len() as u64, limits.outputs_max as u64);
                produce.iter().for_each(|produce| self.produce(produce, limits));
            }
            Command::Nack(Nack { claim: _, reason, retry }) => {
                self.text("error_text_bytes_max", Some(reason), limits.error_text_bytes_max);
                if let Retry::After(Millis(delay)) = retry {
                    self.note("delay_max", *delay, limits.delay_max.0);
                }
            }
            Command::Extend(Extend { claim: _, lease }) | Command::Subscribe(Subscribe { lease, .. }) => {
                self.lease(*lease, limits);
            }
            Command::CreateTopic(CreateTopic { name: _, partitions, retention: _ }) => {
                let partitions = partitions.map(u64::from);
                partitions.into_iter().for_each(|it| self.note("partitions_max", it, limits.partitions_max.into()));
            }
            Command::Store(store) => self.store(store, limits),
            _ => {}
        }
    }

    fn store(&mut self, store: &StoreCommand, limits: &Limits) {
        match store {
            StoreCommand::Begin(Begin { identity, lease, request_hash, .. }) => {
                self.identity(identity, limits);
                self.lease(*lease, limits);
                self.text("id_bytes_max", request_hash.as_deref(), limits.id_bytes_max);
            }
            StoreCommand::Finish(Finish { identity, outcome, .. }) => {
                self.identity(identity, limits);
                self.text("result_bytes_max", outcome.result.as_deref(), limits.result_bytes_max);
                self.text("error_text_bytes_max", Some(&outcome.last_error), limits.error_text_bytes_max);
            }
            StoreCommand::Reacquire(Reacquire { identity, lease, .. })
            | StoreCommand::Renew(Renew { identity, lease, .. }) => {
                self.identity(identity, limits);
                self.lease(*lease, limits);
            }
            StoreCommand::Lookup(Lookup { identity }) | StoreCommand::Forget(Forget { identity }) => {
                self.identity(identity, limits);
            }
            StoreCommand::List(_) => {}
        }
    }

    fn produce(&mut self, produce: &Produce, limits: &Limits) {
        self.note("key_bytes_max", produce.key().len() as u64, limits.key_bytes_max as u64);
        let envelope = &produce.envelope;
        let key = envelope.idempotency_key.as_deref();
        self.text("idempotency_key_bytes_max", key, limits.idempotency_key_bytes_max);
        for id in [&envelope.tenant_id, &envelope.run_id, &envelope.step_id, &envelope.parent_step_id] {
            self.text("id_bytes_max", id.as_deref(), limits.id_bytes_max);
        }
        let delay = produce.delay.into_iter();
        delay.for_each(|delay| self.note("delay_max", delay.0, limits.delay_max.0));
        // A text of the metadata counts 16 bytes beside its own; here only those of messages with nothing but a trace.
        let is_plain = envelope.is_empty() && produce.routing.is_none();
        if is_plain {
            let metadata = produce.trace.as_ref().map_or(0, |trace| trace.len() + 16);
            self.note("metadata_bytes_max", metadata as u64, limits.metadata_bytes_max as u64);
            let message = produce.key().len() + produce.value().len() + metadata;
            self.note("message_bytes_max", message as u64, limits.message_bytes_max as u64);
        }
    }

    fn identity(&mut self, identity: &Identity, limits: &Limits) {
        self.text("idempotency_key_bytes_max", Some(identity.key()), limits.idempotency_key_bytes_max);
        self.text("id_bytes_max", Some(identity.tenant()), limits.id_bytes_max);
        match &identity.scope {
            Scope::Consume { .. } | Scope::Tenant => {}
            Scope::Job { id } | Scope::Task { id } => self.text("id_bytes_max", Some(id), limits.id_bytes_max),
            Scope::Rpc { principal, method } => {
                self.text("id_bytes_max", Some(principal), limits.id_bytes_max);
                self.text("id_bytes_max", Some(method), limits.id_bytes_max);
            }
        }
    }

    fn lease(&mut self, lease: Option<Millis>, limits: &Limits) {
        let Some(Millis(lease)) = lease else { return };
        self.note("lease_min", lease, limits.lease_min.0);
        self.note("lease_max", lease, limits.lease_max.0);
    }

    fn text(&mut self, limit: &'static str, text: Option<&str>, max: usize) {
        if let Some(text) = text {
            self.note(limit, text.len() as u64, max as u64);
        }
    }
}
