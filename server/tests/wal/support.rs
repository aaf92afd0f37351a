//! Small logs with every kind of record, and ways to damage them.

use driftq_core::OpenOptions;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use driftq_core::codec::record as codec;
use driftq_core::command::{Ack, CreateTopic};
use driftq_core::command::{Claim, GroupLifetime, OnDisconnect, Produce, Subscribe, TokenClaim};
use driftq_core::log::{
    FileId, Frame, FrameChain, LogId, ReferredSegment, SegmentHeader, SegmentReader, read_snapshot,
};
use driftq_core::pipeline::inspect;
use driftq_core::record::{Event, Record};
use driftq_core::state::State;
use driftq_core::types::*;
use driftq_core::types::{GroupStart, Retention};
use driftq_core::{Command, Output, Pipeline, PipelineConfig};
use driftq_files::{DataFolder, FileStorage};
use driftq_inspect::PayloadReader;
use driftq_server::wal::{WalCommand, run_to};

pub const LOG_ID: LogId = LogId([7; 16]);

pub fn config(snapshot_every_bytes: u64) -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 16 << 10,
        reserve_bytes: 1 << 10,
        snapshot_every_bytes,
        slice_bytes: 4 << 10,
        snapshot_every_segments: usize::MAX,
        rest_after: None,
        ..PipelineConfig::default()
    }
}

/// A broker on a folder, with a clock that tests set.
pub struct Broker {
    pub pipeline: Pipeline,
    storage: FileStorage,
    pub now: Timestamp,
}

impl Broker {
    pub fn open(dir: &Path, snapshot_every_bytes: u64, now: u64) -> Self {
        let mut storage = DataFolder::open(dir).unwrap().storage();
        let now = Timestamp(now);
        let config = config(snapshot_every_bytes);
        let (pipeline, _) = OpenOptions::new().config(config).create(LOG_ID).open(&mut storage, now).unwrap();
        let mut broker = Self { pipeline, storage, now };
        broker.settle();
        broker
    }

    pub fn settle(&mut self) -> Vec<Output> {
        let mut outputs = Vec::new();
        for _ in 0..3 {
            self.pipeline.drive(self.now, &mut self.storage);
            outputs.extend(std::iter::from_fn(|| self.pipeline.poll_output()));
            self.pipeline.handle_timeout(self.now);
        }
        assert_eq!(self.pipeline.failure(), None);
        outputs
    }

    pub fn ask(&mut self, command: Command) -> Vec<Output> {
        self.now = self.now.after(Millis(1));
        self.pipeline.handle(self.now, command);
        self.settle()
    }

    pub fn topic(&mut self, name: &str, partitions: u32) {
        let name = TopicName::new(name).unwrap();
        self.ask(Command::CreateTopic(CreateTopic {
            name,
            partitions: Some(partitions),
            retention: Retention::default(),
        }));
    }

    pub fn produce(&mut self, topic: &str, number: u64) {
        let value = format!("{topic} {number} {}", "x".repeat(150));
        let topic = TopicName::new(topic).unwrap();
        let outputs = self.ask(Command::Produce(Box::new(Produce::new(topic, format!("key-{number}"), value))));
        assert!(outputs.iter().any(|output| matches!(output, Output::Reply { result: Ok(_), .. })), "{outputs:?}");
    }

    /// Delivers `count` messages to a consumer, which acks those with an even offset. Returns their offsets.
    pub fn consume(&mut self, topic: &str, count: u64) -> Vec<u64> {
        let (topic, group) = (TopicName::new(topic).unwrap(), GroupName::new("g").unwrap());
        let owner = OwnerName::new("w").unwrap();
        let outputs = self.ask(Command::Subscribe(Subscribe {
            topic: topic.clone(),
            group: group.clone(),
            owner: owner.clone(),
            lease: Some(Millis(1_000_000)),
            prefetch: 100,
            deliveries_max: Some(count),
            start: GroupStart::Earliest,
            on_disconnect: OnDisconnect::Keep,
            group_lifetime: GroupLifetime::Durable,
        }));
        let mut delivered = Vec::new();
        for output in outputs {
            let Output::Deliver { delivery, .. } = output else { continue };
            delivered.push(delivery.offset.0);
            if delivery.offset.0.is_multiple_of(2) {
                self.ask(Command::Ack(Ack(Claim {
                    topic: topic.clone(),
                    group: group.clone(),
                    partition: delivery.partition,
                    offset: delivery.offset,
                    owner: owner.clone(),
                    token: TokenClaim::Shown(delivery.token),
                })));
            }
        }
        delivered
    }
}

