//! Measurements, not tests: run in release with `--ignored --nocapture`.

use driftq_core::OpenOptions;

use std::time::{Duration, Instant};

use driftq_core::command::CreateTopic;
use driftq_core::command::Produce;
use driftq_core::log::{FileId, LogId, Storage, WriteAt, read_whole};
use driftq_core::types::{Retention, Timestamp, TopicName};
use driftq_core::{Command, PipelineConfig};
use driftq_files::{DataFolder, Prepare, ReadPath};

const SEGMENT_BYTES: u64 = 64 << 20;

fn percentile(times: &mut [Duration], part: f64) -> Duration {
    times.sort();
    times[((times.len() - 1) as f64 * part) as usize]
}

#[test]
#[ignore = "measures the disk"]
fn measure_creation_and_appends_with_sync() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let mut sequence = 0;
    for prepare in [Prepare::Zeros, Prepare::ZerosThenReserve(8 << 20), Prepare::Reserve] {
        let mut storage = DataFolder::open(folder.path()).unwrap().storage().with_prepare(prepare);
        let mut creations = Vec::new();
        for _ in 0..5 {
            sequence += 1;
            let begun = Instant::now();
            storage.create(FileId::Segment(sequence), SEGMENT_BYTES).unwrap();
            storage.sync_folder().unwrap();
            creations.push(begun.elapsed());
        }
        println!("{prepare:?}: create 64 MiB {:?} (median of 5)", percentile(&mut creations, 0.5));
        for (index, size) in [4 << 10, 16 << 10].into_iter().enumerate() {
            let file = FileId::Segment(sequence - index as u64);
            let bytes = vec![7; size];
            let mut times: Vec<_> = (0..400)
                .map(|number| {
                    let begun = Instant::now();
                    let at = WriteAt { epoch: 1, position: number * size as u64 };
                    storage.append(file, at, &bytes).unwrap();
                    storage.sync(file).unwrap();
                    begun.elapsed()
                })
                .collect();
            let (median, high) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
            println!("{prepare:?}: append + sync of {} KiB: p50 {median:?}, p99 {high:?}", size >> 10);
        }
    }
}

#[test]
#[ignore = "measures the disk"]
fn measure_reading_a_log_of_384_mib() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let chunk: Vec<u8> = (0..1 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    let mut storage = DataFolder::open(folder.path()).unwrap().storage();
    for sequence in 1..=6 {
        storage.create(FileId::Segment(sequence), SEGMENT_BYTES).unwrap();
        for number in 0..64 {
            let at = WriteAt { epoch: 1, position: number << 20 };
            storage.append(FileId::Segment(sequence), at, &chunk).unwrap();
        }
        storage.sync(FileId::Segment(sequence)).unwrap();
    }
    drop(storage);
    for path in [ReadPath::Medium, ReadPath::EvictedCache, ReadPath::Cache, ReadPath::Medium, ReadPath::EvictedCache] {
        let mut storage = DataFolder::open(folder.path()).unwrap().storage().with_read_path(path);
        let mut buffer = Vec::new();
        let begun = Instant::now();
        for sequence in 1..=6 {
            read_whole(&mut storage, FileId::Segment(sequence), &mut buffer).unwrap();
            assert_eq!(buffer.len() as u64, SEGMENT_BYTES);
        }
        let took = begun.elapsed();
        println!("{path:?}: 384 MiB in {took:?}, {:.2} GB/s", 0.402_653_184 / took.as_secs_f64());
    }
}

#[test]
#[ignore = "measures the disk"]
fn measure_a_start_on_a_million_messages() {
    let folder = tempfile::tempdir_in(".").unwrap();
    let now = Timestamp(1_000_000);
    let topic = TopicName::new("t").unwrap();
    let open = |prepare, path| {
        let mut storage = DataFolder::open(folder.path()).unwrap().storage().with_prepare(prepare).with_read_path(path);
        let begun = Instant::now();
        let config = PipelineConfig { snapshot_every_bytes: u64::MAX, ..PipelineConfig::default() };
        let new_log = Some(LogId([7; 16]));
        let (mut broker, recovered) =
            OpenOptions::new().config(config).create(new_log).open(&mut storage, now).unwrap();
        while let Some(job) = broker.poll_job(driftq_core::JobClass::Log) {
            let result = job.perform(&mut storage);
            broker.complete(now, job, result);
        }
        (begun.elapsed(), broker, recovered, storage)
    };
    let (_, mut broker, _, mut storage) = open(Prepare::Reserve, ReadPath::Medium);
    broker.handle(
        now,
        Command::CreateTopic(CreateTopic { name: topic.clone(), partitions: Some(8), retention: Retention::default() }),
    );
    let value = "x".repeat(256);
    for number in 0..1_000_000 {
        let produce = Produce::new(topic.clone(), format!("key-{number}"), value.clone());
        broker.handle(now, Command::Produce(Box::new(produce)));
        if number % 1_000 == 0 {
            broker.drive(now, &mut storage);
            while broker.poll_output().is_some() {}
        }
    }
    broker.drive(now, &mut storage);
    drop((broker, storage));
    for prepare in [Prepare::Zeros, Prepare::ZerosThenReserve(8 << 20), Prepare::Reserve] {
        for path in [ReadPath::Medium, ReadPath::EvictedCache, ReadPath::Cache] {
            let (took, broker, recovered, _) = open(prepare, path);
            let messages = broker.state().topic_named(&topic).unwrap().next_offset().0;
            let bytes = recovered.bytes_read >> 20;
            println!("{prepare:?}, {path:?}: {messages} messages, {bytes} MiB of frames, boot durable in {took:?}");
        }
    }
}
