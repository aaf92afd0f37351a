//! The settings and their defaults. The serde attributes are the schema of the configuration file: every key and its
//! range.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use driftq_core::log::HEADER_BYTES;
use driftq_core::pipeline::PipelineConfig;
use driftq_core::types::{Limits, Millis, PartitionId, Text, TopicName};
use serde::{Deserialize, Serialize};

use super::address::WebhookUrl;
use super::auth::AuthSettings;
use super::chaos::ChaosSettings;
use super::check::largest_record_bytes;
use super::limits::LimitsSection;
use super::number::{DAY_MS, I64_MAX, Int, PARTITION_MAX, U32_MAX};
use super::otlp::OtlpSettings;
use super::text;
use super::tls::TlsSettings;
use crate::process_memory;

/// The smallest segment has at least this fraction of the largest.
const SEGMENT_FRACTION_MIN: u64 = 16;

/// Bytes of [`StorageSettings`] without a log on disk, where memory is never full before the process is.
const VOLATILE_RESERVE_BYTES: u64 = 4 << 10;
const VOLATILE_SNAPSHOT_BYTES: u64 = 32 << 20;
const VOLATILE_MEMORY_BYTES: u64 = 16 << 20;

/// Effective settings of a broker process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Listen address.
    #[serde(deserialize_with = "text::addr")]
    pub addr: SocketAddr,
    /// Folder of the log.
    #[serde(deserialize_with = "text::data_dir")]
    pub data_dir: PathBuf,
    /// Whether the log is kept on disk. If not, all state is lost when the process ends.
    pub wal: bool,
    /// Table of default limits.
    pub profile: Profile,
    /// Live leases of a stream whose request sets no prefetch.
    #[serde(with = "Int::<1, U32_MAX>")]
    pub prefetch: u32,
    /// Limits of the broker.
    #[serde(with = "LimitsSection")]
    pub limits: Limits,
    /// Sizes of the log's files, and of payloads in memory.
    pub storage: StorageSettings,
    /// HTTP limits and timeouts.
    pub http: HttpSettings,
    /// TLS.
    pub tls: TlsSettings,
    /// Keys.
    pub auth: AuthSettings,
    /// Logging.
    pub log: LogSettings,
    /// Export of spans and metrics.
    pub otlp: OtlpSettings,
    /// Router hook.
    #[serde(skip_serializing_if = "RouterSettings::is_empty")]
    pub router: RouterSettings,
    /// Artificial delay of every sync, for measurements. Set by a flag only.
    #[serde(skip)]
    pub sync_delay: Duration,
    /// Whether the files of an existing log are moved aside at the start. Set by a flag only.
    #[serde(skip)]
    pub reset_wal: bool,
    /// Whether the log is in memory, from which the broker recovers within its process; [`wal`](Self::wal) is false
    /// then. Set by a flag only.
    #[serde(skip)]
    pub memory: bool,
    /// Faults that are simulated in front of a broker in memory. Set by a flag only.
    #[serde(skip)]
    pub chaos: Option<ChaosSettings>,
}

impl Settings {
    /// Defaults of a profile.
    #[must_use]
    pub fn of_profile(profile: Profile) -> Self {
        Self {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            data_dir: PathBuf::from("./driftq-data"),
            wal: true,
            profile,
            prefetch: 100,
            limits: profile.limits(),
            storage: StorageSettings::default(),
            http: HttpSettings::default(),
            tls: TlsSettings::default(),
            auth: AuthSettings::default(),
            log: LogSettings::default(),
            otlp: OtlpSettings::default(),
            router: RouterSettings::default(),
            sync_delay: Duration::ZERO,
            reset_wal: false,
            memory: false,
            chaos: None,
        }
    }

