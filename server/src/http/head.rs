//! The headers of a request that matter, found in one pass: looking each up by name was measured to cost more
//! (`docs/performance.md`).

use hyper::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN, REFERER,
    TRANSFER_ENCODING,
};

pub(super) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Content type of a batch.
const NDJSON: &[u8] = b"application/x-ndjson";

/// The headers that matter. Of a repeated header, the first; those that must not be repeated are counted.
#[derive(Debug, Default)]
pub(super) struct RequestHead<'a> {
    pub(super) host: Option<&'a HeaderValue>,
    pub(super) host_count: usize,
    pub(super) has_length: bool,
    pub(super) has_encoding: bool,
    pub(super) content_type: Option<&'a HeaderValue>,
    pub(super) origin: Option<&'a HeaderValue>,
    pub(super) referer: Option<&'a HeaderValue>,
    pub(super) fetch_site: Option<&'a HeaderValue>,
    pub(super) request_id: Option<&'a HeaderValue>,
    pub(super) authorization: Option<&'a HeaderValue>,
    pub(super) authorization_count: usize,
    pub(super) idempotency_key: Option<&'a HeaderValue>,
    pub(super) idempotency_key_count: usize,
    pub(super) traceparent: Option<&'a HeaderValue>,
    pub(super) traceparent_count: usize,
}

impl<'a> RequestHead<'a> {
    /// Finds them in `headers`.
    pub(super) fn of(headers: &'a HeaderMap) -> Self {
        let mut head = Self::default();
        for (name, value) in headers {
            if name == HOST {
                head.host.get_or_insert(value);
                head.host_count += 1;
            } else if name == CONTENT_LENGTH {
                head.has_length = true;
            } else if name == CONTENT_TYPE {
                head.content_type.get_or_insert(value);
            } else if name == TRANSFER_ENCODING {
                head.has_encoding = true;
            } else if name == ORIGIN {
                head.origin.get_or_insert(value);
            } else if name == REFERER {
                head.referer.get_or_insert(value);
            } else if name == SEC_FETCH_SITE {
                head.fetch_site.get_or_insert(value);
            } else if name == REQUEST_ID {
                head.request_id.get_or_insert(value);
            } else if name == AUTHORIZATION {
                head.authorization.get_or_insert(value);
                head.authorization_count += 1;
            } else if name == IDEMPOTENCY_KEY {
                head.idempotency_key.get_or_insert(value);
                head.idempotency_key_count += 1;
            } else if name == TRACEPARENT {
                head.traceparent.get_or_insert(value);
                head.traceparent_count += 1;
            }
        }
        head
    }

    /// The `traceparent`, which counts only if there is one.
    pub(super) fn trace(&self) -> Option<&'a HeaderValue> {
        self.traceparent.filter(|_| self.traceparent_count == 1)
    }

    /// Whether a header describes a message in the body.
    pub(super) fn has_message_headers(&self) -> bool {
        self.idempotency_key.is_some() || self.traceparent.is_some()
    }

    /// Whether the body is a batch, one request per line.
    pub(super) fn is_ndjson(&self) -> bool {
        let Some(kind) = self.content_type else { return false };
        let Some((name, rest)) = kind.as_bytes().trim_ascii().split_at_checked(NDJSON.len()) else { return false };
        let ends = rest.trim_ascii_start().first().is_none_or(|byte| *byte == b';');
        ends && name.eq_ignore_ascii_case(NDJSON) && kind.to_str().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ndjson_is_recognized_in_any_case_and_with_parameters() {
        let is_ndjson = |kind: &[u8]| {
            let kind = HeaderValue::from_bytes(kind).expect("a value");
            RequestHead { content_type: Some(&kind), ..RequestHead::default() }.is_ndjson()
        };
        for kind in ["application/x-ndjson", "Application/X-NDJSON", "application/x-ndjson ; charset=utf-8"] {
            assert!(is_ndjson(kind.as_bytes()), "{kind}");
        }
        for kind in
            ["", "application/json", "application/x-ndjsons", "application/x-ndjson x; y", "; application/x-ndjson"]
        {
            assert!(!is_ndjson(kind.as_bytes()), "{kind}");
        }
        assert!(!is_ndjson(b"application/x-ndjson; \xff"), "not text");
        assert!(!RequestHead::default().is_ndjson());
    }
}
