//! Which faults are played: a hash of the seed, the fault and what may suffer it, and nothing else. So the same
//! requests and deliveries suffer the same faults, in any order and on every machine.
//!
//! The values are frozen by golden vectors in the tests: a seed that a bug report names must go on meaning the same.

use serde::Serialize;

use crate::config::{ChaosSettings, Probability};

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Fault {
    Duplicate,
    DropReply,
    Expire,
    Delay,
    Restart,
    Reorder,
}

impl Fault {
    pub(super) const ALL: [Self; 6] =
        [Self::Duplicate, Self::DropReply, Self::Expire, Self::Delay, Self::Restart, Self::Reorder];

    /// What stands for it in the hash.
    fn code(self) -> u64 {
        match self {
            Self::Duplicate => 1,
            Self::DropReply => 2,
            Self::Expire => 3,
            Self::Delay => 4,
            Self::Restart => 5,
            Self::Reorder => 6,
        }
    }

    fn probability(self, settings: &ChaosSettings) -> Probability {
        match self {
            Self::Duplicate => settings.duplicate,
            Self::DropReply => settings.drop_reply,
            Self::Expire => settings.expire,
            Self::Delay => settings.delay,
            Self::Restart => settings.restart,
            Self::Reorder => settings.reorder,
        }
    }
}

/// A hash of numbers and texts in order: each value is absorbed by a step of SplitMix64. Not cryptographic.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hash(u64);

/// The increment of SplitMix64.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Hash {
    pub(super) const EMPTY: Self = Self(0);

    #[must_use]
    pub(super) fn number(self, value: u64) -> Self {
        Self(mix(self.0.wrapping_add(GAMMA) ^ value))
    }

    #[must_use]
    pub(super) fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self.number(bytes.len() as u64);
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            hash = hash.number(u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
        }
        let rest = chunks.remainder();
        if rest.is_empty() {
            return hash;
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        hash.number(u64::from_le_bytes(last))
    }

    pub(super) fn value(self) -> u64 {
        self.0
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The digest of a body, or of a line of a batch.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    Hash::EMPTY.bytes(bytes).value()
}

/// What may suffer a fault, as a hash of all that identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject(u64);

/// Kinds of subjects, which differ in the hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// A request.
    Whole = 1,
    /// A line of a batch.
    Line = 2,
}

/// What stands for a delivery in the hash.
const DELIVERY: u64 = 3;

/// What a request, or a line of a batch, is known by. Its repetitions are told apart by their number.
pub(super) fn fingerprint(kind: RequestKind, method: &str, target: &str, digest: u64) -> u64 {
    Hash::EMPTY.number(kind as u64).bytes(method.as_bytes()).bytes(target.as_bytes()).number(digest).value()
}

impl Subject {
    /// The request with this fingerprint, for the time with this number, counted from 1.
    pub(super) fn request(fingerprint: u64, occurrence: u64) -> Self {
        Self(Hash::EMPTY.number(fingerprint).number(occurrence).value())
    }

    pub(super) fn delivery(topic: &str, group: &str, partition: u32, offset: u64, attempts: u64) -> Self {
        let names = Hash::EMPTY.number(DELIVERY).bytes(topic.as_bytes()).bytes(group.as_bytes());
        Self(names.number(u64::from(partition)).number(offset).number(attempts).value())
    }
}

/// A fault that is to be played: where its parameters come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hit(u64);

impl Hit {
    /// A number from `0..count`, another one for each `index`.
    pub(super) fn pick(self, index: u64, count: u64) -> u64 {
        assert!(count > 0, "there is something to pick from");
        mix(self.0.wrapping_add(GAMMA.wrapping_mul(index + 1))) % count
    }
}

