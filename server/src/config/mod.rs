//! The settings: defaults, then the configuration file, then `DRIFTQ_*`, then flags, each winning over the one before.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use driftq_core::types::{Limits, PartitionId, Text, TopicName};
use std::collections::BTreeMap;

/// Everything the daemon can be told, as it is in force.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen.
    pub addr: SocketAddr,
    /// The folder of the log.
    pub data_dir: PathBuf,
    /// Whether there is a log on disk at all. Without one, everything is lost at the end of the process.
    pub wal: bool,
    /// Which table of defaults the limits come from.
    pub profile: Profile,
    /// The broker's limits.
    pub limits: Limits,
    /// The most live leases of a stream that does not say.
    pub prefetch: u32,
    /// The log's files.
    pub storage: StorageSettings,
    /// The edge.
    pub http: HttpSettings,
    /// The router hook.
    pub router: RouterSettings,
    /// How the process logs.
    pub log: LogSettings,
}

/// A table of defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// For production.
    #[default]
    Production,
    /// The specification's own.
    Spec,
}

/// Sizes of the log's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StorageSettings {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// Bytes kept for acks and the like when the disk is full.
    pub reserve_bytes: u64,
    /// Log bytes after which a snapshot is taken.
    pub snapshot_every_bytes: u64,
}

/// What the edge allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpSettings {
    /// Bytes of a request body; of one line where the body is a batch.
    pub body_bytes_max: usize,
    /// Bytes of a request's head.
    pub head_bytes_max: usize,
    /// Open connections.
    pub connections_max: usize,
    /// How long a request's head may take, and how long a connection may be idle.
    pub head_timeout: Duration,
    /// How long a body may pause.
    pub body_timeout: Duration,
    /// How fast a body must come on average, in bytes per second, once it has taken [`body_timeout`](Self::body_timeout).
    pub body_rate_min: u64,
    /// How often an idle stream sends a blank line.
    pub stream_keep_alive: Duration,
    /// Whether an address other than loopback may be listened on.
    pub insecure: bool,
    /// Host headers allowed beside loopback names and the listen address; `*` for any.
    pub allowed_hosts: Vec<String>,
}

/// The router hook.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouterSettings {
    /// Looked at in order; the first that fits decides.
    pub rules: Vec<Rule>,
    /// Asked where no rule fits.
    pub webhook: Option<Webhook>,
}

/// One rule: every condition given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The topic the producer asked for.
    pub topic: Option<TopicName>,
    /// What the key begins with.
    pub key_prefix: Option<Text>,
    /// Labels the message carries.
    pub labels: BTreeMap<Text, Text>,
    /// Its tenant; `default` where it names none.
    pub tenant: Option<Text>,
    /// The label it gets.
    pub label: Text,
    /// The topic it goes to.
    pub target_topic: Option<TopicName>,
    /// The partition it goes to.
    pub partition_override: Option<PartitionId>,
    /// What else is kept with it.
    pub meta: BTreeMap<Text, Text>,
}

/// A router asked over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Where: `http://host[:port]/path`.
    pub url: String,
    /// How long it may take.
    pub timeout: Duration,
}

/// How the process logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// One line of text or one JSON object per event.
    pub format: LogFormat,
    /// A level, or a filter as `tracing` knows them.
    pub level: String,
}

/// See [`LogSettings::format`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}
