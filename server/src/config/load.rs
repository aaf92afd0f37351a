//! Loads settings: lays the configuration file, then flags and variables, over the defaults of the profile.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use toml::{Table, Value};

use super::error::ConfigError;
use super::flags::Flags;
use super::settings::{Profile, Settings};
use super::table::{at_key, merge};

impl Settings {
    /// Settings of this process: its flags and `DRIFTQ_*` variables, and the configuration file that one of them names.
    ///
    /// # Errors
    /// [`ConfigError`] for an unknown key, an invalid value or contradictory settings.
    pub fn load(flags: &Flags) -> Result<Self, ConfigError> {
        let (path, text) = match flags.config_path() {
            Some(path) => {
                let text = std::fs::read_to_string(&path);
                let text = text.map_err(|error| ConfigError::Unreadable { path: path.clone(), error })?;
                (path, text)
            }
            None => (PathBuf::new(), String::new()),
        };
        let mut settings = overlay(parse(&path, &text)?, flags.overrides()?);
        settings.sync_delay = flags.sync_delay()?;
        settings.reset_wal = flags.reset_wal()?;
        settings.chaos = flags.chaos()?;
        settings.memory = flags.memory()?;
        settings.wal &= !settings.memory;
        settings.check()?;
        match settings.otlp.missing_feature() {
            Some(problem) => Err(ConfigError::Invalid(problem.to_owned())),
            None => Ok(settings),
        }
    }

    /// Settings of a configuration file with this text; errors call it `path`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_toml(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let settings = overlay(parse(path, text)?, Table::new());
        settings.check()?;
        Ok(settings)
    }

    /// As [`from_toml`](Self::from_toml), with one reactor unless the text says otherwise.
    pub(crate) fn with_one_reactor(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let mut table = at_key("http.reactors", Value::Integer(1));
        merge(&mut table, parse(path, text)?);
        let settings = overlay(table, Table::new());
        settings.check()?;
        Ok(settings)
    }

    /// A configuration file of these settings: [`from_toml`](Self::from_toml) reads the same settings from it, except
    /// [`sync_delay`](Self::sync_delay), [`reset_wal`](Self::reset_wal), [`memory`](Self::memory) and
    /// [`chaos`](Self::chaos).
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("settings in their ranges can be written as TOML")
    }
}

impl Settings {
    /// The settings as JSON, with the keys of the configuration file and without secrets: the query of the webhook's
    /// URL and the values of the headers of OTLP, which may be keys, are replaced.
    #[must_use]
    pub fn to_public_json(&self) -> String {
        let mut public = self.clone();
        if let Some(webhook) = &mut public.router.webhook {
            webhook.url = webhook.url.without_query();
        }
        public.otlp.headers = public.otlp.headers.without_values();
        serde_json::to_string(&public).expect("settings in their ranges can be written as JSON")
    }
}

/// The keys of the file, each known and valid.
fn parse(path: &Path, text: &str) -> Result<Table, ConfigError> {
    let refuse = |error| ConfigError::File { path: path.to_owned(), error: Box::new(error) };
    // Deserialized from the text and not from the table, so that an error knows its line.
    let settings = toml::from_str::<Settings>(text).map_err(refuse)?;
    let mut table = toml::from_str(text).map_err(refuse)?;
    keep_resolved_addr(&mut table, &settings);
    rename_aliases(&mut table);
    Ok(table)
}

/// Gives a key that has two names the one that other sources use, since a table with both is refused.
fn rename_aliases(table: &mut Table) {
    if let Some(storage) = table.get_mut("storage").and_then(Value::as_table_mut)
        && let Some(interval) = storage.remove("scrub_interval")
    {
        storage.insert("scrub_interval_ms".to_owned(), interval);
    }
}

/// Replaces a host name in a table that was read as `settings` by its address, so that it is resolved once.
pub(super) fn keep_resolved_addr(table: &mut Table, settings: &Settings) {
    if let Some(addr) = table.get_mut("addr") {
        *addr = settings.addr.to_string().into();
    }
}

/// The defaults of the profile, the file over them and the overrides over both; `file` and `overrides` are valid.
fn overlay(file: Table, overrides: Table) -> Settings {
    const VALID: &str = "each source is valid on its own";
    let mut given = file;
    merge(&mut given, overrides);
    let profile = given.get("profile").cloned().map_or(Ok(Profile::default()), Profile::deserialize).expect(VALID);
    let mut table = Table::try_from(Settings::of_profile(profile)).expect("defaults are in their ranges");
    merge(&mut table, given);
    Settings::deserialize(table).expect(VALID)
}
