//! Host names in settings: those a client may address the broker by, and that of the webhook URL.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::de::{Deserialize, Deserializer, Error, Unexpected};
use serde::ser::{Serialize, Serializer};

/// What an entry of `allowed_hosts` must be.
pub(super) const HOST_EXPECTED: &str = "a host name or IP address without scheme and port, or *";
/// What a webhook URL must be.
const URL_EXPECTED: &str = "a URL of the form http://host[:port]/path";

/// The form in which hosts are compared: lower case, IPv6 in brackets as in a `Host` header. `None` for an invalid
/// host.
pub(super) fn normalize_host(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if text == "*" || text.parse::<Ipv4Addr>().is_ok() {
        return Some(text);
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text);
    if let Ok(ip) = bare.parse::<Ipv6Addr>() {
        return Some(format!("[{ip}]"));
    }
    is_dns_name(&text).then_some(text)
}

/// The host of a `Host` header or of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostHeader {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name in lower case.
    Name(String),
}

impl HostHeader {
    /// Parses `host` or `host:port`. `None` for everything else: a user, a percent sign, a trailing dot, a port that is
    /// no number up to 65535, brackets around anything but an IPv6 address, text behind them.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (address, port) = rest.split_once(']')?;
                (Self::Ip(IpAddr::V6(address.parse().ok()?)), port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let host = match name.parse::<Ipv4Addr>() {
                    Ok(address) => Self::Ip(IpAddr::V4(address)),
                    Err(_) => Self::Name(name.to_ascii_lowercase()),
                };
                (host, port)
            }
        };
        let is_host = match &host {
            Self::Ip(_) => true,
            Self::Name(name) => is_dns_name(name),
        };
        (is_host && is_port_suffix(port)).then_some(host)
    }

    /// Whether it is a name that cannot be registered in the public DNS: a single label, or one below a suffix that is
    /// reserved for local use. A web page of another site cannot have been loaded under it.
    pub(crate) fn is_private_name(&self) -> bool {
        const SUFFIXES: [&str; 5] = [".internal", ".local", ".localhost", ".svc", ".cluster.local"];
        match self {
            Self::Ip(_) => false,
            Self::Name(name) => !name.contains('.') || SUFFIXES.iter().any(|suffix| name.ends_with(suffix)),
        }
    }

    /// Whether it is an IP address on which this broker certainly is: a loopback address, or `listen` if that is one
    /// address.
    pub(crate) fn is_own_address(&self, listen: IpAddr) -> bool {
        let Self::Ip(address) = self else { return false };
        let address = address.to_canonical();
        address.is_loopback() || (address == listen.to_canonical() && !address.is_unspecified())
    }
}

/// In the form of [`normalize_host`].
impl fmt::Display for HostHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Ip(IpAddr::V6(address)) => write!(f, "[{address}]"),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Whether `text` is empty or `:` and a port.
fn is_port_suffix(text: &str) -> bool {
    let is_port = |port: &str| port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok();
    text.is_empty() || text.strip_prefix(':').is_some_and(is_port)
}

/// Splits `host:port` or `:port`; the host is a DNS name or empty.
pub(super) fn split_host_and_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let is_host = host.is_empty() || is_dns_name(&host.to_ascii_lowercase());
    let port = Some(port).filter(|port| port.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    is_host.then_some((host, port))
}

fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A name whose last label is a number is a mistyped IP address.
    let ends_in_number = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    text.len() <= 253 && text.split('.').all(is_label) && !ends_in_number
}

/// URL of a webhook, split into the parts that a client needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    /// Name or address to connect to, without brackets.
    pub host: String,
    /// Port; 80 if the URL names none.
    pub port: u16,
    /// Value of the `Host` header.
    pub authority: String,
    /// Path and query; at least `/`.
    pub path: String,
}

impl WebhookUrl {
    /// Parses `http://host[:port][/path][?query]`. `None` for any other scheme, a user or a fragment.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        // `Uri` drops a fragment without an error.
        let uri: hyper::Uri = Some(url).filter(|url| !url.contains('#'))?.parse().ok()?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"))?;
        let (name, port) = (authority.host(), authority.port_u16().filter(|port| *port != 0));
        let host = normalize_host(name).filter(|host| host != "*")?;
        // Neither a user nor a port that is no number from 1 to 65535 is part of this.
        let plain = port.map_or_else(|| name.to_owned(), |port| format!("{name}:{port}"));
        if authority.as_str() != plain {
            return None;
        }
        Some(Self {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: port.unwrap_or(80),
            authority: plain.to_ascii_lowercase(),
            path: uri.path_and_query()?.to_string(),
        })
    }
}

impl WebhookUrl {
    /// The URL with `?…` in the place of its query.
    pub(super) fn without_query(&self) -> Self {
        let path = match self.path.split_once('?') {
            Some((path, _)) => format!("{path}?…"),
            None => self.path.clone(),
        };
        Self { path, ..self.clone() }
    }
}

