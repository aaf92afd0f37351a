//! The room of the log.

/// The bytes that the records of produces may have before the log needs another segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The next segment is being prepared: a record that does not fit is refused until a job of
    /// [`JobClass::Background`](crate::JobClass::Background) is complete.
    UntilPrepared(u64),
    /// No segment is being prepared: the next one is ready, or there is none to be had. One will be prepared when these
    /// bytes are used up.
    Prepared(u64),
}

impl Room {
    /// Whether a record of `bytes` bytes would be refused for now only because of preparing, behind records of `before`
    /// bytes that come first.
    #[must_use]
    pub const fn lacks(self, bytes: u64, before: u64) -> bool {
        match self {
            Self::UntilPrepared(room) => before.saturating_add(bytes) > room,
            Self::Prepared(room) => before > 0 && before.saturating_add(bytes) > room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_waits_for_a_segment_that_is_being_prepared_or_will_be() {
        assert!(!Room::UntilPrepared(10).lacks(10, 0) && Room::UntilPrepared(10).lacks(11, 0));
        assert!(!Room::UntilPrepared(10).lacks(4, 6) && Room::UntilPrepared(10).lacks(5, 6));
        assert!(!Room::Prepared(10).lacks(11, 0), "waiting would not help");
        assert!(!Room::Prepared(10).lacks(4, 6) && Room::Prepared(10).lacks(5, 6));
        assert!(Room::UntilPrepared(u64::MAX - 1).lacks(u64::MAX, u64::MAX));
    }
}
