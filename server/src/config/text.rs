//! Texts of the configuration file: deserializers that accept only valid values and otherwise say what is expected.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use driftq_core::types::Text;
use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use tracing_subscriber::filter::Targets;

use super::address;

/// What a log level must be.
pub(super) const LEVEL_EXPECTED: &str =
    "off, error, warn, info, debug, trace or a filter such as info,driftq_server=debug";

type Parsed<'de, T, D> = Result<T, <D as Deserializer<'de>>::Error>;

fn parse<'de, T, D: Deserializer<'de>>(
    deserializer: D,
    expected: &'static str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Parsed<'de, T, D> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected))
}

pub(super) fn addr<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, SocketAddr, D> {
    let text = String::deserialize(deserializer)?;
    let expected = &"an address and port such as 127.0.0.1:8080 or localhost:8080";
    let invalid = || D::Error::invalid_value(Unexpected::Str(&text), expected);
    match text.trim().parse() {
        Ok(addr) => Ok(addr),
        Err(_) => {
            let (host, port) = address::split_host_and_port(text.trim()).ok_or_else(invalid)?;
            resolve(host, port).map_err(|error| D::Error::custom(format!("cannot resolve {text:?}: {error}")))
        }
    }
}

/// The address of a host name, an IPv4 address if it has one; every address if the host is empty.
fn resolve(host: &str, port: u16) -> std::io::Result<SocketAddr> {
    if host.is_empty() {
        return Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    }
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs()?.collect();
    let best = found.iter().find(|addr| addr.is_ipv4()).or(found.first()).copied();
    best.ok_or_else(|| std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address"))
}

/// U+FFFD is what a variable or flag that is not UTF-8 contains: it would name another folder.
pub(super) fn data_dir<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, PathBuf, D> {
    let is_path = |text: &str| !text.trim().is_empty() && !text.contains(char::REPLACEMENT_CHARACTER);
    parse(deserializer, "the path of a folder, in UTF-8", |text| is_path(text).then(|| text.into()))
}

pub(super) fn some_file<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<PathBuf>, D> {
    let is_path = |text: &str| !text.trim().is_empty() && !text.contains(char::REPLACEMENT_CHARACTER);
    parse(deserializer, "the path of a file, in UTF-8", |text| is_path(text).then(|| Some(text.into())))
}

pub(super) fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Vec<String>, D> {
    let host = |text: String| {
        let expected = &address::HOST_EXPECTED;
        address::normalize_host(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), expected))
    };
    Vec::deserialize(deserializer)?.into_iter().map(host).collect()
}

pub(super) fn log_level<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, String, D> {
    let level = |text: &str| parse_filter(text.trim()).map(|_| text.trim().to_owned());
    parse(deserializer, LEVEL_EXPECTED, level)
}

pub(super) fn non_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Text, D> {
    parse(deserializer, "a text that is not blank", |text| (!text.trim().is_empty()).then(|| text.into()))
}

pub(super) fn some_non_empty<'de, D: Deserializer<'de>>(deserializer: D) -> Parsed<'de, Option<Text>, D> {
    non_empty(deserializer).map(Some)
}

/// For `#[serde(with = "text::topic")]`.
pub(super) mod topic {
    use driftq_core::types::TopicName;
    use serde::ser::{Serialize, Serializer};

    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        name: &Option<TopicName>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        name.as_ref().map(TopicName::as_str).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Parsed<'de, Option<TopicName>, D> {
        let text = String::deserialize(deserializer)?;
        let invalid = |error| D::Error::custom(format!("invalid topic name {text:?}: {error}"));
        TopicName::new(&text).map(Some).map_err(invalid)
    }
}

/// The filter that `level` describes. A single name must be a level: as the name of a module, which is how [`Targets`]
/// takes it, `--log-level inof` would log everything of it and nothing else.
pub(super) fn parse_filter(level: &str) -> Option<Targets> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let is_level = |name: &str| LEVELS.iter().any(|level| name.trim().eq_ignore_ascii_case(level));
    let is_directive = |part: &str| (part.contains('=') && !part.contains('[')) || is_level(part);
    if !level.split(',').all(is_directive) {
        return None;
    }
    level.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_level_is_refused() {
        for good in ["off", "INFO", "debug", "info,driftq_server=debug", "driftq_server::http=trace,warn"] {
            assert!(parse_filter(good).is_some(), "{good}");
        }
        for bad in ["", "inof", "info,", "info,debgu", "driftq_server=loud", "a=b=c", "[x", "[span{a}]=info"] {
            assert!(parse_filter(bad).is_none(), "{bad}");
        }
    }
}
