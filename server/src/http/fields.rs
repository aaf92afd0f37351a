//! Parsing of request fields, from a JSON body or from the query.
//!
//! The parser refuses unknown fields, repeated fields and values of the wrong type; names are trimmed and checked when
//! they become typed names of the core.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::sync::Arc;

use driftq_core::types::{GroupStart, Millis, Text, Timestamp};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::error::ApiError;
use super::plain_json::{Plain, PlainReader, read_plain};
use super::query::Query;
use crate::rfc3339;

/// Text borrowed from the body unless it has escapes. (Serde always copies a plain `Cow` in an `Option`.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Str<'a>(Cow<'a, str>);

impl Str<'_> {
    /// An owned copy.
    pub(crate) fn into_owned(self) -> String {
        self.0.into_owned()
    }
}

impl std::ops::Deref for Str<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Str<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Str<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl<'a> Plain<'a> for Str<'a> {
    fn read(reader: &mut PlainReader<'a>) -> Option<Self> {
        reader.text().map(Self::from)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Str<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Cow<'de, str>, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Cow<'de, str>, E> {
                Ok(Cow::Owned(text.to_owned()))
            }
        }
        deserializer.deserialize_str(Text).map(Str)
    }
}

/// The fields of a request that can be a JSON object or a query.
pub(crate) trait Fields<'a>: Deserialize<'a> {
    /// Reads them from a query.
    fn from_query(query: &'a Query<'a>) -> Result<Self, ApiError>;

    /// Reads them from a [plain](super::plain_json) JSON object; `None` if it has to be parsed.
    fn from_plain(text: &'a str) -> Option<Self> {
        let _ = text;
        None
    }
}

/// Parses a JSON object with nothing after it.
pub(crate) fn from_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    from_text(text_of(body)?)
}

/// As [`from_json`], fast if the object is plain.
pub(crate) fn from_plain_json<'a, T: Deserialize<'a> + Plain<'a>>(body: &'a [u8]) -> Result<T, ApiError> {
    let text = text_of(body)?;
    read_plain(text).map_or_else(|| from_text(text), Ok)
}

/// Checked once for the whole body, not string by string.
fn text_of(body: &[u8]) -> Result<&str, ApiError> {
    std::str::from_utf8(body).map_err(|_| ApiError::invalid("bad JSON: not UTF-8"))
}

fn from_text<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ApiError> {
    let Object(fields) = serde_json::from_str(text)?;
    Ok(fields)
}

/// Fields of an object. A derived deserializer alone also accepts an array, field after field.
#[derive(Debug)]
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Fields(PhantomData))
    }
}

impl<'a, T: Plain<'a>> Plain<'a> for Object<T> {
    fn read(reader: &mut PlainReader<'a>) -> Option<Self> {
        T::read(reader).map(Self)
    }
}

/// For `#[serde(deserialize_with)]`: an optional object within an object.
pub(super) fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.map(|Object(fields)| fields))
}

/// For `#[serde(deserialize_with)]`: a field that is present, of which `null` is a value of its own.
pub(super) fn nullable<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// Parses a request from its body, or from its query if the body is blank.
pub(crate) fn parse<'a, T: Fields<'a>>(body: &'a [u8], query: &'a Query<'a>) -> Result<T, ApiError> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return T::from_query(query);
    }
    let text = text_of(body)?;
    T::from_plain(text).map_or_else(|| from_text(text), Ok)
}

/// The value of a required field.
pub(crate) fn required<T>(name: &'static str, value: Option<T>) -> Result<T, ApiError> {
    value.ok_or_else(|| ApiError::missing(name))
}

/// A text, absent if empty.
pub(super) fn non_empty(text: Option<Str<'_>>) -> Option<Text> {
    text.filter(|text| !text.is_empty()).map(|text| Text::from(&*text))
}

/// A duration, which must not be negative.
pub(crate) fn millis(name: &'static str, value: Option<i64>) -> Result<Option<Millis>, ApiError> {
    let not_negative =
        |value| u64::try_from(value).map_err(|_| ApiError::invalid(format!("{name} must not be negative")));
    value.map(|value| not_negative(value).map(Millis)).transpose()
}

/// An RFC 3339 timestamp.
pub(crate) fn timestamp(name: &'static str, text: &str) -> Result<Timestamp, ApiError> {
    let invalid = || ApiError::invalid(format!("bad {name}: want an RFC 3339 time such as 2025-12-21T12:00:00Z"));
    rfc3339::parse(text).ok_or_else(invalid)
}

/// A JSON value as it was written; `null` counts as absent where it is optional.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawJson<'a>(&'a str);

impl<'de: 'a, 'a> Deserialize<'de> for RawJson<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&RawValue>::deserialize(deserializer).map(|value| Self(value.get()))
    }
}

impl<'a> Plain<'a> for RawJson<'a> {
    fn read(reader: &mut PlainReader<'a>) -> Option<Self> {
        reader.raw().map(Self)
    }
}

impl From<RawJson<'_>> for Arc<str> {
    fn from(value: RawJson<'_>) -> Self {
        value.0.into()
    }
}

/// The field `from`: where a new group starts.
pub(crate) fn group_start(from: Option<&str>) -> Result<GroupStart, ApiError> {
    match from {
        None | Some("" | "earliest") => Ok(GroupStart::Earliest),
        Some("latest") => Ok(GroupStart::Latest),
        Some(other) => Err(ApiError::invalid(format!("bad from: {other:?}, want earliest or latest"))),
    }
}
