//! `driftq groups`.

use clap::{Subcommand, ValueEnum};
use driftq_client::{GroupInfo, SeekTo};
use serde_json::json;

use super::Broker;
use super::topics::describe;
use crate::args::MessageAt;
use crate::failure::{Exit, Failure};
use crate::output::{Output, confirm};
use crate::table::{Cell, Table, Tone};
use crate::text::counted;
use crate::units::{count, millis};

/// What to do with groups.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum Command {
    /// List the groups of a topic, or of all topics
    #[command(visible_alias = "ls")]
    List {
        /// Name of the topic
        topic: Option<String>,
    },
    /// Describe a group, partition by partition
    Show {
        /// Name of the topic
        topic: String,
        /// Name of the group
        group: String,
    },
    /// Create a group; one that exists stays as it is
    Create {
        /// Name of the topic
        topic: String,
        /// Name of the group
        group: String,
        /// Where it starts
        #[arg(long, value_enum, default_value = "earliest")]
        from: From,
    },
    /// Delete a group with its progress, leases and streams
    Delete {
        /// Name of the topic
        topic: String,
        /// Name of the group
        group: String,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Set a group to another position; its leases end
    Seek {
        /// Name of the topic
        topic: String,
        /// Name of the group
        group: String,
        /// `earliest`, `latest`, an offset, or a time (RFC 3339)
        #[arg(long, value_parser = position)]
        to: SeekTo,
    },
    /// Stop deliveries to a group
    Pause {
        /// Name of the topic
        topic: String,
        /// Name of the group
        group: String,
    },
    /// Continue deliveries to a group
    Resume {
        /// Name of the topic
        topic: String,
        /// Name of the group
        group: String,
    },
    /// End the lease of a message now, as if it had run out
    Expire {
        /// The message: TOPIC/PARTITION/OFFSET
        message: MessageAt,
        /// Name of the group
        #[arg(long, short)]
        group: String,
    },
}

/// Where a new group starts.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum From {
    /// With the earliest message that is kept
    Earliest,
    /// Behind the newest message
    Latest,
}

fn position(text: &str) -> Result<SeekTo, String> {
    match text {
        "earliest" => Ok(SeekTo::Earliest),
        "latest" => Ok(SeekTo::Latest),
        number if number.bytes().all(|byte| byte.is_ascii_digit()) && !number.is_empty() => {
            number.parse().map(SeekTo::Offset).map_err(|error| format!("{number}: {error}"))
        }
        time if time.starts_with(|first: char| first.is_ascii_digit()) => Ok(SeekTo::Time(time.to_owned())),
        _ => Err("give `earliest`, `latest`, an offset, or a time such as 2026-11-15T07:54:20Z".to_owned()),
    }
}

pub(crate) async fn run(broker: &Broker, command: Command) -> Result<(), Failure> {
    let (client, output) = (broker.client()?, broker.output);
    match command {
        Command::List { topic } => {
            let names = match topic {
                Some(topic) => {
                    // A topic that is not there is an error here, and not in a list of all.
                    client.groups(&topic).await?;
                    vec![topic]
                }
                None => client.topics().await?,
            };
            let mut table = group_table();
            let mut listed = Vec::new();
            for (topic, info) in describe(&client, &names).await? {
                for group in info.iter().flat_map(|info| &info.groups) {
                    table.row(group_row(Some(&topic), group));
                    let mut item = json!(group);
                    item["topic"] = json!(topic);
                    listed.push(item);
                }
            }
            output.table(&listed, &table, "no groups")
        }
        Command::Show { topic, group } => {
            let info = client.topic(&topic).await?;
            let found = info.groups.iter().find(|found| found.group == group);
            let missing = || Failure::new(Exit::NotFound, format!("group {group:?} of topic {topic:?} does not exist"));
            show(output, found.ok_or_else(missing)?)
        }
        Command::Create { topic, group, from } => {
            client.create_group(&topic, &group, from == From::Latest).await?;
            done(output, "created", &topic, &group)
        }
        Command::Delete { topic, group, yes } => {
            let question = format!("Delete the group {group:?} of {topic:?} with its progress, leases and streams?");
            confirm(&question, yes)?;
            client.delete_group(&topic, &group).await?;
            done(output, "deleted", &topic, &group)
        }
        Command::Seek { topic, group, to } => {
            client.seek(&topic, &group, &to).await?;
            done(output, "moved", &topic, &group)
        }
        Command::Pause { topic, group } => {
            client.set_paused(&topic, &group, true).await?;
            done(output, "paused", &topic, &group)
        }
        Command::Resume { topic, group } => {
            client.set_paused(&topic, &group, false).await?;
            done(output, "resumed", &topic, &group)
        }
        Command::Expire { message: MessageAt { topic, partition, offset }, group } => {
            client.expire_lease(&topic, &group, partition, offset).await?;
            let result = json!({"expired": {"topic": topic, "group": group, "partition": partition, "offset": offset}});
            output.show(&result, |_| format!("ended the lease of {topic}/{partition}/{offset}\n"))
        }
    }
}

