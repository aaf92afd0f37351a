//! Names of groups and owners, and what is common to all names, validated on construction.
//!
//! A name is any text without control characters: `orders/eu`, `my topic` and `größe` are names. Its `as_str` is for
//! JSON, the log and comparisons; its `Display` is for people: see [`Escaped`].

use crate::wire::Malformed;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

/// The longest name of a group or an owner, in bytes.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// Why a text is not a valid name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty after trimming.
    #[error("{what} must not be empty")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The text is too long.
    #[error("{what} has {len} bytes, at most {max} are allowed")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        max: usize,
    },
    /// A control character: U+0000 to U+001F or U+007F to U+009F.
    #[error("{what} must not contain control characters")]
    ControlCharacter {
        /// The kind of name.
        what: &'static str,
    },
    /// `.` and `..`, which would change a path.
    #[error("{what} must not be \".\" or \"..\"")]
    Dots {
        /// The kind of name.
        what: &'static str,
    },
}

/// The trimmed `text`, if it is a valid name of at most `max` bytes.
pub(super) fn validated<'a>(text: &'a str, what: &'static str, max: usize) -> Result<&'a str, NameError> {
    let text = text.trim();
    if text.is_empty() {
        return Err(NameError::Empty { what });
    }
    if text.len() > max {
        return Err(NameError::TooLong { what, len: text.len(), max });
    }
    if text.chars().any(char::is_control) {
        return Err(NameError::ControlCharacter { what });
    }
    if text == "." || text == ".." {
        return Err(NameError::Dots { what });
    }
    Ok(text)
}

/// A name in a line of text: as it is if it consists of `A-Z a-z 0-9 . _ : / @ -`, else in quotation marks with quotes,
/// backslashes and invisible characters escaped. Two names never have the same form, and none looks like several
/// names or lines.
#[derive(Clone, Copy, Debug)]
pub struct Escaped<'a>(pub &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'/' | b'@' | b'-');
        match !self.0.is_empty() && self.0.bytes().all(is_plain) {
            true => f.write_str(self.0),
            false => write!(f, "{:?}", self.0),
        }
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $name(Arc<str>);

        /// In byte order.
        impl Ord for $name {
            #[inline]
            fn cmp(&self, other: &Self) -> Ordering {
                // The state looks names up that it has shared itself.
                if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
            }
        }

        impl PartialOrd for $name {
            #[inline]
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                Some(self.cmp(other))
            }
        }

        impl $name {
            /// Trims and validates `text`.
            ///
            /// # Errors
            /// [`NameError`] if it is not a valid name.
            pub fn new(text: &str) -> Result<Self, NameError> {
                validated(text, $what, NAME_BYTES_MAX).map(|name| Self(Arc::from(name)))
            }

            /// The name itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        /// For lines of text, as [`Escaped`].
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                Escaped(&self.0).fmt(f)
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl std::str::FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }
    };
}

name! {
    /// The name of a consumer group.
    GroupName, "group"
}
name! {
    /// The name of a worker, the owner of its deliveries and grants.
    OwnerName, "owner"
}
name! {
    /// The name of a tenant.
    TenantName, "tenant"
}
name! {
    /// The name of a key.
    KeyName, "name of a key"
}
name! {
    /// A name that a client certificate gives its holder: a URI or DNS name.
    CertificateSan, "certificate SAN"
}

pub(crate) fn owner_name(text: &str) -> Result<OwnerName, Malformed> {
    OwnerName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not an owner name"))
}

pub(crate) fn tenant_name(text: &str) -> Result<TenantName, Malformed> {
    TenantName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a tenant name"))
}

pub(crate) fn key_name(text: &str) -> Result<KeyName, Malformed> {
    KeyName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not the name of a key"))
}

pub(crate) fn certificate_san(text: &str) -> Result<CertificateSan, Malformed> {
    CertificateSan::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a certificate SAN"))
}

pub(crate) fn group_name(text: &str) -> Result<GroupName, Malformed> {
    GroupName::new(text).ok().filter(|name| name.as_str() == text).ok_or(Malformed("not a group name"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::TopicName;

    #[test]
    fn name_is_trimmed_then_validated() {
        assert_eq!(TopicName::new("  a.b_c:d-9 ").unwrap().as_str(), "a.b_c:d-9");
        assert_eq!(TopicName::new("   "), Err(NameError::Empty { what: "topic" }));
        assert_eq!(TopicName::new("\u{3000}"), Err(NameError::Empty { what: "topic" }));
        assert_eq!(OwnerName::new(".."), Err(NameError::Dots { what: "owner" }));
        assert_eq!(OwnerName::new(" . "), Err(NameError::Dots { what: "owner" }));
    }

    #[test]
    fn name_that_is_not_trimmed_is_refused_from_the_log() {
        assert!(owner_name("w").is_ok() && group_name("g").is_ok() && TopicName::decode("t").is_ok());
        for text in ["x ", " x", ""] {
            assert_eq!(owner_name(text), Err(Malformed("not an owner name")));
            assert_eq!(group_name(text), Err(Malformed("not a group name")));
            assert_eq!(TopicName::decode(text), Err(Malformed("not a topic name")));
        }
    }

    #[test]
    fn name_is_any_text_without_control_characters() {
        for text in
            ["orders/eu", "my topic", "user@host", "größe", "注文", "a\"b\\c", "%2F", "../a", "a/..", "…", "\u{202e}x"]
        {
            assert_eq!(TopicName::new(text).unwrap().as_str(), text);
            assert_eq!(GroupName::new(text).unwrap().as_str(), text);
            assert_eq!(OwnerName::new(text).unwrap().as_str(), text);
        }
        for text in ["a\nb", "a\tb", "a\0", "a\u{7f}b", "a\u{85}b", "a\u{9f}b"] {
            assert_eq!(GroupName::new(text), Err(NameError::ControlCharacter { what: "group" }), "{text:?}");
        }
    }

    #[test]
    fn limit_of_a_name_is_in_bytes() {
        assert!(GroupName::new(&"é".repeat(127)).is_ok());
        assert_eq!(GroupName::new(&"é".repeat(128)), Err(NameError::TooLong { what: "group", len: 256, max: 255 }));
        assert_eq!(TopicName::new(&"é".repeat(126)), Err(NameError::TooLong { what: "topic", len: 252, max: 251 }));
    }

    #[test]
    fn displayed_name_is_plain_or_quoted() {
        let shown = |text: &str| TopicName::new(text).unwrap().to_string();
        for plain in ["orders", "orders/eu", "user@host", "dlq.a_b:c-9"] {
            assert_eq!(shown(plain), plain);
        }
        assert_eq!(shown("my topic"), "\"my topic\"");
        assert_eq!(shown("größe"), "\"größe\"");
        assert_eq!(shown("a\"b\\"), "\"a\\\"b\\\\\"");
        assert_eq!(shown("a\u{202e}\u{2028}b"), "\"a\\u{202e}\\u{2028}b\"");
    }
}
