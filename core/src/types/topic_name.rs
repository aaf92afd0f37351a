//! Names of topics: pairs of a tenant and a name.
//!
//! A pair is stored as one text, which is also what records contain. The text of a topic of the default tenant is its
//! name. That of any other begins with the tenant's number, written in control characters, which no name contains: the
//! number of digits (U+0001 to U+0008), then the hexadecimal digits (U+0010 to U+001F), the first of them not 0. So
//! each pair has one text, and no text can be read as two pairs.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::types::TenantId;
use crate::types::names::{Escaped, NAME_BYTES_MAX, NameError, validated};
use crate::wire::Malformed;

/// The longest name of a topic that is not a dead-letter topic, in bytes: its dead-letter topic adds a prefix.
const TOPIC_BYTES_MAX: usize = NAME_BYTES_MAX - DEAD_LETTER_PREFIX.len();
/// The prefix of dead-letter topics.
const DEAD_LETTER_PREFIX: &str = "dlq.";

/// The most digits of a tenant's number.
const DIGITS_MAX: u8 = 8;
/// The digit 0.
const DIGIT: u8 = 0x10;
/// The bits that a digit stands for.
const DIGIT_BITS: u32 = 4;

/// The name of a topic: a tenant, and a text of 1 to 251 bytes, or of up to 255 if it starts with `dlq.`. Topics of
/// different tenants are different topics, whatever their names are.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TopicName(Arc<str>);

impl TopicName {
    /// The topic `text` of the default tenant. Trims and validates `text`.
    ///
    /// # Errors
    /// [`NameError`] if it is not a valid name.
    pub fn new(text: &str) -> Result<Self, NameError> {
        name(text).map(|name| Self(Arc::from(name)))
    }

    /// As [`TopicName::new`], of `tenant`.
    ///
    /// # Errors
    /// [`NameError`] if it is not a valid name.
    pub fn of(tenant: TenantId, text: &str) -> Result<Self, NameError> {
        match tenant.is_default() {
            true => Self::new(text),
            false => name(text).map(|name| Self(Arc::from(prefix(tenant) + name))),
        }
    }

    /// The tenant whose topic this is.
    #[must_use]
    pub fn tenant(&self) -> TenantId {
        number(self.prefix())
    }

    /// Whether both are topics of the same tenant.
    #[must_use]
    pub fn has_tenant_of(&self, other: &Self) -> bool {
        self.prefix() == other.prefix()
    }

    /// The name without the tenant.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0[prefix_len(&self.0)..]
    }

    /// The text that stands for tenant and name in records.
    #[inline]
    pub(crate) fn encoded(&self) -> &str {
        &self.0
    }

    /// Reads what [`TopicName::encoded`] returns. Names in records are trimmed.
    pub(crate) fn decode(text: &str) -> Result<Self, Malformed> {
        let split = text.split_at_checked(prefix_len(text));
        let name = split.and_then(|(prefix, name)| Self::of(number(prefix), name).ok());
        // Any other form of the number is refused, too.
        name.filter(|name| *name.0 == *text).ok_or(Malformed("not a topic name"))
    }

    /// Not a name, and before all names of `tenant` in their order.
    pub(crate) fn start_of(tenant: TenantId) -> Self {
        // Names are trimmed, so that none begins with a space.
        if tenant.is_default() { Self(Arc::from(" ")) } else { Self(Arc::from(prefix(tenant))) }
    }

    /// Whether this is a dead-letter topic, whose messages are never dead-lettered.
    #[must_use]
    pub fn is_dead_letter(&self) -> bool {
        self.as_str().starts_with(DEAD_LETTER_PREFIX)
    }

    /// The name of this topic's dead-letter topic, which is of the same tenant; `None` if this is a dead-letter topic.
    #[must_use]
    pub fn dead_letter(&self) -> Option<Self> {
        if self.is_dead_letter() {
            return None;
        }
        Some(Self(Arc::from([self.prefix(), DEAD_LETTER_PREFIX, self.as_str()].concat())))
    }

    /// The name of the topic whose dead letters this topic stores, if there can be one.
    #[must_use]
    pub(crate) fn dead_letter_source(&self) -> Option<Self> {
        let source = self.as_str().strip_prefix(DEAD_LETTER_PREFIX)?;
        // `dlq. x` is no dead-letter topic of `x`, nor is ` x` a name.
        Self::of(self.tenant(), source).ok().filter(|name| name.as_str() == source && !name.is_dead_letter())
    }

    fn prefix(&self) -> &str {
        &self.0[..prefix_len(&self.0)]
    }
}

