//! What the model answers, printed. Fields at their default are left out; tokens, consumers and times print by name.

use driftq_core::reply::{
    Blocked, Delivery, EffectPage, FoundEffect, GroupInfo, Peeked, Produced, ProgressInfo, RouterUse, StepOutput,
    StoreReply, TopicInfo,
};
use driftq_core::types::{
    Body, DeadLetter, EffectStatus, Metadata, Millis, Outcome, Priority, Retention, RetryPolicy, Timestamp,
};
use driftq_core::{Refusal, Reply};

use super::commands::Binding;
use super::session::Names;
use super::units::{print_duration, print_time};

/// Values longer than this print as their length.
const VALUE_BYTES_MAX: usize = 60;

/// Prints replies, and gives names to what they contain.
#[derive(Debug)]
pub struct Printer<'a> {
    pub names: &'a mut Names,
}

/// One line: a name and the fields that are not at their default.
struct Line(String);

impl Line {
    fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    fn field(mut self, name: &str, value: impl ToString) -> Self {
        self.0 += &format!(" {name}={}", quoted(&value.to_string()));
        self
    }

    fn field_if(self, condition: bool, name: &str, value: impl ToString) -> Self {
        if condition { self.field(name, value) } else { self }
    }

    fn optional(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }

    fn text(self, name: &str, value: &str) -> Self {
        self.field_if(!value.is_empty(), name, value)
    }
}

