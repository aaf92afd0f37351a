//! Grants: what a key may do with which topics.

use std::fmt;
use std::str::FromStr;

use super::names::NameError;
use super::topic_name::TopicName;

/// What a command does, as far as permissions distinguish it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Stores messages.
    Produce,
    /// Receives and settles messages: subscribe, ack, nack, extend, release, and the ack of a complete.
    Consume,
    /// Uses the idempotency store.
    Effects,
    /// Reads: descriptions, lists, peek, metrics.
    Inspect,
    /// Changes topics, groups and their progress: create, delete, seek, pause, purge, redrive.
    Operate,
    /// Manages keys, tenants and quotas, and reads the audit.
    Admin,
}

impl Verb {
    /// All verbs.
    pub const ALL: [Self; 6] = [Self::Produce, Self::Consume, Self::Effects, Self::Inspect, Self::Operate, Self::Admin];

    /// The code used in APIs.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Effects => "effects",
            Self::Inspect => "inspect",
            Self::Operate => "operate",
            Self::Admin => "admin",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is not a grant, or a list of grants not that of a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GrantError {
    /// Another verb.
    #[error("unknown verb, use produce, consume, effects, inspect, operate or admin")]
    UnknownVerb,
    /// A grant of nothing.
    #[error("a grant needs at least one verb")]
    NoVerbs,
    /// The pattern is no topic name, nor the beginning of one.
    #[error(transparent)]
    Pattern(#[from] NameError),
    /// A grant in one text that has no colon.
    #[error("a grant is written as verbs:topics")]
    NoColon,
}

impl FromStr for Verb {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        Self::ALL.into_iter().find(|verb| verb.as_str() == text).ok_or(GrantError::UnknownVerb)
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Verbs(u8);

impl Verbs {
    /// All verbs.
    pub const ALL: Self = Self((1 << Verb::ALL.len()) - 1);

    /// Whether the set contains `verb`.
    #[must_use]
    pub const fn contains(self, verb: Verb) -> bool {
        self.0 & verb.bit() != 0
    }

    /// The set and `verb`.
    #[must_use]
    pub const fn with(self, verb: Verb) -> Self {
        Self(self.0 | verb.bit())
    }

    /// Whether the set contains no verb.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The verbs of the set.
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.contains(*verb))
    }

    /// The set as a number, as records contain it.
    pub(crate) const fn bits(self) -> u8 {
        self.0
    }

    /// The set of a number; `None` if it is none.
    pub(crate) const fn from_bits(bits: u8) -> Option<Self> {
        if bits <= Self::ALL.0 { Some(Self(bits)) } else { None }
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Self {
        verbs.into_iter().fold(Self::default(), Self::with)
    }
}

/// As [`Verbs::from_str`] reads it.
impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, verb) in self.iter().enumerate() {
            write!(f, "{}{verb}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

impl fmt::Debug for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Verbs separated by commas, at least one.
impl FromStr for Verbs {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        if text.trim().is_empty() {
            return Err(GrantError::NoVerbs);
        }
        text.split(',').map(|verb| verb.trim().parse()).collect()
    }
}

/// The topics of a grant, by their names in the key's tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TopicPattern {
    /// Every topic, and whatever belongs to no topic.
    All,
    /// Every topic whose name begins so.
    Prefix(Box<str>),
    /// The topic with this name.
    Exact(Box<str>),
}

impl TopicPattern {
    /// Parses `*`, a prefix followed by `*`, or a topic name. Trims `text`.
    ///
    /// # Errors
    /// [`NameError`] if it is none of these.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let text = text.trim();
        match text.strip_suffix('*') {
            Some("") => Ok(Self::All),
            // A name begins with it if it is one itself, but for a space at its end and for dots.
            Some(prefix) => match TopicName::new(prefix) {
                Ok(_) | Err(NameError::Dots { .. }) => Ok(Self::Prefix(prefix.into())),
                Err(error) => Err(error),
            },
            None => TopicName::new(text).map(|name| Self::Exact(name.as_str().into())),
        }
    }

    /// Whether the pattern is `*`.
    #[must_use]
    pub const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether the pattern covers `topic`. A dead-letter topic is covered as its source is, and by its own name.
    #[must_use]
    pub fn covers(&self, topic: &TopicName) -> bool {
        self.matches(topic.as_str()) || topic.dead_letter_source().is_some_and(|source| self.matches(source.as_str()))
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Prefix(prefix) => name.starts_with(&**prefix),
            Self::Exact(exact) => **exact == *name,
        }
    }
}

