//! The golden log of the core, from which the targets that read log files start. It contains every kind of record and
//! every part of a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, LogId, Malformed, MemoryStorage, Replay, SegmentHeader, SegmentReader, recover};
use driftq_core::record::Event;
use driftq_core::state::{State, Topic};
use driftq_core::types::{Body, FrameNumber, Lsn, PayloadId, TopicId, TopicName};

macro_rules! golden {
    ($($name:literal)*) => {
        &[$(($name, include_bytes!(concat!("../../core/tests/golden/v2/", $name)))),*]
    };
}

const FILES: &[(&str, &[u8])] = golden! {
    "wal-00000000000000000001.seg"
    "wal-00000000000000000002.seg"
    "wal-00000000000000000003.seg"
    "wal-00000000000000000004.seg"
    "wal-00000000000000000005.seg"
    "wal-00000000000000000006.seg"
    "wal-00000000000000000007.seg"
    "wal-00000000000000000008.seg"
    "wal-00000000000000000009.seg"
    "snap-00000000000000000130.snap"
};

/// A message with its position in the log's topics.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredMessage {
    topic: String,
    partition: u32,
    offset: u64,
    value: Vec<u8>,
}

/// The position of a frame in a segment, and the number of the frame that it states to be synced.
#[derive(Clone, Copy, Debug)]
struct FrameLocation {
    file: FileId,
    start: usize,
    end: usize,
    synced: FrameNumber,
}

/// The golden log and its history.
#[derive(Debug)]
pub(crate) struct GoldenLog {
    pub(crate) files: Vec<(FileId, Vec<u8>)>,
    pub(crate) log_id: LogId,
    frames: Vec<FrameLocation>,
    /// The digest of the state after each LSN.
    pub(crate) digests: BTreeMap<Lsn, u64>,
    /// Every message that any of these states held, or that was acked by its own record.
    pub(crate) messages: BTreeSet<StoredMessage>,
    /// The name of every topic that any of these states held.
    pub(crate) topic_names: BTreeMap<TopicId, TopicName>,
}

static GOLDEN: LazyLock<GoldenLog> = LazyLock::new(GoldenLog::read);

impl GoldenLog {
    /// The golden log. It is decoded once per process.
    pub(crate) fn get() -> &'static Self {
        &GOLDEN
    }

    fn read() -> Self {
        let parse = |name: &str| name.parse().expect("golden files have names of log files");
        let files: Vec<(FileId, Vec<u8>)> = FILES.iter().map(|(name, bytes)| (parse(name), bytes.to_vec())).collect();
        let mut frames = Vec::new();
        let mut storage = MemoryStorage::new();
        let mut log_id = LogId([0; 16]);
        for (file, bytes) in files.iter().filter(|(file, _)| is_segment(*file)) {
            let header = SegmentHeader::decode(bytes).expect("golden segments have valid headers");
            log_id = header.log_id;
            let mut reader = SegmentReader::new(&header, bytes);
            while let Some(frame) = reader.next() {
                let (synced, end) = (frame.head.synced, reader.position());
                frames.push(FrameLocation { file: *file, start: end - frame.size(), end, synced });
            }
            storage.put_file(*file, bytes.clone());
        }
        let mut history = HistoryReplay::default();
        recover(&mut storage, None, &mut history).expect("the golden log is undamaged");
        let HistoryReplay { digests, messages, topic_names, .. } = history;
        Self { files, log_id, frames, digests, messages, topic_names }
    }

    /// The segments, oldest first.
    pub(crate) fn segments(&self) -> Vec<&(FileId, Vec<u8>)> {
        self.files.iter().filter(|(file, _)| is_segment(*file)).collect()
    }

    /// The highest frame number that is proven synced by the frames and snapshot names which are unchanged in
    /// `storage`.
    pub(crate) fn proven_frame(&self, storage: &MemoryStorage) -> FrameNumber {
        let original = |file: FileId| self.files.iter().find(|(name, _)| *name == file).map(|(_, bytes)| bytes);
        let unchanged = self.frames.iter().filter(|frame| {
            let current = storage.bytes(frame.file).and_then(|bytes| bytes.get(frame.start..frame.end));
            current == original(frame.file).map(|bytes| &bytes[frame.start..frame.end])
        });
        let snapshots = self.files.iter().filter_map(|(file, _)| match file {
            FileId::Snapshot(frame) if storage.bytes(*file).is_some() => Some(*frame),
            _ => None,
        });
        unchanged.map(|frame| frame.synced).chain(snapshots).max().unwrap_or_default()
    }
}

pub(crate) fn is_segment(file: FileId) -> bool {
    matches!(file, FileId::Segment(_))
}

/// The messages that a state holds, with these names of their topics and these payloads.
pub(crate) fn stored_messages<'s>(
    state: &'s State,
    name: impl Fn(&'s Topic) -> &'s TopicName,
    mut payload: impl FnMut(PayloadId) -> Body,
) -> BTreeSet<StoredMessage> {
    let mut messages = BTreeSet::new();
    for topic in state.topics() {
        for (id, partition) in topic.partitions() {
            for (_, message) in partition.messages().filter(|(_, message)| !message.payload.id.is_lost()) {
                messages.insert(StoredMessage {
                    topic: name(topic).to_string(),
                    partition: id.0,
                    offset: message.offset.0,
                    value: message.body(&payload(message.payload.id)).value().to_vec(),
                });
            }
        }
    }
    messages
}

/// Replays a log and collects the digest of every state and every message.
struct HistoryReplay {
    state: State,
    digests: BTreeMap<Lsn, u64>,
    messages: BTreeSet<StoredMessage>,
    topic_names: BTreeMap<TopicId, TopicName>,
    payloads: BTreeMap<PayloadId, Body>,
}

impl Default for HistoryReplay {
    fn default() -> Self {
        let state = State::default();
        let digests = BTreeMap::from([(Lsn(0), state.digest())]);
        let (messages, topic_names, payloads) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
        Self { state, digests, messages, topic_names, payloads }
    }
}

impl Replay for HistoryReplay {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
        Err(Malformed::new("the golden history is replayed without snapshots"))
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        let applied = self.state.apply(&record);
        applied.map_err(|error| Malformed::new(error.to_string()))?;
        self.digests.insert(lsn, self.state.digest());
        let bodies = record.event.bodies().map(|(part, body)| (PayloadId { lsn, part }, body));
        self.payloads.extend(bodies);
        self.messages.extend(stored_messages(&self.state, |topic| topic.name(), |id| self.payloads[&id].clone()));
        self.topic_names.extend(self.state.topics().map(|topic| (topic.id(), topic.name().clone())));
        // A message that is acked by its own record is in no state; a salvage that lost the reason keeps it.
        if let Event::Produced { topic, partition, offset, body, .. } = &record.event
            && let Some(topic) = self.state.topic(*topic)
        {
            let topic = topic.name().to_string();
            self.messages.insert(StoredMessage {
                topic,
                partition: partition.0,
                offset: offset.0,
                value: body.value().to_vec(),
            });
        }
        Ok(())
    }
}
