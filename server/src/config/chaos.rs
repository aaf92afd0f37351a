//! The faults of `--chaos`: a seed and the probability of each.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// 2^64, the number of values that a draw can have.
const DRAWS: f64 = 18_446_744_073_709_551_616.0;

/// Which faults a broker with `--chaos` simulates, and how often. Its text form is
/// `seed=42,duplicate=0.2,drop-reply=0.1`: the seed is required, and a fault that is not named does not occur.
///
/// ```
/// use driftq_server::config::ChaosSettings;
///
/// let chaos: ChaosSettings = "seed=42,duplicate=0.2,restart=0.01".parse().expect("valid");
/// assert_eq!((chaos.seed, chaos.duplicate.as_f64(), chaos.delay.as_f64()), (42, 0.2, 0.0));
/// assert!("duplicate=0.2".parse::<ChaosSettings>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct ChaosSettings {
    /// Determines, together with a request or a delivery, whether it suffers a fault.
    pub seed: u64,
    /// A request is carried out twice, or a delivery is written twice.
    pub duplicate: Probability,
    /// A request is carried out, but its connection is cut before or within the answer.
    pub drop_reply: Probability,
    /// A lease ends early.
    pub expire: Probability,
    /// A request, an answer or a delivery is held.
    pub delay: Probability,
    /// The broker crashes after a request.
    pub restart: Probability,
    /// A request waits for a later one; two deliveries are swapped.
    pub reorder: Probability,
}

impl ChaosSettings {
    /// No fault occurs until a probability is set.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    fn probability(&mut self, fault: &str) -> Option<&mut Probability> {
        Some(match fault {
            "duplicate" => &mut self.duplicate,
            "drop-reply" => &mut self.drop_reply,
            "expire" => &mut self.expire,
            "delay" => &mut self.delay,
            "restart" => &mut self.restart,
            "reorder" => &mut self.reorder,
            _ => return None,
        })
    }
}

/// Why a text is not [`ChaosSettings`]. Its message names the field and what is expected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChaosError {
    /// A part of the text is not `name=value`.
    #[error("expected name=value, found {0:?}; for example seed=42,duplicate=0.2")]
    NotAField(String),
    /// There is no such field.
    #[error("unknown field {0:?}; fields are seed, duplicate, drop-reply, expire, delay, restart and reorder")]
    UnknownField(String),
    /// A field is given more than once.
    #[error("{0} is given twice")]
    Repeated(String),
    /// The seed is missing.
    #[error("seed is required, for example seed=42")]
    NoSeed,
    /// The seed is not a number.
    #[error("seed: {0:?} is not an integer from 0 to 18446744073709551615")]
    BadSeed(String),
    /// A probability is not one.
    #[error("{field}: {value:?} is not a probability from 0 to 1")]
    BadProbability {
        /// The field.
        field: String,
        /// Its value.
        value: String,
    },
}

impl FromStr for ChaosSettings {
    type Err = ChaosError;

    fn from_str(text: &str) -> Result<Self, ChaosError> {
        let mut settings = Self::default();
        let mut given: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (name, value) = part.split_once('=').ok_or_else(|| ChaosError::NotAField(part.to_owned()))?;
            let (name, value) = (name.trim(), value.trim());
            match settings.probability(name) {
                Some(probability) => {
                    let bad = || ChaosError::BadProbability { field: name.to_owned(), value: value.to_owned() };
                    *probability = value.parse().ok().and_then(Probability::new).ok_or_else(bad)?;
                }
                None if name == "seed" => {
                    settings.seed = value.parse().map_err(|_| ChaosError::BadSeed(value.to_owned()))?;
                }
                None => return Err(ChaosError::UnknownField(name.to_owned())),
            }
            if given.contains(&name) {
                return Err(ChaosError::Repeated(name.to_owned()));
            }
            given.push(name);
        }
        if given.contains(&"seed") { Ok(settings) } else { Err(ChaosError::NoSeed) }
    }
}

/// A probability: so many of 2^64 draws are hits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Probability {
    /// Draws below this are hits; the largest value means that all are.
    hits: u64,
}

impl Probability {
    /// The probability of what always happens.
    pub const ONE: Self = Self { hits: u64::MAX };

    /// `None` unless `value` is from 0 to 1.
    #[must_use]
    pub fn new(value: f64) -> Option<Self> {
        // The product is exact, since a factor is a power of two; the conversion saturates.
        (0.0..=1.0).contains(&value).then_some(Self { hits: (value * DRAWS) as u64 })
    }

    /// The probability from 0 to 1.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.hits as f64 / DRAWS
    }

    /// Whether a draw, uniform over all its values, is a hit.
    pub(crate) fn is_hit(self, draw: u64) -> bool {
        draw < self.hits || self == Self::ONE
    }
}

impl fmt::Debug for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}

impl Serialize for Probability {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.as_f64())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        text.parse::<ChaosSettings>().expect_err("it was accepted").to_string()
    }

    #[test]
    fn every_field_is_read_and_all_but_the_seed_are_optional() {
        let all = "seed=42,duplicate=0.2, drop-reply = 0.1,expire=0.05,delay=1,restart=0.01,reorder=0";
        let settings: ChaosSettings = all.parse().unwrap();
        let probability = |value| Probability::new(value).unwrap();
        let expected = ChaosSettings {
            seed: 42,
            duplicate: probability(0.2),
            drop_reply: probability(0.1),
            expire: probability(0.05),
            delay: Probability::ONE,
            restart: probability(0.01),
            reorder: Probability::default(),
        };
        assert_eq!(settings, expected);
        assert_eq!("seed=7".parse(), Ok(ChaosSettings::seeded(7)));
        assert_eq!("seed=18446744073709551615".parse(), Ok(ChaosSettings::seeded(u64::MAX)));
    }

    #[test]
    fn error_names_the_field_and_what_is_expected() {
        assert_eq!(error("duplicate=0.5"), "seed is required, for example seed=42");
        assert!(error("").starts_with("expected name=value, found \"\""));
        assert!(error("seed=1,").starts_with("expected name=value, found \"\""));
        assert!(error("seed=1,delay").starts_with("expected name=value, found \"delay\""));
        assert!(error("seed=1,drop_reply=0.5").starts_with("unknown field \"drop_reply\"; fields are seed, dup"));
        assert_eq!(error("seed=1,delay=0.5,delay=0.5"), "delay is given twice");
        assert_eq!(error("seed=1,seed=1"), "seed is given twice");
        for seed in ["-1", "1.5", "", "18446744073709551616", "x"] {
            assert!(error(&format!("seed={seed}")).ends_with("is not an integer from 0 to 18446744073709551615"));
        }
        for value in ["1.01", "-0.1", "nan", "inf", "1e400", "", "50%"] {
            let expected = format!("expire: {value:?} is not a probability from 0 to 1");
            assert_eq!(error(&format!("seed=1,expire={value}")), expected);
        }
    }

    #[test]
    fn probability_is_hit_as_often_as_it_says() {
        let half = Probability::new(0.5).unwrap();
        assert!(half.is_hit(u64::MAX / 2) && !half.is_hit(u64::MAX / 2 + 1));
        assert!(Probability::ONE.is_hit(u64::MAX) && !Probability::default().is_hit(0));
        for value in [0.0, 0.05, 0.2, 1.0] {
            assert!((Probability::new(value).unwrap().as_f64() - value).abs() < f64::EPSILON);
        }
        assert_eq!(Probability::new(1.0), Some(Probability::ONE));
    }
}
