//! The settings as a configuration file: what `driftqd config` prints.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use driftq_core::types::Text;

use super::number::NUMBERS;
use super::{RouterSettings, Rule, Settings};

/// The whole of it, section by section.
pub(super) fn to_toml(settings: &Settings) -> String {
    let mut out = String::new();
    let line = |out: &mut String, key: &str, value: &str| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{key} = {value}");
    };
    line(&mut out, "addr", &quoted(&settings.addr.to_string()));
    line(&mut out, "data_dir", &quoted(&settings.data_dir.to_string_lossy()));
    line(&mut out, "wal", &settings.wal.to_string());
    line(&mut out, "profile", &quoted(settings.profile.as_str()));
    numbers(&mut out, settings, "");
    for section in ["limits", "storage", "http"] {
        let _ = writeln!(out, "\n[{section}]");
        numbers(&mut out, settings, section);
    }
    let hosts: Vec<String> = settings.http.allowed_hosts.iter().map(|host| quoted(host)).collect();
    line(&mut out, "insecure", &settings.http.insecure.to_string());
    line(&mut out, "allowed_hosts", &format!("[{}]", hosts.join(", ")));
    out.push_str("\n[log]\n");
    line(&mut out, "format", &quoted(settings.log.format.as_str()));
    line(&mut out, "level", &quoted(&settings.log.level));
    router(&mut out, &settings.router);
    out
}

fn numbers(out: &mut String, settings: &Settings, section: &str) {
    for number in NUMBERS {
        let (its, name) = number.key.rsplit_once('.').unwrap_or(("", number.key));
        if its == section {
            let _ = writeln!(out, "{name} = {}", number.get(settings));
        }
    }
}

fn router(out: &mut String, router: &RouterSettings) {
    if let Some(webhook) = &router.webhook {
        let (timeout_ms, rest_ms) = (webhook.timeout.as_millis(), webhook.rest.as_millis());
        let _ = writeln!(out, "\n[router.webhook]\nurl = {}", quoted(&webhook.url));
        let _ = writeln!(out, "timeout_ms = {timeout_ms}\nrest_ms = {rest_ms}");
    }
    for Rule { topic, key_prefix, labels, tenant, label, target_topic, partition_override, meta } in &router.rules {
        out.push_str("\n[[router.rule]]\n");
        let label = Some(label).filter(|label| !label.is_empty());
        let pairs = |map: &BTreeMap<Text, Text>| Some(map).filter(|map| !map.is_empty()).map(inline);
        let lines = [
            ("topic", topic.as_ref().map(|topic| quoted(topic.as_str()))),
            ("key_prefix", key_prefix.as_ref().map(|prefix| quoted(prefix))),
            ("labels", pairs(labels)),
            ("tenant", tenant.as_ref().map(|tenant| quoted(tenant))),
            ("label", label.map(|label| quoted(label))),
            ("target_topic", target_topic.as_ref().map(|topic| quoted(topic.as_str()))),
            ("partition_override", partition_override.map(|partition| partition.to_string())),
            ("meta", pairs(meta)),
        ];
        for (key, value) in lines.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            let _ = writeln!(out, "{key} = {value}");
        }
    }
}

fn inline(map: &BTreeMap<Text, Text>) -> String {
    let pairs: Vec<String> = map.iter().map(|(name, value)| format!("{} = {}", quoted(name), quoted(value))).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// A basic string: any text can be one, on one line, and any key.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\U{:08X}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
