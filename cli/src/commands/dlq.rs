//! `driftq dlq`: messages that have failed for good.

use clap::{ArgGroup, Subcommand};
use driftq_client::{Client, ErrorKind, Message, Redrive};
use serde_json::json;

use super::Broker;
use super::peek::{partitions, read};
use super::topics::{describe, purge, unacked};
use crate::failure::Failure;
use crate::output::Output;
use crate::progress::bar;
use crate::table::{Cell, Table};
use crate::text::{counted, cut, payload};
use crate::units::{bytes, count};

/// What the names of dead-letter topics begin with.
pub(crate) const PREFIX: &str = "dlq.";
/// Dead letters that one request redrives, so that progress can be shown.
const REDRIVEN_AT_A_TIME: u64 = 1_000;
/// Columns of an error or a value in a list.
const TEXT_COLUMNS: usize = 40;

/// What to do with dead letters.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// List the topics that have dead letters
    #[command(visible_alias = "ls")]
    List {
        /// Also those whose dead letters are all redriven or acked
        #[arg(long)]
        all: bool,
    },
    /// Show the dead letters of a topic, and why they are dead
    ///
    /// Redriven and acked ones are shown as long as the retention of the topic keeps them.
    Show {
        /// Name of the topic they come from
        topic: String,
        /// Only this partition
        #[arg(long, short)]
        partition: Option<u32>,
        /// The first offset in the dead-letter topic
        #[arg(long, short, default_value_t = 0)]
        offset: u64,
        /// At most so many of each partition
        #[arg(long, short = 'n', default_value_t = 20)]
        limit: u32,
    },
    /// Produce dead letters again, for the group that had failed them
    #[command(group(ArgGroup::new("which").required(true).args(["offsets", "all"])))]
    Redrive {
        /// Name of the topic they come from
        topic: String,
        /// Their offsets in the dead-letter topic
        offsets: Vec<u64>,
        /// All that are there now
        #[arg(long)]
        all: bool,
        /// At most so many of all
        #[arg(long, conflicts_with = "offsets")]
        limit: Option<u64>,
    },
    /// Remove all dead letters of a topic
    Purge {
        /// Name of the topic they come from
        topic: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

pub(crate) async fn run(broker: &Broker, command: Command) -> Result<(), Failure> {
    let (client, output) = (broker.client()?, broker.output);
    match command {
        Command::List { all } => list(&client, output, all).await,
        Command::Show { topic, partition, offset, limit } => {
            let source = dead_letter_topic(&topic);
            let mut dead = Vec::new();
            for partition in partitions(&client, &source, partition).await? {
                dead.extend(read(&client, &source, partition, offset, limit).await?);
            }
            show(output, &dead)
        }
        Command::Redrive { topic, offsets, all, limit } => {
            let topic = source_topic(&topic);
            let redriven = if all {
                redrive_all(&client, topic, limit).await?
            } else {
                redrive_some(&client, topic, offsets).await?
            };
            let text = |_| format!("redrove {} of {topic:?}\n", counted(redriven, "dead letter"));
            output.show(&json!({"topic": topic, "redriven": redriven}), text)
        }
        Command::Purge { topic, yes } => purge(&client, output, &dead_letter_topic(&topic), yes).await,
    }
}

/// The dead-letter topic of a topic, which may be given itself.
fn dead_letter_topic(topic: &str) -> String {
    if topic.starts_with(PREFIX) { topic.to_owned() } else { format!("{PREFIX}{topic}") }
}

fn source_topic(topic: &str) -> &str {
    topic.strip_prefix(PREFIX).unwrap_or(topic)
}

async fn list(client: &Client, output: Output, all: bool) -> Result<(), Failure> {
    let mut names = client.topics().await?;
    names.retain(|name| name.starts_with(PREFIX));
    let mut table = Table::new(&["TOPIC", ">DEAD LETTERS", ">BYTES"]);
    let mut listed = Vec::new();
    for (name, info) in describe(client, &names).await? {
        let Some(info) = info else { continue };
        let dead = unacked(&info);
        if dead == 0 && !all {
            continue;
        }
        let size: u64 = info.partitions.iter().map(|partition| partition.bytes).sum();
        let topic = source_topic(&name);
        table.row(vec![topic.into(), Cell::attention(dead), bytes(size).into()]);
        listed.push(json!({"topic": topic, "dead_letter_topic": name, "dead_letters": dead, "bytes": size}));
    }
    output.table(&listed, &table, "no dead letters")
}

fn show(output: Output, dead: &[Message]) -> Result<(), Failure> {
    let titles = ["OFFSET", "WHEN", "FROM", "GROUP", ">ATTEMPTS", "REASON", "LAST ERROR", "KEY", "VALUE"];
    let mut table = Table::new(&titles);
    for message in dead {
        let origin = message.envelope.dlq.as_deref().cloned().unwrap_or_default();
        let lost = if message.lost { "(the payload is lost)".to_owned() } else { payload(&message.value) };
        table.row(vec![
            message.offset.to_string().into(),
            seconds(&origin.routed_at).into(),
            format!("{}/{}", origin.original_partition, origin.original_offset).into(),
            origin.group.as_str().into(),
            count(u64::from(origin.attempts)).into(),
            origin.reason.as_str().into(),
            cut(&origin.last_error, TEXT_COLUMNS).into(),
            cut(&message.key, TEXT_COLUMNS).into(),
            cut(&lost, TEXT_COLUMNS).into(),
        ]);
    }
    if output.is_json() {
        return dead.iter().try_for_each(|message| output.json(message));
    }
    output.table(&json!(null), &table, "no dead letters")
}

/// A time of the broker without its milliseconds.
fn seconds(time: &str) -> String {
    time.split('.').next().unwrap_or_default().replace('T', " ")
}

async fn redrive_some(client: &Client, topic: &str, offsets: Vec<u64>) -> Result<u64, Failure> {
    Ok(client.redrive(topic, &Redrive::Offsets(offsets)).await?)
}

/// Redrives those that are there now: what fails again meanwhile is not counted in.
async fn redrive_all(client: &Client, topic: &str, limit: Option<u64>) -> Result<u64, Failure> {
    let there = match client.topic(&dead_letter_topic(topic)).await {
        Ok(info) => unacked(&info),
        // The topic may exist without having had a dead letter.
        Err(error) if error.kind() == ErrorKind::NotFound => {
            client.groups(topic).await?;
            0
        }
        Err(error) => return Err(error.into()),
    };
    let total = limit.map_or(there, |limit| limit.min(there));
    let progress = bar("redriving", Some(total));
    let mut redriven = 0;
    while redriven < total {
        let portion = Redrive::All { limit: Some(REDRIVEN_AT_A_TIME.min(total - redriven)) };
        let some = client.redrive(topic, &portion).await?;
        if some == 0 {
            break;
        }
        redriven += some;
        progress.set_position(redriven);
    }
    progress.finish_and_clear();
    Ok(redriven)
}