/// Trims and validates the name of a topic.
fn name(text: &str) -> Result<&str, NameError> {
    let is_dead_letter = text.trim().starts_with(DEAD_LETTER_PREFIX);
    validated(text, "topic", if is_dead_letter { NAME_BYTES_MAX } else { TOPIC_BYTES_MAX })
}

/// What stands before the names of a tenant that is not the default tenant.
fn prefix(tenant: TenantId) -> String {
    let digits = (u32::BITS - tenant.0.leading_zeros()).div_ceil(DIGIT_BITS);
    let digit = |at: u32| DIGIT | (tenant.0 >> (at * DIGIT_BITS)) as u8 & (DIGIT - 1);
    let bytes = std::iter::once(digits as u8).chain((0..digits).rev().map(digit));
    bytes.map(char::from).collect()
}

/// The length of what stands before the name.
#[inline]
fn prefix_len(text: &str) -> usize {
    match text.as_bytes().first() {
        Some(digits @ 1..=DIGITS_MAX) => 1 + usize::from(*digits),
        _ => 0,
    }
}

/// The tenant of a prefix; of any other text of that length, some tenant.
fn number(prefix: &str) -> TenantId {
    let digits = prefix.bytes().skip(1);
    TenantId(digits.fold(0, |number, digit| number << DIGIT_BITS | u32::from(digit & (DIGIT - 1))))
}

/// Tenants other than the default tenant first, by their numbers; of one tenant, in byte order of the names.
impl Ord for TopicName {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        // The state looks names up that it has shared itself.
        if Arc::ptr_eq(&self.0, &other.0) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for TopicName {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// For lines of text, as [`Escaped`]. A topic of another tenant than the default tenant has the tenant's number before
/// it: `#7:orders`, which is not the form of any name.
impl fmt::Display for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tenant() {
            TenantId::DEFAULT => Escaped(self.as_str()).fmt(f),
            tenant => write!(f, "#{tenant}:{}", Escaped(self.as_str())),
        }
    }
}

impl fmt::Debug for TopicName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut tuple = f.debug_tuple("TopicName");
        if !self.tenant().is_default() {
            tuple.field(&self.tenant());
        }
        tuple.field(&self.as_str()).finish()
    }
}

/// As [`TopicName::new`].
impl std::str::FromStr for TopicName {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers with each count of digits, the least and the greatest of it among them.
    fn tenants() -> Vec<TenantId> {
        let edges = (0..u32::BITS).step_by(4).flat_map(|bit| [(1_u32 << bit) - 1, 1 << bit, 9 << bit]);
        let mut numbers: Vec<_> = edges.chain([7, u32::MAX]).map(TenantId).collect();
        numbers.sort();
        numbers.dedup();
        numbers
    }

    #[test]
    fn name_has_its_tenant_and_its_text() {
        for tenant in tenants() {
            for text in ["a", "orders/eu", "größe", "7:a", "#7:a", "dlq.a", "\u{202e}x"] {
                let name = TopicName::of(tenant, &format!(" {text} ")).unwrap();
                assert_eq!((name.tenant(), name.as_str()), (tenant, text));
                assert_eq!(TopicName::decode(name.encoded()), Ok(name.clone()));
                assert_eq!(name.is_dead_letter(), text == "dlq.a");
            }
        }
        assert_eq!(TopicName::of(TenantId::DEFAULT, "a"), TopicName::new("a"));
        assert_eq!(TopicName::new("a").unwrap().encoded(), "a");
        assert_eq!(TopicName::of(TenantId(0x2b), "a").unwrap().encoded(), "\u{2}\u{12}\u{1b}a");
    }