impl Printer<'_> {
    pub fn reply(&mut self, result: Result<Reply, Refusal>, binding: Binding) -> Vec<String> {
        let reply = match result {
            Ok(reply) => reply,
            Err(refusal) => return vec![print_refusal(&refusal)],
        };
        match reply {
            Reply::Success => vec!["ok".to_owned()],
            Reply::TopicCreated { partitions, .. } => vec![format!("ok partitions={partitions}")],
            Reply::RetentionChanged { retention } => vec![print_retention("ok", retention)],
            Reply::Topics(topics) => vec![print_list("topics", &topics)],
            Reply::Groups(groups) => {
                let names: Vec<_> = groups.iter().map(|group| &group.name).collect();
                vec![print_list("groups", &names)]
            }
            Reply::Topic(topic) => print_topic(&topic),
            Reply::Produced(produced) => vec![print_produced(&produced)],
            Reply::Peeked(messages) if messages.is_empty() => vec!["nothing".to_owned()],
            Reply::Peeked(messages) => messages.iter().flat_map(|message| self.peeked(message)).collect(),
            Reply::Subscribed { consumer } => {
                if let Binding::Stream(name, _) = &binding {
                    self.names.connect(name, consumer);
                }
                vec!["ok".to_owned()]
            }
            Reply::Extended { lease_until } => vec![format!("ok lease_until={}", self.time(lease_until))],
            Reply::Purged { count } => vec![format!("purged count={count}")],
            Reply::Redriven { count, rest } => {
                let rest = rest.map(|rest| format!(" from={} below={}", rest.from, rest.below));
                vec![format!("redriven count={count}{}", rest.unwrap_or_default())]
            }
            Reply::Completed(outputs) => {
                std::iter::once("completed".to_owned()).chain(outputs.iter().map(print_step_output)).collect()
            }
            Reply::Store(StoreReply::Listed(page)) => self.page(&page),
            Reply::Store(reply) => vec![self.store(reply, binding)],
            Reply::TenantCreated { tenant } => vec![format!("ok tenant={tenant}")],
            Reply::KeyCreated(_) | Reply::Keys(_) | Reply::Tenants(_) | Reply::Audit(_) => {
                unreachable!("no scenario has keys")
            }
        }
    }

    pub fn delivery(&mut self, delivery: &Delivery) -> Vec<String> {
        let meta = delivery.body.metadata();
        let line = Line::new("delivery")
            .field_if(delivery.partition.0 > 0, "partition", delivery.partition)
            .field("offset", delivery.offset)
            .field("attempts", delivery.attempts)
            .field_if(delivery.failures > 0, "failures", delivery.failures)
            .text("last_error", delivery.last_error.as_str());
        let line = body(line, &delivery.body)
            .optional("redrives", meta.redrive.map(|redrive| redrive.count))
            .optional("routing", meta.routing.map(|routing| routing.label))
            .field("token", self.names.name_token(delivery.token))
            .field("lease_until", self.time(delivery.lease_until));
        let dead_letter = meta.dead_letter.iter().flat_map(|letter| self.dead_letter(letter));
        std::iter::once(line.0).chain(dead_letter).collect()
    }

    /// A message with everything that travels with it.
    fn peeked(&self, message: &Peeked) -> Vec<String> {
        let Metadata { envelope, routing, trace, dead_letter, redrive, requested, lost } = message.body.metadata();
        let time = |time: Timestamp| self.time(time);
        let mut line = body(Line::new("message").field("offset", message.offset), &message.body)
            .field("produced_at", self.time(message.produced_at))
            .optional("run", envelope.run_id)
            .optional("step", envelope.step_id)
            .optional("parent_step", envelope.parent_step_id)
            .optional("tenant", envelope.tenant_id)
            .optional("idempotency_key", envelope.idempotency_key)
            .optional("target", envelope.target_topic)
            .optional("partition", envelope.partition_override)
            .optional("deadline", envelope.deadline.map(|deadline| deadline.text))
            .optional("priority", envelope.priority.map(Priority::level))
            .optional("deliver_at", envelope.deliver_at.map(time))
            .optional("delayed_until", envelope.delayed_until.map(time));
        line = policy(line, envelope.retry_policy);
        for (name, value) in &envelope.labels {
            line = line.field("label", format!("{name}:{value}"));
        }
        if let Some(routing) = routing {
            line = line.field("route_label", routing.label);
            for (name, value) in &routing.meta {
                line = line.field("route_meta", format!("{name}:{value}"));
            }
        }
        if let Some(requested) = requested {
            line = line.field("requested", requested.topic).field("destination", requested.destination);
        }
        line = line.optional("trace", trace).optional("lost", lost);
        if let Some(redrive) = redrive {
            line = line
                .field("redrives", redrive.count)
                .field("dead_letter_offset", redrive.dead_letter_offset)
                .field("original_offset", redrive.original_offset);
        }
        std::iter::once(line.0).chain(dead_letter.iter().flat_map(|letter| self.dead_letter(letter))).collect()
    }

    fn dead_letter(&self, letter: &DeadLetter) -> Vec<String> {
        let line = Line::new("  dlq")
            .field("original_topic", &letter.original_topic)
            .field("original_partition", letter.original_partition)
            .field("original_offset", letter.original_offset)
            .field("group", &letter.group)
            .field("attempts", letter.attempts)
            .text("last_error", &letter.last_error)
            .field("reason", letter.reason.as_str())
            .field("routed_at", self.time(letter.routed_at));
        let kept = &letter.kept;
        let kept_line = policy(Line::new("  kept for redrive:"), kept.retry_policy)
            .optional("target", kept.target_topic.as_ref())
            .optional("partition", kept.partition_override)
            .optional("deadline", kept.deadline.as_ref().map(|deadline| &deadline.text));
        let is_kept = *kept != Default::default();
        std::iter::once(line.0).chain(is_kept.then_some(kept_line.0)).collect()
    }

    fn store(&mut self, reply: StoreReply, binding: Binding) -> String {
        match reply {
            StoreReply::Execute { attempt, token, lease_until, idempotent } => {
                if let (Binding::Grant(identity), true) = (binding, idempotent) {
                    self.names.set_grant(identity, token);
                }
                let line = Line::new("execute")
                    .field("attempt", attempt)
                    .field("token", self.names.name_token(token))
                    .field("lease_until", self.time(lease_until));
                line.field_if(!idempotent, "idempotent", "no").0
            }
            StoreReply::Replay { outcome, result_lost } => {
                print_outcome(Line::new("replay"), &outcome).field_if(result_lost, "result_lost", "yes").0
            }
            StoreReply::Retryable { attempt, status, last_error } => {
                let line = Line::new("retryable").field("attempt", attempt).field("status", status.as_str());
                line.text("last_error", &last_error).0
            }
            StoreReply::Renewed { lease_until } => format!("ok lease_until={}", self.time(lease_until)),
            StoreReply::Effect(effect) => self.effect(&effect),
            StoreReply::Listed(_) => unreachable!("printed as lines"),
        }
    }

    fn page(&mut self, page: &EffectPage) -> Vec<String> {
        let mut lines: Vec<_> = page
            .effects
            .iter()
            .map(|(identity, effect)| {
                let (kind, tenant, key) = (identity.scope.kind().as_str(), identity.tenant(), identity.key());
                format!("{kind} tenant={tenant} key={key} {}", self.effect(effect))
            })
            .collect();
        // The order depends on a hash of the identities.
        lines.sort_unstable();
        let end = if page.next.is_some() { "more" } else { "end" };
        lines.into_iter().chain([end.to_owned()]).collect()
    }

    fn effect(&mut self, found: &FoundEffect) -> String {
        let effect = &found.effect;
        let in_progress = effect.status == EffectStatus::InProgress;
        let token = effect.token.map(|token| self.names.name_token(token));
        print_outcome(Line::new("effect"), &found.outcome())
            .field_if(found.result_lost, "result_lost", "yes")
            .field("attempt", effect.attempt)
            .optional("token", token)
            .optional("owner", effect.owner.as_ref())
            .optional("hash", effect.request_hash())
            .field_if(effect.committed, "committed", "yes")
            .field_if(in_progress, "lease_until", self.time(effect.lease_until))
            .field("expires_at", self.time(effect.expires_at))
            .0
    }

    fn time(&self, time: Timestamp) -> String {
        print_time(self.names.start, time)
    }
}

