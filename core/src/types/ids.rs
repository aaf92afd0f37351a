//! Ids and positions, each a type of its own.

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
    /// A message's number in its *topic*: increases by one per stored message, across partitions.
    Offset(u64)
}
number! {
    /// A message's number in its *partition*: dense, so that acked runs merge into ranges.
    Position(u64)
}
number! {
    /// A record's number in the log, without gaps: the first record has 1; 0 means none. Marks and footers have none.
    Lsn(u64)
}
number! {
    /// A frame's number in the log: one more for each frame of any kind, marks and footers included. The first frame
    /// has 1; 0 means none.
    FrameNumber(u64)
}
number! {
    /// A partition of a topic, counted from 0.
    PartitionId(u32)
}
number! {
    /// A topic's number in the log; not reused after the topic is deleted.
    TopicId(u32)
}
number! {
    /// A group's number within its topic; not reused after the group is deleted.
    GroupId(u32)
}
number! {
    /// How often the broker was started on this log.
    Boot(u32)
}
number! {
    /// A connected consumer. Not durable; not reused within one boot.
    ConsumerId(u64)
}
number! {
    /// Matches a reply to its command: `handle` returns it and the reply carries it.
    Ticket(u64)
}

/// The token of one delivery or grant. Unique across restarts: no token is issued twice.
///
/// Tokens are ordered by age, and so is their text form, fixed-width lower-case hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseToken {
    /// The boot that issued it. Its boot record is durable before a client sees the token.
    pub boot: Boot,
    /// Counts the tokens of that boot.
    pub counter: u64,
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}{:016x}", self.boot.0, self.counter)
    }
}

/// The text is not a lease token.
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

/// Parses at most 16 lower-case hexadecimal digits.
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

/// A message in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageRef {
    /// The topic.
    pub topic: TopicId,
    /// The group.
    pub group: GroupId,
    /// The partition.
    pub partition: PartitionId,
    /// The message's position in the partition.
    pub position: Position,
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
    fn malformed_token_is_rejected() {
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