fn done(output: Output, what: &str, topic: &str, group: &str) -> Result<(), Failure> {
    let result = json!({"status": what, "topic": topic, "group": group});
    output.show(&result, |_| format!("{what} the group {group:?} of {topic:?}\n"))
}

/// Columns of groups.
pub(crate) fn group_table() -> Table {
    Table::new(&["TOPIC", "GROUP", ">STREAMS", ">LAG", ">IN FLIGHT", ">WAITING", ">OLDEST", ">SKIPPED", "STATE"])
}

/// The row of a group, all its partitions together.
pub(crate) fn group_row(topic: Option<&str>, group: &GroupInfo) -> Vec<Cell> {
    let sum = |figure: fn(&driftq_client::ProgressInfo) -> u64| group.partitions.iter().map(figure).sum::<u64>();
    let oldest = group.partitions.iter().filter_map(|progress| progress.oldest_age_ms).max();
    vec![
        topic.unwrap_or_default().into(),
        (&group.group).into(),
        group.consumers.to_string().into(),
        count(sum(|progress| progress.lag)).into(),
        count(sum(|progress| progress.in_flight)).into(),
        count(sum(|progress| progress.waiting)).into(),
        oldest.map(millis).unwrap_or_default().into(),
        count(group.skipped).into(),
        state(group),
    ]
}

/// Why a group gets nothing, or that it is fine.
pub(crate) fn state(group: &GroupInfo) -> Cell {
    if group.paused {
        return Cell::toned("paused", Tone::Warn);
    }
    let waiting = group.partitions.iter().filter(|progress| progress.lag > 0);
    let blocked = waiting.filter_map(|progress| progress.blocked.as_deref()).next();
    blocked.map_or_else(|| Cell::toned("ok", Tone::Good), |why| Cell::toned(why, Tone::Warn))
}

fn show(output: Output, group: &GroupInfo) -> Result<(), Failure> {
    output.show(group, |output| {
        let titles = ["PARTITION", ">FLOOR", ">LAG", ">IN FLIGHT", ">WAITING", ">OLDEST", "BLOCKED"];
        let mut table = Table::new(&titles);
        for progress in &group.partitions {
            table.row(vec![
                progress.partition.to_string().into(),
                progress.floor.map(|floor| floor.to_string()).unwrap_or_default().into(),
                count(progress.lag).into(),
                count(progress.in_flight).into(),
                count(progress.waiting).into(),
                progress.oldest_age_ms.map(millis).unwrap_or_default().into(),
                Cell::toned(progress.blocked.as_deref().unwrap_or_default(), Tone::Warn),
            ]);
        }
        let paused = if group.paused { "paused, " } else { "" };
        format!(
            "{}  {paused}{}, {} skipped\n\n{}",
            crate::text::visible(&group.group),
            counted(group.consumers, "stream"),
            count(group.skipped),
            output.render(&table)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_parsed() {
        assert_eq!(position("earliest"), Ok(SeekTo::Earliest));
        assert_eq!(position("17"), Ok(SeekTo::Offset(17)));
        let time = "2026-11-15T07:54:20Z";
        assert_eq!(position(time), Ok(SeekTo::Time(time.to_owned())));
        for text in ["", "-1", "yesterday", "99999999999999999999"] {
            assert!(position(text).is_err(), "{text}");
        }
    }
}