    #[test]
    fn pairs_differ_and_have_an_order() {
        let mut names = Vec::new();
        for tenant in tenants().into_iter().filter(|tenant| !tenant.is_default()).chain([TenantId::DEFAULT]) {
            names.push(TopicName::start_of(tenant));
            names.extend(["!", "1", "a", "a1", "é"].map(|text| TopicName::of(tenant, text).unwrap()));
        }
        assert!(names.is_sorted_by(|one, next| one < next), "{names:?}");
        let (one, other) = (TopicName::of(TenantId(7), "a").unwrap(), TopicName::of(TenantId(7), "b").unwrap());
        assert!(one.has_tenant_of(&other) && !one.has_tenant_of(&TopicName::new("a").unwrap()));
        assert!(!one.has_tenant_of(&TopicName::of(TenantId(0x77), "a").unwrap()));
    }

    #[test]
    fn other_text_is_refused_from_the_log() {
        for text in [
            "",
            " t",
            "t ",
            "\0t",
            "\t",
            // No number, or none of a tenant but the default tenant's.
            "\u{1}",
            "\u{1}t",
            "\u{1}\u{10}t",
            // Not the shortest form.
            "\u{2}\u{10}\u{17}t",
            // Digits of another kind.
            "\u{1}7t",
            "\u{1}\u{7}t",
            "\u{1}\u{97}t",
            "\u{2}\u{17}t",
            "\u{2}\u{17}ét",
            "\u{9}\u{11}\u{11}\u{11}\u{11}\u{11}\u{11}\u{11}\u{11}\u{11}t",
            // No name behind the number.
            "\u{1}\u{17}",
            "\u{1}\u{17} t",
            "\u{1}\u{17}..",
            "\u{1}\u{17}\u{1}\u{17}t",
            "\u{1}\u{17}\u{17}t",
            "t\u{1}\u{17}",
        ] {
            assert_eq!(TopicName::decode(text), Err(Malformed("not a topic name")), "{text:?}");
        }
    }

    #[test]
    fn longest_topic_name_has_a_dead_letter_topic() {
        for tenant in tenants() {
            let longest = "t".repeat(TOPIC_BYTES_MAX);
            let topic = TopicName::of(tenant, &longest).unwrap();
            let dead = topic.dead_letter().unwrap();
            assert_eq!((dead.tenant(), dead.as_str().len()), (tenant, NAME_BYTES_MAX));
            assert_eq!(TopicName::of(tenant, dead.as_str()), Ok(dead.clone()));
            assert_eq!(TopicName::decode(dead.encoded()), Ok(dead.clone()));
            assert_eq!(dead.dead_letter(), None);
            assert_eq!((dead.dead_letter_source(), topic.dead_letter_source()), (Some(topic), None));
            assert_eq!(TopicName::of(tenant, "dlq.dlq.a").unwrap().dead_letter_source(), None);
            let error = NameError::TooLong { what: "topic", len: 252, max: 251 };
            assert_eq!(TopicName::of(tenant, &format!("{longest}t")), Err(error));
        }
    }

    #[test]
    fn dead_letter_topic_of_no_valid_name_has_no_source() {
        for text in ["dlq.", "dlq. t", "dlq..", "dlq..."] {
            assert_eq!(TopicName::new(text).unwrap().dead_letter_source(), None, "{text}");
        }
    }

    #[test]
    fn displayed_name_shows_its_tenant() {
        let shown = |tenant, text: &str| TopicName::of(TenantId(tenant), text).unwrap().to_string();
        assert_eq!(shown(0, "orders/eu"), "orders/eu");
        assert_eq!(shown(0, "#7:orders"), "\"#7:orders\"");
        assert_eq!(shown(7, "orders"), "#7:orders");
        assert_eq!(shown(7, "my topic"), "#7:\"my topic\"");
        let debug = |tenant| format!("{:?}", TopicName::of(TenantId(tenant), "t").unwrap());
        assert_eq!((debug(0), debug(7)), ("TopicName(\"t\")".into(), "TopicName(TenantId(7), \"t\")".into()));
    }
}
