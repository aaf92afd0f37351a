//! Flags and `DRIFTQ_*` variables, taken as text by clap and checked against the schema of the configuration file.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{TypedValueParser, ValueParserFactory};
use clap::parser::ValueSource;
use clap::{Arg, Args, Command};
use serde::Deserialize;
use toml::{Table, Value};

use super::chaos::{ChaosError, ChaosSettings};
use super::error::ConfigError;
use super::load::keep_resolved_addr;
use super::number::Int;
use super::settings::Settings;
use super::table::{at_key, merge};

/// The flags of `serve` and `config`, each with its variable. Not checked yet.
#[derive(Clone, Debug, Default, Args)]
pub struct Flags {
    /// Address and port to listen on; a host name is resolved once, at the start [default: 127.0.0.1:8080]
    #[arg(long, env = "DRIFTQ_ADDR", value_name = "HOST:PORT")]
    addr: Option<RawValue>,
    /// Folder of the log, created if absent [default: ./driftq-data]
    #[arg(long, visible_alias = "wal", env = "DRIFTQ_DATA_DIR", value_name = "DIR")]
    data_dir: Option<RawValue>,
    /// Start with an empty log: the files of the one in the data folder are moved to a folder quarantine-TIME in it,
    /// none is deleted. Every start with this flag does so [default: false]
    #[arg(long, value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    reset_wal: Option<RawValue>,
    /// Keep everything in memory only; all state is lost when the process ends [default: false]
    #[arg(long, env = "DRIFTQ_NO_WAL", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_wal: Option<RawValue>,
    /// Keep the log in memory, without a data folder, for tests; all state is lost when the process ends
    /// [default: false]
    #[arg(long, env = "DRIFTQ_MEMORY", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    memory: Option<RawValue>,
    /// Simulate faults of a network and crashes, the same for the same requests, for tests; needs --memory. Such as
    /// seed=42,duplicate=0.2,drop-reply=0.1,expire=0.05,delay=0.1,restart=0.01,reorder=0.1 [default: none]
    #[arg(long, env = "DRIFTQ_CHAOS", value_name = "FAULTS")]
    chaos: Option<RawValue>,
    /// Table of default limits: production, or spec for the small ones of the specification [default: production]
    #[arg(long, env = "DRIFTQ_PROFILE", value_name = "NAME")]
    profile: Option<RawValue>,
    /// Configuration file in TOML, such as `driftqd config` prints [default: none]
    #[arg(long, env = "DRIFTQ_CONFIG", value_name = "FILE")]
    config: Option<RawValue>,
    /// Live leases per topic, group and partition [default: 1000]
    #[arg(long, visible_alias = "max-inflight", env = "DRIFTQ_MAX_IN_FLIGHT", value_name = "N")]
    max_in_flight: Option<RawValue>,
    /// Unacked messages of a partition before producers get 429 [default: 1000000]
    #[arg(long, env = "DRIFTQ_MAX_PARTITION_MSGS", value_name = "N")]
    max_partition_msgs: Option<RawValue>,
    /// Key and value bytes of those messages [default: 1073741824]
    #[arg(long, env = "DRIFTQ_MAX_PARTITION_BYTES", value_name = "N")]
    max_partition_bytes: Option<RawValue>,
    /// Bytes of a result in the idempotency store [default: 65536]
    #[arg(long, env = "DRIFTQ_MAX_RESULT_BYTES", value_name = "N")]
    max_result_bytes: Option<RawValue>,
    /// Time the idempotency store keeps an effect after its end [default: 86400000]
    #[arg(long, env = "DRIFTQ_EFFECT_TTL_MS", value_name = "MS")]
    effect_ttl_ms: Option<RawValue>,
    /// The same for the scopes job and task [default: 604800000]
    #[arg(long, env = "DRIFTQ_JOB_TTL_MS", value_name = "MS")]
    job_ttl_ms: Option<RawValue>,
    /// Effects per tenant before begin gets 429 [default: 4000000]
    #[arg(long, env = "DRIFTQ_MAX_EFFECTS", value_name = "N")]
    max_effects: Option<RawValue>,
    /// Time the response of a completed step is repeated [default: 600000]
    #[arg(long, env = "DRIFTQ_COMPLETION_TTL_MS", value_name = "MS")]
    completion_ttl_ms: Option<RawValue>,
    /// Such responses; beyond it the oldest are dropped [default: 1000000]
    #[arg(long, env = "DRIFTQ_MAX_COMPLETIONS", value_name = "N")]
    max_completions: Option<RawValue>,
    /// Messages that one completed step may produce [default: 1000]
    #[arg(long, env = "DRIFTQ_MAX_OUTPUTS", value_name = "N")]
    max_outputs: Option<RawValue>,
    /// Bytes of message payloads that stay in memory; the others are read from the log [default: 268435456]
    #[arg(long, env = "DRIFTQ_MEMORY_BYTES", value_name = "N")]
    memory_bytes: Option<RawValue>,
    /// Bytes read ahead of each group that drains a partition from the log; 0 for none [default: 4194304]
    #[arg(long, env = "DRIFTQ_READ_AHEAD_BYTES", value_name = "N")]
    read_ahead_bytes: Option<RawValue>,
    /// Time between two searches for damage of every segment with live payloads, 0 for none [default: 604800000]
    #[arg(long, env = "DRIFTQ_SCRUB_INTERVAL_MS", value_name = "MS")]
    scrub_interval_ms: Option<RawValue>,
    /// Bytes of what is kept in memory beside payloads; 0 for half of what the process may use [default: 0]
    #[arg(long, env = "DRIFTQ_STATE_BYTES_MAX", value_name = "N")]
    state_bytes_max: Option<RawValue>,
    /// Threads that accept connections and do HTTP and JSON [default: processors - 1, at least 1]
    #[arg(long, env = "DRIFTQ_REACTORS", value_name = "N")]
    reactors: Option<RawValue>,
    /// Format of the log on standard error: text or json [default: text]
    #[arg(long, env = "DRIFTQ_LOG_FORMAT", value_name = "FORMAT")]
    log_format: Option<RawValue>,
    /// Log level: off, error, warn, info, debug, trace, or a filter such as info,driftq_server=debug [default: info]
    #[arg(long, env = "DRIFTQ_LOG_LEVEL", value_name = "LEVEL")]
    log_level: Option<RawValue>,
    /// URL of an OpenTelemetry collector to export spans and metrics to, http://host[:port][/path] [default: none]
    #[arg(long, env = "DRIFTQ_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<RawValue>,
    /// Header of every request to it, NAME=VALUE; repeatable, the variable is a comma separated list [default: none]
    #[arg(long, env = "DRIFTQ_OTLP_HEADER", value_name = "NAME=VALUE", hide_env_values = true)]
    otlp_header: Vec<RawValue>,
    /// Name of the service in what is exported [default: driftqd]
    #[arg(long, env = "DRIFTQ_OTLP_SERVICE_NAME", value_name = "NAME")]
    otlp_service_name: Option<RawValue>,
    /// How many of the requests without a traceparent are exported as spans, from 0 to 1 [default: 1]
    #[arg(long, env = "DRIFTQ_OTLP_SAMPLE_RATIO", value_name = "RATIO")]
    otlp_sample_ratio: Option<RawValue>,
    /// Time between two exports of the metrics [default: 60000]
    #[arg(long, env = "DRIFTQ_OTLP_INTERVAL_MS", value_name = "MS")]
    otlp_interval_ms: Option<RawValue>,
    /// File with the certificate chain for TLS, PEM; read again when it changes [default: none, plain HTTP]
    #[arg(long, env = "DRIFTQ_TLS_CERT", value_name = "FILE")]
    tls_cert: Option<RawValue>,
    /// File with the private key of the certificate, PEM [default: none]
    #[arg(long, env = "DRIFTQ_TLS_KEY", value_name = "FILE")]
    tls_key: Option<RawValue>,
    /// File with the roots of client certificates, PEM; every client then needs a certificate [default: none]
    #[arg(long, env = "DRIFTQ_TLS_CLIENT_CA", value_name = "FILE")]
    tls_client_ca: Option<RawValue>,
    /// File with the text of a key, which may do everything: the first one, created at the start [default: none]
    #[arg(long, env = "DRIFTQ_ADMIN_KEY_FILE", value_name = "FILE")]
    admin_key_file: Option<RawValue>,
    /// Clients reach the broker through a proxy that terminates TLS [default: false]
    #[arg(long, env = "DRIFTQ_BEHIND_TLS_PROXY", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    behind_tls_proxy: Option<RawValue>,
    /// Allow an address that other machines can reach, even without keys, or with keys in plain text [default: false]
    #[arg(long, env = "DRIFTQ_INSECURE", value_name = "BOOL")]
    #[arg(num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<RawValue>,
    /// Host header to accept beside the listen address, loopback and names that are not public; repeatable, * accepts
    /// any, the variable is a comma separated list [default: none]
    #[arg(long, env = "DRIFTQ_ALLOWED_HOST", value_name = "NAME")]
    allowed_host: Vec<RawValue>,
    /// Delay every sync, for measurements only
    #[arg(long, value_name = "MS", hide = true)]
    sync_delay_ms: Option<RawValue>,
}

