//! Fuzz target for the codecs of records and of message metadata.

use driftq_core::Body;
use driftq_core::codec::record as codec;
use driftq_core::record::Record;
use driftq_core::types::metadata;

/// Encodes a record. Tests replace it to plant a bug.
pub type RecordEncoder = fn(&Record, &mut Vec<u8>);

/// Decodes the input as a kind and a payload of a record, and the payload also as the metadata of a message.
///
/// Checks that no decoder panics and that whatever decodes has one encoding: it encodes to the same bytes.
pub fn record(data: &[u8]) {
    record_with(data, codec::encode);
}

/// [`record`] with another encoder.
///
/// # Panics
/// If a check fails.
pub fn record_with(data: &[u8], encode: RecordEncoder) {
    let Some((kind, payload)) = data.split_first() else { return };
    if let Ok(record) = codec::decode(*kind, codec::VERSION, payload) {
        let mut encoded = Vec::new();
        encode(&record, &mut encoded);
        let kind_and_payload = (codec::kind(&record.event), &encoded[..]);
        assert_eq!(kind_and_payload, (*kind, payload), "a decoded record encodes to other bytes: {record:?}");
        assert_eq!(codec::decode(*kind, codec::VERSION, &encoded).as_ref(), Ok(&record));
    }
    assert!(codec::decode(*kind, codec::VERSION + 1, payload).is_err(), "an unknown version decodes");
    let metadata = metadata::decode(payload);
    let body = Body::unpack(payload, payload.len() as u32, 0);
    assert_eq!(body.is_ok(), metadata.is_ok(), "a body and the codec of metadata disagree");
    if let (Ok(metadata), Ok(body)) = (metadata, body) {
        let mut encoded = Vec::new();
        metadata::encode(&metadata, &mut encoded);
        assert_eq!(encoded, payload, "decoded metadata encodes to other bytes: {metadata:?}");
        assert_eq!(body.metadata(), metadata, "a body returns other metadata");
    }
}
