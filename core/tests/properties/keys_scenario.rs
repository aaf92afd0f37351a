//! A fixed scenario that writes every kind of record and image about keys, tenants and the audit. It has golden files
//! of its own, since those of [`scenario`](super::scenario) are not to change.

use driftq_core::command::*;
use driftq_core::log::{LogId, MemoryStorage};
use driftq_core::types::*;
use driftq_core::{Command, OpenOptions, Output, Pipeline, Refusal};

use super::scenario::{START, config, without_sizes};

const LOG: LogId = LogId(*b"the golden keys.");

struct KeysBroker {
    storage: MemoryStorage,
    pipeline: Pipeline,
    now: Timestamp,
    refusals: Vec<Refusal>,
}

fn id(text: &str) -> KeyId {
    text.parse().expect("an id")
}

fn tenant(name: &str) -> TenantName {
    TenantName::new(name).expect("a name")
}

fn key(name: &str, tenant: Option<TenantName>, grants: &[&str], expiry: Option<KeyExpiry>) -> CreateKey {
    CreateKey {
        id: id(name),
        name: KeyName::new(&format!("key {name}")).expect("a name"),
        digest: KeyDigest(std::array::from_fn(|at| at as u8)),
        tenant,
        grants: grants.iter().map(|grant| grant.parse().expect("a grant")).collect(),
        expiry,
    }
}

impl KeysBroker {
    fn start() -> Self {
        let mut storage = MemoryStorage::new();
        let (pipeline, _) = OpenOptions::new().config(config()).create(LOG).open(&mut storage, START).expect("opens");
        let mut broker = Self { storage, pipeline, now: START, refusals: Vec::new() };
        broker.run();
        broker
    }

    fn restart(self) -> Self {
        let (mut storage, now) = (self.storage.crash(), self.now.after(Millis(10)));
        let (pipeline, _) = OpenOptions::new().config(config()).open(&mut storage, now).expect("opens");
        let mut broker = Self { storage, pipeline, now, ..self };
        broker.run();
        broker
    }

    fn run(&mut self) {
        loop {
            self.pipeline.drive(self.now, &mut self.storage);
            while let Some(output) = self.pipeline.poll_output() {
                if let Output::Reply { result: Err(refusal), .. } = output {
                    self.refusals.push(refusal);
                }
            }
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            self.pipeline.handle_timeout(self.now);
        }
    }

    fn send(&mut self, caller: &Caller, command: impl Into<Command>) {
        self.now = self.now.after(Millis(1));
        self.pipeline.handle_as(self.now, caller, command.into());
        self.run();
    }

    fn idle(&mut self, span: u64) {
        self.now = self.now.after(Millis(span));
        self.pipeline.handle_timeout(self.now);
        self.run();
    }
}

/// The storage after the scenario: a snapshot in the middle, two boots and a synced mark at the end.
pub fn keys_log() -> MemoryStorage {
    let mut broker = KeysBroker::start();
    let (admin, from) = (id("0admin000000"), Some([192, 0, 2, 1].into()));
    let first = Caller::anonymous(Some([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1].into()));
    broker.send(&first, key("0admin000000", None, &["produce,consume,effects,inspect,operate,admin:*"], None));
    let admin = Caller::key(admin, from);
    for name in ["acme", "gone"] {
        broker.send(&admin, CreateTenant { name: tenant(name) });
    }
    let expiry = Some(KeyExpiry::After(Millis(3_600_000)));
    broker.send(&admin, key("acme00000001", Some(tenant("acme")), &["produce,consume:orders*", "inspect:a b"], expiry));
    broker.send(&admin, key("acme00000002", Some(tenant("acme")), &["operate:*"], None));
    let san = CertificateSan::new("spiffe://acme/worker").expect("a name");
    broker.send(&admin, BindKey { id: id("acme00000001"), certificate_san: Some(san) });
    let acme = Caller::key(id("acme00000002"), None);
    let orders = TopicName::of(TenantId(1), "orders").expect("a name");
    broker.send(&acme, CreateTopic { name: orders.clone(), partitions: Some(1), retention: Retention::default() });
    let group = GroupName::new("g").expect("a name");
    broker.send(&acme, CreateGroup { topic: orders.clone(), group: group.clone(), start: GroupStart::Earliest });
    broker.send(&Caller::key(id("acme00000001"), from), Purge { topic: orders.clone() });
    broker.send(&acme, Pause { topic: orders, group });
    broker.pipeline.request_snapshot();
    broker.run();
    broker.send(&admin, BindKey { id: id("acme00000001"), certificate_san: None });
    broker.send(&admin, RevokeKey { id: id("acme00000002") });
    broker.send(&admin, DeleteTenant { name: tenant("gone") });
    broker.send(&admin, ListAudit { limit: 10, before: None });
    broker.pipeline.close();
    broker.run();
    let mut broker = broker.restart();
    broker.send(&admin, ListTenants);
    broker.idle(100);
    assert_eq!(broker.refusals.len(), 1, "the purge without its grant: {:?}", broker.refusals);
    without_sizes(broker.storage.crash())
}
