//! Logs and snapshots with valid checksums and invalid contents: refused, or a state that works; never a panic.

use driftq_core::OpenOptions;

use driftq_core::command::{
    Ack, DeleteGroup, DeleteTopic, DescribeTopic, Finish, Forget, Lookup, Nack, Peek, Reacquire, Redrive, Release,
    Renew, Resume, Retry, Seek,
};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use driftq_core::codec::record as codec;
use driftq_core::command::{
    Begin, Claim, Complete, DeliveryClaim, GroupLifetime, OnDisconnect, Produce, RedriveSelection, SeekTo,
    StoreCommand, Subscribe, TokenClaim,
};
use driftq_core::log::{
    FileId, FileInfo, LogId, LogPosition, MemoryStorage, RecoveryError, SegmentHeader, SnapshotHead, SnapshotWriter,
    Storage, read_snapshot,
};
use driftq_core::pipeline::{OpenError, inspect};
use driftq_core::record::Record;
use driftq_core::types::{EffectStatus, GroupStart, Identity, Outcome, Scope, *};
use driftq_core::{Command, Output, Pipeline, PipelineConfig};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::arbitrary;
use super::random_traffic::{self, Snapshot, random_traffic};
use super::runner::run_cases;
use super::scenario::{ReadLog, scenario_log, without_snapshots};

/// The newest snapshot of a log and its images.
pub fn snapshot_of(storage: &MemoryStorage) -> Option<(SnapshotHead, Vec<Record>)> {
    let mut storage = storage.clone();
    let files = storage.list().expect("lists").into_iter();
    let number = |info: FileInfo| if let FileId::Snapshot(number) = info.file { Some(number) } else { None };
    let number = files.filter_map(number).max()?;
    let mut images = Vec::new();
    let each = |kind, version, payload: &[u8]| codec::decode(kind, version, payload).map(|image| images.push(image));
    let (head, _) = read_snapshot(&mut storage, number, &mut Vec::new(), each).ok()?;
    Some((head, images))
}

/// The log with its newest snapshot rewritten from these images; it refers to the same segments.
pub fn with_snapshot(storage: &MemoryStorage, head: &SnapshotHead, images: &[Record]) -> MemoryStorage {
    let (mut storage, mut bytes) = (storage.clone(), Vec::new());
    let read = read_snapshot(&mut storage, head.at.frame, &mut Vec::new(), |_, _, _| Ok::<(), ()>(()));
    let (_, segments) = read.expect("the snapshot is intact");
    let mut writer = SnapshotWriter::begin(head, &mut bytes);
    for image in images {
        let kind = codec::kind(&image.event);
        writer.record(&mut bytes, kind, codec::VERSION, |out| codec::encode(image, out)).expect("fits");
    }
    writer.finish(&segments, &mut bytes);
    storage.take_file(head.file());
    storage.put_file(head.file(), bytes);
    storage
}

/// A log of exactly these records.
pub fn with_log(records: &[Record]) -> MemoryStorage {
    let (previous, synced) = (LogPosition::default(), FrameNumber(0));
    let header = SegmentHeader { log_id: LogId([9; 16]), sequence: 1, previous, previous_crc: 0, synced, capacity: 0 };
    let (mut bytes, mut chain) = (header.encode(), header.chain());
    for record in records {
        let kind = codec::kind(&record.event);
        let written = chain.record(&mut bytes, synced, kind, codec::VERSION, |out| codec::encode(record, out));
        written.expect("fits");
    }
    let mut storage = MemoryStorage::new();
    storage.put_file(header.file(), bytes);
    storage
}

/// A pipeline over a forged log that receives every command.
struct ForgedBroker {
    storage: MemoryStorage,
    pipeline: Pipeline,
    now: Timestamp,
    held: Vec<(ConsumerId, LeaseToken, PartitionId, Offset)>,
}

fn owner() -> OwnerName {
    OwnerName::new("w").expect("a name")
}

impl ForgedBroker {
    fn settle(&mut self) {
        for _ in 0..8 {
            if self.pipeline.poll_timeout().is_some_and(|at| at <= self.now) {
                self.pipeline.handle_timeout(self.now);
            }
            self.pipeline.drive(self.now, &mut self.storage);
            while let Some(output) = self.pipeline.poll_output() {
                if let Output::Deliver { consumer, delivery } = output {
                    self.held.push((consumer, delivery.token, delivery.partition, delivery.offset));
                }
            }
            if self.pipeline.poll_timeout().is_none_or(|at| at > self.now) {
                return;
            }
        }
    }

    fn send(&mut self, command: Command) {
        self.pipeline.handle(self.now, command);
        self.settle();
    }

