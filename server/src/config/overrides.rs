//! What flags and `DRIFTQ_*` variables say, over what the configuration file said.

use std::path::PathBuf;

use super::cli::Flags;
use super::error::{ConfigError, Origin};
use super::number::{Number, SYNC_DELAY_MS, range, within};
use super::{LogFormat, Profile, Settings, address, logging};

/// The environment, as a function so that tests need not change the real one.
pub(super) type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Limits of the idempotency store and of completed steps that a variable sets, and no flag.
const EFFECT_VARIABLES: [(&str, &str); 8] = [
    ("DRIFTQ_MAX_RESULT_BYTES", "limits.result_bytes_max"),
    ("DRIFTQ_EFFECT_TTL_MS", "limits.effect_ttl_ms"),
    ("DRIFTQ_JOB_TTL_MS", "limits.job_ttl_ms"),
    ("DRIFTQ_ACK_TTL_MS", "limits.ack_ttl_ms"),
    ("DRIFTQ_MAX_EFFECTS", "limits.effects_max"),
    ("DRIFTQ_COMPLETION_TTL_MS", "limits.completion_ttl_ms"),
    ("DRIFTQ_MAX_COMPLETIONS", "limits.completions_max"),
    ("DRIFTQ_MAX_OUTPUTS", "limits.outputs_max"),
];

/// A value on its way into the settings.
pub(super) struct Given {
    pub(super) origin: Origin,
    pub(super) text: String,
}

impl Given {
    /// The refusal of this value.
    fn refused(&self, allowed: impl Into<String>) -> ConfigError {
        ConfigError::Value { origin: self.origin.clone(), found: format!("{:?}", self.text), allowed: allowed.into() }
    }

    fn number(&self, bounds: (u64, u64)) -> Result<i128, ConfigError> {
        let text = self.text.trim();
        let digits = text.strip_prefix('-').unwrap_or(text);
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        text.parse().ok().filter(|_| plain).ok_or_else(|| self.refused(range(bounds)))
    }

    fn switch(&self) -> Result<bool, ConfigError> {
        match self.text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err(self.refused("true or false")),
        }
    }
}

/// The value of one setting: the flag if it was given, else the variable if it is set to anything.
fn given(flag: Option<&String>, names: (&'static str, &'static str), env: Environment<'_>) -> Option<Given> {
    if let Some(text) = flag {
        return Some(Given { origin: Origin::Flag(names.0), text: text.clone() });
    }
    let text = env(names.1).filter(|text| !text.trim().is_empty())?;
    Some(Given { origin: Origin::Variable(names.1), text })
}

/// The configuration file that was named, if one was.
pub(super) fn config_file(flags: &Flags, env: Environment<'_>) -> Option<PathBuf> {
    given(flags.config.as_ref(), ("--config", "DRIFTQ_CONFIG"), env).map(|given| PathBuf::from(given.text))
}

/// The profile that was named, if one was.
pub(super) fn profile(flags: &Flags, env: Environment<'_>) -> Result<Option<Profile>, ConfigError> {
    let Some(given) = given(flags.profile.as_ref(), ("--profile", "DRIFTQ_PROFILE"), env) else { return Ok(None) };
    Profile::named(given.text.trim()).map(Some).ok_or_else(|| given.refused(Profile::ALLOWED))
}

