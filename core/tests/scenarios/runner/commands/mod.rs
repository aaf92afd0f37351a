//! Commands of a scenario file, parsed into commands of the model.

mod effects;
mod messages;

use driftq_core::command::{
    ChangeRetention, CloseStream, CreateGroup, CreateTenant, CreateTopic, DeleteGroup, DeleteTopic, DescribeTopic,
    GroupLifetime, ListGroups, ListTopics, OnDisconnect, Pause, Peek, Purge, Redrive, RedriveRest, RedriveSelection,
    Resume, Seek, SeekTo, SetPrefetch, Subscribe, Unsubscribe,
};
use driftq_core::types::{
    ConsumerId, GroupName, GroupStart, Identity, Limits, Offset, PartitionId, Retention, Setting, TenantId, TenantName,
    TopicId, TopicName,
};
use driftq_core::{ModelCommand, PipelineConfig};

use super::args::Args;
use super::session::{Names, small_config};
use super::units::parse_duration;

/// What a command of a file comes to.
#[derive(Debug)]
pub enum Action {
    /// Replaces the model by one with this configuration.
    Limits(Box<PipelineConfig>),
    /// Applies a command of the model.
    Apply(Box<ModelCommand>, Binding),
    /// Takes a delivery of the consumer with this name.
    Deliver(String),
    /// Prints the reply of the held command with this number.
    Reply(usize),
}

/// What the reply gives a name to.
#[derive(Clone, Debug)]
pub enum Binding {
    Nothing,
    /// A stream, by its name.
    Stream(String, Subscribe),
    /// The grant of an effect.
    Grant(Identity),
}

/// A consumer that no broker has connected.
const DISCONNECTED: ConsumerId = ConsumerId(u64::MAX);

