//! Another configuration at the next start.

use std::collections::BTreeMap;

use driftq_core::log::HEADER_BYTES;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::setup::Setup;

/// The smallest segment with which a broker starts.
const SEGMENT_BYTES_MIN: u64 = HEADER_BYTES as u64 + 400;

/// Limits that may be 0.
const MAY_BE_ZERO: &[&str] =
    &["reserve_bytes", "retained_bytes_max", "memory_bytes", "read_ahead_bytes", "clean_spare_segments"];

/// The fields of a [`Setup`] that change at the next start, with their new values; `null` is the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Reconfiguration(BTreeMap<String, Value>);

impl Reconfiguration {
    /// The change from one setup to another.
    #[must_use]
    pub fn between(before: &Setup, after: &Setup) -> Self {
        let (before, after) = (fields(before), fields(after));
        let names = before.keys().chain(after.keys());
        let changed = names.filter(|name| before.get(*name) != after.get(*name));
        Self(changed.map(|name| (name.clone(), after.get(name).cloned().unwrap_or(Value::Null))).collect())
    }

    /// Keeps only the fields that `keep` selects.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut() -> bool) {
        self.0.retain(|_, _| keep());
    }

    /// The setup with the change; without it where no broker starts with the result.
    #[must_use]
    pub fn apply(&self, setup: &Setup) -> Setup {
        self.changed(setup).ok().filter(|changed| changed.check().is_ok()).unwrap_or_else(|| setup.clone())
    }

    fn changed(&self, setup: &Setup) -> Result<Setup, serde_json::Error> {
        let mut changed = fields(setup);
        for (name, value) in &self.0 {
            match value {
                Value::Null => drop(changed.remove(name)),
                value => drop(changed.insert(name.clone(), value.clone())),
            }
        }
        let changed = serde_json::from_value(changed.into())?;
        // What the disk does is not configured.
        Ok(Setup { shows_given_up: setup.shows_given_up, rots: setup.rots, ..changed })
    }
}

impl<'de> Deserialize<'de> for Reconfiguration {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let change = Self(BTreeMap::deserialize(from)?);
        let is_small = |name: &str, value: &Value| match (name, value.as_u64()) {
            ("segment_bytes" | "segment_bytes_min", Some(bytes)) => bytes < SEGMENT_BYTES_MIN,
            (name, Some(0)) => !MAY_BE_ZERO.contains(&name),
            _ => false,
        };
        if let Some((name, _)) = change.0.iter().find(|(name, value)| is_small(name, value)) {
            return Err(D::Error::custom(format!("no broker starts with so small a value of {name}")));
        }
        for (name, _) in change.0.iter().filter(|(_, value)| value.is_null()) {
            // Other values show whether there is such a field.
            let other = Self(BTreeMap::from([(name.clone(), Value::Array(Vec::new()))]));
            match other.changed(&Setup::default()) {
                Err(error) if error.to_string().contains("unknown field") => return Err(D::Error::custom(error)),
                _ => {}
            }
        }
        change.changed(&Setup::default()).map_err(D::Error::custom)?;
        Ok(change)
    }
}

fn fields(setup: &Setup) -> serde_json::Map<String, Value> {
    match serde_json::to_value(setup) {
        Ok(Value::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::GroupIdle;

    #[test]
    fn change_leads_from_one_setup_to_the_other() {
        let before = Setup { rest_ms: Some(150), segment_bytes_min: 9_000, ..Setup::default() };
        let idle = Some(GroupIdle { ms: 1, max_ms: 2 });
        let after = Setup { in_flight_max: 1, group_idle: idle, adaptive_credit: true, ..Setup::default() };
        let change = Reconfiguration::between(&before, &after);
        assert_eq!(change.apply(&before), after);
        let text = serde_json::to_string(&change).expect("it serializes");
        let parsed: Reconfiguration = serde_json::from_str(&text).expect("it can be parsed");
        assert_eq!(parsed, change);
        assert_eq!(Reconfiguration::between(&after, &after), Reconfiguration::default());
    }

    #[test]
    fn change_to_what_no_broker_starts_with_is_refused() {
        for text in [
            r#"{"in_flight_max":0}"#,
            r#"{"segment_bytes":4096}"#,
            r#"{"no_such_limit":1}"#,
            r#"{"no_such_limit":null}"#,
            r#"{"lease_ms":"long"}"#,
        ] {
            assert!(serde_json::from_str::<Reconfiguration>(text).is_err(), "{text}");
        }
        let change: Reconfiguration = serde_json::from_str(r#"{"lease_max_ms":5,"lease_min_ms":9}"#).expect("parsed");
        assert_eq!(change.apply(&Setup::default()), Setup::default());
    }
}