/// Makes a log of three boots and several segments, with snapshots unless `snapshot_every_bytes` is high.
pub fn make_log(dir: &Path, snapshot_every_bytes: u64) {
    for boot in 0..3 {
        let mut broker = Broker::open(dir, snapshot_every_bytes, 1_000_000 * (boot + 1));
        if boot == 0 {
            broker.topic("one", 1);
            broker.topic("many", 3);
        }
        for number in 0..30 {
            broker.produce("one", boot * 100 + number);
            broker.produce("many", boot * 100 + number);
            if number % 10 == 5 {
                broker.consume("one", 4);
                broker.consume("many", 4);
            }
        }
    }
}

/// A folder in memory if the system has one, so that hundreds of starts do not wait for the syncs of a disk.
pub fn memory_dir() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// A log of one topic and three boots, each of which ends with a synced mark: nothing is acked, every message is
/// proven synced.
pub fn plain_log(snapshot_every_bytes: u64) -> tempfile::TempDir {
    let dir = memory_dir();
    for boot in 0..3 {
        let mut broker = Broker::open(dir.path(), snapshot_every_bytes, 1_000_000 * (boot + 1));
        if boot == 0 {
            broker.topic("one", 1);
        }
        (0..30).for_each(|number| broker.produce("one", boot * 30 + number));
        broker.now = broker.now.after(Millis(200));
        broker.settle();
    }
    dir
}

/// A message and the bytes of its frame.
#[derive(Clone, Debug)]
pub struct StoredMessage {
    pub file: FileId,
    pub start: usize,
    pub end: usize,
    pub number: FrameNumber,
    pub offset: u64,
    pub value: String,
}

/// Every message in the segments, in order.
pub fn produced(dir: &Path) -> Vec<StoredMessage> {
    let mut messages = Vec::new();
    for file in segments(dir) {
        let bytes = fs::read(path(dir, file)).unwrap();
        let Ok(header) = SegmentHeader::decode(&bytes) else { continue };
        let mut reader = SegmentReader::new(&header, &bytes);
        while let Some(frame) = reader.next() {
            let record = codec::decode(frame.head.kind, frame.head.version, frame.payload);
            let Ok(Record { event: Event::Produced { offset, body, .. }, .. }) = record else { continue };
            let (end, number) = (reader.position(), frame.head.number);
            let value = String::from_utf8(body.value().to_vec()).unwrap();
            messages.push(StoredMessage { file, start: end - frame.size(), end, number, offset: offset.0, value });
        }
    }
    messages
}

/// A folder with such a log.
pub fn log() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    make_log(dir.path(), u64::MAX);
    dir
}

pub fn log_with_snapshots() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    make_log(dir.path(), 12 << 10);
    dir
}

pub fn copy(from: &Path) -> tempfile::TempDir {
    copy_into(memory_dir(), from)
}

pub fn copy_into(to: tempfile::TempDir, from: &Path) -> tempfile::TempDir {
    for (name, bytes) in files(from) {
        fs::write(to.path().join(name), bytes).unwrap();
    }
    to
}

pub fn path(dir: &Path, file: FileId) -> PathBuf {
    dir.join(file.to_string())
}

/// Every file directly in the folder but the lock.
pub fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file() && entry.file_name() != "lock");
    files.map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())).collect()
}

pub fn ids(dir: &Path) -> Vec<FileId> {
    let mut ids: Vec<_> = files(dir).keys().filter_map(|name| name.parse().ok()).collect();
    ids.sort();
    ids
}

pub fn segments(dir: &Path) -> Vec<FileId> {
    ids(dir).into_iter().filter(|file| matches!(file, FileId::Segment(_))).collect()
}

pub fn snapshots(dir: &Path) -> Vec<FileId> {
    ids(dir).into_iter().filter(|file| matches!(file, FileId::Snapshot(_))).collect()
}

pub fn edit(dir: &Path, file: FileId, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path(dir, file)).unwrap();
    change(&mut bytes);
    fs::write(path(dir, file), bytes).unwrap();
}

pub fn flip(dir: &Path, file: FileId, byte: usize) {
    edit(dir, file, |bytes| bytes[byte] ^= 4);
}

/// The first byte, number and kind of each frame of a segment. Empty for a segment without a header.
pub fn frames(dir: &Path, file: FileId) -> Vec<(usize, FrameNumber, u8)> {
    let bytes = fs::read(path(dir, file)).unwrap();
    let Ok(header) = SegmentHeader::decode(&bytes) else { return Vec::new() };
    let mut reader = SegmentReader::new(&header, &bytes);
    let mut found = Vec::new();
    while let Some(Frame { head, payload, .. }) = reader.next() {
        found.push((reader.position() - 30 - payload.len(), head.number, head.kind));
    }
    found
}

