//! `driftq topics`.

use std::time::Duration;

use clap::Subcommand;
use driftq_client::{Client, CreateTopic, Error, ErrorKind, TopicInfo, TopicSettings};
use serde::Deserialize;
use serde_json::json;

use super::Broker;
use super::groups;
use crate::failure::Failure;
use crate::output::{Output, confirm, print};
use crate::table::{Cell, Table, Tone};
use crate::text::counted;
use crate::units::{bytes, count, millis, parse_bytes, parse_duration};

/// Descriptions that are requested at a time.
const DESCRIPTIONS_AT_A_TIME: usize = 8;

/// What to do with topics.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// List topics with their figures
    #[command(visible_alias = "ls")]
    List {
        /// At most so many
        #[arg(long)]
        limit: Option<u32>,
        /// Only those whose names come after this one
        #[arg(long, value_name = "NAME")]
        after: Option<String>,
        /// Only the names: one request, however many topics there are
        #[arg(long)]
        names: bool,
    },
    /// Describe a topic: settings, partitions, groups
    Show {
        /// Name of the topic
        topic: String,
    },
    /// Create a topic; it may exist with the same settings
    Create {
        /// Name of the topic
        topic: String,
        /// Number of partitions [default: 1]
        #[arg(long, short)]
        partitions: Option<u32>,
        #[command(flatten)]
        retention: Retention,
    },
    /// Change how long acked messages are kept
    Alter {
        /// Name of the topic
        topic: String,
        #[command(flatten)]
        retention: Retention,
    },
    /// Delete a topic with its messages, groups and streams
    Delete {
        /// Name of the topic
        topic: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Remove every message of a topic
    Purge {
        /// Name of the topic
        topic: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
}

/// How long acked messages are kept.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Retention {
    /// How long acked messages are kept; 0 keeps none [default: the server's]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    retention: Option<Duration>,
    /// How many bytes of acked messages are kept, per partition [default: the server's]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    retention_bytes: Option<u64>,
}

pub(crate) async fn run(broker: &Broker, command: Command) -> Result<(), Failure> {
    let (client, output) = (broker.client()?, broker.output);
    match command {
        Command::List { limit, after, names } => {
            let listed = list(&client, limit, after.as_deref()).await?;
            if names { show_names(output, &listed) } else { show_list(&client, output, listed).await }
        }
        Command::Show { topic } => show(output, &client.topic(&topic).await?),
        Command::Create { topic, partitions, retention } => {
            let mut wanted = CreateTopic::new(&topic);
            if let Some(partitions) = partitions {
                wanted = wanted.partitions(partitions);
            }
            if let Some(limit) = retention.retention {
                wanted = wanted.retention(limit);
            }
            if let Some(limit) = retention.retention_bytes {
                wanted = wanted.retention_bytes(limit);
            }
            show_settings(output, "created", &client.create_topic(&wanted).await?)
        }
        Command::Alter { topic, retention: Retention { retention, retention_bytes } } => {
            if retention.is_none() && retention_bytes.is_none() {
                return Err(Failure::usage("nothing to change").advise("give --retention or --retention-bytes"));
            }
            show_settings(output, "changed", &client.change_topic(&topic, retention, retention_bytes).await?)
        }
        Command::Delete { topic, yes } => {
            let info = client.topic(&topic).await?;
            let (messages, groups) = (counted(unacked(&info), "message"), counted(info.groups.len() as u64, "group"));
            confirm(&format!("Delete the topic {topic:?} with {messages} and {groups}?"), yes)?;
            client.delete_topic(&topic).await?;
            output.show(&json!({"deleted": topic}), |_| format!("deleted the topic {topic:?}\n"))
        }
        Command::Purge { topic, yes } => purge(&client, output, &topic, yes).await,
    }
}

/// Removes the messages of a topic, which may be one of dead letters.
pub(crate) async fn purge(client: &Client, output: Output, topic: &str, yes: bool) -> Result<(), Failure> {
    let info = client.topic(topic).await?;
    confirm(&format!("Remove {} of the topic {topic:?}?", counted(unacked(&info), "message")), yes)?;
    let purged = client.purge_topic(topic).await?;
    let text = |_| format!("removed {} of the topic {topic:?}\n", counted(purged, "message"));
    output.show(&json!({"topic": topic, "purged": purged}), text)
}

/// Messages that some group has not acked.
pub(crate) fn unacked(info: &TopicInfo) -> u64 {
    info.partitions.iter().map(|partition| partition.messages).sum()
}

