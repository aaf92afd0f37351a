//! `driftq produce`: one message, or one per line of the input.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use driftq_client::{Pending, Produce, Produced, ProducerOptions, RetryPolicy};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::Broker;
use crate::failure::{Exit, Failure, meaning};
use crate::interrupt::Interrupt;
use crate::output::{Output, remark};
use crate::progress::bar;
use crate::text::counted;
use crate::units::parse_duration;

/// How long one message of many is sent again.
const RETRY_FOR: Duration = Duration::from_secs(60);
/// Lines that are read ahead, and answers that are waited for.
const LINES_AHEAD: usize = 1_000;
/// Refused lines that are reported one by one.
const REPORTED_MAX: u64 = 10;

/// Flags of `produce`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  driftq produce orders 'one pizza' --key customer-7
  driftq produce photos --file oven.jpg
  driftq produce orders --lines < orders.txt
  driftq produce orders --objects < orders.jsonl     # {\"key\":…,\"value\":…,\"envelope\":{…}} on each line")]
pub(crate) struct Options {
    /// Name of the topic
    topic: String,
    /// The value; without it, and without --file, standard input is read
    #[arg(conflicts_with_all = ["file", "lines", "objects"], allow_hyphen_values = true)]
    value: Option<String>,
    /// Read the value, or the lines, from a file
    #[arg(long, short)]
    file: Option<PathBuf>,
    /// Each line is a message; empty ones are skipped
    #[arg(long, short, conflicts_with = "objects")]
    lines: bool,
    /// Each line is a message as a JSON object with `value` or `value_base64`, and `key`, `envelope`, `topic` if wanted
    #[arg(long)]
    objects: bool,
    #[command(flatten)]
    fields: Fields,
}

/// What goes with each message.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Message")]
struct Fields {
    /// Messages with the same key go to the same partition
    #[arg(long, short)]
    key: Option<String>,
    /// A second message with the same key is a duplicate; with --lines the number of the line is added, as `KEY:1`
    #[arg(long, short, value_name = "KEY", conflicts_with = "objects")]
    idempotency_key: Option<String>,
    /// Tenant of the message and of its idempotency key
    #[arg(long)]
    tenant: Option<String>,
    /// 0 to 9; higher ones are delivered first
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Hold the message back for so long
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with = "deliver_at")]
    delay: Option<Duration>,
    /// Hold the message back until this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    deliver_at: Option<String>,
    /// Dead-letter the message if it is not done by this time (RFC 3339)
    #[arg(long, value_name = "TIME")]
    deadline: Option<String>,
    /// A label; may be given several times
    #[arg(long, short = 'L', value_name = "NAME=VALUE", value_parser = label)]
    label: Vec<(String, String)>,
    /// Deliveries before the message is dead-lettered
    #[arg(long, value_name = "COUNT")]
    max_attempts: Option<u32>,
    /// Delay after the first failure; it doubles with each further one
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    backoff: Option<Duration>,
    /// The longest of these delays
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, requires = "backoff")]
    max_backoff: Option<Duration>,
    /// Store it in this partition instead of that of the key
    #[arg(long, short)]
    partition: Option<u32>,
    /// Store it in this topic instead
    #[arg(long, value_name = "TOPIC")]
    target_topic: Option<String>,
    /// The run it belongs to
    #[arg(long, value_name = "ID")]
    run_id: Option<String>,
    /// The step it is
    #[arg(long, value_name = "ID")]
    step_id: Option<String>,
    /// The step that caused it
    #[arg(long, value_name = "ID")]
    parent_step_id: Option<String>,
    /// The trace it belongs to (W3C), for one message
    #[arg(long, conflicts_with_all = ["lines", "objects"])]
    traceparent: Option<String>,
}