    /// The scheme of the broker's URL.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.tls.is_on() { "https" } else { "http" }
    }

    /// Configuration of the core.
    #[must_use]
    pub fn pipeline(&self) -> PipelineConfig {
        let storage = if self.wal { self.storage } else { self.volatile_storage() };
        let StorageSettings { segment_bytes, reserve_bytes, snapshot_every_bytes, memory_bytes, .. } = storage;
        let defaults = PipelineConfig::default();
        let smallest = smallest_segment_bytes(&self.limits, reserve_bytes);
        PipelineConfig {
            limits: self.limits.clone(),
            segment_bytes,
            segment_bytes_min: smallest.max(segment_bytes / SEGMENT_FRACTION_MIN).min(segment_bytes),
            reserve_bytes,
            snapshot_every_bytes,
            snapshot_every_segments: defaults.snapshot_every_segments,
            rest_after: defaults.rest_after,
            slice_bytes: defaults.slice_bytes,
            memory_bytes,
            read_ahead_bytes: storage.read_ahead_bytes,
            clean_spare_segments: storage.spare_segments,
            scrub_interval: Some(Millis(storage.scrub_interval.as_millis() as u64)).filter(|_| self.wal),
            state_bytes_max: storage.state_bytes(),
        }
    }

    /// Sizes without a log on disk. The segments are in memory: small ones are freed soon, and few payloads need to be
    /// there a second time. Snapshots store nothing, but free segments.
    fn volatile_storage(&self) -> StorageSettings {
        let StorageSettings { snapshot_every_bytes, memory_bytes, state_bytes_max, .. } = self.storage;
        StorageSettings {
            state_bytes_max,
            segment_bytes: smallest_segment_bytes(&self.limits, VOLATILE_RESERVE_BYTES),
            reserve_bytes: VOLATILE_RESERVE_BYTES,
            snapshot_every_bytes: snapshot_every_bytes.min(VOLATILE_SNAPSHOT_BYTES),
            memory_bytes: memory_bytes.min(VOLATILE_MEMORY_BYTES),
            ..self.storage
        }
    }
}

/// The smallest segment holds the largest record beside the reserve.
fn smallest_segment_bytes(limits: &Limits, reserve_bytes: u64) -> u64 {
    largest_record_bytes(limits).saturating_add(reserve_bytes + 2 * HEADER_BYTES as u64)
}

impl Default for Settings {
    fn default() -> Self {
        Self::of_profile(Profile::default())
    }
}

/// A table of default limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// For production.
    #[default]
    Production,
    /// The small limits of the specification.
    Spec,
}

impl Profile {
    /// Limits of the profile.
    #[must_use]
    pub const fn limits(self) -> Limits {
        match self {
            Self::Production => Limits::production(),
            Self::Spec => Limits::spec(),
        }
    }
}

/// Sizes of the log's files, and of payloads in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct StorageSettings {
    /// Bytes of a segment.
    #[serde(with = "Int::<{ 64 << 10 }, { 4 << 30 }>")]
    pub segment_bytes: u64,
    /// Bytes reserved for acks, nacks and trimming on a full disk.
    #[serde(with = "Int::<{ 4 << 10 }, { 4 << 30 }>")]
    pub reserve_bytes: u64,
    /// Log bytes between two snapshots.
    #[serde(with = "Int::<{ 64 << 10 }, I64_MAX>")]
    pub snapshot_every_bytes: u64,
    /// Bytes of message payloads that stay in memory; the others are read from the log when they are delivered.
    #[serde(with = "Int::<0, I64_MAX>")]
    pub memory_bytes: u64,
    /// Bytes that are read ahead of each group that drains a partition from the log.
    #[serde(with = "Int::<0, I64_MAX>")]
    pub read_ahead_bytes: u64,
    /// The log may be this many segments larger than its live bytes; beyond that, and if it is more than twice as
    /// large, segments are cleaned.
    #[serde(with = "Int::<0, 1_000_000>")]
    pub spare_segments: u64,
    /// How often every segment with live payloads is read to find damage; 0 for never.
    #[serde(rename = "scrub_interval_ms", alias = "scrub_interval", with = "Int::<0, I64_MAX>")]
    pub scrub_interval: Duration,
    /// Bytes of what is kept in memory for each message, group and key; 0 for half of what the process may use.
    #[serde(with = "Int::<0, I64_MAX>")]
    pub state_bytes_max: u64,
}

impl StorageSettings {
    /// The bound on the memory of the state. Without a setting it depends on the machine.
    fn state_bytes(&self) -> u64 {
        match self.state_bytes_max {
            0 => process_memory::available().map_or(u64::MAX, |bytes| bytes / 2),
            bytes => bytes,
        }
    }
}

