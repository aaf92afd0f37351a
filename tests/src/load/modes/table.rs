//! `load table`: all goals, measured one after the other, as a Markdown table.

use std::time::Duration;

use crate::load::cli::{
    AckKind, BacklogOptions, BrokerOptions, EffectsOptions, EndToEndOptions, IdleOptions, ProduceOptions, StepsOptions,
    TableOptions,
};
use crate::load::error::Result;
use crate::load::modes::{backlog, effects, end_to_end, idle, produce, slices, steps};
use crate::load::report::{Failures, Row, ServerStats, markdown, time};
use crate::numbers::grouped;

/// Half the goal of NDJSON acks: the rate at which the latency goal applies.
const HALF_RATE: f64 = 15_000.0;

/// The rows so far.
#[derive(Debug, Default)]
struct Table {
    rows: Vec<Row>,
    failures: Failures,
    /// The broker's CPU seconds per million single produces, measured with the first row and added later.
    single_produce_cpu: Option<f64>,
}

impl Table {
    fn add(&mut self, work: &str, goal: &str, measured: String, met: impl Into<Option<bool>>) {
        self.rows.push(Row { work: work.to_owned(), goal: goal.to_owned(), measured, met: met.into() });
    }

    /// Adds a row for a measurement that failed; the next one follows.
    fn note(&mut self, work: &str, result: Result<()>) {
        if let Err(error) = result {
            eprintln!("load: {work}: {error}");
            self.failures.named(&format!("{work}: failed"));
            let reason = error.to_string().replace(['\n', '|'], " ");
            self.add(work, "", format!("failed: {reason}"), false);
        }
    }
}

/// Measures every row and prints the table.
pub(crate) async fn run(options: &TableOptions) -> Result<Failures> {
    if options.broker.url.is_some() {
        return Err("the table starts its own brokers; --url cannot be used".into());
    }
    let mut table = Table::default();
    let result = single_produces(options, &mut table).await;
    table.note("single produces, 64 keep-alive connections", result);
    let result = one_connection(options, &mut table).await;
    table.note("single produces, 1 connection, p50", result);
    let result = batches(options, &mut table).await;
    table.note("NDJSON batches", result);
    let result = end_to_end_rows(options, &mut table).await;
    table.note("produce → stream → ack", result);
    let result = with_backlog(options, &mut table).await;
    table.note("backlog and restart", result);
    let cpu = table.single_produce_cpu;
    let measured = cpu.map_or_else(|| "unknown".to_owned(), |cpu| format!("{cpu:.1} s"));
    table.add("server CPU, single produces", "≤ 20 s per million", measured, cpu.is_some_and(|cpu| cpu <= 20.0));
    let result = idling(options, &mut table).await;
    table.note("idle streams and idle broker", result);
    let result = begin_and_finish(options, &mut table).await;
    table.note("begin + finish of an effect", result);
    let result = with_records(options, &mut table).await;
    table.note("live idempotency records", result);
    let result = completing(options, &mut table).await;
    table.note("complete with two outputs", result);
    let result = slow_sync(options, &mut table).await;
    table.note("single produces, sync slowed to 2 ms", result);
    println!("\n{}", markdown(&table.rows));
    println!("failures: {}", table.failures);
    Ok(table.failures)
}

fn produce_options(broker: &BrokerOptions, seconds: f64, connections: u32) -> ProduceOptions {
    ProduceOptions {
        connections,
        size: 200,
        seconds,
        batch: 1,
        partitions: 1,
        ceiling: true,
        rate: None,
        broker: broker.clone(),
    }
}

async fn measure_produce(
    name: &str,
    options: &ProduceOptions,
    daemon_args: &[&str],
    table: &mut Table,
) -> Result<slices::Figures> {
    println!("\n# {name}");
    let figures = produce::measure(options, daemon_args).await?;
    figures.print(ServerStats::print);
    table.failures.merge(&figures.server.stats.failures);
    Ok(figures)
}

async fn single_produces(options: &TableOptions, table: &mut Table) -> Result<()> {
    let figures = measure_produce(
        "single produces, 64 connections",
        &produce_options(&options.broker, options.seconds, 64),
        &[],
        table,
    )
    .await?;
    let (ratio, p99) = (figures.ratio().unwrap_or_default(), figures.server.stats.quantile(0.99));
    table.add(
        "single produces, 64 keep-alive connections",
        "≥ 0.60 of the bare-hyper ceiling, p99 ≤ 3 ms",
        format!("{ratio:.2} ({}/s), p99 {}", grouped(figures.server.rate() as u64), time(p99)),
        ratio >= 0.60 && p99 <= Duration::from_millis(3),
    );
    table.single_produce_cpu = figures.server.cpu_per_million();
    Ok(())
}

