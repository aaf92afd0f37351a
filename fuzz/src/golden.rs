//! A good log to begin with: the golden files of the core, in which every kind of record and every piece of a snapshot stands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use driftq_core::codec::record as codec;
use driftq_core::log::{FileId, LogId, Malformed, MemoryStorage, Replay, SegmentHeader, SegmentReader, recover};
use driftq_core::state::State;
use driftq_core::types::Lsn;

macro_rules! golden {
    ($($name:literal)*) => {
        &[$(($name, include_bytes!(concat!("../../core/tests/golden/v1/", $name)))),*]
    };
}

const FILES: &[(&str, &[u8])] = golden! {
    "wal-00000000000000000001.seg"
    "wal-00000000000000000002.seg"
    "wal-00000000000000000003.seg"
    "wal-00000000000000000004.seg"
    "wal-00000000000000000005.seg"
    "wal-00000000000000000006.seg"
    "snap-00000000000000000101.snap"
};

/// A message, wherever it is or was: topic, partition, offset, value.
pub(crate) type Message = (String, u32, u64, Vec<u8>);

/// A frame that stands in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) file: FileId,
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) synced: Lsn,
}

/// The log, and what is known of it.
#[derive(Debug)]
pub struct Golden {
    /// Its files.
    pub files: Vec<(FileId, Vec<u8>)>,
    /// Whose it is.
    pub log_id: LogId,
    pub(crate) frames: Vec<Placed>,
    /// The digest of the state after each LSN.
    pub(crate) history: BTreeMap<Lsn, u64>,
    /// Every message that ever was.
    pub(crate) messages: BTreeSet<Message>,
}

static GOLDEN: LazyLock<Golden> = LazyLock::new(Golden::read);

impl Golden {
    /// The log. It is read once.
    #[must_use]
    pub fn log() -> &'static Self {
        &GOLDEN
    }

    fn read() -> Self {
        let name = |name: &str| name.parse().expect("the golden files have names of the log");
        let files: Vec<(FileId, Vec<u8>)> = FILES.iter().map(|(file, bytes)| (name(file), bytes.to_vec())).collect();
        let mut frames = Vec::new();
        let mut storage = MemoryStorage::new();
        let mut log_id = LogId([0; 16]);
        for (file, bytes) in files.iter().filter(|(file, _)| matches!(file, FileId::Segment(_))) {
            let header = SegmentHeader::decode(bytes).expect("the golden files are whole");
            log_id = header.log_id;
            let mut reader = SegmentReader::new(&header, bytes);
            while let Some(frame) = reader.next() {
                let (synced, end) = (frame.head.synced, reader.position());
                frames.push(Placed { file: *file, start: end - frame.size(), end, synced });
            }
            storage.put_file(*file, bytes.clone());
        }
        let mut tale = Tale::default();
        let recovered = recover(&mut storage, None, &mut tale).expect("the golden files are whole");
        // Marks and footers have numbers and change nothing.
        let mut history = BTreeMap::from([(Lsn(0), State::default().digest())]);
        let mut digest = State::default().digest();
        for lsn in 1..=recovered.last_lsn.0 {
            digest = tale.digests.get(&Lsn(lsn)).copied().unwrap_or(digest);
            history.insert(Lsn(lsn), digest);
        }
        Self { files, log_id, frames, history, messages: tale.messages }
    }

    /// The highest LSN that frames and names which are still as they were prove to be synced.
    pub(crate) fn proven(&self, storage: &MemoryStorage) -> Lsn {
        let before = |file: FileId| self.files.iter().find(|(known, _)| *known == file).map(|(_, bytes)| bytes);
        let intact = self.frames.iter().filter(|frame| {
            let now = storage.bytes(frame.file).and_then(|bytes| bytes.get(frame.start..frame.end));
            now == before(frame.file).map(|bytes| &bytes[frame.start..frame.end])
        });
        let names = self.files.iter().filter_map(|(file, _)| match file {
            FileId::Snapshot(lsn) if storage.bytes(*file).is_some() => Some(*lsn),
            _ => None,
        });
        intact.map(|frame| frame.synced).chain(names).max().unwrap_or_default()
    }
}

/// The messages that a state holds.
pub(crate) fn messages(state: &State) -> BTreeSet<Message> {
    let mut messages = BTreeSet::new();
    for topic in state.topics() {
        for (partition, holds) in topic.partitions() {
            for (_, message) in holds.messages() {
                let value = message.body.value().to_vec();
                messages.insert((topic.name().to_string(), partition.0, message.offset.0, value));
            }
        }
    }
    messages
}

/// Follows a log from record to record.
#[derive(Default)]
struct Tale {
    state: State,
    digests: BTreeMap<Lsn, u64>,
    messages: BTreeSet<Message>,
}

impl Replay for Tale {
    fn reset(&mut self) {
        *self = Self::default();
    }

    fn restore(&mut self, _kind: u8, _version: u8, _payload: &[u8]) -> Result<(), Malformed> {
        Err(Malformed::new("the log is read without its snapshots"))
    }

    fn replay(&mut self, lsn: Lsn, kind: u8, version: u8, payload: &[u8]) -> Result<(), Malformed> {
        let record = codec::decode(kind, version, payload).map_err(|error| Malformed::new(error.to_string()))?;
        let applied = self.state.apply(&record);
        applied.map_err(|error| Malformed::new(error.to_string()))?;
        self.digests.insert(lsn, self.state.digest());
        self.messages.extend(messages(&self.state));
        Ok(())
    }
}
