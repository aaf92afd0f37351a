//! The configuration file: TOML, every key known or refused, every value of the right kind or refused with what it may be.

use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::{Table, Value};

use super::error::{ConfigError, Origin};
use super::number::{NUMBERS, Number, WEBHOOK_REST_MS, WEBHOOK_TIMEOUT_MS, within};
use super::{ADDR_ALLOWED, LogFormat, Profile, Settings, Webhook, address, logging, rules};

/// Keys that are not numbers, with their sections. `limits`, `storage`, `http`, `log` and `router` are sections.
const OTHERS: &[&str] =
    &["addr", "data_dir", "wal", "profile", "http.insecure", "http.allowed_hosts", "log.format", "log.level"];
const SECTIONS: &[&str] = &["limits", "storage", "http", "log", "router"];
const ROUTER_KEYS: &[&str] = &["webhook", "rule"];
const WEBHOOK_KEYS: &[&str] = &["url", "timeout_ms", "rest_ms"];

/// A configuration file that is TOML; nothing more is known of it yet.
pub(super) struct File {
    path: PathBuf,
    table: Table,
}

impl File {
    /// Reads the file at `path`.
    pub(super) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text =
            std::fs::read_to_string(path).map_err(|error| ConfigError::Unreadable { path: path.to_owned(), error })?;
        Self::parse(path, &text)
    }

    /// Takes `text` for the content of the file at `path`.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let table = text.parse::<Table>().map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1;
            let problem = error.message().replace('\n', ", ");
            ConfigError::Syntax { path: path.to_owned(), line, problem }
        })?;
        Ok(Self { path: path.to_owned(), table })
    }

    /// The profile it names, if it names one.
    pub(super) fn profile(&self) -> Result<Option<Profile>, ConfigError> {
        let Some(value) = self.table.get("profile") else { return Ok(None) };
        let entry = self.entry("profile".to_owned(), value);
        let profile = value.as_str().and_then(Profile::named);
        profile.map(Some).ok_or_else(|| entry.refused(Profile::ALLOWED))
    }

    /// Puts everything it says into `settings`.
    pub(super) fn apply(&self, settings: &mut Settings) -> Result<(), ConfigError> {
        for (name, value) in &self.table {
            if name == "router" {
                self.router(settings, self.entry(name.clone(), value).table()?)?;
            } else if SECTIONS.contains(&name.as_str()) {
                for (inner, value) in self.entry(name.clone(), value).table()? {
                    self.one(settings, &self.entry(format!("{name}.{inner}"), value))?;
                }
            } else {
                self.one(settings, &self.entry(name.clone(), value))?;
            }
        }
        Ok(())
    }

    fn one(&self, settings: &mut Settings, entry: &Entry<'_>) -> Result<(), ConfigError> {
        match entry.key.as_str() {
            "addr" => {
                let addr = entry.value.as_str().and_then(|text| text.trim().parse().ok());
                settings.addr = addr.ok_or_else(|| entry.refused(ADDR_ALLOWED))?;
            }
            "data_dir" => settings.data_dir = PathBuf::from(entry.text("the name of a folder")?),
            "wal" => settings.wal = entry.switch()?,
            "profile" => {}
            "http.insecure" => settings.http.insecure = entry.switch()?,
            "http.allowed_hosts" => {
                let list = entry.value.as_array().ok_or_else(|| entry.refused("a list of host names"))?;
                let host = |value: &Value| value.as_str().and_then(address::host);
                let read = |value| {
                    host(value).ok_or_else(|| self.entry(entry.key.clone(), value).refused(address::HOST_ALLOWED))
                };
                settings.http.allowed_hosts = list.iter().map(read).collect::<Result<_, _>>()?;
            }
            "log.format" => {
                let format = entry.value.as_str().and_then(LogFormat::named);
                settings.log.format = format.ok_or_else(|| entry.refused(LogFormat::ALLOWED))?;
            }
            "log.level" => {
                let level = entry.value.as_str().map(str::trim).filter(|level| logging::filter(level).is_some());
                settings.log.level = level.ok_or_else(|| entry.refused(logging::LEVEL_ALLOWED))?.to_owned();
            }
            key => match Number::find(key) {
                Some(number) => number.set(settings, &entry.origin(), entry.number(number.bounds())?)?,
                None => return Err(self.unknown(key)),
            },
        }
        Ok(())
    }

    fn router(&self, settings: &mut Settings, table: &Table) -> Result<(), ConfigError> {
        for (name, value) in table {
            let entry = self.entry(format!("router.{name}"), value);
            match name.as_str() {
                "webhook" => settings.router.webhook = Some(self.webhook(entry.table()?)?),
                "rule" => {
                    let list = value.as_array().ok_or_else(|| entry.refused("a list of rules, [[router.rule]]"))?;
                    let rule = |(at, value)| rules::read(&self.entry(format!("router.rule #{}", at + 1), value));
                    settings.router.rules = list.iter().enumerate().map(rule).collect::<Result<_, _>>()?;
                }
                _ => return Err(entry.unknown(ROUTER_KEYS)),
            }
        }
        Ok(())
    }

    fn webhook(&self, table: &Table) -> Result<Webhook, ConfigError> {
        let mut webhook = Webhook::to("");
        for (name, value) in table {
            let entry = self.entry(format!("router.webhook.{name}"), value);
            match name.as_str() {
                "url" => {
                    let url = value.as_str().filter(|url| address::WebhookUrl::parse(url).is_some());
                    webhook.url = url.ok_or_else(|| entry.refused(address::URL_ALLOWED))?.to_owned();
                }
                "timeout_ms" => webhook.timeout = entry.millis(WEBHOOK_TIMEOUT_MS)?,
                "rest_ms" => webhook.rest = entry.millis(WEBHOOK_REST_MS)?,
                _ => return Err(entry.unknown(WEBHOOK_KEYS)),
            }
        }
        if webhook.url.is_empty() {
            let key = "router.webhook".to_owned();
            let origin = Origin::Key { path: self.path.clone(), key };
            let allowed = format!("complete, it needs a url: {}", address::URL_ALLOWED);
            return Err(ConfigError::Value { origin, found: "the section".to_owned(), allowed });
        }
        Ok(webhook)
    }

    fn entry<'a>(&'a self, key: String, value: &'a Value) -> Entry<'a> {
        Entry { path: &self.path, key, value }
    }

    fn unknown(&self, key: &str) -> ConfigError {
        let section = key.rsplit_once('.').map_or("", |(section, _)| section);
        let own = |known: &str| match known.rsplit_once('.') {
            Some((its, name)) => (its == section).then(|| name.to_owned()),
            None => section.is_empty().then(|| known.to_owned()),
        };
        let keys = NUMBERS.iter().map(|number| number.key).chain(OTHERS.iter().copied());
        let mut known: Vec<String> = keys.filter_map(own).collect();
        if section.is_empty() {
            known.extend(SECTIONS.iter().map(|name| format!("[{name}]")));
        }
        ConfigError::UnknownKey { path: self.path.clone(), key: key.to_owned(), known: known.join(", ") }
    }
}

