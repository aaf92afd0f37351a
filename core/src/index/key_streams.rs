//! Streams that were opened with a key: they are closed when the key is revoked or expires.

use std::collections::BTreeSet;

use crate::types::{ConsumerId, KeyId, Timestamp};

/// The streams of keys. Empty if there are no keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyStreams {
    by_key: BTreeSet<(KeyId, ConsumerId)>,
    /// Those of keys that expire.
    by_expiry: BTreeSet<(Timestamp, ConsumerId)>,
}

impl KeyStreams {
    /// A stream was opened with `key`.
    pub(crate) fn opened(&mut self, (key, expires_at): (KeyId, Option<Timestamp>), stream: ConsumerId) {
        self.by_key.insert((key, stream));
        self.by_expiry.extend(expires_at.map(|at| (at, stream)));
    }

    /// A stream of `key` has ended.
    pub(crate) fn ended(&mut self, (key, expires_at): (KeyId, Option<Timestamp>), stream: ConsumerId) {
        self.by_key.remove(&(key, stream));
        if let Some(at) = expires_at {
            self.by_expiry.remove(&(at, stream));
        }
    }

    /// The streams of a key.
    pub(crate) fn of(&self, key: KeyId) -> Vec<ConsumerId> {
        let from = self.by_key.range((key, ConsumerId(0))..);
        from.take_while(|(of, _)| *of == key).map(|(_, stream)| *stream).collect()
    }

    /// When the first stream's key expires.
    #[inline]
    pub(crate) fn next_expiry(&self) -> Option<Timestamp> {
        self.by_expiry.first().map(|(at, _)| *at)
    }

    /// The streams whose keys have expired at `now`.
    pub(crate) fn expired(&self, now: Timestamp) -> Vec<ConsumerId> {
        self.by_expiry.iter().take_while(|(at, _)| *at <= now).map(|(_, stream)| *stream).collect()
    }
}
