//! The settings: defaults, then the configuration file, then `DRIFTQ_*`, then flags, each winning over the one before.
//!
//! Everything that comes from outside is read and checked here, once. Whoever holds [`Settings`] that came out of
//! [`Settings::load`] holds settings that make sense. `docs/configuration.md` has them all in a table.

mod address;
mod check;
mod cli;
mod error;
mod file;
mod logging;
mod number;
mod overrides;
mod rules;
mod write;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use driftq_core::pipeline::PipelineConfig;
use driftq_core::types::{Limits, PartitionId, Text, TopicName};

pub use address::WebhookUrl;
pub use cli::{Cli, Command, Flags};
pub use error::{ConfigError, Origin};
pub use logging::init_logging;

/// What `addr` may be.
const ADDR_ALLOWED: &str = "an IP address and port such as 127.0.0.1:8080";

/// Everything the daemon can be told, as it is in force.
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// How long each sync is held up. For measurements only, and never from a file.
    pub sync_delay: Duration,
}

impl Settings {
    /// The defaults of a profile.
    #[must_use]
    pub fn of_profile(profile: Profile) -> Self {
        Self {
            addr: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)),
            data_dir: PathBuf::from("./driftq-data"),
            wal: true,
            profile,
            limits: profile.limits(),
            prefetch: 100,
            storage: StorageSettings::default(),
            http: HttpSettings::default(),
            router: RouterSettings::default(),
            log: LogSettings::default(),
            sync_delay: Duration::ZERO,
        }
    }

    /// The settings that these flags, this process's `DRIFTQ_*` variables and the configuration file that either names make
    /// together.
    ///
    /// # Errors
    /// [`ConfigError`] where anything is unknown, of the wrong kind, out of range or contradicts itself. Nothing is guessed.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        // What is not UTF-8 is handed on visibly damaged, so that it is refused where it is read rather than taken for absent.
        Self::load_with(flags, &|name| std::env::var_os(name).map(|text| text.to_string_lossy().into_owned()))
    }

    /// [`load`](Self::load) with an environment of the caller's own.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_with(flags: &Flags, env: &dyn Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let file = overrides::config_file(flags, env).map(|path| file::File::read(&path)).transpose()?;
        let named_by_file = file.as_ref().map(file::File::profile).transpose()?.flatten();
        let profile = overrides::profile(flags, env)?.or(named_by_file).unwrap_or_default();
        let mut settings = Self::of_profile(profile);
        if let Some(file) = &file {
            file.apply(&mut settings)?;
        }
        overrides::apply(&mut settings, flags, env)?;
        settings.check()?;
        Ok(settings)
    }

    /// The settings that a configuration file with this text makes alone; `path` is what errors call it.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_toml(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let file = file::File::parse(path, text)?;
        let mut settings = Self::of_profile(file.profile()?.unwrap_or_default());
        file.apply(&mut settings)?;
        settings.check()?;
        Ok(settings)
    }

    /// A configuration file that says all of this: [`from_toml`](Self::from_toml) of it gives the same settings, but for
    /// [`sync_delay`](Self::sync_delay).
    #[must_use]
    pub fn to_toml(&self) -> String {
        write::to_toml(self)
    }

    /// Whether the settings make sense together. Those that were [loaded](Self::load) do.
    ///
    /// # Errors
    /// The first thing that does not.
    pub fn check(&self) -> Result<(), ConfigError> {
        check::check(self)
    }

    /// What the core is to be opened with.
    #[must_use]
    pub fn pipeline(&self) -> PipelineConfig {
        let StorageSettings { segment_bytes, reserve_bytes, snapshot_every_bytes } = self.storage;
        // A snapshot of everything, made for nobody, would only keep everybody waiting.
        let snapshot_every_bytes = if self.wal { snapshot_every_bytes } else { u64::MAX };
        let limits = self.limits.clone();
        PipelineConfig { limits, segment_bytes, reserve_bytes, snapshot_every_bytes, ..PipelineConfig::default() }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self::of_profile(Profile::default())
    }
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

impl Profile {
    const ALLOWED: &str = "production or spec";

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Production => "production",
            Self::Spec => "spec",
        }
    }

    /// Its limits.
    #[must_use]
    pub const fn limits(self) -> Limits {
        match self {
            Self::Production => Limits::production(),
            Self::Spec => Limits::spec(),
        }
    }

    fn named(text: &str) -> Option<Self> {
        [Self::Production, Self::Spec].into_iter().find(|profile| profile.as_str() == text)
    }
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

impl Default for StorageSettings {
    fn default() -> Self {
        let PipelineConfig { segment_bytes, reserve_bytes, snapshot_every_bytes, .. } = PipelineConfig::default();
        Self { segment_bytes, reserve_bytes, snapshot_every_bytes }
    }
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
    /// In the form in which they are compared: lower case, without a port, IPv6 in brackets.
    pub allowed_hosts: Vec<String>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            body_bytes_max: 16 << 20,
            head_bytes_max: 64 << 10,
            connections_max: 20_000,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(10),
            body_rate_min: 1_024,
            stream_keep_alive: Duration::from_secs(15),
            insecure: false,
            allowed_hosts: Vec::new(),
        }
    }
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
    /// How long it is left alone after a failure.
    pub rest: Duration,
}

impl Webhook {
    /// A webhook at `url`, with the default times.
    #[must_use]
    pub fn to(url: impl Into<String>) -> Self {
        Self { url: url.into(), timeout: Duration::from_millis(200), rest: Duration::from_millis(1_000) }
    }
}

/// The longest label of a decision, in bytes.
pub(crate) const LABEL_BYTES_MAX: usize = 255;
/// The most entries a decision's meta may have.
pub(crate) const META_ENTRIES_MAX: usize = 64;
/// The most bytes of a decision's meta, names and values together.
pub(crate) const META_BYTES_MAX: usize = 8 << 10;

/// Whether a decision, a rule's or a webhook's, is small enough to travel with a message.
pub(crate) fn decision_fits(label: &str, meta: &BTreeMap<Text, Text>) -> bool {
    let meta_bytes: usize = meta.iter().map(|(name, value)| name.len() + value.len()).sum();
    label.len() <= LABEL_BYTES_MAX && meta.len() <= META_ENTRIES_MAX && meta_bytes <= META_BYTES_MAX
}

/// How the process logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    /// One line of text or one JSON object per event.
    pub format: LogFormat,
    /// A level, or a filter as `tracing` knows them.
    pub level: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self { format: LogFormat::default(), level: "info".to_owned() }
    }
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

impl LogFormat {
    const ALLOWED: &str = "text or json";

    /// The word for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Json => "json",
        }
    }

    fn named(text: &str) -> Option<Self> {
        [Self::Text, Self::Json].into_iter().find(|format| format.as_str() == text)
    }
}