async fn one_connection(options: &TableOptions, table: &mut Table) -> Result<()> {
    let figures = measure_produce(
        "single produces, 1 connection",
        &produce_options(&options.broker, options.seconds, 1),
        &[],
        table,
    )
    .await?;
    let server = figures.server.stats.quantile(0.5);
    let ceiling = figures.ceiling.as_ref().map(|server| server.stats.quantile(0.5)).unwrap_or_default();
    let sync = figures.fdatasync_p50.unwrap_or_default();
    let limit = ceiling + 2 * sync + Duration::from_micros(60);
    table.add(
        "single produces, 1 connection, p50",
        "≤ the ceiling's p50 + 2 × the disk's own fdatasync p50 + 60 µs",
        format!("{} (limit {} = {} + 2 × {} + 60 µs)", time(server), time(limit), time(ceiling), time(sync)),
        server <= limit,
    );
    Ok(())
}

async fn batches(options: &TableOptions, table: &mut Table) -> Result<()> {
    let plan = ProduceOptions { batch: 100, partitions: 16, ..produce_options(&options.broker, options.seconds, 16) };
    let figures = measure_produce("NDJSON batches of 100, 16 connections", &plan, &[], table).await?;
    let rate = figures.server.rate();
    table.add(
        "NDJSON batches of 100, 16 connections, 16 partitions",
        "≥ 400,000 messages/s",
        format!("{}/s", grouped(rate as u64)),
        rate >= 400_000.0,
    );
    Ok(())
}

async fn end_to_end_rows(options: &TableOptions, table: &mut Table) -> Result<()> {
    let single = measure_end_to_end(options, AckKind::Single, None, table).await?;
    table.add(
        "produce → stream → ack, 16 producers, 16 consumers, one ack request per message",
        "≥ 18,000 messages/s",
        format!("{}/s", grouped(single.rate as u64)),
        single.rate >= 18_000.0,
    );
    let ndjson = measure_end_to_end(options, AckKind::Ndjson, None, table).await?;
    let paced = measure_end_to_end(options, AckKind::Ndjson, Some(HALF_RATE), table).await?;
    let p99 = paced.deliveries.quantile(0.99);
    // The latency counts only if half the rate was reached.
    let reached = paced.rate >= HALF_RATE * 0.95;
    table.add(
        "the same with NDJSON acks",
        "≥ 30,000 messages/s; p99 ≤ 5 ms at half that rate",
        format!("{}/s; p99 {} at {}/s", grouped(ndjson.rate as u64), time(p99), grouped(paced.rate as u64)),
        ndjson.rate >= 30_000.0 && reached && p99 <= Duration::from_millis(5),
    );
    Ok(())
}

async fn measure_end_to_end(
    options: &TableOptions,
    ack: AckKind,
    rate: Option<f64>,
    table: &mut Table,
) -> Result<end_to_end::Figures> {
    println!("\n# produce → stream → ack, {ack:?}{}", rate.map_or_else(String::new, |rate| format!(", {rate}/s")));
    let figures = end_to_end::measure(&EndToEndOptions {
        producers: 16,
        consumers: 16,
        size: 200,
        seconds: options.seconds,
        ack,
        prefetch: None,
        partitions: 16,
        rate,
        broker: options.broker.clone(),
    })
    .await?;
    figures.print();
    table.failures.merge(&figures.failures);
    Ok(figures)
}

async fn with_backlog(options: &TableOptions, table: &mut Table) -> Result<()> {
    println!("\n# backlog");
    let figures = backlog::measure(&BacklogOptions {
        messages: options.backlog,
        size: 200,
        partitions: 1,
        seconds: options.seconds,
        memory_bytes: Some(16 << 20),
        cold: false,
        warm: false,
        warm_messages: options.backlog,
        consumers: 16,
        memory_limit: None,
        steady: None,
        rate: HALF_RATE,
        broker: options.broker.clone(),
    })
    .await?;
    figures.print();
    table.failures.merge(&figures.failures);
    let megabytes = figures.memory.resident_bytes as f64 / 1e6;
    let ratio = figures.p50_ratio();
    table.add(
        &format!("{}-message backlog of 200 B: RSS", grouped(options.backlog)),
        "≤ 60 MB with 16 MiB of payloads in memory; produce p50 within 1.2 × of an empty broker",
        format!("{megabytes:.0} MB; {ratio:.2} ×"),
        megabytes <= 60.0 && ratio <= 1.2,
    );
    table.add(
        "restart with that backlog (kill -9), exec to first delivery",
        "≤ 0.3 s",
        format!("{} (ready {})", time(figures.delivery_after), time(figures.ready_after)),
        figures.delivery_after <= Duration::from_millis(300),
    );
    Ok(())
}

