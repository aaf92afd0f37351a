//! Footers of segments: a start reads them in place of the segments, and does without where they are missing.

use std::collections::{BTreeMap, BTreeSet};

use super::test_broker::*;
use driftq_core::codec::record as codec;
use driftq_core::command::Peek;
use driftq_core::faults::NoFaults;
use driftq_core::log::frame::FRAME_HEAD_BYTES;
use driftq_core::log::{
    FileId, FileInfo, Frame, HEADER_BYTES, LogPosition, MemoryStorage, Recovered, RecoveryError, ReferredSegment,
    SegmentFooter, SegmentHeader, SegmentReader, SnapshotHead, SnapshotWriter, Storage, StorageFault, WriteAt,
    read_snapshot,
};
use driftq_core::pipeline::{OpenError, inspect};
use driftq_core::record::{Event, Image, Record};
use driftq_core::types::*;
use driftq_core::{Command, OpenOptions, PipelineConfig, Reply};

const MESSAGES: u64 = 3_000;

fn config() -> PipelineConfig {
    PipelineConfig { memory_bytes: 0, segment_bytes: 1 << 20, ..small_config() }
}

fn value_of(offset: u64) -> String {
    format!("{offset:>0$}", 200 + (offset % 7) as usize * 150)
}

/// A broker with a backlog of some segments that the newest snapshot lists.
fn with_backlog() -> TestBroker {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    for offset in 0..MESSAGES {
        broker.produce("t", &value_of(offset));
    }
    broker.snapshot();
    broker
}

/// A backlog whose first segment was the open one at a crash, so that it has no footer.
fn with_unclosed_segment() -> TestBroker {
    let mut broker = TestBroker::with(config(), NoFaults);
    broker.topic("t", 1);
    for offset in 0..MESSAGES / 3 {
        broker.produce("t", &value_of(offset));
    }
    broker.crash();
    for offset in MESSAGES / 3..MESSAGES {
        broker.produce("t", &value_of(offset));
    }
    broker.snapshot();
    broker
}

fn peeked(broker: &mut TestBroker, offset: u64) -> Option<String> {
    let peek = Peek { topic: topic("t"), partition: PartitionId(0), offset: Offset(offset), limit: 1 };
    match broker.send(Command::Peek(peek)) {
        Ok(Reply::Peeked(messages)) => Some(String::from_utf8_lossy(messages.first()?.body.value()).into_owned()),
        _ => None,
    }
}

/// The newest snapshot, its images and its list.
fn newest_snapshot(storage: &MemoryStorage) -> (SnapshotHead, Vec<Record>, Vec<ReferredSegment>) {
    let mut storage = storage.clone();
    let number = |info: &FileInfo| if let FileId::Snapshot(number) = info.file { Some(number) } else { None };
    let newest = storage.list().unwrap().iter().filter_map(number).max().expect("there is a snapshot");
    let mut images = Vec::new();
    let each = |kind, version, payload: &[u8]| codec::decode(kind, version, payload).map(|image| images.push(image));
    let (head, listed) = read_snapshot(&mut storage, newest, &mut Vec::new(), each).unwrap();
    let by_message = images.into_iter().flat_map(|image| match image.event {
        Event::Restored(restored) => restored.by_message(),
        other => panic!("{other:?} in a snapshot"),
    });
    let images = by_message.map(|image| Record { at: Timestamp::default(), event: Event::Restored(image) });
    (head, images.collect(), listed)
}

/// The storage with its newest snapshot replaced.
fn with_snapshot(
    storage: &MemoryStorage,
    head: &SnapshotHead,
    images: &[Record],
    listed: &[ReferredSegment],
) -> MemoryStorage {
    let (mut storage, mut bytes) = (storage.clone(), Vec::new());
    let mut writer = SnapshotWriter::begin(head, &mut bytes);
    for image in images {
        let kind = codec::kind(&image.event);
        writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(image, out)).unwrap();
    }
    writer.finish(listed, &mut bytes);
    storage.take_file(head.file());
    storage.put_file(head.file(), bytes);
    storage
}