/// The descriptions of topics, in the order of their names. A topic that is gone by then is left out, and one that is
/// too large to be described has none.
pub(crate) async fn describe(client: &Client, names: &[String]) -> Result<Vec<(String, Option<TopicInfo>)>, Error> {
    let mut described = Vec::with_capacity(names.len());
    for some in names.chunks(DESCRIPTIONS_AT_A_TIME) {
        let mut requests = Vec::with_capacity(some.len());
        for name in some.iter().cloned() {
            let client = client.clone();
            requests.push(tokio::spawn(async move { (client.topic(&name).await, name) }));
        }
        for request in requests {
            let (answer, name) = request.await.expect("a request neither panics nor is cancelled");
            match answer {
                Ok(info) => described.push((name, Some(info))),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::Invalid => described.push((name, None)),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(described)
}

async fn list(client: &Client, limit: Option<u32>, after: Option<&str>) -> Result<Vec<String>, Failure> {
    #[derive(Deserialize)]
    struct Names {
        topics: Vec<String>,
    }
    let limit = limit.map(|limit| limit.to_string());
    let parameters = [("limit", limit.as_deref()), ("after", after)];
    let given: Vec<_> = parameters.iter().filter_map(|(name, value)| Some((*name, (*value)?))).collect();
    let names: Names = client.get("/v1/topics", &given).await?;
    Ok(names.topics)
}

fn show_names(output: Output, names: &[String]) -> Result<(), Failure> {
    output.show(&json!({"topics": names}), |_| {
        names.iter().map(|name| crate::text::visible(name) + "\n").collect::<String>()
    })
}

async fn show_list(client: &Client, output: Output, names: Vec<String>) -> Result<(), Failure> {
    let described = describe(client, &names).await?;
    let mut table = Table::new(&["TOPIC", ">PARTITIONS", ">UNACKED", ">BYTES", ">GROUPS", ">LAG", ">IN FLIGHT"]);
    for (name, info) in &described {
        let Some(info) = info else {
            let unknown = || Cell::toned("?", Tone::Faint);
            table.row(vec![name.into(), unknown(), unknown(), unknown(), unknown(), unknown(), unknown()]);
            continue;
        };
        let size = info.partitions.iter().map(|partition| partition.bytes).sum();
        let progress = || info.groups.iter().flat_map(|group| &group.partitions);
        table.row(vec![
            name.into(),
            info.partitions.len().to_string().into(),
            count(unacked(info)).into(),
            bytes(size).into(),
            info.groups.len().to_string().into(),
            count(progress().map(|progress| progress.lag).sum()).into(),
            count(progress().map(|progress| progress.in_flight).sum()).into(),
        ]);
    }
    let topics: Vec<_> = described
        .iter()
        .map(|(name, info)| match info {
            Some(info) => json!(info),
            None => json!({"name": name}),
        })
        .collect();
    output.table(&topics, &table, "no topics")
}

fn show(output: Output, info: &TopicInfo) -> Result<(), Failure> {
    output.show(info, |output| {
        let mut partitions = Table::new(&["PARTITION", ">NEXT OFFSET", ">UNACKED", ">BYTES", ">DELAYED"]);
        for partition in &info.partitions {
            partitions.row(vec![
                partition.partition.to_string().into(),
                partition.next_offset.to_string().into(),
                count(partition.messages).into(),
                bytes(partition.bytes).into(),
                count(partition.delayed).into(),
            ]);
        }
        let mut groups = groups::group_table();
        info.groups.iter().for_each(|group| groups.row(groups::group_row(None, group)));
        let head = format!(
            "{}\nretention  {}, {} a partition\n\n{}",
            crate::text::visible(&info.name),
            limit(info.retention_ms, millis),
            limit(info.retention_bytes, bytes),
            output.render(&partitions)
        );
        if groups.is_empty() { head + "\nno groups\n" } else { head + "\n" + &output.render(&groups) }
    })
}

fn show_settings(output: Output, done: &str, settings: &TopicSettings) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(settings);
    }
    print(&format!(
        "{done} the topic {:?}: {}, retention {}, {} a partition\n",
        settings.name,
        counted(u64::from(settings.partitions), "partition"),
        limit(settings.retention_ms, millis),
        limit(settings.retention_bytes, bytes)
    ))
}

fn limit(limit: Option<u64>, text: impl Fn(u64) -> String) -> String {
    limit.map_or_else(|| "no limit".to_owned(), text)
}
