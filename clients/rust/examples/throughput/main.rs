//! Measures the client against a running broker and prints each figure beside its goal:
//!
//! ```sh
//! cargo run --release -p driftq-client --example throughput -- http://127.0.0.1:8080 [overhead|batches|worker|idle]…
//! ```

mod raw;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use driftq_client::{Client, CreateTopic, Event, Produce, Worker};
use tokio::task::JoinSet;

/// Requests at a time in the comparison with raw HTTP.
const IN_FLIGHT: usize = 64;
/// Many short rounds, as what else the machine does changes.
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_secs(1);
const BATCHED_MESSAGES: u64 = 2_000_000;
/// Tasks that share the producer.
const PRODUCING_TASKS: u64 = 4;
const WORKER_MESSAGES: u64 = 100_000;
const WORKER_CONCURRENCY: usize = 64;
const IDLE: Duration = Duration::from_secs(20);
const NANOS_PER_SECOND: f64 = 1e9;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().ok_or("the URL of a broker is needed")?;
    let chosen: Vec<String> = arguments.collect();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.iter().any(|chosen| chosen == name);
    let client = Client::builder().url(&url).build()?;
    if is_chosen("overhead") {
        overhead(&client, &url).await?;
    }
    if is_chosen("batches") {
        batches(&client).await?;
    }
    if is_chosen("worker") {
        worker(&client).await?;
    }
    if is_chosen("idle") {
        idle(&client).await?;
    }
    Ok(())
}

/// CPU time of this process for each request of a round.
fn micros_each(cpu_seconds: f64, rate: f64) -> f64 {
    cpu_seconds * 1e6 / (rate * ROUND.as_secs_f64())
}

/// A topic of this process alone.
async fn topic(client: &Client, name: &str, partitions: u32) -> Result<String, driftq_client::Error> {
    let name = format!("{name}-{}", std::process::id());
    client.create_topic(&CreateTopic::new(&name).partitions(partitions).retention_bytes(0)).await?;
    Ok(name)
}

/// Single produces with the client and over bare connections, in turns; the medians are compared.
async fn overhead(client: &Client, url: &str) -> Outcome {
    let topic = topic(client, "overhead", 4).await?;
    let (mut with_client, mut over_http) = (Vec::new(), Vec::new());
    let (mut client_micros, mut http_micros) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = cpu_seconds()?;
        over_http.push(raw::produces_per_second(url, &topic, IN_FLIGHT, ROUND).await?);
        let middle = cpu_seconds()?;
        with_client.push(produces_per_second(client, &topic).await?);
        let end = cpu_seconds()?;
        http_micros.extend(over_http.last().map(|rate| micros_each(middle - start, *rate)));
        client_micros.extend(with_client.last().map(|rate| micros_each(end - middle, *rate)));
        client.purge_topic(&topic).await?;
    }
    let (with_client, over_http) = (median(with_client), median(over_http));
    let (client_micros, http_micros) = (median(client_micros), median(http_micros));
    let overhead = (over_http / with_client - 1.0) * 100.0;
    println!("produces, {IN_FLIGHT} in flight: {with_client:.0}/s, {client_micros:.1} µs of CPU here each");
    println!("bare hyper: {over_http:.0}/s, {http_micros:.1} µs of CPU here each");
    let cpu_overhead = (client_micros / http_micros - 1.0) * 100.0;
    println!("overhead: {overhead:.1} % (goal: at most 10 %); of CPU: {cpu_overhead:.1} %");
    Ok(())
}