/// Parses a command. `additions` are its `+` lines.
pub fn parse(names: &Names, args: &mut Args, additions: &[String]) -> Result<Action, String> {
    let name = args.positional("a command")?;
    if !additions.is_empty() && name != "complete" {
        return Err(format!("{name} takes no + lines"));
    }
    let command: ModelCommand = match name.as_str() {
        "limits" => return limits(args).map(|config| Action::Limits(Box::new(config))),
        "deliver" => {
            let name = args.positional("a consumer")?;
            names.consumer(&name)?;
            return Ok(Action::Deliver(name));
        }
        "reply" => {
            let text = args.positional("#number")?;
            let number = text.strip_prefix('#').and_then(|number| number.parse().ok());
            return Ok(Action::Reply(number.ok_or_else(|| format!("\"{text}\" is not a number like #1"))?));
        }
        "tick" => ModelCommand::Tick { by: parse_duration(&args.positional("a duration")?)? },
        "wall-clock" => {
            let text = args.positional("+duration or -duration")?;
            let sign = if text.starts_with('-') { -1 } else { 1 };
            let by = parse_duration(text.trim_start_matches(['+', '-']))?;
            ModelCommand::SetWallClock { by_ms: sign * by.0 as i64 }
        }
        "rebase-wall-clock" => ModelCommand::RebaseWallClock,
        "stall" => ModelCommand::Stall,
        "sync" => ModelCommand::Sync,
        "fail-sync" => ModelCommand::FailSync,
        "fill-disk" => ModelCommand::FillDisk,
        "free-disk" => ModelCommand::FreeDisk,
        "snapshot" => ModelCommand::Snapshot,
        "crash" => ModelCommand::Crash,
        "restart" => ModelCommand::Restart,
        "create-tenant" => {
            let name = TenantName::new(&args.positional("a name")?).map_err(|error| error.to_string())?;
            CreateTenant { name }.into()
        }
        "create-topic" => CreateTopic {
            name: args.positional_topic()?,
            partitions: args.parsed("partitions")?,
            retention: Retention { age: args.duration("retention")?, bytes: args.parsed("retention_bytes")? },
        }
        .into(),
        "change-retention" => ChangeRetention {
            name: args.positional_topic()?,
            age: setting(args, "retention", parse_duration)?,
            bytes: setting(args, "retention_bytes", |text| {
                text.parse().map_err(|_| format!("\"{text}\" is no number"))
            })?,
        }
        .into(),
        "delete-topic" => DeleteTopic { name: args.positional_topic()? }.into(),
        "list-topics" => ListTopics { tenant: TenantId(args.parsed("tenant")?.unwrap_or(0)) }.into(),
        "describe" => DescribeTopic { name: args.positional_topic()? }.into(),
        "create-group" => {
            let (topic, group) = topic_and_group(args)?;
            CreateGroup { topic, group, start: group_start(args)? }.into()
        }
        "delete-group" => {
            let (topic, group) = topic_and_group(args)?;
            DeleteGroup { topic, group }.into()
        }
        "list-groups" => ListGroups { topic: args.positional_topic()? }.into(),
        "seek" => {
            let (topic, group) = topic_and_group(args)?;
            Seek { topic, group, to: seek_to(args)? }.into()
        }
        "pause" => {
            let (topic, group) = topic_and_group(args)?;
            Pause { topic, group }.into()
        }
        "resume" => {
            let (topic, group) = topic_and_group(args)?;
            Resume { topic, group }.into()
        }
        "redrive" => redrive(args)?.into(),
        "purge" => Purge { topic: args.positional_topic()? }.into(),
        "peek" => Peek {
            topic: args.positional_topic()?,
            partition: PartitionId(args.parsed("partition")?.unwrap_or(0)),
            offset: Offset(args.parsed("from")?.unwrap_or(0)),
            limit: args.parsed("limit")?.unwrap_or(usize::MAX),
        }
        .into(),
        "subscribe" => {
            let stream = subscribe(args)?;
            let binding = Binding::Stream(args.required("as")?, stream.clone());
            return Ok(Action::Apply(Box::new(stream.into()), binding));
        }
        "set-prefetch" => {
            SetPrefetch { consumer: consumer(names, args)?, prefetch: prefetch(&args.positional("a number")?)? }.into()
        }
        "disconnect" => Unsubscribe { consumer: consumer(names, args)? }.into(),
        "close" => CloseStream { consumer: consumer(names, args)? }.into(),
        "produce" => messages::produce(args)?.into(),
        "ack" => messages::ack(names, args)?.into(),
        "ack-cumulative" => messages::ack_cumulative(args)?.into(),
        "expire" => messages::expire_lease(args)?.into(),
        "nack" => messages::nack(names, args)?.into(),
        "extend" => messages::extend(names, args)?.into(),
        "release" => messages::release(names, args)?.into(),
        "withdraw" => messages::withdraw(names, args)?.into(),
        "complete" => messages::complete(names, args, additions)?.into(),
        "begin" => {
            let begin = effects::begin(names, args)?;
            let binding = Binding::Grant(begin.identity.clone());
            return Ok(Action::Apply(Box::new(begin.into()), binding));
        }
        "reacquire" => {
            let reacquire = effects::reacquire(args)?;
            let binding = Binding::Grant(reacquire.identity.clone());
            return Ok(Action::Apply(Box::new(reacquire.into()), binding));
        }
        "finish" => effects::finish(names, args)?.into(),
        "renew" => effects::renew(names, args)?.into(),
        "lookup" => effects::lookup(args)?.into(),
        "list-effects" => effects::list(args)?.into(),
        "forget" => effects::forget(args)?.into(),
        other => return Err(format!("unknown command \"{other}\"")),
    };
    Ok(Action::Apply(Box::new(command), Binding::Nothing))
}

fn topic_and_group(args: &mut Args) -> Result<(TopicName, GroupName), String> {
    Ok((args.positional_topic()?, args.name("group")?))
}