fn header_of(storage: &MemoryStorage, file: FileId) -> SegmentHeader {
    SegmentHeader::decode(storage.bytes(file).expect("the segment is there")).unwrap()
}

fn footer_of(storage: &MemoryStorage, listed: &ReferredSegment) -> Option<SegmentFooter> {
    let header = header_of(storage, listed.file());
    let read = SegmentFooter::read(&mut storage.clone(), &header, listed.last, listed.end, &mut Vec::new());
    read.unwrap().ok()
}

fn start(storage: &MemoryStorage) -> Result<Recovered, RecoveryError> {
    match OpenOptions::new().config(config()).open(&mut storage.clone(), START) {
        Ok((_, recovered)) => Ok(recovered),
        Err(OpenError::Recovery(error)) => Err(error),
        Err(error) => panic!("{error}"),
    }
}

/// Counts the bytes that are read of each file.
struct Counting {
    inner: MemoryStorage,
    read: BTreeMap<FileId, usize>,
}

impl Storage for Counting {
    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        self.inner.create(file, capacity)
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        self.inner.append(file, at, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.inner.sync(file)
    }

    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        let read = self.inner.read(file, position, buffer)?;
        *self.read.entry(file).or_default() += read;
        Ok(read)
    }

    fn list(&mut self) -> Result<Vec<FileInfo>, StorageFault> {
        self.inner.list()
    }

    fn rename(&mut self, from: FileId, to: FileId) -> Result<(), StorageFault> {
        self.inner.rename(from, to)
    }

    fn remove(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.inner.remove(file)
    }

    fn trim(&mut self, file: FileId, len: u64) -> Result<(), StorageFault> {
        self.inner.trim(file, len)
    }

    fn sync_folder(&mut self) -> Result<(), StorageFault> {
        self.inner.sync_folder()
    }
}

#[test]
fn footer_has_the_index_of_a_scan_and_a_filter_of_all_mentions() {
    let broker = with_backlog();
    let (_, _, listed) = newest_snapshot(&broker.storage);
    let (_, scanned) = inspect(&mut broker.storage.clone(), None).unwrap();
    assert!(listed.len() >= 2, "{listed:?}");
    for segment in &listed {
        let footer = footer_of(&broker.storage, segment).expect("every listed segment was rotated");
        let info = scanned.segments.iter().find(|info| info.sequence == segment.sequence).unwrap();
        assert_eq!(footer.index.as_ref(), Some(&*info.index));
        assert!(info.index.entries().len() > 20);
        let (filter, mut hashes) = (footer.filter.unwrap(), BTreeSet::new());
        let bytes = broker.storage.bytes(segment.file()).unwrap();
        let frames = SegmentReader::new(&header_of(&broker.storage, segment.file()), bytes);
        for frame in frames.filter(Frame::is_record) {
            let record = codec::decode(frame.head.kind, frame.head.version, frame.payload).unwrap();
            record.event.mentions(|mention| {
                hashes.insert(mention.hash());
                assert!(filter.may_contain(mention.hash()), "{mention:?}");
            });
        }
        let mentions = hashes.len() as u64;
        assert!(filter.mentions() <= mentions && filter.mentions() * 100 >= mentions * 97, "{filter:?}");
        assert!(filter.bits() < 21 * mentions, "{} bits for {mentions} mentions", filter.bits());
    }
}

#[test]
fn start_reads_only_headers_and_footers_of_listed_segments() {
    let mut broker = with_backlog();
    let (_, _, listed) = newest_snapshot(&broker.storage);
    let mut counting = Counting { inner: broker.storage.crash(), read: BTreeMap::new() };
    let (_, recovered) = OpenOptions::new().config(config()).open(&mut counting, START).unwrap();
    for segment in &listed {
        let read = counting.read[&segment.file()];
        assert!(read <= HEADER_BYTES + (64 << 10), "{read} bytes of {} are read", segment.file());
    }
    let (_, scanned) = inspect(&mut broker.storage.crash(), None).unwrap();
    assert_eq!(recovered.segments, scanned.segments);
    broker.crash();
    for offset in [0, 1, 999, 1_500, 2_222, MESSAGES - 1] {
        assert_eq!(peeked(&mut broker, offset).as_deref(), Some(value_of(offset).as_str()));
    }
}