async fn produces_per_second(client: &Client, topic: &str) -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
    let count = Arc::new(AtomicU64::new(0));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..IN_FLIGHT {
        let (client, count) = (client.clone(), Arc::clone(&count));
        let message = Produce::new(topic, raw::VALUE).key(format!("{task}"));
        tasks.spawn(async move {
            while started.elapsed() < ROUND {
                client.produce(&message).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, driftq_client::Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    Ok(count.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

async fn batches(client: &Client) -> Outcome {
    let topic = topic(client, "batches", 4).await?;
    let producer = client.producer();
    let (started, cpu) = (Instant::now(), cpu_seconds()?);
    let mut tasks = JoinSet::new();
    for task in 0..PRODUCING_TASKS {
        let producer = producer.clone();
        let message = Produce::new(&topic, raw::VALUE).key(format!("{task}"));
        tasks.spawn(async move {
            for _ in 0..BATCHED_MESSAGES / PRODUCING_TASKS {
                drop(producer.enqueue(&message).await?);
            }
            Ok::<_, driftq_client::Error>(())
        });
    }
    while let Some(task) = tasks.join_next().await {
        task??;
    }
    producer.flush().await;
    let rate = BATCHED_MESSAGES as f64 / started.elapsed().as_secs_f64();
    let micros = (cpu_seconds()? - cpu) * 1e6 / BATCHED_MESSAGES as f64;
    let stored = client.topic(&topic).await?.partitions.iter().map(|partition| partition.messages).sum::<u64>();
    println!("automatic batches: {rate:.0} messages/s, {micros:.2} µs of CPU here each, {stored} stored");
    println!("goal: at least 250,000/s, on a disk");
    client.delete_topic(&topic).await?;
    Ok(())
}

/// Begin and complete of each message.
async fn worker(client: &Client) -> Outcome {
    let topic = topic(client, "worker", 4).await?;
    let producer = client.producer();
    for number in 0..WORKER_MESSAGES {
        let message = Produce::new(&topic, raw::VALUE).key(format!("{number}")).idempotency_key(format!("{number}"));
        drop(producer.enqueue(&message).await?);
    }
    producer.flush().await;
    let completed = Arc::new(AtomicU64::new(0));
    let all = Arc::new(tokio::sync::Notify::new());
    let (count, done) = (Arc::clone(&completed), Arc::clone(&all));
    let worker = Worker::new(client, &topic, "bench", |_, _| async { Ok(serde_json::json!({"done": true})) })
        .concurrency(WORKER_CONCURRENCY)
        .on_event(move |event| {
            if matches!(event, Event::Completed { .. }) && count.fetch_add(1, Ordering::Relaxed) + 1 == WORKER_MESSAGES
            {
                done.notify_one();
            }
        });
    let (started, cpu) = (Instant::now(), cpu_seconds()?);
    let worker = worker.spawn();
    all.notified().await;
    let (elapsed, cpu) = (started.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let rate = WORKER_MESSAGES as f64 / elapsed;
    let micros = cpu * 1e6 / WORKER_MESSAGES as f64;
    println!("begin and complete: {rate:.0} messages/s, {micros:.0} µs of CPU each (goal: at least 12,000/s)");
    worker.stop().await?;
    client.delete_topic(&topic).await?;
    Ok(())
}

async fn idle(client: &Client) -> Outcome {
    let topic = topic(client, "idle", 1).await?;
    let connected = Arc::new(tokio::sync::Notify::new());
    let notify = Arc::clone(&connected);
    let worker = Worker::new(client, &topic, "bench", |_, _| async { Ok(()) }).on_event(move |event| {
        if matches!(event, Event::Connected) {
            notify.notify_one();
        }
    });
    let worker = worker.spawn();
    connected.notified().await;
    let cpu = cpu_seconds()?;
    tokio::time::sleep(IDLE).await;
    let share = (cpu_seconds()? - cpu) / IDLE.as_secs_f64() * 100.0;
    println!("idle worker: {share:.2} % of a core within {IDLE:?} (goal: below 0.2 %)");
    worker.stop().await?;
    client.delete_topic(&topic).await?;
    Ok(())
}

/// The CPU time of the threads of this process so far. That of those that have ended is missing: none ends meanwhile.
fn cpu_seconds() -> Result<f64, Box<dyn std::error::Error + Send + Sync>> {
    let mut nanos = 0.0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += stat.split_whitespace().next().ok_or("no figure in schedstat")?.parse::<f64>()?;
    }
    Ok(nanos / NANOS_PER_SECOND)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
