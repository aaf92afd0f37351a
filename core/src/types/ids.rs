//! Numbers that mean something, each its own type so that none can be taken for another.

use std::fmt;
use std::str::FromStr;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            /// The number after this one.
            #[must_use]
            pub const fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Where a message stands in its *topic*: rises by one per accepted message, whatever its partition.
    Offset(u64)
}
number! {
    /// Where a message stands in its *partition*: dense, so that finished runs collapse into ranges.
    Position(u64)
}
number! {
    /// Where a frame stands in the log. The first frame ever written has 1; 0 means "nothing yet".
    Lsn(u64)
}
number! {
    /// A partition of a topic, counted from 0.
    PartitionId(u32)
}
number! {
    /// A topic's number in the log. Never used again after the topic is deleted.
    TopicId(u32)
}
number! {
    /// A group's number within its topic. Never used again after the group is deleted.
    GroupId(u32)
}
number! {
    /// How many times the broker has been started on this log.
    Boot(u32)
}
number! {
    /// A connected stream. Lives in memory only; not reused within one boot.
    ConsumerId(u64)
}
number! {
    /// What `handle` hands back: the reply to that command carries the same number.
    Ticket(u64)
}

/// Proof of one delivery. No other delivery, before or after any restart, ever had or will have the same one.
///
/// Tokens are ordered by age, and so is their text form: fixed-width lower-case hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseToken {
    /// The boot that granted it; the boot record is durable before any of its tokens is seen.
    pub boot: Boot,
    /// Counts the grants of that boot.
    pub counter: u64,
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.boot.0, self.counter)
    }
}

/// The text is not a token this broker could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a lease token")]
pub struct TokenParseError;

impl FromStr for LeaseToken {
    type Err = TokenParseError;

    fn from_str(text: &str) -> Result<Self, TokenParseError> {
        let (boot, counter) = text.as_bytes().split_at_checked(8).ok_or(TokenParseError)?;
        if counter.len() != 16 {
            return Err(TokenParseError);
        }
        let boot = lower_hex(boot).and_then(|boot| u32::try_from(boot).ok()).ok_or(TokenParseError)?;
        Ok(Self { boot: Boot(boot), counter: lower_hex(counter).ok_or(TokenParseError)? })
    }
}

/// The number that at most 16 lowercase hexadecimal digits spell.
fn lower_hex(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |number, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u64::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_text_is_fixed_width_and_ordered_by_age() {
        let old = LeaseToken { boot: Boot(1), counter: u64::MAX };
        let new = LeaseToken { boot: Boot(2), counter: 0 };
        assert_eq!(old.to_string(), "00000001ffffffffffffffff");
        assert!(old < new && old.to_string() < new.to_string());
        assert_eq!(old.to_string().parse(), Ok(old));
    }

    #[test]
    fn what_no_broker_wrote_is_not_a_token() {
        for text in [
            "",
            "1",
            "00000001FFFFFFFFFFFFFFFF",
            "+0000001ffffffffffffffff",
            "00000001ffffffffffffffff0",
            "é0000001ffffffffffffff",
        ] {
            assert_eq!(text.parse::<LeaseToken>(), Err(TokenParseError), "{text}");
        }
    }
}