/// One key of the file with its value.
pub(super) struct Entry<'a> {
    path: &'a Path,
    pub(super) key: String,
    pub(super) value: &'a Value,
}

impl<'a> Entry<'a> {
    /// The entry `name` inside this one.
    pub(super) fn inner(&self, name: &str, value: &'a Value) -> Self {
        Self { path: self.path, key: format!("{}.{name}", self.key), value }
    }

    fn origin(&self) -> Origin {
        Origin::Key { path: self.path.to_owned(), key: self.key.clone() }
    }

    /// The refusal of this value.
    pub(super) fn refused(&self, allowed: impl Into<String>) -> ConfigError {
        const SHOWN: usize = 60;
        let mut found = self.value.to_string().replace('\n', " ");
        if found.chars().count() > SHOWN {
            found = found.chars().take(SHOWN).chain("…".chars()).collect();
        }
        ConfigError::Value { origin: self.origin(), found, allowed: allowed.into() }
    }

    /// The refusal of this key.
    pub(super) fn unknown(&self, known: &[&str]) -> ConfigError {
        ConfigError::UnknownKey { path: self.path.to_owned(), key: self.key.clone(), known: known.join(", ") }
    }

    pub(super) fn table(&self) -> Result<&'a Table, ConfigError> {
        self.value.as_table().ok_or_else(|| self.refused("a section"))
    }

    /// A text that is not empty.
    pub(super) fn text(&self, allowed: &str) -> Result<&'a str, ConfigError> {
        self.value.as_str().filter(|text| !text.trim().is_empty()).ok_or_else(|| self.refused(allowed))
    }

    pub(super) fn number(&self, bounds: (u64, u64)) -> Result<i128, ConfigError> {
        self.value.as_integer().map(i128::from).ok_or_else(|| self.refused(super::number::range(bounds)))
    }

    /// A number within `bounds`.
    pub(super) fn number_within(&self, bounds: (u64, u64)) -> Result<u64, ConfigError> {
        within(self.number(bounds)?, bounds, &self.origin())
    }

    fn millis(&self, bounds: (u64, u64)) -> Result<Duration, ConfigError> {
        self.number_within(bounds).map(Duration::from_millis)
    }

    fn switch(&self) -> Result<bool, ConfigError> {
        self.value.as_bool().ok_or_else(|| self.refused("true or false"))
    }
}