/// As [`TopicPattern::new`] reads it.
impl fmt::Display for TopicPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Prefix(prefix) => write!(f, "{prefix}*"),
            Self::Exact(name) => f.write_str(name),
        }
    }
}

/// What a key may do: each of the verbs with each of the topics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The verbs; at least one.
    pub verbs: Verbs,
    /// The topics.
    pub topics: TopicPattern,
}

impl Grant {
    /// The most grants of a key.
    pub const COUNT_MAX: usize = 64;

    /// A grant of `verb` on everything.
    #[must_use]
    pub fn of_all(verb: Verb) -> Self {
        Self { verbs: Verbs::default().with(verb), topics: TopicPattern::All }
    }

    /// A grant of every verb on everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self { verbs: Verbs::ALL, topics: TopicPattern::All }
    }
}

/// As [`Grant::from_str`] reads it.
impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.verbs, self.topics)
    }
}

/// Verbs and a pattern with a colon between: `produce,consume:orders*`.
impl FromStr for Grant {
    type Err = GrantError;

    fn from_str(text: &str) -> Result<Self, GrantError> {
        let (verbs, topics) = text.split_once(':').ok_or(GrantError::NoColon)?;
        Ok(Self { verbs: verbs.parse()?, topics: TopicPattern::new(topics)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> TopicPattern {
        TopicPattern::new(text).unwrap()
    }

    fn covers(text: &str, name: &str) -> bool {
        pattern(text).covers(&TopicName::new(name).unwrap())
    }

    #[test]
    fn pattern_is_all_a_prefix_or_a_name() {
        assert_eq!(pattern(" * "), TopicPattern::All);
        assert_eq!(pattern("orders*"), TopicPattern::Prefix("orders".into()));
        assert_eq!(pattern("a*b"), TopicPattern::Exact("a*b".into()));
        assert_eq!(pattern("a**"), TopicPattern::Prefix("a*".into()));
        assert_eq!(pattern("my *"), TopicPattern::Prefix("my ".into()), "names can have spaces");
        assert_eq!(pattern(".*"), TopicPattern::Prefix(".".into()));
        for text in ["", "  ", "..", "a\nb", "a\u{7f}*", &"t".repeat(300), &format!("{}*", "t".repeat(300))] {
            assert!(TopicPattern::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn pattern_covers_names_that_match_and_no_others() {
        for (text, name) in [("*", "a"), ("*", "dlq.a"), ("or*", "orders"), ("or*", "or"), ("a", "a"), ("a/*", "a/b")] {
            assert!(covers(text, name), "{text} {name}");
        }
        for (text, name) in [("orders*", "order"), ("a", "A"), ("a", "ab"), ("a/*", "a"), ("b*", "ab")] {
            assert!(!covers(text, name), "{text} {name}");
        }
    }

    #[test]
    fn dead_letter_topic_is_covered_as_its_source_and_by_its_name() {
        for text in ["a", "a*", "dlq.a", "dlq.*", "dlq*"] {
            assert!(covers(text, "dlq.a"), "{text}");
        }
        assert!(!covers("b", "dlq.a") && !covers("dlq.b", "dlq.a"));
        assert!(!covers("dlq.a", "a"), "a grant on dead letters is none on their source");
        assert!(!covers("a", "dlq.dlq.a"), "a dead-letter topic has none of its own");
    }

    #[test]
    fn grant_is_written_as_it_is_read() {
        for text in ["produce:orders", "produce,consume:orders*", "effects,inspect,operate,admin:*", "inspect:a:b"] {
            assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
        }
        assert_eq!("consume , produce: a ".parse::<Grant>().unwrap().to_string(), "produce,consume:a");
        assert_eq!("produce".parse::<Grant>(), Err(GrantError::NoColon));
        assert_eq!("write:a".parse::<Grant>(), Err(GrantError::UnknownVerb));
        assert_eq!(":a".parse::<Grant>(), Err(GrantError::NoVerbs));
        assert!("produce:".parse::<Grant>().is_err());
    }

    #[test]
    fn verbs_round_trip_as_a_number() {
        for verb in Verb::ALL {
            let only = Verbs::default().with(verb);
            assert_eq!(Verbs::from_bits(only.bits()), Some(only));
            assert_eq!(only.iter().collect::<Vec<_>>(), [verb]);
            assert_eq!(verb.as_str().parse(), Ok(verb));
        }
        assert_eq!((Verbs::from_bits(63), Verbs::from_bits(64)), (Some(Verbs::ALL), None));
        assert_eq!(Verb::ALL.into_iter().collect::<Verbs>(), Verbs::ALL);
        assert!(Verbs::default().is_empty());
    }
}