impl Flags {
    /// The configuration file that was named.
    pub(super) fn config_path(&self) -> Option<PathBuf> {
        self.config.as_ref().filter(|raw| raw.is_set()).map(|raw| PathBuf::from(&raw.text))
    }

    /// The delay of every sync.
    pub(super) fn sync_delay(&self) -> Result<Duration, ConfigError> {
        let Some(raw) = &self.sync_delay_ms else { return Ok(Duration::ZERO) };
        Int::<0, 60_000>::deserialize(number(&raw.text)).map_err(|error| raw.refuse(&error))
    }

    /// Whether the log is to be empty at the start.
    pub(super) fn reset_wal(&self) -> Result<bool, ConfigError> {
        let Some(raw) = &self.reset_wal else { return Ok(false) };
        bool::deserialize(switch(&raw.text)).map_err(|error| raw.refuse(&error))
    }

    /// Whether the log is in memory. What names a place or a mode of a log on disk contradicts it.
    pub(super) fn memory(&self) -> Result<bool, ConfigError> {
        let Some(raw) = self.memory.as_ref().filter(|raw| raw.is_set()) else { return Ok(false) };
        let is_on = bool::deserialize(switch(&raw.text)).map_err(|error| raw.refuse(&error))?;
        let other = [&self.data_dir, &self.no_wal].into_iter().flatten().find(|raw| raw.is_set());
        match other.filter(|_| is_on) {
            Some(other) => Err(ConfigError::Invalid(format!("{} contradicts {}", raw.origin, other.origin))),
            None => Ok(is_on),
        }
    }

