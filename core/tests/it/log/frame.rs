//! Frames: encoding round-trips, and nothing else decodes.

use driftq_core::log::frame::{FOOTER, FRAME_HEAD_BYTES, SYNCED_MARK, decode, encode_with};
use driftq_core::log::{
    CrcSeed, EncodeError, FileId, FrameChain, FrameError, Head, LogId, LogPosition, MAX_PAYLOAD_BYTES,
};
use driftq_core::types::{FrameNumber, Lsn};
use proptest::prelude::*;

fn seed() -> CrcSeed {
    CrcSeed::new(LogId([9; 16]), FileId::Segment(4))
}

fn head() -> impl Strategy<Value = Head> {
    (1..u64::MAX, any::<u32>(), any::<u64>(), 1..=u8::MAX, any::<u8>()).prop_map(
        |(number, prev_crc, synced, kind, version)| Head {
            number: FrameNumber(number),
            prev_crc,
            synced: FrameNumber(synced % number),
            kind,
            version,
        },
    )
}

fn encoded(head: &Head, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_with(&mut out, seed(), head, |buffer| buffer.extend_from_slice(payload)).unwrap();
    out
}

proptest! {
    #[test]
    fn frame_round_trips(
        head in head(),
        payload in prop::collection::vec(any::<u8>(), 0..300),
        before in prop::collection::vec(any::<u8>(), 0..50),
        after in prop::collection::vec(any::<u8>(), 0..50),
    ) {
        let mut out = before.clone();
        let crc = encode_with(&mut out, seed(), &head, |buffer| buffer.extend_from_slice(&payload)).unwrap();
        out.extend_from_slice(&after);
        prop_assert_eq!(&out[..before.len()], &before[..]);
        let frame = decode(&out[before.len()..], seed()).unwrap();
        prop_assert_eq!((frame.head, frame.crc, frame.payload), (head, crc, &payload[..]));
        prop_assert_eq!(frame.size(), out.len() - before.len() - after.len());
    }

    #[test]
    fn decode_of_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
        prop_assert!(decode(&bytes, seed()).is_err());
    }

    #[test]
    fn flipped_bit_or_truncation_of_frame_is_detected(head in head(), payload in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut bytes = encoded(&head, &payload);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(decode(&bytes, seed()).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..bytes.len() {
            let too_short = matches!(decode(&bytes[..len], seed()), Err(FrameError::TooShort { .. }));
            prop_assert!(too_short, "truncated to {len}");
        }
    }
}

