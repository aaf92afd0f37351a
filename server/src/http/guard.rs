//! Checks the head of every request: framing and paths that hyper accepts but must be refused, `Host` headers of other
//! servers, and requests from web pages of other sites.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

use hyper::Version;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;

use super::error::ApiError;
use super::head::RequestHead;
use crate::config::HostHeader;

/// The checks, and the `Host` headers they allow.
#[derive(Debug)]
pub(crate) struct Guard {
    allows_any_host: bool,
    allowed_hosts: Vec<String>,
    listen: IpAddr,
    /// The last `Host` header that was allowed; the next request mostly has the same.
    last_allowed: RefCell<Option<HeaderValue>>,
}

impl Guard {
    /// Allows loopback addresses, `listen`, names that are not of the public DNS and the hosts in `allowed`; `*` allows
    /// any.
    pub(crate) fn new(listen: SocketAddr, allowed: &[String]) -> Self {
        Self {
            allows_any_host: allowed.iter().any(|name| name == "*"),
            allowed_hosts: allowed.iter().map(|name| name.to_ascii_lowercase()).collect(),
            listen: listen.ip(),
            last_allowed: RefCell::new(None),
        }
    }

    /// Refuses a request that must not be handled.
    pub(crate) fn check(&self, request: &Parts, head: &RequestHead<'_>) -> Result<(), ApiError> {
        if request.version < Version::HTTP_2 {
            check_framing(request, head)?;
            self.check_host(head.host)?;
        } else {
            self.check_authority(request, head)?;
        }
        let path = request.uri.path();
        if path.bytes().any(|byte| matches!(byte, b'.' | b'%')) {
            check_path(path)?;
        }
        check_origin(request, head)
    }

    fn check_host(&self, host: Option<&HeaderValue>) -> Result<(), ApiError> {
        let Some(host) = host else { return Err(ApiError::invalid("the Host header is missing").closing()) };
        if self.allows_any_host || self.last_allowed.borrow().as_ref() == Some(host) {
            return Ok(());
        }
        self.check_name(host.to_str().unwrap_or_default())?;
        *self.last_allowed.borrow_mut() = Some(host.clone());
        Ok(())
    }

    fn check_authority(&self, request: &Parts, head: &RequestHead<'_>) -> Result<(), ApiError> {
        let host = head.host.and_then(|host| host.to_str().ok());
        match (authority(request), host) {
            (Some(authority), Some(host)) if !authority.eq_ignore_ascii_case(host) => {
                Err(ApiError::invalid("the Host header and :authority differ"))
            }
            (Some(name), _) | (None, Some(name)) if !self.allows_any_host => self.check_name(name),
            (None, None) => Err(ApiError::invalid("the Host header is missing")),
            _ => Ok(()),
        }
    }

    fn check_name(&self, host: &str) -> Result<(), ApiError> {
        let is_allowed = HostHeader::parse(host).is_some_and(|host| {
            let is_own = host.is_own_address(self.listen) || host.is_private_name();
            is_own || self.allowed_hosts.contains(&host.to_string())
        });
        match is_allowed {
            true => Ok(()),
            false => Err(ApiError::permission_denied(format!("host {host:?} is not allowed; see --allowed-host"))),
        }
    }
}

fn authority(request: &Parts) -> Option<&str> {
    request.uri.authority().map(hyper::http::uri::Authority::as_str)
}

fn check_framing(request: &Parts, head: &RequestHead<'_>) -> Result<(), ApiError> {
    if head.has_encoding && head.has_length {
        return Err(ApiError::invalid("Content-Length and Transfer-Encoding in one request").closing());
    }
    if head.host_count > 1 {
        return Err(ApiError::invalid("more than one Host header").closing());
    }
    if request.uri.scheme().is_some() || request.uri.authority().is_some() {
        return Err(ApiError::invalid("the request target must be a path").closing());
    }
    Ok(())
}

