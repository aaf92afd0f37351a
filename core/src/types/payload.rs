//! References to payloads: where in the log the bytes of a message stand.

use super::body::Body;
use super::ids::Lsn;

/// The place of a payload in the log. The same on every machine that replays the same records; file positions are not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PayloadId {
    /// The record that carries it.
    pub lsn: Lsn,
    /// Its number among the payloads of the record, in the order in which their bytes stand there, from 0.
    pub part: u32,
}

impl PayloadId {
    /// What a message refers to whose payload is lost: no record has this LSN.
    pub const LOST: Self = Self { lsn: Lsn(0), part: 0 };

    /// Whether the payload is lost.
    #[must_use]
    pub fn is_lost(self) -> bool {
        self == Self::LOST
    }
}

/// A reference to the bytes of a message: metadata, key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PayloadRef {
    /// Where they stand.
    pub id: PayloadId,
    /// The length of the metadata.
    pub metadata_len: u32,
    /// The length of the partitioning key.
    pub key_len: u32,
    /// The length of the value.
    pub value_len: u32,
}

impl PayloadRef {
    /// The reference to `body`, which stands at `id`.
    #[must_use]
    pub fn new(id: PayloadId, body: &Body) -> Self {
        let (bytes, metadata_len, key_len) = body.parts();
        let value_len = bytes.len() as u64 - u64::from(metadata_len) - u64::from(key_len);
        let value_len = u32::try_from(value_len).expect("a value is shorter than a frame");
        Self { id, metadata_len, key_len, value_len }
    }

    /// Bytes of key and value, which backpressure counts.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        self.key_len as u64 + self.value_len as u64
    }

    /// The bytes of metadata, key and value.
    #[must_use]
    pub const fn encoded_len(&self) -> u64 {
        self.metadata_len as u64 + self.payload_len()
    }

    /// Whether `body` has these lengths.
    #[must_use]
    pub fn fits(&self, body: &Body) -> bool {
        let (bytes, metadata_len, key_len) = body.parts();
        (bytes.len() as u64, metadata_len, key_len) == (self.encoded_len(), self.metadata_len, self.key_len)
    }
}
