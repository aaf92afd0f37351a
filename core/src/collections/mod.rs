//! Collections: copy-on-write maps, keys by their hash, numbers per position, entries that expire, ranges and sets of
//! positions. Independent of the broker's state.

pub(crate) mod ack_set;
pub(crate) mod counts;
pub(crate) mod cow;
pub(crate) mod expiring;
pub(crate) mod id_map;
pub(crate) mod key_index;
pub(crate) mod number_hasher;
pub(crate) mod partition_set;
pub(crate) mod ranges;
pub(crate) mod shared;
