//! Random operations on an [`ExpiringMap`] compared with a plain list.

use proptest::prelude::*;

use super::*;

/// A value that expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Value(u32, Timestamp);

impl Expires for Value {
    fn expires_at(&self) -> Timestamp {
        self.1
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Insert { key: u8, lifetime: u64 },
    RemoveExpired { limit: u64 },
    RemoveOldest { count: u64 },
    RemoveRange { first: u8, end: u8 },
    Wait { time: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0_u8..40, 0_u64..9).prop_map(|(key, lifetime)| Step::Insert { key, lifetime }),
        1 => (0_u64..5).prop_map(|limit| Step::RemoveExpired { limit }),
        1 => (0_u64..3).prop_map(|count| Step::RemoveOldest { count }),
        1 => (0_u8..40, 0_u8..40).prop_map(|(first, end)| Step::RemoveRange { first, end }),
        2 => (0_u64..5).prop_map(|time| Step::Wait { time }),
    ]
}

proptest! {
    #[test]
    fn map_holds_what_a_list_holds(steps in prop::collection::vec(step(), 0..200)) {
        let (mut map, mut list) = (ExpiringMap::default(), Vec::<(u8, Value)>::new());
        let mut now = Timestamp(0);
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Insert { key, lifetime } => {
                    let value = Value(number, Timestamp(now.0 + lifetime));
                    let at = list.iter().position(|(other, _)| *other == key);
                    let before = at.map(|at| list.remove(at).1);
                    list.insert(list.partition_point(|(_, other)| other.1 <= value.1), (key, value));
                    prop_assert_eq!(map.insert(key, value), before);
                }
                Step::RemoveExpired { limit } => {
                    let due = list.iter().take_while(|(_, value)| value.1 <= now).take(limit as usize).count();
                    prop_assert_eq!(map.expired(now, limit), due as u64);
                    list.drain(..due);
                    prop_assert!(map.remove_oldest(due as u64));
                }
                Step::RemoveOldest { count } => {
                    let enough = list.len() as u64 >= count;
                    list.drain(..if enough { count as usize } else { 0 });
                    prop_assert_eq!(map.remove_oldest(count), enough);
                }
                Step::RemoveRange { first, end } => {
                    list.retain(|(key, _)| !(first..end).contains(key));
                    map.remove_while(&first, |key| *key < end);
                }
                Step::Wait { time } => now.0 += time,
            }
            prop_assert_eq!((map.len(), map.is_empty()), (list.len(), list.is_empty()));
            prop_assert_eq!(map.next_expiry(), list.first().map(|(_, value)| value.1));
            for key in 0..40 {
                let known = list.iter().find(|(other, value)| *other == key && now < value.1);
                prop_assert_eq!(map.get(&key, now), known.map(|(_, value)| value));
            }
        }
        let mut rebuilt = ExpiringMap::default();
        for (key, value) in &list {
            rebuilt.insert(*key, *value);
        }
        prop_assert_eq!(&map, &rebuilt);
        prop_assert_eq!(map.in_order().collect::<Vec<_>>(), list);
    }
}

#[test]
fn maps_with_another_order_or_another_value_differ() {
    let map = |entries: &[(u8, u32, u64)]| {
        let mut map = ExpiringMap::default();
        for (key, value, until) in entries {
            map.insert(*key, Value(*value, Timestamp(*until)));
        }
        map
    };
    let one = map(&[(1, 7, 9), (2, 8, 9)]);
    assert_eq!(one, map(&[(1, 7, 9), (2, 8, 9)]));
    assert_eq!(one, map(&[(2, 8, 9), (1, 7, 9), (2, 8, 9)]));
    assert_ne!(one, map(&[(2, 8, 9), (1, 7, 9)]));
    assert_ne!(one, map(&[(1, 7, 9), (2, 9, 9)]));
    assert_ne!(one, map(&[(1, 7, 9)]));
    assert_eq!(format!("{one:?}"), "{1: Value(7, Timestamp(9)), 2: Value(8, Timestamp(9))}");
}