#[test]
fn frame_layout_matches_documentation() {
    let head =
        Head { number: FrameNumber(0x0102), prev_crc: 0x0A0B_0C0D, synced: FrameNumber(0x0101), kind: 5, version: 6 };
    let bytes = encoded(&head, b"hi");
    assert_eq!(bytes[..4], [2, 0, 0, 0]);
    assert_eq!(bytes[8..16], [2, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[16..20], [0x0D, 0x0C, 0x0B, 0x0A]);
    assert_eq!(bytes[20..28], [1, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[28..], [5, 6, b'h', b'i']);
    // CRC-32 of log id, 'w', sequence, then the frame without its checksum.
    let mut summed = [9; 16].to_vec();
    summed.extend_from_slice(b"w\x04\0\0\0\0\0\0\0");
    summed.extend_from_slice(&bytes[..4]);
    summed.extend_from_slice(&bytes[8..]);
    assert_eq!(bytes[4..8], crc32fast::hash(&summed).to_le_bytes());
}

#[test]
fn zeros_never_decode_as_frame() {
    assert_eq!(decode(&[0; 100], seed()), Err(FrameError::Unwritten));
    let mut bytes = [0; 100];
    bytes[8] = 1;
    assert_eq!(decode(&bytes, seed()), Err(FrameError::BadKind));
    let head = Head { number: FrameNumber(1), prev_crc: 0, synced: FrameNumber(0), kind: 0, version: 1 };
    let mut out = vec![1, 2, 3];
    assert_eq!(encode_with(&mut out, seed(), &head, |_| {}), Err(EncodeError::BadKind { kind: 0 }));
    assert_eq!(out, [1, 2, 3]);
}

#[test]
fn payload_at_limit_fits_and_one_byte_more_is_refused() {
    let mut chain = FrameChain::new(seed(), LogPosition::default(), 0);
    let mut out = vec![7];
    let grow = |len| move |buffer: &mut Vec<u8>| buffer.resize(buffer.len() + len, 1);
    let before = chain.clone();
    let refused = chain.record(&mut out, FrameNumber(0), 1, 1, grow(MAX_PAYLOAD_BYTES + 1));
    assert_eq!(refused, Err(EncodeError::TooLong { len: MAX_PAYLOAD_BYTES + 1 }));
    assert_eq!(out, [7]);
    assert_eq!((chain.last(), chain.last_crc()), (before.last(), before.last_crc()));
    assert_eq!(
        chain.record(&mut out, FrameNumber(0), 1, 1, grow(MAX_PAYLOAD_BYTES)),
        Ok(LogPosition { frame: FrameNumber(1), lsn: Lsn(1) })
    );
    assert_eq!(decode(&out[1..], seed()).unwrap().payload.len(), MAX_PAYLOAD_BYTES);
}

#[test]
fn length_beyond_limit_is_refused_before_checksum() {
    let mut bytes =
        encoded(&Head { number: FrameNumber(1), prev_crc: 0, synced: FrameNumber(0), kind: 1, version: 1 }, b"");
    bytes[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(decode(&bytes, seed()), Err(FrameError::TooLong { len: u32::MAX }));
}

#[test]
fn frame_verifies_only_in_its_own_log_and_file() {
    let bytes =
        encoded(&Head { number: FrameNumber(4), prev_crc: 0, synced: FrameNumber(0), kind: 1, version: 1 }, b"payload");
    let elsewhere = [
        CrcSeed::new(LogId([9; 16]), FileId::Segment(5)),
        CrcSeed::new(LogId([9; 16]), FileId::Snapshot(FrameNumber(4))),
        CrcSeed::new(LogId([8; 16]), FileId::Segment(4)),
    ];
    assert!(decode(&bytes, seed()).is_ok());
    for other in elsewhere {
        assert!(matches!(decode(&bytes, other), Err(FrameError::BadChecksum { .. })), "{other:?}");
    }
    let draft = CrcSeed::new(LogId([9; 16]), FileId::SnapshotDraft(FrameNumber(4)));
    assert_eq!(draft, elsewhere[1], "a snapshot and its draft have the same seed");
}

#[test]
fn chain_numbers_and_links_frames_and_reserves_own_kinds() {
    let mut chain = FrameChain::new(seed(), LogPosition { frame: FrameNumber(6), lsn: Lsn(4) }, 0x55);
    let mut out = Vec::new();
    for kind in [0xF0, 0xFF] {
        assert_eq!(chain.record(&mut out, FrameNumber(0), kind, 1, |_| {}), Err(EncodeError::BadKind { kind }));
    }
    assert_eq!(
        chain.record(&mut out, FrameNumber(2), 0xEF, 3, |buffer| buffer.push(b'x')),
        Ok(LogPosition { frame: FrameNumber(7), lsn: Lsn(5) })
    );
    assert_eq!(chain.mark(&mut out, FrameNumber(7)), FrameNumber(8));
    assert_eq!(chain.footer(&mut out, FrameNumber(7)), FrameNumber(9));
    assert_eq!(chain.last(), LogPosition { frame: FrameNumber(9), lsn: Lsn(5) }, "marks and footers have no LSN");
    let (mut at, mut prev_crc) = (0, 0x55);
    for (number, synced, kind) in [(7, 2, 0xEF), (8, 7, SYNCED_MARK), (9, 7, FOOTER)] {
        let frame = decode(&out[at..], seed()).unwrap();
        assert_eq!(
            (frame.head.number, frame.head.synced, frame.head.kind),
            (FrameNumber(number), FrameNumber(synced), kind)
        );
        assert_eq!(frame.head.prev_crc, prev_crc);
        prev_crc = frame.crc;
        at += frame.size();
    }
    assert_eq!((at, prev_crc), (out.len(), chain.last_crc()));
    assert_eq!(out.len(), 3 * FRAME_HEAD_BYTES + 1);
}
