//! The partitioner. Frozen: a change would split a key's messages over two partitions.

use super::ids::PartitionId;

/// The partition of `key` among `partitions`: FNV-1a-32 of the key modulo the count; the empty key goes to 0.
///
/// # Panics
/// If `partitions` is 0.
#[must_use]
pub(crate) fn partition_of(key: &[u8], partitions: u32) -> PartitionId {
    assert!(partitions > 0, "a topic has at least one partition");
    if key.is_empty() {
        return PartitionId(0);
    }
    let hash = key.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    PartitionId(hash % partitions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_of_known_keys_never_change() {
        assert_eq!(partition_of(b"user:1", 3), PartitionId(1));
        assert_eq!(partition_of(b"user:2", 3), PartitionId(0));
        assert_eq!(partition_of(b"b", 8), PartitionId(5));
        assert_eq!(partition_of(b"", 8), PartitionId(0));
    }
}
