//! The base URLs of a client.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, Ordering};

use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};

use crate::error::Error;

/// A base URL, taken apart once.
#[derive(Debug)]
pub(crate) struct Endpoint {
    scheme: Scheme,
    authority: Authority,
    host_header: HeaderValue,
    /// The path in front of `/v1`, without a slash at its end.
    prefix: String,
    /// Whether it has answered as a DriftQ server of this API.
    checked: AtomicBool,
}

impl Endpoint {
    /// # Errors
    /// [`ErrorKind::Misuse`](crate::ErrorKind::Misuse) with what is wrong.
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let wrong = |what: &str| Error::misuse(format!("the URL {}: {what}", shown(url)));
        let uri: Uri = url.trim().parse().map_err(|error| wrong(&format!("{error}")))?;
        let parts = uri.into_parts();
        let scheme = parts.scheme.ok_or_else(|| wrong("it needs a scheme, such as http://"))?;
        if scheme != Scheme::HTTP && scheme != Scheme::HTTPS {
            return Err(wrong("its scheme is neither http nor https"));
        }
        if scheme == Scheme::HTTPS && cfg!(not(feature = "tls")) {
            return Err(wrong("https needs the feature `tls` of this crate"));
        }
        let authority = parts.authority.ok_or_else(|| wrong("it has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it names a user; give a key instead"));
        }
        let path = parts.path_and_query.as_ref();
        if path.is_some_and(|path| path.query().is_some()) {
            return Err(wrong("it has a query"));
        }
        let prefix = path.map_or("", PathAndQuery::path).trim_end_matches('/').to_owned();
        let host_header = HeaderValue::try_from(authority.as_str()).map_err(|error| wrong(&error.to_string()))?;
        Ok(Self { scheme, authority, host_header, prefix, checked: AtomicBool::new(false) })
    }

    pub(crate) fn is_https(&self) -> bool {
        self.scheme == Scheme::HTTPS
    }

    pub(crate) fn is_checked(&self) -> bool {
        self.checked.load(Ordering::Relaxed)
    }

    pub(crate) fn set_checked(&self) {
        self.checked.store(true, Ordering::Relaxed);
    }

    /// The value of the `Host` header.
    pub(crate) fn host_header(&self) -> HeaderValue {
        self.host_header.clone()
    }

    /// The host without brackets.
    #[cfg(feature = "tls")]
    pub(crate) fn host(&self) -> &str {
        self.authority.host().trim_start_matches('[').trim_end_matches(']')
    }

    /// Where to connect to.
    pub(crate) fn origin(&self) -> Result<Uri, hyper::http::Error> {
        Uri::builder().scheme(self.scheme.clone()).authority(self.authority.clone()).path_and_query("/").build()
    }

    /// What a request for a path below the base URL asks for.
    #[expect(clippy::ptr_arg, reason = "a path that is static is not copied")]
    pub(crate) fn target(&self, path: &Cow<'static, str>) -> Result<Uri, Error> {
        match path {
            Cow::Borrowed(path) if self.prefix.is_empty() => Ok(Uri::from_static(path)),
            path => Uri::try_from(format!("{}{path}", self.prefix))
                .map_err(|error| Error::misuse(format!("the path {path}: {error}"))),
        }
    }

    /// Whether both have the same scheme, host and port.
    pub(crate) fn is_same_server(&self, other: &Self) -> bool {
        let port =
            |endpoint: &Self| endpoint.authority.port_u16().unwrap_or(if endpoint.is_https() { 443 } else { 80 });
        self.scheme == other.scheme
            && self.authority.host().eq_ignore_ascii_case(other.authority.host())
            && port(self) == port(other)
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}://{}{}", self.scheme, self.authority, self.prefix)
    }
}

/// A URL without what may be a secret.
fn shown(url: &str) -> &str {
    url.rsplit_once('@').map_or(url, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_taken_apart() {
        let endpoint = Endpoint::parse("http://Broker:8080/mq/").expect("a URL");
        assert_eq!(endpoint.to_string(), "http://Broker:8080/mq");
        assert_eq!(endpoint.target(&"/v1/ack".into()).expect("a path").to_string(), "/mq/v1/ack");
        assert_eq!(endpoint.origin().expect("a URI").to_string(), "http://Broker:8080/");
        let plain = Endpoint::parse("http://h").expect("a URL");
        assert_eq!(plain.target(&"/v1/ack?a=%20".into()).expect("a path").to_string(), "/v1/ack?a=%20");
        assert!(plain.is_same_server(&Endpoint::parse("http://H:80/x").expect("a URL")));
        assert!(!plain.is_same_server(&endpoint));
    }

    #[test]
    fn what_is_no_base_url_is_refused_without_its_password() {
        for url in ["localhost:8080", "/v1", "ftp://h", "http://", "http://h/?a=b", "http://user:secret@h"] {
            let error = Endpoint::parse(url).expect_err("refused");
            assert_eq!(error.kind(), crate::ErrorKind::Misuse, "{url}");
            assert!(!error.message().contains("secret"), "{error}");
        }
    }
}