/// Segments are decoded one by one: an encoded slash is part of a name and separates nothing.
fn check_path(path: &str) -> Result<(), ApiError> {
    for segment in path.split(['/', '\\']) {
        let decoded = percent_encoding::percent_decode_str(segment).decode_utf8();
        let decoded = decoded.map_err(|_| ApiError::invalid("the path is not UTF-8").closing())?;
        if decoded == ".." {
            return Err(ApiError::invalid("the path must not contain ..").closing());
        }
    }
    Ok(())
}

/// A web page of another site must not reach a broker on the network of the browser that shows it.
fn check_origin(request: &Parts, head: &RequestHead<'_>) -> Result<(), ApiError> {
    let refused = || ApiError::permission_denied("cross-site requests are refused");
    if head.fetch_site.is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return Err(refused());
    }
    let host = || head.host.and_then(|host| host.to_str().ok()).or(authority(request));
    let is_foreign = |url: &HeaderValue| match (url_authority(url), host()) {
        (Some(origin), Some(host)) => !origin.eq_ignore_ascii_case(host),
        _ => true,
    };
    // A client that withholds the page it was sent from may send an empty one.
    let referer = head.referer.filter(|referer| !referer.is_empty());
    if head.origin.is_some_and(is_foreign) || referer.is_some_and(is_foreign) { Err(refused()) } else { Ok(()) }
}

/// Host and port of an absolute URL.
fn url_authority(url: &HeaderValue) -> Option<&str> {
    let (_, rest) = url.to_str().ok()?.split_once("://")?;
    rest.split(['/', '?', '#', '\\']).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        Guard::new("192.0.2.7:8080".parse().expect("an address"), &allowed)
    }

    #[test]
    fn own_addresses_and_private_names_are_allowed() {
        let guard = guard(&[]);
        for host in [
            "localhost",
            "LOCALHOST:8080",
            "127.0.0.1:1",
            "127.9.9.9",
            "[::1]:80",
            "[::ffff:127.0.0.1]",
            "a.localhost",
            "192.0.2.7:8080",
            "driftqd:8080",
            "broker.internal",
            "nas.local:80",
            "driftqd.queues.svc",
            "driftqd.queues.svc.cluster.local:8080",
        ] {
            assert_eq!(guard.check_name(host), Ok(()), "{host}");
        }
        for host in [
            "",
            "example.com",
            "localhost.example.com",
            "192.0.2.8",
            "[2001:db8::1]:80",
            "0.0.0.0",
            "[127.0.0.1]evil.com",
            "localhost:80@evil",
            "localhost.",
            "local%68ost",
        ] {
            assert!(guard.check_name(host).is_err(), "{host}");
        }
    }

    #[test]
    fn configured_hosts_are_allowed() {
        let guard = guard(&["Queue.example.com", "192.0.2.9"]);
        assert_eq!(guard.check_name("queue.example.com:443"), Ok(()));
        assert_eq!(guard.check_name("192.0.2.9:1"), Ok(()));
        assert!(guard.check_name("example.com").is_err());
    }

    #[test]
    fn path_with_dot_dot_is_refused_in_any_encoding() {
        for path in ["/v1/../x", "/..", "/v1/%2e%2e/x", "/v1/.%2E", "/v1/..\\x", "/%FF"] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in ["/v1/topics/a..b", "/v1/topics/.a", "/v1/openapi.json", "/v1/topics/a%2F..%2Fb"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
    }

    #[test]
    fn authority_of_a_url_ends_at_its_path() {
        let authority = |url: &'static str| url_authority(&HeaderValue::from_static(url)).map(str::to_owned);
        for url in ["http://a:1", "https://a:1/x?y", "http://a:1?x", "http://a:1#x", "http://a:1\\x"] {
            assert_eq!(authority(url).as_deref(), Some("a:1"), "{url}");
        }
        assert_eq!(authority("http://a:1@evil/").as_deref(), Some("a:1@evil"));
        for url in ["null", "", "a:1", "about:blank"] {
            assert_eq!(authority(url), None, "{url}");
        }
    }
}
