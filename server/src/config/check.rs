//! Checks of settings together, from whatever sources.

use driftq_core::types::{Limits, Text};
use serde::Deserialize;
use toml::Table;

use super::error::ConfigError;
use super::exposure::Exposure;
use super::settings::{Rule, Settings, is_decision_within_limits};

/// Bytes of a record in a segment beside its message: names, dead-letter metadata, frame and segment headers.
const RECORD_OVERHEAD_BYTES: u64 = 64 << 10;

impl Settings {
    /// Checks every value and all settings together. [Loaded](Self::load) settings are checked already.
    ///
    /// # Errors
    /// The first problem found.
    pub fn check(&self) -> Result<(), ConfigError> {
        let invalid = |error: &dyn std::fmt::Display| ConfigError::Invalid(error.to_string().trim().replace('\n', " "));
        let table = Table::try_from(self).map_err(|error| invalid(&error))?;
        Self::deserialize(table).map_err(|error| invalid(&error))?;
        if self.reset_wal && !self.wal {
            let problem = "--reset-wal contradicts wal = false, --no-wal and --memory: there is no log on disk";
            return Err(ConfigError::Invalid(problem.to_owned()));
        }
        check_memory(self)?;
        check_tls(self)?;
        check_otlp(self)?;
        self.check_exposure(may_have_keys(self))?;
        check_sizes(self)?;
        check_leases(self)?;
        check_rules(&self.router.rules)
    }

    /// Checks that the address may be listened on by a broker with or without keys.
    ///
    /// # Errors
    /// [`ConfigError::Exposed`].
    pub(crate) fn check_exposure(&self, has_keys: bool) -> Result<(), ConfigError> {
        let exposure = Exposure {
            address: self.addr.ip(),
            has_tls: self.tls.is_on(),
            has_keys,
            is_insecure: self.http.insecure,
            is_behind_tls_proxy: self.http.behind_tls_proxy,
        };
        exposure.check().map_err(|reason| ConfigError::Exposed { addr: self.addr, reason })
    }
}

fn check_memory(settings: &Settings) -> Result<(), ConfigError> {
    if settings.memory && settings.wal {
        return invalid("a log in memory (--memory) contradicts wal = true".to_owned());
    }
    if settings.chaos.is_some() && !settings.memory {
        let problem = "--chaos needs --memory: simulated crashes must not touch a data folder";
        return invalid(problem.to_owned());
    }
    Ok(())
}

/// Before the log is read. [`Settings::check_exposure`] decides once it is.
fn may_have_keys(settings: &Settings) -> bool {
    let has_log = || std::fs::read_dir(&settings.data_dir).is_ok_and(|mut entries| entries.next().is_some());
    settings.auth.admin_key_file.is_some() || (settings.wal && !settings.reset_wal && has_log())
}

fn check_tls(settings: &Settings) -> Result<(), ConfigError> {
    if let Some(problem) = settings.tls.problem() {
        return invalid(problem.to_owned());
    }
    if settings.tls.is_on() && settings.chaos.is_some() {
        return invalid("--chaos contradicts tls.cert: the faults are simulated on plain connections".to_owned());
    }
    Ok(())
}

fn check_otlp(settings: &Settings) -> Result<(), ConfigError> {
    settings.otlp.problem().map_or(Ok(()), invalid)
}

fn check_sizes(settings: &Settings) -> Result<(), ConfigError> {
    let Settings { limits, storage, http, .. } = settings;
    if http.bodies_bytes_max < http.body_bytes_max {
        let (all, one) = (http.bodies_bytes_max, http.body_bytes_max);
        return invalid(format!("http.bodies_bytes_max ({all}) must not be less than http.body_bytes_max ({one})"));
    }
    for (name, bytes) in
        [("limits.key_bytes_max", limits.key_bytes_max), ("limits.metadata_bytes_max", limits.metadata_bytes_max)]
    {
        if bytes > limits.message_bytes_max {
            let message = limits.message_bytes_max;
            return invalid(format!("{name} ({bytes}) must not exceed limits.message_bytes_max ({message})"));
        }
    }
    let (segment, reserve) = (storage.segment_bytes, storage.reserve_bytes);
    if reserve >= segment {
        return invalid(format!(
            "storage.reserve_bytes ({reserve}) must be less than storage.segment_bytes ({segment})"
        ));
    }
    // The record of a completed step may carry many messages and is refused if it does not fit; a message or a result
    // always fits.
    let largest = largest_record_bytes(limits);
    if segment - reserve < largest {
        return invalid(format!(
            "storage.segment_bytes ({segment}) less storage.reserve_bytes ({reserve}) must hold the largest record, \
                {largest} \
             bytes; raise it or lower limits.message_bytes_max ({}) or limits.result_bytes_max ({})",
            limits.message_bytes_max, limits.result_bytes_max
        ));
    }
    Ok(())
}

/// The most bytes of a record with a message or a result.
pub(super) fn largest_record_bytes(limits: &Limits) -> u64 {
    let payload = limits.message_bytes_max.max(limits.result_bytes_max);
    (payload + limits.error_text_bytes_max) as u64 + RECORD_OVERHEAD_BYTES
}

fn check_leases(settings: &Settings) -> Result<(), ConfigError> {
    let (min, max) = (settings.limits.lease_min.0, settings.limits.lease_max.0);
    if min > max {
        return invalid(format!("limits.lease_min_ms ({min}) must not exceed limits.lease_max_ms ({max})"));
    }
    Ok(())
}

fn invalid(problem: String) -> Result<(), ConfigError> {
    Err(ConfigError::Invalid(problem))
}

fn check_rules(rules: &[Rule]) -> Result<(), ConfigError> {
    let refuse = |at: usize, problem: String| Err(ConfigError::Rule { rule: at + 1, problem });
    for (at, rule) in rules.iter().enumerate() {
        let adds_nothing = rule.label.is_empty() && rule.meta.is_empty();
        if adds_nothing && rule.target_topic.is_none() && rule.partition_override.is_none() {
            return refuse(at, "it decides nothing; give it a label, target_topic, partition_override or meta".into());
        }
        if !is_decision_within_limits(&rule.label, &rule.meta) {
            return refuse(at, "a label has at most 255 bytes, meta at most 64 entries and 8192 bytes".into());
        }
        if let Some(earlier) = rules[..at].iter().position(|earlier| covers(earlier, rule)) {
            return refuse(at, format!("it can never match, rule {} matches every message it does", earlier + 1));
        }
    }
    Ok(())
}

/// Whether every message that matches `narrow` matches `wide` as well.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    let prefix = |wide: &Text| narrow.key_prefix.as_ref().is_some_and(|narrow| narrow.starts_with(&**wide));
    (wide.topic.is_none() || wide.topic == narrow.topic)
        && (wide.tenant.is_none() || wide.tenant == narrow.tenant)
        && wide.key_prefix.as_ref().is_none_or(prefix)
        && wide.labels.iter().all(|(name, value)| narrow.labels.get(name) == Some(value))
}
