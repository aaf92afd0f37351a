//! Producing messages and answering deliveries.

use driftq_core::command::{
    Ack, AckCumulative, Claim, Complete, ExpireLease, Extend, Nack, Produce, Release, Retry, Withdraw,
};
use driftq_core::types::{Deadline, Offset, PartitionId, Priority, RetryPolicy, Routing, RoutingDecision, TokenClaim};

use super::super::args::Args;
use super::super::session::Names;

pub(super) fn produce(args: &mut Args) -> Result<Produce, String> {
    let topic = args.positional_topic()?;
    let key = args.text("key").unwrap_or_default();
    let value = match args.parsed::<usize>("size")? {
        Some(size) => "x".repeat(size),
        None => args.required("value")?,
    };
    let mut produce = Produce::new(topic, key, value);
    produce.delay = args.duration("delay")?;
    produce.trace = args.text("trace").map(Into::into);
    produce.routing = routing(args)?;
    let envelope = &mut produce.envelope;
    envelope.run_id = args.text("run").map(Into::into);
    envelope.step_id = args.text("step").map(Into::into);
    envelope.parent_step_id = args.text("parent_step").map(Into::into);
    envelope.tenant_id = args.text("tenant").map(Into::into);
    envelope.idempotency_key = args.text("idempotency_key").map(Into::into);
    envelope.target_topic = args.optional_topic("target")?;
    envelope.partition_override = args.parsed("partition")?.map(PartitionId);
    envelope.retry_policy = retry_policy(args)?;
    envelope.labels = args.pairs("label")?;
    envelope.deliver_at = args.time("deliver_at")?;
    envelope.deadline = match args.text("deadline") {
        Some(text) => Some(Deadline { at: args.parse_time(&text)?, text: text.into() }),
        None => None,
    };
    if let Some(level) = args.parsed("priority")? {
        envelope.priority = Some(Priority::new(level).ok_or("priority is 0 to 9")?);
    }
    Ok(produce)
}

fn retry_policy(args: &mut Args) -> Result<Option<RetryPolicy>, String> {
    let max_attempts = args.parsed("max_attempts")?;
    let (backoff, max_backoff) = (args.duration("backoff")?, args.duration("max_backoff")?);
    let is_given = max_attempts.is_some() || backoff.is_some() || max_backoff.is_some();
    Ok(is_given.then(|| RetryPolicy {
        max_attempts: max_attempts.unwrap_or_default(),
        backoff: backoff.unwrap_or_default(),
        max_backoff: max_backoff.unwrap_or_default(),
    }))
}

/// The decision of a router, if the file makes one.
fn routing(args: &mut Args) -> Result<Option<RoutingDecision>, String> {
    let label = args.text("route_label");
    let decision = RoutingDecision {
        routing: Routing { label: label.unwrap_or_default().into(), meta: args.pairs("route_meta")? },
        target_topic: args.optional_topic("route_target")?,
        partition_override: args.parsed("route_partition")?.map(PartitionId),
    };
    Ok((decision != RoutingDecision::default()).then_some(decision))
}

pub(super) fn ack(names: &Names, args: &mut Args) -> Result<Ack, String> {
    claim(names, args).map(Ack)
}

pub(super) fn release(names: &Names, args: &mut Args) -> Result<Release, String> {
    claim(names, args).map(Release)
}

pub(super) fn withdraw(names: &Names, args: &mut Args) -> Result<Withdraw, String> {
    claim(names, args).map(Withdraw)
}

pub(super) fn nack(names: &Names, args: &mut Args) -> Result<Nack, String> {
    let claim = claim(names, args)?;
    let never = args.choice("retry", &[("never", Retry::Never)])?;
    let retry = never.unwrap_or(Retry::after(args.duration("delay")?));
    Ok(Nack { claim, reason: args.text("reason").unwrap_or_default().into(), retry })
}

pub(super) fn ack_cumulative(args: &mut Args) -> Result<AckCumulative, String> {
    Ok(AckCumulative {
        topic: args.positional_topic()?,
        group: args.name("group")?,
        partition: PartitionId(args.parsed("partition")?.unwrap_or(0)),
        offset: Offset(args.parsed("offset")?.ok_or("offset= is missing")?),
        owner: args.name("owner")?,
    })
}

pub(super) fn expire_lease(args: &mut Args) -> Result<ExpireLease, String> {
    Ok(ExpireLease {
        topic: args.positional_topic()?,
        group: args.name("group")?,
        partition: PartitionId(args.parsed("partition")?.unwrap_or(0)),
        offset: Offset(args.parsed("offset")?.ok_or("offset= is missing")?),
    })
}

pub(super) fn extend(names: &Names, args: &mut Args) -> Result<Extend, String> {
    Ok(Extend { claim: claim(names, args)?, lease: args.duration("lease")? })
}

pub(super) fn complete(names: &Names, args: &mut Args, additions: &[String]) -> Result<Complete, String> {
    let claim = claim(names, args)?;
    let produce = additions.iter().map(|line| addition(names, line)).collect::<Result<_, _>>()?;
    Ok(Complete {
        claim,
        result: args.text("result").map(Into::into),
        produce,
        failed: args.text("failed").map(Into::into),
    })
}

/// A message that a completed step produces.
fn addition(names: &Names, line: &str) -> Result<Produce, String> {
    let mut args = Args::parse(names.start, line)?;
    if args.positional("a command")? != "produce" {
        return Err("a + line is a produce".to_owned());
    }
    let message = produce(&mut args)?;
    args.finish()?;
    Ok(message)
}

/// A consumer's claim on an offset. Unless the file says otherwise, the consumer shows the newest token that it was
/// delivered for that offset.
fn claim(names: &Names, args: &mut Args) -> Result<Claim, String> {
    let name = args.positional("a consumer")?;
    let consumer = names.consumer(&name)?;
    let offset = Offset(args.parsed("offset")?.ok_or("offset= is missing")?);
    let delivered = consumer.deliveries.iter().rev().find(|delivery| delivery.offset == offset);
    let token = match (args.text("token"), delivered) {
        (Some(text), _) => names.token_claim(&text)?,
        (None, Some(delivery)) => TokenClaim::Shown(delivery.token),
        (None, None) => return Err(format!("{name} was not delivered offset {offset}; say which token= it shows")),
    };
    let partition = args.parsed("partition")?.map(PartitionId);
    let partition = partition.or(delivered.map(|delivery| delivery.partition)).unwrap_or_default();
    Ok(Claim {
        topic: args.optional_topic("topic")?.unwrap_or_else(|| consumer.stream.topic.clone()),
        group: args.optional_name("group")?.unwrap_or_else(|| consumer.stream.group.clone()),
        partition,
        offset,
        owner: args.optional_name("owner")?.unwrap_or_else(|| consumer.stream.owner.clone()),
        token,
    })
}