/// A setting that is left out stays; `default` makes it the server's default.
fn setting<T>(
    args: &mut Args,
    name: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Setting<T>, String> {
    match args.text(name) {
        None => Ok(Setting::Unchanged),
        Some(text) if text == "default" => Ok(Setting::ServerDefault),
        Some(text) => parse(&text).map(Setting::Value),
    }
}

fn group_start(args: &mut Args) -> Result<GroupStart, String> {
    let choices = [("earliest", GroupStart::Earliest), ("latest", GroupStart::Latest)];
    Ok(args.choice("from", &choices)?.unwrap_or_default())
}

fn seek_to(args: &mut Args) -> Result<SeekTo, String> {
    let end = args.choice("to", &[("earliest", SeekTo::Earliest), ("latest", SeekTo::Latest)])?;
    let offset = args.parsed("offset")?.map(|offset| SeekTo::Offset(Offset(offset)));
    let time = args.time("time")?.map(SeekTo::Time);
    let given: Vec<_> = [end, offset, time].into_iter().flatten().collect();
    match given[..] {
        [to] => Ok(to),
        _ => Err("write one of to=earliest, to=latest, offset=, time=".to_owned()),
    }
}

fn redrive(args: &mut Args) -> Result<Redrive, String> {
    let topic = args.positional_topic()?;
    let limit = args.parsed("limit")?.unwrap_or(u64::MAX);
    if let (Some(from), Some(below)) = (args.parsed("from")?, args.parsed("below")?) {
        // The dead-letter topic is the second topic of a scenario.
        let rest = RedriveRest { dead_topic: TopicId(1), from: Offset(from), below: Offset(below) };
        return Ok(Redrive { topic, which: RedriveSelection::Rest(rest), limit });
    }
    let Some(list) = args.text("offsets") else { return Ok(Redrive { topic, which: RedriveSelection::All, limit }) };
    let offsets = list.split(',').map(|offset| offset.parse().map(Offset)).collect::<Result<_, _>>();
    let offsets = offsets.map_err(|_| format!("offsets={list}: write offsets=0,2"))?;
    Ok(Redrive { topic, which: RedriveSelection::Offsets(offsets), limit })
}

fn subscribe(args: &mut Args) -> Result<Subscribe, String> {
    let (topic, group) = topic_and_group(args)?;
    let mut stream = Subscribe::new(topic, group, args.name("owner")?);
    stream.lease = args.duration("lease")?;
    stream.prefetch = args.parsed("prefetch")?.unwrap_or(stream.prefetch);
    stream.deliveries_max = args.parsed("max")?;
    stream.start = group_start(args)?;
    let choices = [("keep", OnDisconnect::Keep), ("release", OnDisconnect::Release)];
    stream.on_disconnect = args.choice("on_disconnect", &choices)?.unwrap_or_default();
    let choices = [("durable", GroupLifetime::Durable), ("ephemeral", GroupLifetime::Ephemeral)];
    stream.group_lifetime = args.choice("group_lifetime", &choices)?.unwrap_or_default();
    Ok(stream)
}

fn consumer(names: &Names, args: &mut Args) -> Result<ConsumerId, String> {
    Ok(names.consumer(&args.positional("a consumer")?)?.id.unwrap_or(DISCONNECTED))
}

fn prefetch(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| format!("\"{text}\" is not a prefetch"))
}

/// Limits by name, and the sizes of the log.
fn limits(args: &mut Args) -> Result<PipelineConfig, String> {
    let limits = match args.positional("production or spec")?.as_str() {
        "production" => Limits::production(),
        "spec" => Limits::spec(),
        other => return Err(format!("\"{other}\": write production or spec")),
    };
    let mut config = small_config(limits);
    config.segment_bytes = args.parsed("segment_bytes")?.unwrap_or(config.segment_bytes);
    config.reserve_bytes = args.parsed("reserve_bytes")?.unwrap_or(config.reserve_bytes);
    let limits = &mut config.limits;
    macro_rules! set {
        ($method:ident: $($name:ident)*) => {
            $(limits.$name = args.$method(stringify!($name))?.unwrap_or(limits.$name);)*
        };
    }
    set! { duration: lease_default lease_min lease_max delay_max dedupe_ttl effect_ttl job_ttl completion_ttl retry_after
    group_idle_max }
    set! { parsed: in_flight_max partition_messages_max partition_bytes_max dedupe_keys_max key_bytes_max
    message_bytes_max idempotency_key_bytes_max id_bytes_max metadata_bytes_max error_text_bytes_max result_bytes_max
    effects_max completions_max outputs_max partitions_max topics_max groups_max consumers_max adaptive_credit
    retained_bytes_max }
    limits.retention_age = args.duration("retention")?.or(limits.retention_age);
    limits.retention_bytes = args.parsed("retention_bytes")?.or(limits.retention_bytes);
    limits.group_idle = args.duration("group_idle")?.or(limits.group_idle);
    Ok(config)
}
