//! Routing rules as they are written in the configuration file, and whether they make sense together.

use std::collections::BTreeMap;

use driftq_core::types::limits::PARTITIONS_CEILING;
use driftq_core::types::{PartitionId, Text, TopicName};

use super::error::ConfigError;
use super::file::Entry;
use super::{Rule, decision_fits};

const KEYS: &[&str] =
    &["topic", "key_prefix", "labels", "tenant", "label", "target_topic", "partition_override", "meta"];

/// One `[[router.rule]]`.
pub(super) fn read(entry: &Entry<'_>) -> Result<Rule, ConfigError> {
    let mut rule = Rule::default();
    for (name, value) in entry.table()? {
        let inner = entry.inner(name, value);
        match name.as_str() {
            "topic" => rule.topic = Some(topic(&inner)?),
            "key_prefix" => rule.key_prefix = Some(inner.text("a text that is not empty")?.into()),
            "labels" => rule.labels = map(&inner)?,
            "tenant" => rule.tenant = Some(inner.text("a tenant; \"default\" for messages without one")?.into()),
            "label" => rule.label = inner.text("a text that is not empty")?.into(),
            "target_topic" => rule.target_topic = Some(topic(&inner)?),
            "partition_override" => {
                let number = inner.number_within((0, u64::from(PARTITIONS_CEILING) - 1))?;
                rule.partition_override = Some(PartitionId(u32::try_from(number).unwrap_or(u32::MAX)));
            }
            "meta" => rule.meta = map(&inner)?,
            _ => return Err(inner.unknown(KEYS)),
        }
    }
    Ok(rule)
}

fn topic(entry: &Entry<'_>) -> Result<TopicName, ConfigError> {
    let name = entry.value.as_str().map(TopicName::new);
    match name {
        Some(Ok(name)) => Ok(name),
        Some(Err(problem)) => Err(entry.refused(format!("the name of a topic: {problem}"))),
        None => Err(entry.refused("the name of a topic")),
    }
}

fn map(entry: &Entry<'_>) -> Result<BTreeMap<Text, Text>, ConfigError> {
    let text = |(name, value): (&String, &toml::Value)| Some((name.as_str().into(), value.as_str()?.into()));
    let pairs = entry.value.as_table().and_then(|table| table.iter().map(text).collect::<Option<_>>());
    pairs.ok_or_else(|| entry.refused("a table of texts"))
}

/// Whether each rule does something, and can.
pub(super) fn check(rules: &[Rule]) -> Result<(), ConfigError> {
    let refuse = |at: usize, problem: String| Err(ConfigError::Rule { rule: at + 1, problem });
    for (at, rule) in rules.iter().enumerate() {
        let silent = rule.label.is_empty() && rule.meta.is_empty();
        if silent && rule.target_topic.is_none() && rule.partition_override.is_none() {
            return refuse(at, "it decides nothing; give it a label, target_topic, partition_override or meta".into());
        }
        if !decision_fits(&rule.label, &rule.meta) {
            return refuse(at, "a label has at most 255 bytes, meta at most 64 entries and 8192 bytes".into());
        }
        if let Some(earlier) = rules[..at].iter().position(|earlier| covers(earlier, rule)) {
            return refuse(at, format!("it can never be reached, rule {} fits wherever it does", earlier + 1));
        }
    }
    Ok(())
}

/// Whether every message that fits `narrow` fits `wide` as well.
fn covers(wide: &Rule, narrow: &Rule) -> bool {
    let prefix = |wide: &Text| narrow.key_prefix.as_ref().is_some_and(|narrow| narrow.starts_with(&**wide));
    (wide.topic.is_none() || wide.topic == narrow.topic)
        && (wide.tenant.is_none() || wide.tenant == narrow.tenant)
        && wide.key_prefix.as_ref().is_none_or(prefix)
        && wide.labels.iter().all(|(name, value)| narrow.labels.get(name) == Some(value))
}