    /// The faults to simulate.
    pub(super) fn chaos(&self) -> Result<Option<ChaosSettings>, ConfigError> {
        let Some(raw) = self.chaos.as_ref().filter(|raw| raw.is_set()) else { return Ok(None) };
        let refuse = |error: ChaosError| ConfigError::Value { origin: raw.origin.clone(), problem: error.to_string() };
        raw.text.parse().map(Some).map_err(refuse)
    }

    /// The keys of the configuration file that flags and variables set, each checked.
    pub(super) fn overrides(&self) -> Result<Table, ConfigError> {
        let settings: [(&Option<RawValue>, &str, ToToml); 31] = [
            (&self.addr, "addr", trimmed),
            (&self.data_dir, "data_dir", verbatim),
            (&self.no_wal, "wal", negated_switch),
            (&self.profile, "profile", trimmed),
            (&self.max_in_flight, "limits.in_flight_max", number),
            (&self.max_partition_msgs, "limits.partition_messages_max", number),
            (&self.max_partition_bytes, "limits.partition_bytes_max", number),
            (&self.max_result_bytes, "limits.result_bytes_max", number),
            (&self.effect_ttl_ms, "limits.effect_ttl_ms", number),
            (&self.job_ttl_ms, "limits.job_ttl_ms", number),
            (&self.max_effects, "limits.effects_max", number),
            (&self.completion_ttl_ms, "limits.completion_ttl_ms", number),
            (&self.max_completions, "limits.completions_max", number),
            (&self.max_outputs, "limits.outputs_max", number),
            (&self.memory_bytes, "storage.memory_bytes", number),
            (&self.reactors, "http.reactors", number),
            (&self.read_ahead_bytes, "storage.read_ahead_bytes", number),
            (&self.scrub_interval_ms, "storage.scrub_interval_ms", number),
            (&self.state_bytes_max, "storage.state_bytes_max", number),
            (&self.log_format, "log.format", trimmed),
            (&self.log_level, "log.level", trimmed),
            (&self.otlp_endpoint, "otlp.endpoint", trimmed),
            (&self.otlp_service_name, "otlp.service_name", trimmed),
            (&self.otlp_sample_ratio, "otlp.sample_ratio", decimal),
            (&self.otlp_interval_ms, "otlp.interval_ms", number),
            (&self.tls_cert, "tls.cert", verbatim),
            (&self.tls_key, "tls.key", verbatim),
            (&self.tls_client_ca, "tls.client_ca", verbatim),
            (&self.admin_key_file, "auth.admin_key_file", verbatim),
            (&self.behind_tls_proxy, "http.behind_tls_proxy", switch),
            (&self.insecure, "http.insecure", switch),
        ];
        let mut overrides = Table::new();
        for (raw, key, read) in settings {
            if let Some(raw) = raw.as_ref().filter(|raw| raw.is_set()) {
                merge(&mut overrides, raw.checked(key, read(&raw.text))?);
            }
        }
        if let Some(first) = self.allowed_host.iter().find(|raw| raw.is_set()) {
            merge(&mut overrides, first.checked("http.allowed_hosts", Value::Array(self.hosts()))?);
        }
        if let Some(first) = self.otlp_header.iter().find(|raw| raw.is_set()) {
            merge(&mut overrides, at_key("otlp.headers", Value::Table(self.otlp_headers(first)?)));
        }
        Ok(overrides)
    }