impl Default for StorageSettings {
    fn default() -> Self {
        let defaults = PipelineConfig::default();
        Self {
            segment_bytes: defaults.segment_bytes,
            reserve_bytes: defaults.reserve_bytes,
            snapshot_every_bytes: defaults.snapshot_every_bytes,
            memory_bytes: defaults.memory_bytes,
            read_ahead_bytes: defaults.read_ahead_bytes,
            spare_segments: defaults.clean_spare_segments,
            scrub_interval: defaults
                .scrub_interval
                .map_or(Duration::ZERO, |interval| Duration::from_millis(interval.0)),
            state_bytes_max: 0,
        }
    }
}

/// HTTP limits and timeouts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct HttpSettings {
    /// Threads that accept connections and do HTTP and JSON: the processors but one, at least one.
    #[serde(with = "Int::<1, 256>")]
    pub reactors: usize,
    /// Bytes of a request body; of one line if the body is a batch.
    #[serde(with = "Int::<{ 1 << 10 }, { 256 << 20 }>")]
    pub body_bytes_max: usize,
    /// Bytes of all request bodies that are not complete yet.
    #[serde(with = "Int::<{ 1 << 20 }, { 1 << 40 }>")]
    pub bodies_bytes_max: usize,
    /// Bytes of all responses that clients have not read yet.
    #[serde(with = "Int::<{ 1 << 20 }, { 1 << 40 }>")]
    pub unsent_bytes_max: usize,
    /// Bytes of a request head.
    #[serde(with = "Int::<{ 8 << 10 }, { 1 << 20 }>")]
    pub head_bytes_max: usize,
    /// Open connections.
    #[serde(with = "Int::<1, 1_000_000>")]
    pub connections_max: usize,
    /// Open connections from one address, of IPv6 from one network of 64 bits; 0 for half of
    /// [`connections_max`](Self::connections_max), loopback addresses then excepted.
    #[serde(with = "Int::<0, 1_000_000>")]
    pub connections_per_address_max: usize,
    /// Time to receive a request head, and time a connection may be idle.
    #[serde(rename = "head_timeout_ms", with = "Int::<100, DAY_MS>")]
    pub head_timeout: Duration,
    /// Longest pause within a request body.
    #[serde(rename = "body_timeout_ms", with = "Int::<100, DAY_MS>")]
    pub body_timeout: Duration,
    /// Average rate of a body, in bytes per second, required once it has taken [`body_timeout`](Self::body_timeout).
    #[serde(rename = "body_rate_min_bytes_per_s", with = "Int::<0, { 1 << 30 }>")]
    pub body_rate_min: u64,
    /// Time without progress after which a client that does not read its responses is disconnected.
    #[serde(rename = "write_timeout_ms", with = "Int::<100, DAY_MS>")]
    pub write_timeout: Duration,
    /// Interval of blank lines on an idle stream.
    #[serde(rename = "stream_keep_alive_ms", with = "Int::<100, DAY_MS>")]
    pub stream_keep_alive: Duration,
    /// Whether a non-loopback address may be listened on without keys, or with keys in plain text.
    pub insecure: bool,
    /// Whether clients reach the broker through a proxy that terminates TLS, so that keys may arrive in plain text.
    pub behind_tls_proxy: bool,
    /// `Host` headers allowed beside the listen address, loopback addresses and names that are not public; `*` allows
    /// any. In the form in which they are compared: lower case, without a port, IPv6 in brackets.
    #[serde(deserialize_with = "text::hosts")]
    pub allowed_hosts: Vec<String>,
}

impl HttpSettings {
    /// The most bytes of deliveries that streams have not taken yet: a quarter of what may be unsent beside them, at
    /// least 1 MiB.
    #[must_use]
    pub fn stream_bytes_max(&self) -> usize {
        (self.unsent_bytes_max / 4).max(1 << 20)
    }
}

