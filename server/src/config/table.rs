//! TOML tables as layers of settings.

use toml::{Table, Value};

/// Replaces the values of `base` by those of `over`, table by table.
pub(super) fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Table(base)), Value::Table(over)) => merge(base, over),
            (_, value) => {
                base.insert(key, value);
            }
        }
    }
}

/// A table with `value` at `key`, a path such as `limits.in_flight_max`.
pub(super) fn at_key(key: &str, value: Value) -> Table {
    let (section, name) = match key.split_once('.') {
        Some((section, rest)) => (section, Value::Table(at_key(rest, value))),
        None => (key, value),
    };
    Table::from_iter([(section.to_owned(), name)])
}