fn quoted(text: &str) -> String {
    let plain = !text.is_empty() && !text.contains(char::is_whitespace);
    if plain { text.to_owned() } else { format!("\"{text}\"") }
}

fn body(line: Line, body: &Body) -> Line {
    let value = match body.value().len() {
        len if len > VALUE_BYTES_MAX => format!("<{len} bytes>"),
        _ => String::from_utf8_lossy(body.value()).into_owned(),
    };
    line.text("key", &String::from_utf8_lossy(body.key())).field("value", value)
}

fn policy(line: Line, policy: Option<RetryPolicy>) -> Line {
    let policy = policy.unwrap_or_default();
    line.field_if(policy.max_attempts > 0, "max_attempts", policy.max_attempts)
        .field_if(policy.backoff > Millis(0), "backoff", print_duration(policy.backoff))
        .field_if(policy.max_backoff > Millis(0), "max_backoff", print_duration(policy.max_backoff))
}

/// The refusal's text, its code and the time to wait.
fn print_refusal(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Overloaded { reason, retry_after, .. } => {
            let retry_after = print_duration(*retry_after);
            format!("refused: {refusal} ({}), retry_after={retry_after}", reason.code())
        }
        Refusal::InProgress { retry_after } => {
            format!("refused: {refusal}, retry_after={}", print_duration(*retry_after))
        }
        other => format!("refused: {other}"),
    }
}

/// The retention of a topic; a limit that is not printed does not limit.
fn print_retention(what: &str, retention: Retention) -> String {
    let mut line = what.to_owned();
    if let Some(age) = retention.age {
        line.push_str(&format!(" retention={}", print_duration(age)));
    }
    if let Some(bytes) = retention.bytes_max() {
        line.push_str(&format!(" retention_bytes={bytes}"));
    }
    line
}

fn print_list(what: &str, names: &[impl ToString]) -> String {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    if names.is_empty() { format!("no {what}") } else { format!("{what}: {}", names.join(" ")) }
}

fn print_produced(produced: &Produced) -> String {
    let line = Line::new(if produced.duplicate { "duplicate" } else { "stored" })
        .field("partition", produced.partition)
        .field("offset", produced.offset);
    let router = match produced.router {
        RouterUse::NoDecision => None,
        RouterUse::Followed => Some("followed"),
        RouterUse::Ignored => Some("set-aside"),
    };
    line.field_if(produced.already_done, "already_done", "yes").optional("router", router).0
}

fn print_step_output(output: &StepOutput) -> String {
    let line = Line::new(if output.duplicate { "  duplicate" } else { "  stored" })
        .field("topic", &output.topic)
        .field("partition", output.partition)
        .field("offset", output.offset);
    line.field_if(output.already_done, "already_done", "yes").0
}

fn print_outcome(line: Line, outcome: &Outcome) -> Line {
    line.field("status", outcome.status.as_str())
        .field_if(outcome.response_code != 0, "code", outcome.response_code)
        .optional("result", outcome.result.as_ref())
        .text("last_error", &outcome.last_error)
}

fn print_topic(topic: &TopicInfo) -> Vec<String> {
    let partitions = topic.partitions.iter().map(|partition| {
        let line = Line::new(&format!("partition {}:", partition.partition))
            .field("next_offset", partition.next_offset)
            .field("messages", partition.messages)
            .field("bytes", partition.bytes);
        line.field_if(partition.delayed > 0, "delayed", partition.delayed).0
    });
    partitions.chain(topic.groups.iter().flat_map(print_group)).collect()
}

fn print_group(group: &GroupInfo) -> Vec<String> {
    let line = Line::new(&format!("group {}:", group.group)).field("consumers", group.consumers);
    let line = line.field_if(group.paused, "paused", "yes").field_if(group.skipped > 0, "skipped", group.skipped);
    std::iter::once(line.0).chain(group.partitions.iter().map(print_progress)).collect()
}

fn print_progress(progress: &ProgressInfo) -> String {
    let floor = progress.floor.map_or_else(|| "none".to_owned(), |floor| floor.to_string());
    Line::new(&format!("  partition {}:", progress.partition))
        .field("floor", floor)
        .field("lag", progress.lag)
        .field("in_flight", progress.in_flight)
        .field("waiting", progress.waiting)
        .optional("oldest_age", progress.oldest_age.map(print_duration))
        .optional("blocked", progress.blocked.map(Blocked::as_str))
        .0
}
