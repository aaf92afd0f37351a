//! What the broker reads of certificates beside rustls: when its own expires, and the names in a client's.

use std::time::{SystemTime, UNIX_EPOCH};

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::rfc3339;

/// Most names that are kept of one certificate.
const NAMES_MAX: usize = 64;

/// Tags of DER.
const SEQUENCE: u8 = 0x30;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const EXPLICIT_VERSION: u8 = 0xa0;

/// The names in a client's certificate, which the handshake has verified.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerNames {
    /// URI names of the subject, such as a SPIFFE id.
    pub(crate) uris: Vec<String>,
    /// DNS names of the subject.
    pub(crate) dns: Vec<String>,
}

impl PeerNames {
    /// The names of a verified certificate, the first 64 of each kind; `None` if it cannot be parsed.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let uris = parsed.valid_uri_names().take(NAMES_MAX).map(str::to_owned).collect();
        let dns = parsed.valid_dns_names().take(NAMES_MAX).map(str::to_owned).collect();
        Some(Self { uris, dns })
    }
}

/// Seconds since 1970.
pub(super) fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// When a certificate expires (`notAfter`), in seconds since 1970; `None` if it is no X.509 certificate.
pub(super) fn expires_at(certificate: &[u8]) -> Option<i64> {
    let (certificate, _) = Element::read(certificate)?.within(SEQUENCE)?;
    let (to_be_signed, _) = Element::read(certificate)?.within(SEQUENCE)?;
    let mut fields = to_be_signed;
    let mut next = || {
        let element = Element::read(fields)?;
        fields = element.rest;
        Some(element)
    };
    // Version, serial number, signature algorithm, issuer, validity.
    if next()?.tag == EXPLICIT_VERSION {
        next()?;
    }
    next()?;
    next()?;
    let (validity, _) = next()?.within(SEQUENCE)?;
    let not_before = Element::read(validity)?;
    time(&Element::read(not_before.rest)?)
}

/// An element of DER: tag, length, value.
#[derive(Clone, Copy, Debug)]
struct Element<'a> {
    tag: u8,
    value: &'a [u8],
    /// What follows it.
    rest: &'a [u8],
}

impl<'a> Element<'a> {
    fn read(input: &'a [u8]) -> Option<Self> {
        let (&tag, input) = input.split_first()?;
        let (&first, input) = input.split_first()?;
        let (length, input) = match first {
            0..=0x7f => (usize::from(first), input),
            0x81..=0x84 => {
                let (length, input) = input.split_at_checked(usize::from(first & 0x7f))?;
                (length.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), input)
            }
            _ => return None,
        };
        let (value, rest) = input.split_at_checked(length)?;
        Some(Self { tag, value, rest })
    }

    /// Value and rest of an element with this tag.
    fn within(self, tag: u8) -> Option<(&'a [u8], &'a [u8])> {
        (self.tag == tag).then_some((self.value, self.rest))
    }
}

/// `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, as RFC 5280 requires.
fn time(element: &Element<'_>) -> Option<i64> {
    let text = std::str::from_utf8(element.value).ok()?.strip_suffix('Z')?;
    let text = match element.tag {
        // Years from 50 on are of the 20th century.
        UTC_TIME if text.len() == 12 => format!("{}{text}", if text.as_bytes()[0] < b'5' { "20" } else { "19" }),
        GENERALIZED_TIME if text.len() == 14 => text.to_owned(),
        _ => return None,
    };
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let part = |range| text.get(range).unwrap_or_default();
    let (date, clock) = ([part(0..4), part(4..6), part(6..8)], [part(8..10), part(10..12), part(12..14)]);
    let at = rfc3339::parse(&format!("{}T{}Z", date.join("-"), clock.join(":")))?;
    i64::try_from(at.0 / 1_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An element around a value.
    fn element(tag: u8, value: &[u8]) -> Vec<u8> {
        let length = u8::try_from(value.len()).expect("short");
        let mut bytes = vec![tag];
        if length >= 0x80 {
            bytes.push(0x81);
        }
        bytes.push(length);
        bytes.extend_from_slice(value);
        bytes
    }

    /// The part of a certificate up to its validity, with this end.
    fn certificate(has_version: bool, not_after: &[u8]) -> Vec<u8> {
        let validity = [element(UTC_TIME, b"200101000000Z"), not_after.to_vec()].concat();
        let version = if has_version { element(EXPLICIT_VERSION, &[2, 1, 2]) } else { Vec::new() };
        let serial = element(2, &[7]);
        let (algorithm, issuer) = (element(SEQUENCE, &[5, 0]), element(SEQUENCE, &[b'n'; 130]));
        let fields = [version, serial, algorithm, issuer, element(SEQUENCE, &validity)].concat();
        element(SEQUENCE, &element(SEQUENCE, &fields))
    }

    #[test]
    fn end_of_validity_is_read_in_both_forms() {
        for has_version in [true, false] {
            let end = |tag, text: &str| expires_at(&certificate(has_version, &element(tag, text.as_bytes())));
            assert_eq!(end(UTC_TIME, "261119000000Z"), Some(1_795_046_400));
            assert_eq!(end(UTC_TIME, "700101000001Z"), Some(1));
            assert_eq!(end(GENERALIZED_TIME, "20500101000000Z"), Some(2_524_608_000));
            assert_eq!(end(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
            for (tag, text) in [
                (UTC_TIME, ""),
                (UTC_TIME, "2611190000Z"),
                (UTC_TIME, "261119000000"),
                (UTC_TIME, "20261119000000Z"),
                (UTC_TIME, "261319000000Z"),
                (UTC_TIME, "+6111900000éZ"),
                (GENERALIZED_TIME, "20261119000000.5Z"),
                (2, "261119000000Z"),
            ] {
                assert_eq!(end(tag, text), None, "{text}");
            }
        }
    }

    #[test]
    fn certificate_that_is_cut_off_or_damaged_has_no_end_and_does_not_panic() {
        let whole = certificate(true, &element(UTC_TIME, b"261119000000Z"));
        for length in 0..whole.len() {
            assert_eq!(expires_at(&whole[..length]), None, "{length}");
        }
        for at in 0..whole.len() {
            for byte in [0, 0x7f, 0x80, 0x84, 0x85, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = byte;
                let _ = expires_at(&damaged);
                let _ = PeerNames::of(&CertificateDer::from(damaged));
            }
        }
    }
}