    /// Sends every command for every topic and group, and lets every lease expire.
    fn send_every_command(&mut self) {
        self.settle();
        let topics: Vec<_> = self.pipeline.state().topics().map(|topic| topic.name().clone()).take(6).collect();
        for topic in &topics {
            let groups = self.pipeline.state().topic_named(topic).expect("is there").groups();
            let mut groups: Vec<_> = groups.map(|group| group.name().clone()).take(4).collect();
            groups.push(GroupName::new("newcomer").expect("a name"));
            self.send_topic_commands(topic, &groups);
        }
        self.send_effect_commands();
        for topic in topics.into_iter().step_by(2) {
            self.send(Command::DeleteTopic(DeleteTopic { name: topic }));
        }
        self.now = self.now.after(Millis(10 * 86_400_000));
        self.settle();
        self.send_effect_commands();
    }

    /// Sends every effect command for stored effects and for an unknown one.
    fn send_effect_commands(&mut self) {
        let store = self.pipeline.state().store();
        let known = store.tables().flat_map(|(namespace, table)| {
            let effects = table.effects().take(8).map(|(key, effect)| (namespace.identity(key), effect.token));
            effects.collect::<Vec<_>>()
        });
        let unknown = (Identity::new("", Scope::Tenant, "never seen"), None);
        for (nth, (identity, token)) in known.chain([unknown]).collect::<Vec<_>>().into_iter().enumerate() {
            let token = token.map_or(TokenClaim::Absent, TokenClaim::Shown);
            let status = EffectStatus::ALL[1 + nth % 3];
            let outcome = Outcome { status, response_code: 1, result: Some("1".into()), last_error: "".into() };
            for request in [
                StoreCommand::Begin(Begin::new(identity.clone(), owner())),
                StoreCommand::Renew(Renew { identity: identity.clone(), token, lease: None }),
                StoreCommand::Finish(Finish { identity: identity.clone(), token, outcome, dead_letter: None }),
                StoreCommand::Reacquire(Reacquire { identity: identity.clone(), owner: owner(), lease: None }),
                StoreCommand::Lookup(Lookup { identity: identity.clone() }),
            ] {
                self.send(Command::Store(Box::new(request)));
            }
            if nth % 4 == 3 {
                self.send(Command::Store(Box::new(StoreCommand::Forget(Forget { identity }))));
            }
        }
    }

    fn send_topic_commands(&mut self, topic: &TopicName, groups: &[GroupName]) {
        let partitions = self.pipeline.state().topic_named(topic).expect("is there").partition_count().min(3);
        self.send(Command::DescribeTopic(DescribeTopic { name: topic.clone() }));
        for partition in (0..partitions).map(PartitionId) {
            let (offset, limit) = (Offset(0), 100);
            self.send(Command::Peek(Peek { topic: topic.clone(), partition, offset, limit }));
        }
        for group in groups {
            let request = Subscribe {
                topic: topic.clone(),
                group: group.clone(),
                owner: owner(),
                lease: Some(Millis(1_000)),
                prefetch: 100,
                deliveries_max: None,
                start: GroupStart::Earliest,
                on_disconnect: OnDisconnect::Release,
                group_lifetime: GroupLifetime::Durable,
            };
            self.send(Command::Resume(Resume { topic: topic.clone(), group: group.clone() }));
            self.send(Command::Subscribe(request));
            for (nth, (_, token, partition, offset)) in std::mem::take(&mut self.held).into_iter().enumerate() {
                let (topic, group, token) = (topic.clone(), group.clone(), TokenClaim::Shown(token));
                let claim = Claim { topic, group, partition, offset, owner: owner(), token };
                let scope = Scope::Consume { topic: claim.topic.clone(), group: claim.group.clone() };
                let mut begin = Begin::new(Identity::new("", scope, "effect-1"), owner());
                begin.delivery = Some(DeliveryClaim { partition, offset, token });
                self.send(Command::Store(Box::new(StoreCommand::Begin(begin))));
                self.send(match nth % 4 {
                    0 => Command::Ack(Ack(claim)),
                    1 => Command::Nack(Nack { claim, reason: "no".into(), retry: Retry::ByPolicy }),
                    2 => Command::Release(Release(claim)),
                    _ => {
                        let produce = vec![Produce::new(claim.topic.clone(), "k", "output")];
                        Command::Complete(Box::new(Complete { claim, result: Some("1".into()), produce, failed: None }))
                    }
                });
            }
        }
        self.send(Command::Produce(Box::new(Produce::new(topic.clone(), "k", "one more"))));
        self.send(Command::Redrive(Redrive { topic: topic.clone(), which: RedriveSelection::All, limit: 100 }));
        self.now = self.now.after(Millis(100_000));
        self.settle();
        for (nth, group) in groups.iter().enumerate() {
            let (topic, group) = (topic.clone(), group.clone());
            let to = [SeekTo::Earliest, SeekTo::Offset(Offset(2)), SeekTo::Latest][nth % 3];
            self.send(Command::Seek(Seek { topic: topic.clone(), group: group.clone(), to }));
            if nth % 2 == 0 {
                self.send(Command::DeleteGroup(DeleteGroup { topic, group }));
            }
        }
    }
}