/// Everything else.
pub(super) fn apply(settings: &mut Settings, flags: &Flags, env: Environment<'_>) -> Result<(), ConfigError> {
    if let Some(given) = given(flags.addr.as_ref(), ("--addr", "DRIFTQ_ADDR"), env) {
        settings.addr = given.text.trim().parse().map_err(|_| given.refused(super::ADDR_ALLOWED))?;
    }
    if let Some(given) = given(flags.data_dir.as_ref(), ("--data-dir", "DRIFTQ_DATA_DIR"), env) {
        // What is not UTF-8 in the environment arrives here with this mark in it: another folder than the one that was meant.
        if given.text.trim().is_empty() || given.text.contains(char::REPLACEMENT_CHARACTER) {
            return Err(given.refused("the name of a folder, in UTF-8"));
        }
        settings.data_dir = PathBuf::from(given.text);
    }
    if let Some(given) = given(flags.no_wal.as_ref(), ("--no-wal", "DRIFTQ_NO_WAL"), env) {
        settings.wal = !given.switch()?;
    }
    if let Some(given) = given(flags.insecure.as_ref(), ("--insecure", "DRIFTQ_INSECURE"), env) {
        settings.http.insecure = given.switch()?;
    }
    for (flag, names, key) in [
        (&flags.max_in_flight, ("--max-in-flight", "DRIFTQ_MAX_IN_FLIGHT"), "limits.in_flight_max"),
        (
            &flags.max_partition_msgs,
            ("--max-partition-msgs", "DRIFTQ_MAX_PARTITION_MSGS"),
            "limits.partition_messages_max",
        ),
        (
            &flags.max_partition_bytes,
            ("--max-partition-bytes", "DRIFTQ_MAX_PARTITION_BYTES"),
            "limits.partition_bytes_max",
        ),
    ] {
        let Some(given) = given(flag.as_ref(), names, env) else { continue };
        let Some(number) = Number::find(key) else { unreachable!("{key} is in the table") };
        number.set(settings, &given.origin, given.number(number.bounds())?)?;
    }
    for (variable, key) in EFFECT_VARIABLES {
        let Some(given) = given(None, ("", variable), env) else { continue };
        let Some(number) = Number::find(key) else { unreachable!("{key} is in the table") };
        number.set(settings, &given.origin, given.number(number.bounds())?)?;
    }
    apply_log(settings, flags, env)?;
    apply_hosts(settings, flags, env)?;
    if let Some(text) = &flags.sync_delay_ms {
        let given = Given { origin: Origin::Flag("--sync-delay-ms"), text: text.clone() };
        let delay_ms = within(given.number(SYNC_DELAY_MS)?, SYNC_DELAY_MS, &given.origin)?;
        settings.sync_delay = std::time::Duration::from_millis(delay_ms);
    }
    Ok(())
}

fn apply_log(settings: &mut Settings, flags: &Flags, env: Environment<'_>) -> Result<(), ConfigError> {
    if let Some(given) = given(flags.log_format.as_ref(), ("--log-format", "DRIFTQ_LOG_FORMAT"), env) {
        let format = LogFormat::named(given.text.trim());
        settings.log.format = format.ok_or_else(|| given.refused(LogFormat::ALLOWED))?;
    }
    if let Some(given) = given(flags.log_level.as_ref(), ("--log-level", "DRIFTQ_LOG_LEVEL"), env) {
        if logging::filter(given.text.trim()).is_none() {
            return Err(given.refused(logging::LEVEL_ALLOWED));
        }
        settings.log.level = given.text.trim().to_owned();
    }
    Ok(())
}

/// Hosts given here stand instead of the file's, not beside them: otherwise nothing could take a host away.
fn apply_hosts(settings: &mut Settings, flags: &Flags, env: Environment<'_>) -> Result<(), ConfigError> {
    const VARIABLE: &str = "DRIFTQ_ALLOWED_HOST";
    let from_env = env(VARIABLE).filter(|text| !text.trim().is_empty());
    let given: Vec<Given> = match from_env {
        _ if !flags.allowed_host.is_empty() => {
            let origin = Origin::Flag("--allowed-host");
            flags.allowed_host.iter().map(|text| Given { origin: origin.clone(), text: text.clone() }).collect()
        }
        Some(list) => {
            list.split(',').map(|text| Given { origin: Origin::Variable(VARIABLE), text: text.to_owned() }).collect()
        }
        None => return Ok(()),
    };
    let read = |given: &Given| address::host(&given.text).ok_or_else(|| given.refused(address::HOST_ALLOWED));
    settings.http.allowed_hosts = given.iter().map(read).collect::<Result<_, _>>()?;
    Ok(())
}