/// Whether a subject suffers a fault.
pub(super) fn draw(settings: &ChaosSettings, fault: Fault, subject: Subject) -> Option<Hit> {
    let value = Hash::EMPTY.number(settings.seed).number(fault.code()).number(subject.0).value();
    fault.probability(settings).is_hit(value).then_some(Hit(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(value: u64) -> String {
        format!("{value:016x}")
    }

    #[test]
    fn hashes_are_those_of_every_version() {
        let digests =
            [("", "e220a8397b1dcdaf"), ("a", "61ee1be14d221812"), (r#"{"topic":"orders"}"#, "12d47f51ef08e0ac")];
        for (text, expected) in digests {
            assert_eq!(hex(digest(text.as_bytes())), expected, "{text:?}");
        }
        let ack = |kind| fingerprint(kind, "POST", "/v1/ack", digest(b"{}"));
        assert_eq!(hex(ack(RequestKind::Whole)), "5265f7fd1c6d5d24");
        assert_eq!(hex(ack(RequestKind::Line)), "75ec2bd1b4935a19");
        assert_eq!(hex(Subject::request(ack(RequestKind::Whole), 2).0), "a18843cb9ca524ee");
        assert_eq!(hex(Subject::delivery("orders", "kitchen", 1, 7, 2).0), "407b6ffd82c3028b");
    }

    #[test]
    fn decisions_are_those_of_every_version() {
        let half = Probability::new(0.5).expect("a probability");
        let settings = ChaosSettings {
            duplicate: half,
            drop_reply: half,
            expire: half,
            delay: half,
            restart: half,
            reorder: half,
            ..ChaosSettings::seeded(42)
        };
        let decisions = Fault::ALL.map(|fault| {
            (1..=16)
                .map(|occurrence| match draw(&settings, fault, Subject::request(7, occurrence)) {
                    Some(hit) => char::from_digit(hit.pick(0, 10) as u32, 10).expect("a digit"),
                    None => '.',
                })
                .collect::<String>()
        });
        let expected = [
            "..0.6..6.47.0.8.",
            "1763.63618165..8",
            "6.57........2357",
            ".711.8631...69..",
            ".0...8.9.1.30.48",
            "811.2.4..4...522",
        ];
        assert_eq!(decisions, expected);
    }

    #[test]
    fn faults_occur_as_often_as_they_should_and_independently() {
        let settings: ChaosSettings = "seed=1,duplicate=0.25,delay=0.25".parse().expect("valid");
        let subjects = || (0..40_000).map(|number| Subject::request(number, 1));
        let count = |faults: &[Fault]| {
            subjects().filter(|subject| faults.iter().all(|fault| draw(&settings, *fault, *subject).is_some())).count()
        };
        for (faults, expected) in
            [(&[Fault::Duplicate][..], 10_000), (&[Fault::Delay], 10_000), (&[Fault::Duplicate, Fault::Delay], 2_500)]
        {
            let found = count(faults);
            assert!(found.abs_diff(expected) < expected / 20, "{faults:?}: {found}");
        }
        assert_eq!(count(&[Fault::Restart]), 0);
    }

    #[test]
    fn everything_that_identifies_a_subject_counts() {
        let delivery =
            |topic, group, partition, offset, attempts| Subject::delivery(topic, group, partition, offset, attempts);
        let base = delivery("ab", "c", 0, 0, 1);
        let others = [
            delivery("a", "bc", 0, 0, 1),
            delivery("ab", "d", 0, 0, 1),
            delivery("ab", "c", 1, 0, 1),
            delivery("ab", "c", 0, 1, 1),
            delivery("ab", "c", 0, 0, 2),
        ];
        assert!(others.iter().all(|other| *other != base));
        let request = fingerprint(RequestKind::Whole, "POST", "/v1/ack", 1);
        let others = [
            fingerprint(RequestKind::Line, "POST", "/v1/ack", 1),
            fingerprint(RequestKind::Whole, "PUT", "/v1/ack", 1),
            fingerprint(RequestKind::Whole, "POST", "/v1/ack?", 1),
            fingerprint(RequestKind::Whole, "POST", "/v1/ack", 2),
        ];
        assert!(others.iter().all(|other| *other != request));
        assert_ne!(Subject::request(request, 1), Subject::request(request, 2));
        assert_ne!(digest(b"a"), digest(b"a\0"));
    }
}
