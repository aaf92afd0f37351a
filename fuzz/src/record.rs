//! Records: every spelling that is read is the one that is written.

use driftq_core::Body;
use driftq_core::codec::record as codec;
use driftq_core::record::Record;
use driftq_core::types::metadata;

/// Writes a record anew: what a planted bug replaces.
pub type Spell = fn(&Record, &mut Vec<u8>);

/// A kind and a payload as a record, and the payload as a message's metadata: no bytes make a decoder panic, and what decodes is written
/// again in the very same bytes, so that nothing has two spellings.
pub fn record(data: &[u8]) {
    record_with(data, codec::encode);
}

/// As [`record`], with another way of writing records.
///
/// # Panics
/// If something is wrong.
pub fn record_with(data: &[u8], spell: Spell) {
    let Some((kind, payload)) = data.split_first() else { return };
    if let Ok(found) = codec::decode(*kind, codec::VERSION, payload) {
        let mut again = Vec::new();
        spell(&found, &mut again);
        assert_eq!((codec::kind(&found.event), &again[..]), (*kind, payload), "{found:?}");
        assert_eq!(codec::decode(*kind, codec::VERSION, &again).as_ref(), Ok(&found));
    }
    assert!(codec::decode(*kind, codec::VERSION + 1, payload).is_err(), "no such version is written");
    let meta = metadata::decode(payload);
    let body = Body::unpack(payload, payload.len() as u32, 0);
    assert_eq!(body.is_ok(), meta.is_ok(), "a body takes the metadata that can be read, and no other");
    if let (Ok(meta), Ok(body)) = (meta, body) {
        let mut again = Vec::new();
        metadata::encode(&meta, &mut again);
        assert_eq!(again, payload, "{meta:?}");
        assert_eq!(body.metadata(), meta);
    }
}
