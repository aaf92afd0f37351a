//! A broker on real files: rotation, snapshots, removals, restarts, and both job classes at once.

use driftq_core::OpenOptions;

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use driftq_core::command::CreateTopic;
use driftq_core::command::{Produce, Purge};
use driftq_core::log::{FileId, Storage, StorageFault};
use driftq_core::pipeline::inspect;
use driftq_core::types::{Retention, Timestamp, TopicName};
use driftq_core::{Command, Job, JobClass, Output, Pipeline, PipelineConfig};
use driftq_files::{DataFolder, FileStorage, Prepare, VolatileStorage, fresh_log_id};

const NOW: Timestamp = Timestamp(1_000_000);

fn config() -> PipelineConfig {
    PipelineConfig {
        segment_bytes: 64 << 10,
        reserve_bytes: 4 << 10,
        snapshot_every_bytes: 200 << 10,
        slice_bytes: 8 << 10,
        ..PipelineConfig::default()
    }
}

fn open(storage: &mut (impl Storage + ?Sized)) -> Pipeline {
    let new_log = Some(fresh_log_id().unwrap());
    OpenOptions::new().config(config()).create(new_log).open(storage, NOW).unwrap().0
}

fn topic() -> TopicName {
    TopicName::new("orders").unwrap()
}

fn create_topic(broker: &mut Pipeline) {
    broker.handle(
        NOW,
        Command::CreateTopic(CreateTopic { name: topic(), partitions: Some(3), retention: Retention::default() }),
    );
}

fn produce(broker: &mut Pipeline, number: usize) {
    let value = format!("{number} {}", "x".repeat(500));
    broker.handle(NOW, Command::Produce(Box::new(Produce::new(topic(), format!("key-{number}"), value))));
}

/// Takes every output and returns the number of successful replies.
fn successful_replies(broker: &mut Pipeline) -> usize {
    std::iter::from_fn(|| broker.poll_output())
        .filter(|output| matches!(output, Output::Reply { result: Ok(_), .. }))
        .count()
}

fn digest(path: &Path) -> u64 {
    let (state, recovered) = inspect(&mut DataFolder::open(path).unwrap().storage(), None).unwrap();
    assert_eq!(recovered.notices.iter().filter(|notice| !notice.to_string().contains("never begun")).count(), 0);
    state.digest()
}

/// A kind of files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Segment,
    Snapshot,
    Draft,
}

fn file_count(storage: &mut FileStorage, kind: FileKind) -> usize {
    let kind_of = |file| match file {
        FileId::Segment(_) => FileKind::Segment,
        FileId::Snapshot(_) => FileKind::Snapshot,
        FileId::SnapshotDraft(_) => FileKind::Draft,
    };
    storage.list().unwrap().iter().filter(|info| kind_of(info.file) == kind).count()
}

#[test]
fn broker_continues_through_rotations_snapshots_and_restarts() {
    for prepare in [Prepare::Zeros, Prepare::Reserve] {
        let folder = tempfile::tempdir().unwrap();
        let mut replies = 0;
        for boot in 0..4 {
            let mut storage = DataFolder::open(folder.path()).unwrap().storage().with_prepare(prepare);
            let mut broker = open(&mut storage);
            if boot == 0 {
                create_topic(&mut broker);
            }
            for number in 0..300 {
                produce(&mut broker, number);
                if number % 7 == 0 {
                    broker.drive(NOW, &mut storage);
                }
            }
            broker.drive(NOW, &mut storage);
            replies += successful_replies(&mut broker);
            assert_eq!(broker.failure(), None);
            let state = broker.state().digest();
            if boot % 2 == 0 {
                broker.close();
                broker.drive(NOW, &mut storage);
            }
            drop(broker);
            drop(storage);
            assert_eq!(digest(folder.path()), state);
        }
        assert_eq!(replies, 1 + 4 * 300);
        let mut storage = DataFolder::open(folder.path()).unwrap().storage();
        assert!(file_count(&mut storage, FileKind::Segment) > 8, "segments stay as long as messages refer to them");
        assert_eq!(file_count(&mut storage, FileKind::Snapshot), 2);
        let mut broker = open(&mut storage);
        broker.handle(NOW, Command::Purge(Purge { topic: topic() }));
        for _ in 0..2 {
            produce(&mut broker, 0);
            broker.drive(NOW, &mut storage);
            broker.request_snapshot();
            broker.drive(NOW, &mut storage);
        }
        assert!(file_count(&mut storage, FileKind::Segment) < 5, "segments without live messages are gone");
        assert_eq!(file_count(&mut storage, FileKind::Snapshot), 2);
    }
}

/// A performed job and its result.
type Performed = (Job, Result<(), StorageFault>);

/// Performs jobs on a thread and sends them back with their results.
fn io_thread(mut storage: FileStorage, done: mpsc::Sender<Performed>) -> mpsc::Sender<Job> {
    let (jobs, incoming) = mpsc::channel::<Job>();
    thread::spawn(move || {
        for job in incoming {
            let result = job.perform(&mut storage);
            if done.send((job, result)).is_err() {
                return;
            }
        }
    });
    jobs
}

#[test]
fn log_and_background_jobs_run_on_two_threads() {
    let folder = tempfile::tempdir().unwrap();
    let data = DataFolder::open(folder.path()).unwrap();
    let mut broker = open(&mut data.storage());
    let (done, results) = mpsc::channel();
    let log = io_thread(data.storage(), done.clone());
    let background = io_thread(data.storage(), done);
    drop(data);
    create_topic(&mut broker);
    let (mut produced, mut pending, mut succeeded) = (0, 0, 0);
    // Some produces are refused while a segment is being created, so the loop runs until enough have succeeded.
    loop {
        for _ in 0..if succeeded < 2_000 { 20 } else { 0 } {
            produce(&mut broker, produced);
            produced += 1;
        }
        while let Some(job) = broker.poll_job(JobClass::Log) {
            log.send(job).unwrap();
            pending += 1;
        }
        while let Some(job) = broker.poll_job(JobClass::Background) {
            background.send(job).unwrap();
            pending += 1;
        }
        if pending == 0 {
            break;
        }
        let (job, result) = results.recv().unwrap();
        pending -= 1;
        broker.complete(NOW, job, result);
        succeeded += successful_replies(&mut broker);
    }
    assert_eq!(broker.failure(), None);
    let (state, messages) = (broker.state().digest(), broker.state().topic_named(&topic()).unwrap().next_offset());
    assert_eq!(messages.0 as usize, succeeded - 1);
    drop((broker, log, background));
    // The threads release the folder once their channels are closed.
    while DataFolder::open(folder.path()).is_err() {
        thread::yield_now();
    }
    assert_eq!(digest(folder.path()), state);
}

#[test]
fn broker_runs_on_volatile_storage() {
    let mut storage = VolatileStorage::default();
    let mut broker = open(&mut storage);
    create_topic(&mut broker);
    for number in 0..1_000 {
        produce(&mut broker, number);
        broker.drive(NOW, &mut storage);
    }
    assert_eq!(successful_replies(&mut broker), 1_001);
    assert_eq!(broker.failure(), None);
}