/// The recovered states that were used already, each with the payloads that it refers to: a broker that starts from
/// the same state, reads the same payloads and receives the same commands does the same.
type UsedStates = BTreeSet<(u64, u64)>;

/// Opens a forged log and uses it. If it opens, its state is consistent, stays so, and is recovered unchanged.
fn open_and_use(storage: MemoryStorage) -> Result<(), RecoveryError> {
    open_and_use_new(storage, |_| 0, &mut UsedStates::new())
}

/// Opens a forged log and uses it, unless its state is one of those `used`. `content` stands for a payload.
fn open_and_use_new(
    mut storage: MemoryStorage,
    content: impl Fn(PayloadId) -> u64,
    used: &mut UsedStates,
) -> Result<(), RecoveryError> {
    let limits = Limits { partitions_max: 8, ..Limits::production() };
    let (segment_bytes, reserve_bytes) = (1 << 16, 1 << 10);
    let config = PipelineConfig { limits, segment_bytes, reserve_bytes, rest_after: None, ..Default::default() };
    let now = Timestamp(1_700_000_100_000);
    let pipeline = match OpenOptions::new().config(config).open(&mut storage, now) {
        Ok((pipeline, _)) => pipeline,
        Err(OpenError::Recovery(error)) => return Err(error),
        Err(other) => panic!("{other}"),
    };
    assert_eq!(pipeline.state().check(), Ok(()), "the recovered state is consistent");
    if !used.insert((pipeline.state().digest(), pipeline.state().digest_by_content(content))) {
        return Ok(());
    }
    let mut broker = ForgedBroker { storage, pipeline, now, held: Vec::new() };
    broker.send_every_command();
    assert_eq!(broker.pipeline.state().check(), Ok(()), "the state stays consistent");
    if broker.pipeline.failure().is_none() {
        let (found, _) = inspect(&mut broker.storage.crash(), None).expect("recovers");
        assert_eq!(found.digest(), broker.pipeline.state().digest());
    }
    Ok(())
}