impl fmt::Display for WebhookUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.path)
    }
}

impl Serialize for WebhookUrl {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for WebhookUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let url = String::deserialize(deserializer)?;
        Self::parse(&url).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&url), &URL_EXPECTED))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn host_is_normalized() {
        for (text, form) in [
            ("*", "*"),
            ("Broker.Example", "broker.example"),
            (" queue_1 ", "queue_1"),
            ("10.0.0.7", "10.0.0.7"),
            ("::1", "[::1]"),
            ("[FE80::0:1]", "[fe80::1]"),
        ] {
            assert_eq!(normalize_host(text).as_deref(), Some(form), "{text}");
        }
    }

    #[test]
    fn invalid_host_is_refused() {
        for text in [
            "",
            " ",
            "a b",
            "http://a",
            "a:80",
            "-a",
            "a-",
            "a..b",
            "a.",
            "1.2.3",
            "1.2.3.999",
            "[::1",
            "é.example",
            "*.a",
        ] {
            assert_eq!(normalize_host(text), None, "{text:?}");
        }
        assert_eq!(normalize_host(&"a".repeat(64)), None);
    }

    #[test]
    fn host_header_is_parsed_without_its_port() {
        for (text, host) in [
            ("localhost", "localhost"),
            ("LocalHost:8080", "localhost"),
            ("10.0.0.7:1", "10.0.0.7"),
            ("[FE80::0:1]", "[fe80::1]"),
            ("[::1]:65535", "[::1]"),
            ("queue_1:0", "queue_1"),
        ] {
            assert_eq!(HostHeader::parse(text).map(|host| host.to_string()).as_deref(), Some(host), "{text}");
            assert_eq!(normalize_host(host).as_deref(), Some(host), "the form of the setting");
        }
    }

    #[test]
    fn anything_but_host_and_port_is_no_host_header() {
        for text in [
            "",
            " localhost",
            "localhost ",
            ":80",
            "localhost:",
            "localhost:80:80",
            "localhost:+80",
            "localhost:65536",
            "localhost:80@evil",
            "user@localhost",
            "user:pass@localhost:80",
            "localhost.",
            "a.local.",
            ".local",
            "a..local",
            "local%68ost",
            "a%2elocal",
            "localhost/",
            "localhost#",
            "localhost?x",
            "localhost\\evil",
            "[127.0.0.1]",
            "[127.0.0.1]evil.com",
            "[::1]evil.com",
            "[::1].local",
            "[::1%25lo]",
            "[localhost]",
            "[::1",
            "::1",
            "[::1]80",
            "[[::1]]",
            "127.0.0.1.",
            "127.0.1",
            "127.0.0.01",
            "2130706433",
            "é.local",
            "a,b",
            "*",
        ] {
            assert_eq!(HostHeader::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn private_name_has_one_label_or_a_reserved_suffix() {
        let is_private = |text: &str| HostHeader::parse(text).unwrap().is_private_name();
        for name in
            ["driftqd", "my_queue", "a.internal", "a.b.local", "a.localhost", "q.ns.svc", "q.ns.svc.cluster.local"]
        {
            assert!(is_private(name), "{name}");
        }
        for name in ["evil.com", "local.com", "a.xlocal", "svc.example", "cluster.local.example", "10.0.0.1", "[::1]"] {
            assert!(!is_private(name), "{name}");
        }
    }

    #[test]
    fn webhook_url_is_split_into_parts() {
        let parts = |url: &str| WebhookUrl::parse(url).map(|url| (url.host, url.port, url.authority, url.path));
        let expect = |host: &str, port, authority: &str, path: &str| {
            Some((host.to_owned(), port, authority.to_owned(), path.to_owned()))
        };
        assert_eq!(parts("http://brain"), expect("brain", 80, "brain", "/"));
        assert_eq!(parts("HTTP://Brain:9000/r?x=1"), expect("brain", 9000, "brain:9000", "/r?x=1"));
        assert_eq!(parts("http://127.0.0.1:1?q"), expect("127.0.0.1", 1, "127.0.0.1:1", "/?q"));
        assert_eq!(parts("http://[::1]:8/"), expect("::1", 8, "[::1]:8", "/"));
        assert_eq!(parts("http://[::1]"), expect("::1", 80, "[::1]", "/"));
    }

    #[test]
    fn url_other_than_plain_http_is_refused() {
        for url in [
            "",
            "brain",
            "https://brain/",
            "http://",
            "http:///path",
            "http://*/",
            "http://user@brain/",
            "http://brain:/",
            "http://brain:0/",
            "http://brain:+80/",
            "http://brain:65536/",
            "http://::1/",
            "http://brain/a b",
            "http://brain/a#b",
            "http://brain/\r\nX: y",
            "http://bräin/",
        ] {
            assert_eq!(WebhookUrl::parse(url), None, "{url:?}");
        }
    }
}
