//! Encoding of message metadata: tagged fields in ascending tag order; absent fields take no bytes.

use crate::types::names::group_name;
use crate::types::{
    DEFAULT_TENANT, DeadLetter, DeadLetterOrigin, DeadReason, Deadline, DecisionFields, Envelope, IdentityKey,
    KeptForRedrive, MessageFlags, Metadata, Millis, Offset, PartitionId, Priority, ProduceScope, RedriveOrigin,
    RetryPolicy, Text, Timestamp, TopicName,
};
use crate::wire::{Malformed, Reader, VARINT_BYTES_MAX, put_bytes, put_varint, varint};

const RUN_ID: u8 = 1;
const STEP_ID: u8 = 2;
const PARENT_STEP_ID: u8 = 3;
const TENANT_ID: u8 = 4;
const IDEMPOTENCY_KEY: u8 = 5;
const TARGET_TOPIC: u8 = 6;
const PARTITION_OVERRIDE: u8 = 7;
const DEADLINE: u8 = 8;
const RETRY_POLICY: u8 = 9;
const PRIORITY: u8 = 10;
const DELIVER_AT: u8 = 11;
const LABEL: u8 = 12;
const ROUTING_LABEL: u8 = 13;
const ROUTING_META: u8 = 14;
const TRACE: u8 = 15;
const DEAD_LETTER: u8 = 16;
const REDRIVE: u8 = 17;
const REQUESTED: u8 = 19;
const DELAYED_UNTIL: u8 = 20;
const LOST: u8 = 21;

/// Appends `meta`; nothing for empty metadata.
pub fn encode(meta: &Metadata, out: &mut Vec<u8>) {
    let envelope = &meta.envelope;
    for (tag, text) in [
        (RUN_ID, &envelope.run_id),
        (STEP_ID, &envelope.step_id),
        (PARENT_STEP_ID, &envelope.parent_step_id),
        (TENANT_ID, &envelope.tenant_id),
        (IDEMPOTENCY_KEY, &envelope.idempotency_key),
    ] {
        if let Some(text) = text {
            put_text(out, tag, text);
        }
    }
    if let Some(topic) = &envelope.target_topic {
        put_text(out, TARGET_TOPIC, topic.encoded());
    }
    if let Some(partition) = envelope.partition_override {
        field(out, PARTITION_OVERRIDE, |out| put_varint(out, u64::from(partition.0)));
    }
    if let Some(deadline) = &envelope.deadline {
        field(out, DEADLINE, |out| put_deadline(out, deadline));
    }
    if let Some(policy) = &envelope.retry_policy {
        field(out, RETRY_POLICY, |out| put_policy(out, policy));
    }
    if let Some(priority) = envelope.priority {
        field(out, PRIORITY, |out| out.push(priority.level()));
    }
    if let Some(at) = envelope.deliver_at {
        field(out, DELIVER_AT, |out| put_varint(out, at.0));
    }
    for (name, value) in &envelope.labels {
        field(out, LABEL, |out| put_pair(out, name, value));
    }
    if let Some(routing) = &meta.routing {
        put_text(out, ROUTING_LABEL, &routing.label);
        for (name, value) in &routing.meta {
            field(out, ROUTING_META, |out| put_pair(out, name, value));
        }
    }
    if let Some(trace) = &meta.trace {
        put_text(out, TRACE, trace);
    }
    if let Some(dead) = &meta.dead_letter {
        field(out, DEAD_LETTER, |out| put_dead_letter(out, dead));
    }
    if let Some(redrive) = &meta.redrive {
        field(out, REDRIVE, |out| {
            put_varint(out, u64::from(redrive.count));
            put_varint(out, redrive.dead_letter_offset.0);
            put_varint(out, redrive.original_offset.0);
        });
    }
    if let Some(ProduceScope { topic, destination }) = &meta.requested {
        field(out, REQUESTED, |out| put_pair(out, topic.encoded(), destination.encoded()));
    }
    if let Some(until) = envelope.delayed_until {
        field(out, DELAYED_UNTIL, |out| put_varint(out, until.0));
    }
    if let Some(damage) = &meta.lost {
        put_text(out, LOST, damage);
    }
}