/// `record` with single bits flipped, as far as the result decodes: numbers change by one, by two, or by far.
fn altered(record: &Record) -> Vec<Record> {
    let (kind, mut bytes) = (codec::kind(&record.event), Vec::new());
    codec::encode(record, &mut bytes);
    let mut found = Vec::new();
    for bit in (0..bytes.len() * 8).filter(|bit| [0, 1, 5].contains(&(bit % 8))) {
        bytes[bit / 8] ^= 1 << (bit % 8);
        found.extend(codec::decode(kind, codec::VERSION, &bytes).ok());
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    found
}

/// Every single change to a list of records: one record altered, removed, repeated, or swapped with the next.
fn every_change(records: &[Record], mut each: impl FnMut(&[Record], &dyn Fn() -> String)) {
    for at in 0..records.len() {
        let mut changed = records.to_vec();
        for other in altered(&records[at]) {
            changed[at] = other;
            each(&changed, &|| format!("{:?} altered to {:?}", records[at], changed[at]));
        }
        let mut removed = records.to_vec();
        removed.remove(at);
        each(&removed, &|| format!("{:?} removed", records[at]));
        let mut twice = records.to_vec();
        twice.insert(at, records[at].clone());
        each(&twice, &|| format!("{:?} repeated", records[at]));
        if at + 1 < records.len() {
            let mut swapped = records.to_vec();
            swapped.swap(at, at + 1);
            each(&swapped, &|| format!("{:?} after {:?}", records[at], records[at + 1]));
        }
    }
}

/// What became of forged logs.
#[derive(Debug, Default)]
struct ForgedLogs {
    refused: usize,
    usable: usize,
    used: UsedStates,
}

impl ForgedLogs {
    /// Counts whether the log is refused or usable; panics with the change if the broker panics.
    fn open(&mut self, change: &dyn Fn() -> String, storage: MemoryStorage, content: impl Fn(PayloadId) -> u64) {
        match catch_unwind(AssertUnwindSafe(|| open_and_use_new(storage, content, &mut self.used))) {
            Ok(Ok(())) => self.usable += 1,
            Ok(Err(RecoveryError::Malformed { .. } | RecoveryError::Contradictory { .. })) => self.refused += 1,
            Ok(Err(other)) => panic!("{}: refused for another reason: {other}", change()),
            Err(_) => panic!("{}: the broker panicked", change()),
        }
    }

    /// Most are refused, some give another valid state.
    fn assert_both_kinds(&self) {
        let (refused, usable, used) = (self.refused, self.usable, self.used.len());
        println!("{refused} refused, {usable} usable, of which {used} are different states");
        assert!(refused > 1_000 && usable > 1_000 && used > 1_000, "{refused} {usable} {used}");
    }
}

#[test]
fn snapshot_with_one_record_changed_never_panics_broker() {
    let storage = scenario_log();
    let (head, images) = snapshot_of(&storage).expect("has a snapshot");
    let mut forged = ForgedLogs::default();
    // The payloads are in the segments, which are the same for all.
    every_change(&images, |images, change| forged.open(change, with_snapshot(&storage, &head, images), |_| 0));
    forged.assert_both_kinds();
}

#[test]
fn log_with_one_record_changed_never_panics_broker() {
    let records = ReadLog::from(&without_snapshots(&scenario_log())).replayed;
    let records: Vec<_> = records.into_iter().map(|(_, record, _)| record).collect();
    let mut forged = ForgedLogs::default();
    every_change(&records, |records, change| {
        // The payload with the LSN n is in record n, the first of which is 1.
        let content = |id: PayloadId| {
            let mut hash = DefaultHasher::new();
            let mut bytes = Vec::new();
            codec::encode(&records[id.lsn.0 as usize - 1], &mut bytes);
            (bytes, id.part).hash(&mut hash);
            hash.finish()
        };
        forged.open(change, with_log(records), content);
    });
    forged.assert_both_kinds();
}

/// One change to a list of records.
#[derive(Clone, Debug)]
enum Forgery {
    Alter(Index, Index),
    Remove(Index),
    Repeat(Index, Index),
    Swap(Index, Index),
    Insert(Index, Box<Record>),
}

fn forgery() -> impl Strategy<Value = Forgery> {
    let two = || (any::<Index>(), any::<Index>());
    prop_oneof![
        4 => two().prop_map(|(at, bit)| Forgery::Alter(at, bit)),
        1 => any::<Index>().prop_map(Forgery::Remove),
        1 => two().prop_map(|(from, to)| Forgery::Repeat(from, to)),
        1 => two().prop_map(|(a, b)| Forgery::Swap(a, b)),
        1 => (any::<Index>(), arbitrary::record()).prop_map(|(at, record)| Forgery::Insert(at, Box::new(record))),
    ]
}

fn forge(records: &mut Vec<Record>, forgeries: &[Forgery]) {
    for forgery in forgeries {
        let len = records.len();
        if len == 0 {
            return;
        }
        match forgery {
            Forgery::Alter(at, bit) => {
                let others = altered(&records[at.index(len)]);
                if !others.is_empty() {
                    records[at.index(len)] = others[bit.index(others.len())].clone();
                }
            }
            Forgery::Remove(at) => drop(records.remove(at.index(len))),
            Forgery::Repeat(from, to) => records.insert(to.index(len), records[from.index(len)].clone()),
            Forgery::Swap(a, b) => records.swap(a.index(len), b.index(len)),
            Forgery::Insert(at, record) => records.insert(at.index(len), (**record).clone()),
        }
    }
}

#[test]
fn randomly_forged_snapshot_never_panics_broker() {
    run_cases(1_500, (random_traffic(60), vec(forgery(), 1..4)), |(traffic, forgeries)| {
        let storage = random_traffic::written(traffic, Snapshot::Taken);
        let (head, mut images) = snapshot_of(&storage).expect("has a snapshot");
        prop_assert_eq!(open_and_use(with_snapshot(&storage, &head, &images)), Ok(()));
        forge(&mut images, forgeries);
        let _ = open_and_use(with_snapshot(&storage, &head, &images));
        Ok(())
    });
}

#[test]
fn randomly_forged_log_never_panics_broker() {
    run_cases(1_500, (random_traffic(60), vec(forgery(), 1..4)), |(traffic, forgeries)| {
        let replayed = ReadLog::from(&random_traffic::written(traffic, Snapshot::None)).replayed;
        let mut records = replayed.into_iter().map(|(_, record, _)| record).collect();
        forge(&mut records, forgeries);
        let _ = open_and_use(with_log(&records));
        Ok(())
    });
}
