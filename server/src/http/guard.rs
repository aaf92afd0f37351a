//! Checks the head of every request: framing and paths that hyper accepts but must be refused, `Host` headers of other
//! servers, and requests from web pages of other sites.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};

use hyper::Version;
use hyper::header::HeaderValue;
use hyper::http::request::Parts;

use super::error::ApiError;
use super::head::RequestHead;

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
    /// Allows loopback names, `listen` and the hosts in `allowed`; `*` allows any.
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
        let name = strip_port(host).to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let is_own = match bare.parse::<IpAddr>() {
            Ok(address) => address.is_loopback() || (address == self.listen && !address.is_unspecified()),
            Err(_) => name == "localhost" || name.ends_with(".localhost"),
        };
        if is_own || self.allowed_hosts.contains(&name) || self.allowed_hosts.iter().any(|allowed| allowed == bare) {
            return Ok(());
        }
        Err(ApiError::permission_denied(format!("host {host:?} is not allowed; see --allowed-host")))
    }
}

/// A `Host` header without its port.
fn strip_port(host: &str) -> &str {
    match host.rfind(']') {
        Some(end) => &host[..=end],
        None => host.split(':').next().unwrap_or_default(),
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

fn check_path(path: &str) -> Result<(), ApiError> {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8();
    let decoded = decoded.map_err(|_| ApiError::invalid("the path is not UTF-8").closing())?;
    if decoded.split(['/', '\\']).any(|segment| segment == "..") {
        return Err(ApiError::invalid("the path must not contain ..").closing());
    }
    Ok(())
}

/// A web page of another site must not reach a broker on the network of the browser that shows it.
fn check_origin(request: &Parts, head: &RequestHead<'_>) -> Result<(), ApiError> {
    let refused = || ApiError::permission_denied("cross-site requests are refused");
    if head.fetch_site.is_some_and(|site| !matches!(site.as_bytes(), b"same-origin" | b"none")) {
        return Err(refused());
    }
    let Some(origin) = head.origin else { return Ok(()) };
    let host = head.host.and_then(|host| host.to_str().ok()).or(authority(request));
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    match (origin, host) {
        (Some(origin), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(allowed: &[&str]) -> Guard {
        let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
        Guard::new("192.0.2.7:8080".parse().expect("an address"), &allowed)
    }

    #[test]
    fn loopback_names_and_the_listen_address_are_allowed() {
        let guard = guard(&[]);
        for host in
            ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "127.9.9.9", "[::1]:80", "a.localhost", "192.0.2.7:8080"]
        {
            assert_eq!(guard.check_name(host), Ok(()), "{host}");
        }
        for host in ["", "example.com", "localhost.example.com", "192.0.2.8", "[2001:db8::1]:80", "0.0.0.0"] {
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
        for path in ["/v1/../x", "/..", "/v1/%2e%2e/x", "/v1/..%2fx", "/v1/..\\x", "/%FF"] {
            assert!(check_path(path).is_err(), "{path}");
        }
        for path in ["/v1/topics/a..b", "/v1/topics/.a", "/v1/openapi.json"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
    }
}