/// The tags and lengths of tenant and idempotency key, as [`encode`] writes them before the texts.
pub(crate) fn identity_heads(tenant: Option<&str>, key: &str) -> [Head; 2] {
    let head = |tag: u8, text: &str| {
        let (mut bytes, (length, len)) = ([tag; 1 + VARINT_BYTES_MAX], varint(text.len() as u64));
        bytes[1..].copy_from_slice(&length);
        Head { bytes, len: 1 + len }
    };
    let none = Head { bytes: [0; 1 + VARINT_BYTES_MAX], len: 0 };
    [tenant.map_or(none, |tenant| head(TENANT_ID, tenant)), head(IDEMPOTENCY_KEY, key)]
}

/// What stands before the text of a field.
pub(crate) struct Head {
    bytes: [u8; 1 + VARINT_BYTES_MAX],
    len: usize,
}

impl Head {
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Decodes what [`encode`] wrote.
///
/// # Errors
/// [`Malformed`] for anything else.
pub fn decode(bytes: &[u8]) -> Result<Metadata, Malformed> {
    let mut meta = Metadata::default();
    walk(bytes, |field| {
        let envelope = &mut meta.envelope;
        match field {
            Field::RunId(text) => envelope.run_id = Some(text.into()),
            Field::StepId(text) => envelope.step_id = Some(text.into()),
            Field::ParentStepId(text) => envelope.parent_step_id = Some(text.into()),
            Field::TenantId(text) => envelope.tenant_id = Some(text.into()),
            Field::IdempotencyKey(text) => envelope.idempotency_key = Some(text.into()),
            Field::TargetTopic(text) => envelope.target_topic = Some(TopicName::decode(text)?),
            Field::PartitionOverride(partition) => envelope.partition_override = Some(partition),
            Field::Deadline(at, text) => envelope.deadline = Some(Deadline { at, text: text.into() }),
            Field::RetryPolicy(policy) => envelope.retry_policy = Some(policy),
            Field::Priority(priority) => envelope.priority = Some(priority),
            Field::DeliverAt(at) => envelope.deliver_at = Some(at),
            Field::DelayedUntil(until) => envelope.delayed_until = Some(until),
            Field::Label(name, value) => drop(envelope.labels.insert(name.into(), value.into())),
            Field::RoutingLabel(label) => meta.routing.get_or_insert_default().label = label.into(),
            Field::RoutingMeta(name, value) => {
                drop(meta.routing.get_or_insert_default().meta.insert(name.into(), value.into()));
            }
            Field::Trace(text) => meta.trace = Some(text.into()),
            Field::DeadLetter(dead) => meta.dead_letter = Some(dead),
            Field::RedriveOrigin(redrive) => meta.redrive = Some(redrive),
            Field::Requested(topic, destination) => meta.requested = Some(ProduceScope::decode(topic, destination)?),
            Field::Lost(damage) => meta.lost = Some(damage.into()),
        }
        Ok(())
    })?;
    Ok(meta)
}

/// Validates `bytes` as strictly as [`decode`], but extracts only the flags that hot paths need.
///
/// # Errors
/// [`Malformed`] for exactly the bytes that [`decode`] refuses.
pub(crate) fn flags(bytes: &[u8]) -> Result<MessageFlags, Malformed> {
    let mut flags = MessageFlags::default();
    walk(bytes, |field| {
        match field {
            Field::Priority(priority) => flags.priority = priority,
            Field::Deadline(..) => flags.has_deadline = true,
            Field::DeliverAt(_) | Field::DelayedUntil(_) => flags.has_delay = true,
            Field::IdempotencyKey(key) => flags.has_identity = !key.is_empty(),
            Field::TargetTopic(text) => drop(TopicName::decode(text)?),
            Field::Requested(topic, destination) => drop(ProduceScope::decode(topic, destination)?),
            _ => {}
        }
        Ok(())
    })?;
    Ok(flags)
}

/// The decision fields in validated metadata of a producer; `None` if none is set.
pub(crate) fn decision_fields(bytes: &[u8]) -> Option<DecisionFields> {
    const VALID: &str = "metadata is validated when a body is constructed";
    let mut fields = DecisionFields::default();
    let (mut tenant, mut key): (&[u8], &[u8]) = (&[], &[]);
    let mut reader = Reader::new(bytes);
    while let (Ok(tag), Ok(content)) = (reader.byte(), reader.bytes()) {
        match tag {
            TENANT_ID => tenant = content,
            IDEMPOTENCY_KEY => key = content,
            DEADLINE | RETRY_POLICY | PRIORITY | DELIVER_AT | REQUESTED | DELAYED_UNTIL => {
                match read_field(tag, content).expect(VALID) {
                    Field::Requested(topic, destination) => {
                        fields.requested = Some(ProduceScope::decode(topic, destination).expect(VALID));
                    }
                    Field::Deadline(at, _) => fields.deadline = Some(at),
                    Field::RetryPolicy(policy) => fields.retry_policy = Some(policy),
                    Field::Priority(priority) => fields.priority = priority,
                    Field::DeliverAt(at) => fields.deliver_at = Some(at),
                    Field::DelayedUntil(until) => fields.delayed_until = Some(until),
                    _ => {}
                }
            }
            // Of no concern to decisions.
            _ => {}
        }
    }
    let tenant = if tenant.is_empty() { DEFAULT_TENANT.as_bytes() } else { tenant };
    if !key.is_empty() || tenant != DEFAULT_TENANT.as_bytes() {
        fields.identity = Some(IdentityKey::of_bytes(tenant, key));
    }
    (!fields.is_empty()).then_some(fields)
}

/// The tenant and the key of the identity in validated metadata, if it has one. Both are UTF-8.
pub(crate) fn identity(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (mut tenant, mut identity) = (None, None);
    let mut reader = Reader::new(bytes);
    while let (Ok(tag @ ..=IDEMPOTENCY_KEY), Ok(content)) = (reader.byte(), reader.bytes()) {
        match tag {
            TENANT_ID => tenant = Some(content),
            IDEMPOTENCY_KEY => identity = Some(content),
            _ => {}
        }
    }
    let tenant = tenant.filter(|tenant| !tenant.is_empty()).unwrap_or(DEFAULT_TENANT.as_bytes());
    identity.filter(|key| !key.is_empty()).map(|key| (tenant, key))
}

/// The run id in validated metadata, if it has one. It is the first field.
pub(crate) fn run_id(bytes: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader::new(bytes);
    let is_first = reader.byte().is_ok_and(|tag| tag == RUN_ID);
    if is_first { reader.bytes().ok().filter(|id| !id.is_empty()) } else { None }
}

/// What the producer asked for according to validated metadata, if that is recorded.
pub(crate) fn requested(bytes: &[u8]) -> Option<ProduceScope> {
    let mut reader = Reader::new(bytes);
    while let (Ok(tag), Ok(content)) = (reader.byte(), reader.bytes()) {
        if tag == REQUESTED {
            let mut names = Reader::new(content);
            return ProduceScope::decode(names.text().ok()?, names.text().ok()?).ok();
        }
    }
    None
}

/// One field, borrowed from the bytes.
enum Field<'a> {
    RunId(&'a str),
    StepId(&'a str),
    ParentStepId(&'a str),
    TenantId(&'a str),
    IdempotencyKey(&'a str),
    TargetTopic(&'a str),
    PartitionOverride(PartitionId),
    Deadline(Timestamp, &'a str),
    RetryPolicy(RetryPolicy),
    Priority(Priority),
    DeliverAt(Timestamp),
    DelayedUntil(Timestamp),
    Label(&'a str, &'a str),
    RoutingLabel(&'a str),
    RoutingMeta(&'a str, &'a str),
    Trace(&'a str),
    DeadLetter(Box<DeadLetter>),
    RedriveOrigin(RedriveOrigin),
    Requested(&'a str, &'a str),
    Lost(&'a str),
}

fn walk<'a>(bytes: &'a [u8], mut visit: impl FnMut(Field<'a>) -> Result<(), Malformed>) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    let mut last_tag = 0;
    let mut last_name = "";
    while !reader.is_empty() {
        let tag = reader.byte()?;
        let repeats = tag == last_tag && matches!(tag, LABEL | ROUTING_META);
        if tag <= last_tag && !repeats {
            return Err(Malformed("metadata fields out of order"));
        }
        let field = read_field(tag, reader.bytes()?)?;
        if let Field::Label(name, _) | Field::RoutingMeta(name, _) = field {
            if repeats && name <= last_name {
                return Err(Malformed("metadata names out of order"));
            }
            last_name = name;
        }
        if tag == ROUTING_META && last_tag < ROUTING_LABEL {
            return Err(Malformed("routing meta without its label"));
        }
        last_tag = tag;
        visit(field)?;
    }
    Ok(())
}

fn read_field(tag: u8, content: &[u8]) -> Result<Field<'_>, Malformed> {
    let text = |content| std::str::from_utf8(content).map_err(|_| Malformed("text is not UTF-8"));
    let mut reader = Reader::new(content);
    let field = match tag {
        RUN_ID => return text(content).map(Field::RunId),
        STEP_ID => return text(content).map(Field::StepId),
        PARENT_STEP_ID => return text(content).map(Field::ParentStepId),
        TENANT_ID => return text(content).map(Field::TenantId),
        IDEMPOTENCY_KEY => return text(content).map(Field::IdempotencyKey),
        TARGET_TOPIC => return text(content).map(Field::TargetTopic),
        ROUTING_LABEL => return text(content).map(Field::RoutingLabel),
        TRACE => return text(content).map(Field::Trace),
        LOST => return text(content).map(Field::Lost),
        PARTITION_OVERRIDE => Field::PartitionOverride(PartitionId(reader.varint32()?)),
        DEADLINE => Field::Deadline(Timestamp(reader.varint()?), reader.text()?),
        RETRY_POLICY => Field::RetryPolicy(policy(&mut reader)?),
        PRIORITY => Field::Priority(Priority::new(reader.byte()?).ok_or(Malformed("priority above 9"))?),
        DELIVER_AT => Field::DeliverAt(Timestamp(reader.varint()?)),
        DELAYED_UNTIL => Field::DelayedUntil(Timestamp(reader.varint()?)),
        LABEL => Field::Label(reader.text()?, reader.text()?),
        ROUTING_META => Field::RoutingMeta(reader.text()?, reader.text()?),
        DEAD_LETTER => Field::DeadLetter(Box::new(dead_letter(&mut reader)?)),
        REDRIVE => Field::RedriveOrigin(RedriveOrigin {
            count: reader.varint32()?,
            dead_letter_offset: Offset(reader.varint()?),
            original_offset: Offset(reader.varint()?),
        }),
        REQUESTED => Field::Requested(reader.text()?, reader.text()?),
        _ => return Err(Malformed("unknown metadata field")),
    };
    reader.finish()?;
    Ok(field)
}

/// Writes a tag, the content's length and the content.
fn field(out: &mut Vec<u8>, tag: u8, content: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    content(&mut inner);
    out.push(tag);
    put_bytes(out, &inner);
}

fn put_text(out: &mut Vec<u8>, tag: u8, text: &str) {
    out.push(tag);
    put_bytes(out, text.as_bytes());
}

fn put_pair(out: &mut Vec<u8>, name: &str, value: &str) {
    put_bytes(out, name.as_bytes());
    put_bytes(out, value.as_bytes());
}

fn put_deadline(out: &mut Vec<u8>, deadline: &Deadline) {
    put_varint(out, deadline.at.0);
    put_bytes(out, deadline.text.as_bytes());
}

pub(crate) fn put_policy(out: &mut Vec<u8>, policy: &RetryPolicy) {
    put_varint(out, u64::from(policy.max_attempts));
    put_varint(out, policy.backoff.0);
    put_varint(out, policy.max_backoff.0);
}

pub(crate) fn policy(reader: &mut Reader<'_>) -> Result<RetryPolicy, Malformed> {
    Ok(RetryPolicy {
        max_attempts: reader.varint32()?,
        backoff: Millis(reader.varint()?),
        max_backoff: Millis(reader.varint()?),
    })
}

fn put_dead_letter(out: &mut Vec<u8>, dead: &DeadLetter) {
    put_origin(out, &dead.origin);
    // The kept fields are encoded as an envelope, so that they have one encoding and one decoder.
    let kept = Envelope {
        retry_policy: dead.kept.retry_policy,
        target_topic: dead.kept.target_topic.clone(),
        partition_override: dead.kept.partition_override,
        deadline: dead.kept.deadline.clone(),
        ..Envelope::default()
    };
    encode(&Metadata { envelope: kept, ..Metadata::default() }, out);
}

/// Appends the origin of a dead letter.
pub(crate) fn put_origin(out: &mut Vec<u8>, origin: &DeadLetterOrigin) {
    put_bytes(out, origin.original_topic.encoded().as_bytes());
    put_varint(out, u64::from(origin.original_partition.0));
    put_varint(out, origin.original_offset.0);
    put_bytes(out, origin.group.as_str().as_bytes());
    put_varint(out, u64::from(origin.attempts));
    put_bytes(out, origin.last_error.as_bytes());
    out.push(reason_code(origin.reason));
    put_varint(out, origin.routed_at.0);
}

fn dead_letter(reader: &mut Reader<'_>) -> Result<DeadLetter, Malformed> {
    Ok(DeadLetter { origin: origin(reader)?, kept: kept(reader.rest())? })
}

/// Reads what [`put_origin`] wrote.
pub(crate) fn origin(reader: &mut Reader<'_>) -> Result<DeadLetterOrigin, Malformed> {
    Ok(DeadLetterOrigin {
        original_topic: TopicName::decode(reader.text()?)?,
        original_partition: PartitionId(reader.varint32()?),
        original_offset: Offset(reader.varint()?),
        group: group_name(reader.text()?)?,
        attempts: reader.varint32()?,
        last_error: Text::from(reader.text()?),
        reason: reason(reader.byte()?)?,
        routed_at: Timestamp(reader.varint()?),
    })
}

/// Decodes the fields that a dead letter may keep; not with [`decode`], so that nested input cannot recurse.
fn kept(bytes: &[u8]) -> Result<KeptForRedrive, Malformed> {
    let mut kept = KeptForRedrive::default();
    let mut reader = Reader::new(bytes);
    let mut last_tag = 0;
    while !reader.is_empty() {
        let tag = reader.byte()?;
        if tag <= last_tag {
            return Err(Malformed("metadata fields out of order"));
        }
        last_tag = tag;
        let content = reader.bytes()?;
        if tag == DEAD_LETTER {
            return Err(Malformed("field not kept in a dead letter"));
        }
        match read_field(tag, content)? {
            Field::TargetTopic(text) => kept.target_topic = Some(TopicName::decode(text)?),
            Field::PartitionOverride(partition) => kept.partition_override = Some(partition),
            Field::Deadline(at, text) => kept.deadline = Some(Deadline { at, text: text.into() }),
            Field::RetryPolicy(policy) => kept.retry_policy = Some(policy),
            _ => return Err(Malformed("field not kept in a dead letter")),
        }
    }
    Ok(kept)
}

pub(crate) fn reason_code(reason: DeadReason) -> u8 {
    match reason {
        DeadReason::MaxAttempts => 1,
        DeadReason::DeadlineExceeded => 2,
        DeadReason::NonRetryable => 3,
        DeadReason::PayloadDamaged => 4,
    }
}

pub(crate) fn reason(code: u8) -> Result<DeadReason, Malformed> {
    match code {
        1 => Ok(DeadReason::MaxAttempts),
        2 => Ok(DeadReason::DeadlineExceeded),
        3 => Ok(DeadReason::NonRetryable),
        4 => Ok(DeadReason::PayloadDamaged),
        _ => Err(Malformed("unknown dead-letter reason")),
    }
}