/// The processors that the process may use, but one.
fn default_reactors() -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    processors.saturating_sub(1).clamp(1, 256)
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            reactors: default_reactors(),
            body_bytes_max: 16 << 20,
            bodies_bytes_max: 256 << 20,
            unsent_bytes_max: 256 << 20,
            head_bytes_max: 64 << 10,
            connections_max: 20_000,
            connections_per_address_max: 0,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            body_rate_min: 1_024,
            write_timeout: Duration::from_secs(30),
            stream_keep_alive: Duration::from_secs(15),
            insecure: false,
            behind_tls_proxy: false,
            allowed_hosts: Vec::new(),
        }
    }
}

/// Logging.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct LogSettings {
    /// Output format.
    pub format: LogFormat,
    /// A level or a `tracing` filter.
    #[serde(deserialize_with = "text::log_level")]
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
}

/// Format of the log on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// One line of text per event.
    #[default]
    Text,
    /// One JSON object per event.
    Json,
}

/// Router hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a section")]
pub struct RouterSettings {
    /// Asked if no rule matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
    /// Tried in order; the first match decides.
    #[serde(rename = "rule", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

impl RouterSettings {
    /// Whether there is neither a rule nor a webhook.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty() && self.webhook.is_none()
    }
}

/// A router asked over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a section")]
pub struct Webhook {
    /// Its URL.
    pub url: WebhookUrl,
    /// Time it has to respond.
    #[serde(rename = "timeout_ms", default = "Webhook::default_timeout", with = "Int::<1, 60_000>")]
    pub timeout: Duration,
    /// Time without requests after a failure.
    #[serde(rename = "rest_ms", default = "Webhook::default_cooldown", with = "Int::<0, DAY_MS>")]
    pub cooldown: Duration,
}

impl Webhook {
    /// A webhook at `url` with default times.
    #[must_use]
    pub fn new(url: WebhookUrl) -> Self {
        Self { url, timeout: Self::default_timeout(), cooldown: Self::default_cooldown() }
    }

    fn default_timeout() -> Duration {
        Duration::from_millis(200)
    }

    fn default_cooldown() -> Duration {
        Duration::from_millis(1_000)
    }
}

/// A routing rule: if every given condition holds, its decision applies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, expecting = "a rule")]
pub struct Rule {
    /// Condition: the requested topic.
    #[serde(with = "text::topic", skip_serializing_if = "Option::is_none")]
    pub topic: Option<TopicName>,
    /// Condition: a prefix of the key.
    #[serde(deserialize_with = "text::some_non_empty", skip_serializing_if = "Option::is_none")]
    pub key_prefix: Option<Text>,
    /// Condition: labels of the message.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<Text, Text>,
    /// Condition: the tenant; `default` for a message without one.
    #[serde(deserialize_with = "text::some_non_empty", skip_serializing_if = "Option::is_none")]
    pub tenant: Option<Text>,
    /// Decision: the label of the message.
    #[serde(deserialize_with = "text::non_empty", skip_serializing_if = "str::is_empty")]
    pub label: Text,
    /// Decision: the topic to store the message in.
    #[serde(with = "text::topic", skip_serializing_if = "Option::is_none")]
    pub target_topic: Option<TopicName>,
    /// Decision: the partition to store the message in.
    #[serde(with = "Int::<0, PARTITION_MAX>", skip_serializing_if = "Option::is_none")]
    pub partition_override: Option<PartitionId>,
    /// Decision: metadata stored with the message.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub meta: BTreeMap<Text, Text>,
}

/// Longest label of a routing decision, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 255;
/// Most entries of a routing decision's `meta`.
pub(crate) const META_ENTRIES_MAX: usize = 64;
/// Most bytes of a routing decision's `meta`, names and values together.
pub(crate) const META_BYTES_MAX: usize = 8 << 10;

/// Whether the decision of a rule or a webhook is within the size limits.
pub(crate) fn is_decision_within_limits(label: &str, meta: &BTreeMap<Text, Text>) -> bool {
    let meta_bytes: usize = meta.iter().map(|(name, value)| name.len() + value.len()).sum();
    label.len() <= LABEL_BYTES_MAX && meta.len() <= META_ENTRIES_MAX && meta_bytes <= META_BYTES_MAX
}