    /// The headers of OTLP. An error does not have their values, which may be secrets.
    fn otlp_headers(&self, first: &RawValue) -> Result<Table, ConfigError> {
        let headers = self.otlp_header.iter().flat_map(RawValue::list).map(|text| {
            let (name, value) = text.split_once('=')?;
            Some((name.trim().to_ascii_lowercase(), trimmed(value)))
        });
        headers.collect::<Option<Table>>().ok_or_else(|| ConfigError::Value {
            origin: first.origin.clone(),
            problem: "expected NAME=VALUE".to_owned(),
        })
    }

    fn hosts(&self) -> Vec<Value> {
        self.allowed_host.iter().flat_map(RawValue::list).map(verbatim).collect()
    }
}

/// The value of a flag or variable, and which of the two it was.
#[derive(Clone, Debug)]
pub struct RawValue {
    /// `--flag` or `DRIFTQ_VARIABLE`.
    origin: String,
    is_variable: bool,
    text: String,
}

impl RawValue {
    /// Whether it counts: an empty variable does not.
    fn is_set(&self) -> bool {
        !self.is_variable || !self.text.trim().is_empty()
    }

    /// The texts of a repeatable flag, which a variable has as a comma separated list.
    fn list(&self) -> Vec<&str> {
        if self.is_variable { self.text.split(',').collect() } else { vec![self.text.as_str()] }
    }

    /// A table with `value` at `key`, if the schema allows it there.
    fn checked(&self, key: &str, value: Value) -> Result<Table, ConfigError> {
        let mut table = at_key(key, value);
        let settings = Settings::deserialize(table.clone()).map_err(|error| self.refuse(&error))?;
        keep_resolved_addr(&mut table, &settings);
        Ok(table)
    }

    fn refuse(&self, error: &toml::de::Error) -> ConfigError {
        ConfigError::Value { origin: self.origin.clone(), problem: error.message().to_owned() }
    }
}

/// Converts the text of a flag or variable to the type that its key has in the file.
type ToToml = fn(&str) -> Value;

fn verbatim(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn trimmed(text: &str) -> Value {
    verbatim(text.trim())
}

/// A text that is no number stays one, and the schema refuses it.
fn number(text: &str) -> Value {
    let text = text.trim();
    text.parse().ok().filter(|_| !text.starts_with('+')).map_or_else(|| verbatim(text), Value::Integer)
}

/// A text that is no number stays one, and the schema refuses it.
fn decimal(text: &str) -> Value {
    text.trim().parse().map_or_else(|_| trimmed(text), Value::Float)
}

fn switch(text: &str) -> Value {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Value::Boolean(true),
        "false" | "0" | "no" | "off" => Value::Boolean(false),
        _ => trimmed(text),
    }
}

fn negated_switch(text: &str) -> Value {
    match switch(text) {
        Value::Boolean(value) => Value::Boolean(!value),
        other => other,
    }
}

impl ValueParserFactory for RawValue {
    type Parser = RawValueParser;

    fn value_parser() -> RawValueParser {
        RawValueParser
    }
}

/// Accepts any text and notes whether a flag or a variable gave it.
#[derive(Clone, Copy, Debug)]
pub struct RawValueParser;

impl TypedValueParser for RawValueParser {
    type Value = RawValue;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<RawValue, clap::Error> {
        self.parse_ref_(command, arg, value, ValueSource::CommandLine)
    }

    fn parse_ref_(
        &self,
        _: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
        source: ValueSource,
    ) -> Result<RawValue, clap::Error> {
        let is_variable = source == ValueSource::EnvVariable;
        let origin = arg.and_then(|arg| match is_variable {
            true => arg.get_env().map(|name| name.to_string_lossy().into_owned()),
            false => arg.get_long().map(|name| format!("--{name}")),
        });
        let text = value.to_string_lossy().into_owned();
        Ok(RawValue { origin: origin.unwrap_or_default(), is_variable, text })
    }
}

/// The arguments with upstream's single-dash flags, `-addr` or `-addr=…`, written with two dashes. Only long flags of
/// `command` and its subcommands are changed, and nothing behind `--`.
#[must_use]
pub fn with_double_dashes(command: &Command, arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut names = BTreeSet::new();
    collect_long_flags(command, &mut names);
    let mut is_over = false;
    let rewrite = |argument: OsString| {
        is_over |= argument == "--";
        let Some(text) = argument.to_str().filter(|_| !is_over) else { return argument };
        let name = text.strip_prefix('-').map(|rest| rest.split('=').next().unwrap_or(rest));
        if name.is_some_and(|name| names.contains(name)) { format!("-{text}").into() } else { argument }
    };
    arguments.map(rewrite).collect()
}

fn collect_long_flags(command: &Command, names: &mut BTreeSet<String>) {
    for arg in command.get_arguments() {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        names.extend(arg.get_long().into_iter().chain(aliases).map(ToOwned::to_owned));
    }
    command.get_subcommands().for_each(|command| collect_long_flags(command, names));
}
