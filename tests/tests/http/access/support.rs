//! A broker with keys, and requests that show them.

use driftq_tests::http::Reply;
use serde_json::{Value, json};

use crate::harness::Server;

/// Every verb.
pub const VERBS: [&str; 6] = ["produce", "consume", "effects", "inspect", "operate", "admin"];

/// More failures than a test has.
pub const MANY_FAILURES: &str = "[auth]\nfailures_max = 100000\n";

/// A key as its creator knows it.
#[derive(Clone, Debug)]
pub struct Key {
    pub id: String,
    pub text: String,
}

impl Key {
    fn of(reply: &Reply) -> Self {
        assert_eq!(reply.status, 201, "{reply:?}");
        let text = |name: &str| reply.json()[name].as_str().expect("a text").to_owned();
        Self { id: text("id"), text: text("key") }
    }

    /// Its id with another secret.
    pub fn with_other_secret(&self) -> String {
        let other = if self.text.ends_with('A') { 'B' } else { 'A' };
        format!("{}{other}", &self.text[..self.text.len() - 1])
    }
}

/// A broker that requires keys.
pub struct Keyed {
    pub server: Server,
    pub admin: Key,
}

impl Keyed {
    /// With default settings, but for the bound on failures.
    pub fn start() -> Self {
        Self::on(Server::configured(MANY_FAILURES, &[]))
    }

    /// With two reactors.
    pub fn with_reactors() -> Self {
        Self::on(Server::configured(MANY_FAILURES, &["--reactors", "2"]))
    }

    /// The first key of `server`, which has none.
    pub fn on(server: Server) -> Self {
        let admin = Key::of(&server.post("/v1/keys", new_key("admin", "*", &VERBS).to_string()));
        Self { server, admin }
    }

    /// A request that shows a key.
    #[track_caller]
    pub fn call_as(&self, key: &str, method: &str, target: &str, body: &str) -> Reply {
        self.server.call(method, target, &[("Authorization", &format!("Bearer {key}"))], body)
    }

    /// A request of the administrator that must succeed.
    #[track_caller]
    pub fn admin(&self, method: &str, target: &str, body: &Value) -> Reply {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let reply = self.call_as(&self.admin.text, method, target, &body);
        assert!(reply.status < 300, "{method} {target}: {reply:?}");
        reply
    }

    /// Creates a key of the default tenant.
    #[track_caller]
    pub fn key(&self, topics: &str, verbs: &[&str]) -> Key {
        Key::of(&self.admin("POST", "/v1/keys", &new_key("k", topics, verbs)))
    }

    /// Creates a key with these fields beside its name.
    #[track_caller]
    pub fn key_with(&self, topics: &str, verbs: &[&str], fields: &Value) -> Key {
        let mut key = new_key("k", topics, verbs);
        key.as_object_mut().expect("an object").extend(fields.as_object().expect("an object").clone());
        Key::of(&self.admin("POST", "/v1/keys", &key))
    }

    /// Registers a tenant, and creates a key with all verbs on all of its topics.
    #[track_caller]
    pub fn tenant(&self, name: &str) -> Key {
        self.admin("POST", "/v1/tenants", &json!({ "name": name }));
        self.key_with("*", &VERBS, &json!({ "tenant": name }))
    }

    /// Revokes a key.
    #[track_caller]
    pub fn revoke(&self, key: &Key) {
        self.admin("DELETE", &format!("/v1/keys/{}", key.id), &Value::Null);
    }

    /// Creates a topic of the default tenant.
    #[track_caller]
    pub fn topic(&self, name: &str) {
        self.admin("POST", "/v1/topics", &json!({ "name": name }));
    }
}

/// The body that creates a key with one grant.
pub fn new_key(name: &str, topics: &str, verbs: &[&str]) -> Value {
    json!({ "name": name, "grants": [{ "verbs": verbs, "topics": topics }] })
}