/// Writes frames after the last one of the last segment in use.
pub fn append(dir: &Path, write: impl FnOnce(&mut FrameChain, &mut Vec<u8>)) {
    let file = *segments(dir).iter().rfind(|file| !frames(dir, **file).is_empty()).unwrap();
    edit(dir, file, |bytes| {
        let header = SegmentHeader::decode(bytes).unwrap();
        let mut reader = SegmentReader::new(&header, bytes);
        while reader.next().is_some() {}
        let mut chain = FrameChain::new(header.seed(), reader.log_position(), reader.last_crc());
        let (position, mut more) = (reader.position(), Vec::new());
        write(&mut chain, &mut more);
        bytes[position..position + more.len()].copy_from_slice(&more);
    });
}

/// A stored message: topic, partition, offset and value.
pub type ReadMessage = (String, u32, u64, Vec<u8>);

/// A state, and its messages with their bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadState {
    state: State,
    messages: BTreeSet<ReadMessage>,
}

impl std::ops::Deref for ReadState {
    type Target = State;

    fn deref(&self) -> &State {
        &self.state
    }
}

/// The state of the log, with every message as it is delivered; those without their payloads are left out.
pub fn state(dir: &Path) -> ReadState {
    let mut storage = DataFolder::open(dir).unwrap().storage();
    let (state, recovered) = inspect(&mut storage, None).unwrap();
    let mut payloads = PayloadReader::new(&mut storage, &recovered);
    let mut messages = BTreeSet::new();
    for topic in state.topics() {
        for (id, partition) in topic.partitions() {
            for (_, message) in partition.messages().filter(|(_, message)| !message.payload.id.is_lost()) {
                let body = message.body(&payloads.read(message.payload.id).unwrap());
                messages.insert((topic.name().to_string(), id.0, message.offset.0, body.value().to_vec()));
            }
        }
    }
    ReadState { state, messages }
}

/// Every stored message.
pub fn messages(state: &ReadState) -> BTreeSet<ReadMessage> {
    state.messages.clone()
}

/// The segments to which the newest snapshot refers.
pub fn referred(dir: &Path) -> Vec<ReferredSegment> {
    let FileId::Snapshot(newest) = *snapshots(dir).last().unwrap() else { unreachable!("not a snapshot") };
    let mut storage = DataFolder::open(dir).unwrap().storage();
    read_snapshot(&mut storage, newest, &mut Vec::new(), |_, _, _| Ok::<(), ()>(())).unwrap().1
}

/// Runs a command; exit code and output.
pub fn run(command: &WalCommand) -> (u8, String) {
    let mut out = Vec::new();
    let code = run_to(command, &mut out).unwrap_or_else(|error| {
        out.extend_from_slice(error.to_string().as_bytes());
        2
    });
    (code, String::from_utf8(out).unwrap())
}

pub fn verify(dir: &Path) -> (u8, String) {
    run(&WalCommand::Verify { dir: dir.to_owned() })
}

pub fn salvage(dir: &Path, accept_loss: bool) -> (u8, String) {
    run(&WalCommand::Salvage { dir: dir.to_owned(), accept_loss })
}

pub fn quarantine(dir: &Path) -> PathBuf {
    let mut found = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("quarantine-"));
    let quarantine = found.next().expect("a quarantine folder");
    assert_eq!(found.next(), None);
    quarantine
}

/// Salvages a damaged folder, first as a dry run, and checks what holds for every salvage. Returns the output and the
/// new state.
pub fn salvage_checked(dir: &Path) -> (String, ReadState) {
    let before = files(dir);
    let (code, text) = salvage(dir, false);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("nothing was changed"), "{text}");
    assert_eq!(files(dir), before);
    assert_eq!(fs::read_dir(dir).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()).count(), 0);

    let (code, text) = salvage(dir, true);
    assert_eq!(code, if text.contains("\nlost: ") { 3 } else { 0 }, "{text}");
    let after = files(dir);
    let (stayed, gone): (BTreeMap<_, _>, BTreeMap<_, _>) =
        before.into_iter().partition(|(name, _)| after.contains_key(name));
    assert!(stayed.iter().all(|(name, bytes)| after[name] == *bytes), "what stays in place is unchanged");
    let listed: BTreeSet<String> = referred(dir).iter().map(|segment| segment.file().to_string()).collect();
    assert!(stayed.keys().all(|name| listed.contains(name)), "only what the new snapshots refer to stays in place");
    assert_eq!(files(&quarantine(dir)), gone, "every other old file is in quarantine, unchanged");
    assert!(!dir.join("salvage-tmp").exists());
    let (code, verified) = verify(dir);
    assert_eq!(code, 0, "{verified}");
    let (code, again) = salvage(dir, true);
    assert_eq!((code, again.contains("nothing to do")), (0, true), "{again}");
    let salvaged = state(dir);
    salvaged.check().unwrap();
    // A broker can continue on it.
    let mut broker = Broker::open(dir, u64::MAX, 9_000_000_000);
    broker.topic("new", 1);
    broker.produce("new", 1);
    drop(broker);
    assert_eq!(verify(dir).0, 0);
    (text, salvaged)
}