fn label(text: &str) -> Result<(String, String), &'static str> {
    let (name, value) = text.split_once('=').ok_or("a label is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

impl Fields {
    fn fill(&self, mut message: Produce) -> Produce {
        if let Some(key) = &self.key {
            message = message.key(key);
        }
        if let Some(traceparent) = &self.traceparent {
            message = message.traceparent(traceparent);
        }
        if let Some(delay) = self.delay {
            message = message.delay(delay);
        }
        if let Some(policy) = self.retry_policy() {
            message = message.retry_policy(policy);
        }
        message.envelope(|envelope| {
            for (field, given) in [
                (&mut envelope.idempotency_key, &self.idempotency_key),
                (&mut envelope.tenant_id, &self.tenant),
                (&mut envelope.deliver_at, &self.deliver_at),
                (&mut envelope.deadline, &self.deadline),
                (&mut envelope.target_topic, &self.target_topic),
                (&mut envelope.run_id, &self.run_id),
                (&mut envelope.step_id, &self.step_id),
                (&mut envelope.parent_step_id, &self.parent_step_id),
            ] {
                if let Some(given) = given {
                    field.clone_from(given);
                }
            }
            envelope.priority = self.priority.or(envelope.priority);
            envelope.partition_override = self.partition.or(envelope.partition_override);
            envelope.labels.extend(self.label.iter().cloned());
        })
    }

    fn retry_policy(&self) -> Option<RetryPolicy> {
        if self.max_attempts.is_none() && self.backoff.is_none() {
            return None;
        }
        let policy = RetryPolicy::max_attempts(self.max_attempts.unwrap_or(0));
        Some(match self.backoff {
            Some(first) => policy.backoff(first, self.max_backoff.unwrap_or(Duration::ZERO)),
            None => policy,
        })
    }
}

pub(crate) async fn run(broker: &Broker, options: Options) -> Result<(), Failure> {
    if options.lines || options.objects {
        return produce_lines(broker, options).await;
    }
    let value = match (&options.value, &options.file) {
        (Some(value), _) if value != "-" => value.clone().into_bytes(),
        (_, Some(file)) if file != Path::new("-") => {
            std::fs::read(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?
        }
        (value, file) => {
            if value.is_none() && file.is_none() && io::stdin().is_terminal() {
                return Err(
                    Failure::usage("no value").advise("give it as an argument, with --file, or on standard input")
                );
            }
            let mut value = Vec::new();
            let read = io::stdin().lock().read_to_end(&mut value);
            read.map_err(|error| Failure::usage(format!("standard input: {error}")))?;
            value
        }
    };
    let message = options.fields.fill(Produce::new(&options.topic, value));
    let produced = broker.client()?.produce(&message).await?;
    broker.output.show(&produced, |_| {
        let mut notes = String::new();
        for (holds, note) in [
            (produced.duplicate, ", a duplicate: that is where the first one is"),
            (produced.already_done, ", already done by every group: it is not delivered"),
        ] {
            if holds {
                notes.push_str(note);
            }
        }
        if let Some(routing) = &produced.routing {
            notes.push_str(&format!(", without the router's decision ({routing})"));
        }
        format!("produced {}/{}/{}{notes}\n", produced.topic, produced.partition, produced.offset)
    })
}

/// A line of the input and its number.
type Line = (u64, io::Result<Vec<u8>>);

/// Reads lines on a thread of its own: standard input cannot be read without blocking.
fn read_lines(file: Option<&Path>) -> Result<mpsc::Receiver<Line>, Failure> {
    let input: Box<dyn BufRead + Send> = match file {
        Some(file) if file != Path::new("-") => {
            let open = File::open(file).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            Box::new(BufReader::new(open))
        }
        _ => Box::new(BufReader::new(io::stdin())),
    };
    let (lines, queue) = mpsc::channel(LINES_AHEAD);
    std::thread::spawn(move || {
        for (index, line) in input.split(b'\n').enumerate() {
            let failed = line.is_err();
            if lines.blocking_send((index as u64 + 1, line)).is_err() || failed {
                return;
            }
        }
    });
    Ok(queue)
}

/// What has become of the lines.
#[derive(Default)]
struct Summary {
    produced: u64,
    duplicates: u64,
    already_done: u64,
    refused: u64,
    exit: Option<Exit>,
}

impl Summary {
    fn add(&mut self, line: u64, answer: Result<Produced, driftq_client::Error>) {
        match answer {
            Ok(answer) => {
                self.produced += 1;
                self.duplicates += u64::from(answer.duplicate);
                self.already_done += u64::from(answer.already_done);
            }
            Err(error) => self.refuse(line, meaning(&error).0, error.message()),
        }
    }

    fn refuse(&mut self, line: u64, exit: Exit, message: &str) {
        self.refused += 1;
        self.exit.get_or_insert(exit);
        if self.refused <= REPORTED_MAX {
            remark(&format!("line {line}: {message}"));
        } else if self.refused == REPORTED_MAX + 1 {
            remark("more lines are refused; they are only counted");
        }
    }

    fn show(&self, output: Output) -> Result<(), Failure> {
        let Self { produced, duplicates, already_done, refused, .. } = self;
        let result = json!({"produced": produced, "duplicates": duplicates, "already_done": already_done,
            "refused": refused});
        let text = |_| {
            format!("produced {}, {duplicates} of them duplicates, {refused} refused\n", counted(*produced, "message"))
        };
        output.show(&result, text)
    }
}

async fn produce_lines(broker: &Broker, options: Options) -> Result<(), Failure> {
    // Says at once that a broker is away; what comes later is repeated.
    broker.client()?.version().await?;
    let mut queue = read_lines(options.file.as_deref())?;
    let mut producer_options = ProducerOptions::default();
    producer_options.retry_for = RETRY_FOR;
    let producer = broker.settings.patient_client(RETRY_FOR)?.producer_with(producer_options);
    let mut interrupt = Interrupt::new()?;
    let progress = bar("producing", None);
    let (answers, mut pending) = mpsc::channel::<(u64, Pending)>(LINES_AHEAD);
    let counted = progress.clone();
    let collecting = tokio::spawn(async move {
        let mut summary = Summary::default();
        while let Some((line, answer)) = pending.recv().await {
            summary.add(line, answer.await);
            counted.inc(1);
        }
        summary
    });
    let mut unread = Summary::default();
    loop {
        let next = tokio::select! {
            next = queue.recv() => next,
            // What has been read is still produced.
            () = interrupt.received() => None,
        };
        let Some((number, line)) = next else { break };
        let line = match line {
            Ok(line) => line,
            Err(error) => {
                unread.refuse(number, Exit::Usage, &format!("cannot be read: {error}"));
                break;
            }
        };
        match message_of(&options, number, &line) {
            Ok(None) => {}
            Ok(Some(message)) => {
                let answer = producer.enqueue(&message).await?;
                if answers.send((number, answer)).await.is_err() {
                    break;
                }
            }
            Err(error) => unread.refuse(number, Exit::Usage, &error),
        }
    }
    drop((answers, producer));
    let collected = tokio::select! {
        collected = collecting => collected,
        // A second signal ends the wait for answers.
        () = interrupt.received() => {
            return Err(Failure::new(Exit::Unreachable, "some lines have no answer and may have been produced"));
        }
    };
    let mut summary = collected.expect("collecting neither panics nor is cancelled");
    progress.finish_and_clear();
    summary.refused += unread.refused;
    summary.exit = summary.exit.or(unread.exit);
    summary.show(broker.output)?;
    summary.exit.map_or(Ok(()), |exit| Err(Failure::Told(exit)))
}

/// The message of a line; none for an empty one.
fn message_of(options: &Options, number: u64, line: &[u8]) -> Result<Option<Produce>, String> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    if options.objects {
        let mut object: Value = serde_json::from_slice(line).map_err(|error| format!("no JSON: {error}"))?;
        let fields = object.as_object_mut().ok_or("no JSON object")?;
        fields.entry("topic").or_insert_with(|| json!(options.topic));
        let message = serde_json::from_value(object).map_err(|error| format!("no message: {error}"))?;
        return Ok(Some(options.fields.fill(message)));
    }
    let message = options.fields.fill(Produce::new(&options.topic, line));
    Ok(Some(match &options.fields.idempotency_key {
        Some(key) => message.idempotency_key(format!("{key}:{number}")),
        None => message,
    }))
}