#[test]
fn segment_without_footer_is_indexed_when_it_is_first_read() {
    let mut broker = with_unclosed_segment();
    let (_, _, listed) = newest_snapshot(&broker.storage);
    assert_eq!(footer_of(&broker.storage, &listed[0]), None);
    broker.crash();
    let index = |broker: &TestBroker| broker.recovered.segments.iter().map(|info| info.index.clone()).next().unwrap();
    assert_eq!(index(&broker).unknown_from().map(|from| from.position), Some(HEADER_BYTES as u64));
    let last = MESSAGES / 3 - 1;
    assert_eq!(peeked(&mut broker, last), Some(value_of(last)));
    let (walked, bytes) = broker.pipeline.reads();
    assert!(walked >= 2 && bytes <= walked * (256 << 10), "{walked} reads of {bytes} bytes");
    assert!(bytes < listed[0].end + walked * (2 << 10), "no byte is read again but cut-off frames: {bytes}");
    // What is known then is found at once.
    for offset in [0, 10, last / 2, last] {
        let (before, _) = broker.pipeline.reads();
        assert_eq!(peeked(&mut broker, offset), Some(value_of(offset)));
        assert_eq!(broker.pipeline.reads().0, before + 1, "{offset}");
    }
}

#[test]
fn rotten_footer_is_no_reason_to_refuse() {
    let broker = with_backlog();
    let (_, _, listed) = newest_snapshot(&broker.storage);
    let footer_bytes = FRAME_HEAD_BYTES + footer_of(&broker.storage, &listed[0]).unwrap().encode().len();
    for bit in (0..footer_bytes * 8).step_by(1_001).chain([footer_bytes * 8 - 1]) {
        let mut storage = broker.storage.crash();
        let at = (listed[0].end as usize - footer_bytes) * 8;
        storage.bytes_mut(listed[0].file()).unwrap().flip(at + bit);
        assert_eq!(footer_of(&storage, &listed[0]), None, "bit {bit}");
        assert!(
            matches!(inspect(&mut storage.clone(), None), Err(RecoveryError::Corrupt { .. })),
            "the log is damaged"
        );
        let mut broker = TestBroker::open(storage, config(), START, NoFaults);
        assert_eq!(peeked(&mut broker, 700), Some(value_of(700)), "bit {bit}");
    }
}

#[test]
fn damaged_payload_is_found_by_its_read_and_spares_its_neighbours() {
    let broker = with_backlog();
    let bytes = broker.storage.bytes(FileId::Segment(1)).unwrap();
    let damaged = 400;
    let text = value_of(damaged);
    let at = bytes.windows(text.len()).position(|window| window == text.as_bytes()).expect("the message is there");
    let mut storage = broker.storage.crash();
    storage.bytes_mut(FileId::Segment(1)).unwrap().flip((at + 100) * 8);
    let refused = inspect(&mut storage.clone(), None);
    assert!(matches!(refused, Err(RecoveryError::Corrupt { .. })), "{refused:?}");
    let mut broker = TestBroker::open(storage, config(), START, NoFaults);
    for offset in [damaged - 1, damaged + 1, damaged + 2] {
        assert_eq!(peeked(&mut broker, offset), Some(value_of(offset)));
    }
    let peek = Peek { topic: topic("t"), partition: PartitionId(0), offset: Offset(damaged), limit: 1 };
    let ticket = broker.submit(Command::Peek(peek));
    broker.advance(0);
    assert_eq!(broker.reply(ticket), None, "it is read again");
    broker.advance(2_000);
    let Some(Ok(Reply::Peeked(lost))) = broker.reply(ticket) else { panic!("no reply") };
    assert!(lost[0].body.metadata().lost.is_some());
}

