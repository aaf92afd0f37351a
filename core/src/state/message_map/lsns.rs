//! The records that carry the payloads of messages, chunk by chunk.

use std::ops::RangeInclusive;

use super::MessageMap;
use super::chunk::Chunk;
use crate::types::Lsn;

impl MessageMap {
    /// The first LSN of a payload that `holds` does not accept. It is asked for the LSNs of a chunk together, as a
    /// range that may be somewhat wider than they are, and for single ones only where it does not accept the range.
    pub(crate) fn lsn_outside(&self, mut holds: impl FnMut(RangeInclusive<Lsn>) -> bool) -> Option<Lsn> {
        { self.slots.iter() }.find_map(|slot| match slot.chunk.lsn_bounds() {
            Some(bounds) if holds(bounds.clone()) => None,
            _ => slot.chunk.lsns().find(|lsn| !holds(*lsn..=*lsn)),
        })
    }
}

impl Chunk {
    fn lsns(&self) -> impl Iterator<Item = Lsn> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let index = self.next(next)?;
            next = index + 1;
            Some(match self {
                Self::Open(open) => open.entries[index].1.payload.id.lsn,
                Self::Packed(packed) => packed.lsn(index),
            })
        })
    }

    /// A range that contains all of them; `None` if there is none that is known without looking at each.
    fn lsn_bounds(&self) -> Option<RangeInclusive<Lsn>> {
        match self {
            Self::Open(_) => None,
            Self::Packed(packed) => packed.lsn_bounds(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::message::Message;
    use crate::types::{Offset, PayloadId, PayloadRef, Position, Timestamp};

    fn map(lsns: impl Iterator<Item = u64>) -> MessageMap {
        let mut map = MessageMap::default();
        for (number, lsn) in (0..).zip(lsns) {
            let payload = PayloadRef { id: PayloadId { lsn: Lsn(lsn), part: 0 }, ..PayloadRef::default() };
            map.insert(Position(number), Message::new(Offset(number), Timestamp(number), payload, None));
        }
        map
    }

    fn outside(map: &MessageMap, held: &[RangeInclusive<u64>]) -> (Option<u64>, usize) {
        let mut asked = 0;
        let found = map.lsn_outside(|lsns| {
            asked += 1;
            held.iter().any(|held| held.contains(&lsns.start().0) && held.contains(&lsns.end().0))
        });
        (found.map(|lsn| lsn.0), asked)
    }

    #[test]
    fn every_lsn_outside_is_found_and_few_questions_are_asked() {
        for step in [1, 3, 1_000] {
            let lsns = |number: u64| 10 + number * step + number % 5 * (step / 2);
            let map = map((0..10_000).map(lsns));
            let all = 0..=lsns(10_000) + 100_000;
            let (found, asked) = outside(&map, std::slice::from_ref(&all));
            assert_eq!(found, None);
            assert!(asked <= 10_000 / 128 + 2 * 128, "{asked}");
            for gap in [0, 1, 127, 128, 129, 5_000, 9_999].map(lsns) {
                let (below, above) = (0..=gap - 1, gap + 1..=*all.end());
                assert_eq!(outside(&map, &[below, above]).0, Some(gap), "{step}");
            }
        }
    }

    #[test]
    fn lsns_in_any_order_are_checked() {
        let mut map = map([7, u64::MAX, 3, 9].into_iter().cycle().take(600));
        assert_eq!(outside(&map, &[0..=u64::MAX]), (None, outside(&map, &[0..=u64::MAX]).1));
        assert_eq!(outside(&map, &[0..=100]).0, Some(u64::MAX));
        for position in (1..600).step_by(4) {
            map.remove(Position(position));
        }
        assert_eq!(outside(&map, &[0..=100]).0, None, "removed messages do not count");
    }
}
