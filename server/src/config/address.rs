//! Names of machines as they are written in settings: hosts a client may call the daemon by, and the webhook's URL.

use std::net::{Ipv4Addr, Ipv6Addr};

/// What a host in `allowed_hosts` may be.
pub(super) const HOST_ALLOWED: &str = "a host name or IP address without scheme and port, or *";
/// What a webhook's URL may be.
pub(super) const URL_ALLOWED: &str = "a URL of the form http://host[:port]/path";

/// The form in which a host is compared: lower case, IPv6 in brackets, as in a `Host` header. `None` for what is no host.
pub(super) fn host(text: &str) -> Option<String> {
    let text = text.trim().to_ascii_lowercase();
    if text == "*" || text.parse::<Ipv4Addr>().is_ok() {
        return Some(text);
    }
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(&text);
    if let Ok(ip) = bare.parse::<Ipv6Addr>() {
        return Some(format!("[{ip}]"));
    }
    is_name(&text).then_some(text)
}

fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // A name whose last label is a number is an IP address that somebody mistyped.
    let numeric = text.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    text.len() <= 253 && text.split('.').all(label) && !numeric
}

/// Where a webhook is: the parts of its URL that a client needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookUrl {
    /// What to connect to: a name or an address, without brackets.
    pub host: String,
    /// The port; 80 where the URL names none.
    pub port: u16,
    /// What the `Host` header says: as in the URL.
    pub authority: String,
    /// Path and query; at least `/`.
    pub path: String,
}

impl WebhookUrl {
    /// Takes a URL apart. `None` unless it is `http://host[:port][/path][?query]`: nothing but HTTP, no user, no fragment.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let scheme = url.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"))?;
        let rest = &url[scheme.len()..];
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let printable = path.bytes().all(|b| b.is_ascii_graphic() && !matches!(b, b'"' | b'<' | b'>' | b'\\' | b'#'));
        let (name, port) = match authority.rsplit_once(':') {
            Some((name, port)) if !port.ends_with(']') => (name, port_number(port)?),
            _ => (authority, 80),
        };
        let name = host(name).filter(|host| host != "*" && printable)?;
        let host = name.trim_start_matches('[').trim_end_matches(']').to_owned();
        // A bare IPv6 address is ambiguous with a port and no legal authority.
        if host.contains(':') && !authority.starts_with('[') {
            return None;
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        path.parse::<hyper::Uri>().ok()?;
        Some(Self { host, port, authority: authority.to_ascii_lowercase(), path })
    }
}

fn port_number(text: &str) -> Option<u16> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    text.parse().ok().filter(|port| digits && *port != 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_in_one_form() {
        for (text, form) in [
            ("*", "*"),
            ("Broker.Example", "broker.example"),
            (" queue_1 ", "queue_1"),
            ("10.0.0.7", "10.0.0.7"),
            ("::1", "[::1]"),
            ("[FE80::0:1]", "[fe80::1]"),
        ] {
            assert_eq!(host(text).as_deref(), Some(form), "{text}");
        }
    }

    #[test]
    fn what_is_no_host_is_refused() {
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
            assert_eq!(host(text), None, "{text:?}");
        }
        assert_eq!(host(&"a".repeat(64)), None);
    }

    #[test]
    fn a_url_is_taken_apart() {
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
    fn what_is_no_plain_http_url_is_refused() {
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