async fn idling(options: &TableOptions, table: &mut Table) -> Result<()> {
    println!("\n# idle");
    let figures = idle::measure(&IdleOptions {
        streams: options.streams,
        seconds: options.seconds * 2.0,
        broker: options.broker.clone(),
    })
    .await?;
    figures.print();
    table.failures.merge(&figures.failures);
    table.add(
        &format!("{} idle streams", grouped(u64::from(options.streams))),
        "≤ 32 KiB each",
        format!("{:.1} KiB", figures.bytes_each() as f64 / 1024.0),
        figures.bytes_each() <= 32 * 1024,
    );
    table.add(
        "idle broker",
        "< 0.5 % of a core",
        format!("{:.2} % ({:.2} % with the streams open)", figures.cpu_without * 100.0, figures.cpu_with * 100.0),
        figures.cpu_without < 0.005,
    );
    Ok(())
}

fn effects_options(options: &TableOptions) -> EffectsOptions {
    EffectsOptions {
        connections: 64,
        seconds: options.seconds,
        result_size: 20,
        ceiling: true,
        records: None,
        broker: options.broker.clone(),
    }
}

async fn begin_and_finish(options: &TableOptions, table: &mut Table) -> Result<()> {
    println!("\n# begin + finish, 64 connections");
    let figures = effects::measure(&effects_options(options)).await?;
    figures.print(effects::print_server);
    table.failures.merge(&figures.server.stats.failures);
    let ratio = figures.ratio().unwrap_or_default();
    table.add(
        "begin + finish of an effect, 64 keep-alive connections",
        "≥ 0.60 of the bare-hyper ceiling",
        format!("{ratio:.2} ({} requests/s)", grouped(figures.server.rate() as u64)),
        ratio >= 0.60,
    );
    Ok(())
}

async fn with_records(options: &TableOptions, table: &mut Table) -> Result<()> {
    println!("\n# live idempotency records");
    let figures = effects::measure_records(&effects_options(options), options.records).await?;
    figures.print();
    table.failures.merge(&figures.failures);
    let (bytes, cpu, p50) = (figures.bytes_beyond(), figures.cpu_ratio(), figures.p50_ratio());
    let cpu_text = cpu.map_or_else(|| "unknown".to_owned(), |cpu| format!("{cpu:.2} ×"));
    table.add(
        &format!("{} live idempotency records", grouped(options.records)),
        "≤ 300 B each beyond key and result; cost per call within 2 × of empty",
        format!("{bytes:.0} B; server CPU {cpu_text}, p50 {p50:.2} ×"),
        bytes <= 300.0 && cpu.is_none_or(|cpu| cpu <= 2.0) && p50 <= 2.0,
    );
    Ok(())
}

async fn completing(options: &TableOptions, table: &mut Table) -> Result<()> {
    println!("\n# complete with two outputs, 16 workers");
    let figures = steps::measure(&StepsOptions {
        workers: 16,
        outputs: 2,
        seconds: options.seconds,
        size: 200,
        partitions: 16,
        in_flight: 4,
        prefetch: None,
        messages: None,
        plain: false,
        broker: options.broker.clone(),
    })
    .await?;
    figures.print();
    table.failures.merge(&figures.failures);
    table.add(
        "complete with two outputs, 16 workers",
        "≥ 15,000 steps/s",
        format!("{} steps/s", grouped(figures.rate as u64)),
        figures.rate >= 15_000.0,
    );
    Ok(())
}

async fn slow_sync(options: &TableOptions, table: &mut Table) -> Result<()> {
    let plan = produce_options(&options.broker, options.seconds, 64);
    let figures =
        measure_produce("single produces, sync slowed to 2 ms", &plan, &["--sync-delay-ms", "2"], table).await?;
    table.add(
        "single produces, 64 keep-alive connections, sync slowed to 2 ms",
        "–",
        format!(
            "{:.2} ({}/s), p50 {}, p99 {}",
            figures.ratio().unwrap_or_default(),
            grouped(figures.server.rate() as u64),
            time(figures.server.stats.quantile(0.5)),
            time(figures.server.stats.quantile(0.99)),
        ),
        None,
    );
    Ok(())
}
