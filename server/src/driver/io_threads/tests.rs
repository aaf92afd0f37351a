//! Reads on their threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use driftq_core::command::{CreateTopic, Peek, Produce};
use driftq_core::log::{FileId, FileInfo, LogId, MemoryStorage, Storage, StorageFault, WriteAt};
use driftq_core::types::{Offset, PartitionId, Retention, Timestamp, TopicName};
use driftq_core::{Command, OpenOptions, Output, Pipeline, PipelineConfig, ReadJob, Reply};
use tokio::sync::Notify;

use super::{CompletedRead, IoThreads, Use};
use crate::driver::wake::Wake;

const NOW: Timestamp = Timestamp(1_000);

/// A storage whose reads have these results first, and wait for `gate` if there is one.
#[derive(Clone)]
struct Faulty {
    inner: MemoryStorage,
    faults: Arc<Mutex<Vec<StorageFault>>>,
    gate: Option<Arc<Mutex<Receiver<()>>>>,
}

impl Storage for Faulty {
    fn read(&mut self, file: FileId, position: u64, buffer: &mut [u8]) -> Result<usize, StorageFault> {
        if let Some(gate) = &self.gate {
            // An error means that the gate is open for good.
            let _ = gate.lock().expect("not poisoned").recv();
        }
        let fault = self.faults.lock().expect("not poisoned").pop();
        match fault {
            Some(StorageFault::Io(text)) if text == "panic" => panic!("a storage that panics"),
            Some(fault) => Err(fault),
            None => self.inner.read(file, position, buffer),
        }
    }

    fn create(&mut self, file: FileId, capacity: u64) -> Result<(), StorageFault> {
        self.inner.create(file, capacity)
    }

    fn append(&mut self, file: FileId, at: WriteAt, bytes: &[u8]) -> Result<(), StorageFault> {
        self.inner.append(file, at, bytes)
    }

    fn sync(&mut self, file: FileId) -> Result<(), StorageFault> {
        self.inner.sync(file)
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

fn topic() -> TopicName {
    TopicName::new("t").expect("a name")
}

/// A pipeline with one message that is not in memory and for which a peek waits, the read that it asks for, and its
/// storage.
fn with_read(faults: Vec<StorageFault>) -> (Pipeline, ReadJob, Faulty) {
    let mut storage = MemoryStorage::new();
    let config = PipelineConfig { memory_bytes: 0, ..PipelineConfig::default() };
    let options = OpenOptions::new().config(config).create(LogId([7; 16]));
    let (mut pipeline, _) = options.open(&mut storage, NOW).expect("opens");
    let create = CreateTopic { name: topic(), partitions: Some(1), retention: Retention::default() };
    pipeline.handle(NOW, Command::CreateTopic(create));
    pipeline.handle(NOW, Command::Produce(Box::new(Produce::new(topic(), "key", "value"))));
    pipeline.drive(NOW, &mut storage);
    while pipeline.poll_output().is_some() {}
    pipeline
        .handle(NOW, Command::Peek(Peek { topic: topic(), partition: PartitionId(0), offset: Offset(0), limit: 1 }));
    assert!(pipeline.poll_output().is_none(), "the peek waits for the bytes of its message");
    let read = pipeline.poll_read().expect("a read");
    (pipeline, read, Faulty { inner: storage, faults: Arc::new(Mutex::new(faults)), gate: None })
}

fn completed(threads: &IoThreads) -> CompletedRead {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(done) = threads.poll_completed_read() {
            return done;
        }
        assert!(Instant::now() < end, "the read does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn start(storage: &Faulty) -> IoThreads {
    IoThreads::start(|_: Use| storage.clone(), &Wake::Reactor(Arc::new(Notify::new()))).expect("threads start")
}

#[test]
fn read_without_descriptor_is_tried_again_until_there_is_one() {
    let (mut pipeline, read, storage) = with_read(vec![StorageFault::NoDescriptor; 4]);
    let threads = start(&storage);
    threads.read(read);
    let done = completed(&threads);
    pipeline.complete_read(NOW, &done.job, done.result);
    assert_eq!(pipeline.failure(), None);
    let Some(Output::Reply { result: Ok(Reply::Peeked(peeked)), .. }) = pipeline.poll_output() else {
        panic!("the peek is answered")
    };
    assert_eq!(peeked[0].body.value(), b"value");
    assert_eq!(storage.faults.lock().expect("not poisoned").len(), 0);
}

#[test]
fn failed_read_and_panic_of_the_storage_are_reported() {
    for fault in [StorageFault::Io("a bad sector".to_owned()), StorageFault::Io("panic".to_owned())] {
        let (_, read, storage) = with_read(vec![fault]);
        let threads = start(&storage);
        threads.read(read.clone());
        assert!(matches!(completed(&threads).result, Err(StorageFault::Io(_))));
        threads.read(read);
        assert!(completed(&threads).result.is_ok(), "the threads go on");
    }
}

#[test]
fn read_under_way_does_not_hold_up_a_stop() {
    let (_, read, mut storage) = with_read(Vec::new());
    let (open, gate): (Sender<()>, _) = channel();
    storage.gate = Some(Arc::new(Mutex::new(gate)));
    let threads = start(&storage);
    threads.read(read);
    let began = Instant::now();
    drop(threads);
    assert!(began.elapsed() < Duration::from_secs(5), "a stop does not wait for the disk");
    drop(open);
    // The threads end when the disk answers: the storages that they held are dropped.
    let end = Instant::now() + Duration::from_secs(30);
    while Arc::strong_count(&storage.faults) > 1 {
        assert!(Instant::now() < end, "the threads do not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}