#[test]
fn listed_segment_that_is_missing_short_or_without_header_is_refused() {
    let broker = with_backlog();
    let (head, _, listed) = newest_snapshot(&broker.storage);
    let (file, end) = (listed[0].file(), listed[0].end);
    let mut missing = broker.storage.crash();
    missing.take_file(file);
    let error = start(&missing).unwrap_err();
    assert!(matches!(error, RecoveryError::MissingPayloads { missing, .. } if missing == file), "{error}");
    for cut in [1, 31, 5_000, end - 5_000] {
        let mut short = broker.storage.crash();
        short.bytes_mut(file).unwrap().truncate((end - cut) as usize);
        let error = start(&short).unwrap_err();
        assert!(matches!(error, RecoveryError::Corrupt { file: of, .. } if of == file), "{error}");
        assert!(error.to_string().contains(&format!("snapshot of frame {}", head.at.frame)), "{error}");
    }
    let mut headless = broker.storage.crash();
    headless.bytes_mut(file).unwrap().flip(300);
    let error = start(&headless).unwrap_err();
    assert!(matches!(error, RecoveryError::DamagedHeader { file: of, .. } if of == file), "{error}");
}

#[test]
fn message_that_refers_to_a_record_in_no_segment_is_refused() {
    let mut broker = with_backlog();
    // The first segment is removed: nothing refers to it any more.
    let consumer = broker.subscribe_with("t", "g", "w", |subscribe| subscribe.prefetch = 10);
    while broker.pipeline.state().topics().next().unwrap().partitions().next().unwrap().1.kept().messages > 1_000 {
        for delivery in broker.delivered() {
            broker.ack(claim("t", "g", "w", &delivery)).unwrap();
        }
    }
    broker.unsubscribe(consumer);
    broker.snapshot();
    broker.produce("t", "one more");
    broker.snapshot();
    broker.produce("t", "another");
    broker.snapshot();
    let storage = broker.storage.crash();
    let (head, images, listed) = newest_snapshot(&storage);
    assert!(start(&storage).is_ok() && listed[0].sequence > 1);
    let first = header_of(&storage, listed[0].file()).first_lsn();
    for lsn in [1, first.0 - 1] {
        let mut forged = images.clone();
        let message = forged.iter_mut().find_map(|image| match &mut image.event {
            Event::Restored(Image::Message { payload, .. }) => Some(payload),
            _ => None,
        });
        message.expect("there are messages").id.lsn = Lsn(lsn);
        let error = start(&with_snapshot(&storage, &head, &forged, &listed)).unwrap_err();
        assert!(error.to_string().contains(&format!("refers to record {lsn}")), "{error}");
        assert!(matches!(error, RecoveryError::Contradictory { .. }), "{error:?}");
    }
    let error = start(&with_snapshot(&storage, &head, &images, &listed[1..])).unwrap_err();
    assert!(error.to_string().contains("stands in no segment that it lists"), "{error}");
}

#[test]
fn list_that_contradicts_the_segments_is_refused() {
    let broker = with_backlog();
    let (head, images, listed) = newest_snapshot(&broker.storage);
    assert!(listed.len() >= 2);
    let changes: [fn(&mut ReferredSegment); 9] = [
        |segment| segment.end = 0,
        |segment| segment.end = u64::MAX,
        |segment| segment.end += 1 << 20,
        |segment| segment.last = LogPosition::default(),
        |segment| segment.last.frame = FrameNumber(segment.last.frame.0 + 1),
        |segment| segment.last.frame = FrameNumber(segment.last.frame.0 - 1),
        |segment| segment.last.lsn = Lsn(segment.last.lsn.0 + 1),
        |segment| segment.last.lsn = Lsn(segment.last.lsn.0 - 1),
        |segment| segment.sequence = 77,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut forged = listed.clone();
        change(&mut forged[0]);
        forged.sort_by_key(|segment| segment.sequence);
        let refused = start(&with_snapshot(&broker.storage.crash(), &head, &images, &forged));
        assert!(refused.is_err(), "change {number} is accepted");
    }
    // An end that the segment can have is not compared with its frames: only the footer is not found then.
    let mut shifted = listed.clone();
    shifted[0].end -= 1;
    let storage = with_snapshot(&broker.storage.crash(), &head, &images, &shifted);
    assert!(start(&storage).is_ok());
    let error = inspect(&mut storage.clone(), None).map(drop).unwrap_err();
    assert!(error.to_string().contains("not where its list says"), "{error}");
}
