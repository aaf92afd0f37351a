//! The dashboard and the alert rules in `docs/deploy` against the metrics of a running broker, and the page that says
//! what each alert means.

mod alerts;
mod exposition;
mod promql;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::{Value, json};

use self::alerts::{Alert, alerts_of};
use self::exposition::Exposition;
use self::promql::Mentions;
use crate::harness::{Server, wait_until};

const ALERTS: &str = "docs/deploy/prometheus/alerts.yml";
const DASHBOARD: &str = "docs/deploy/grafana/driftq.json";

fn page(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `/metrics` of a broker in which everything has happened that gives a metric its series.
fn metrics() -> &'static str {
    static METRICS: OnceLock<String> = OnceLock::new();
    METRICS.get_or_init(|| {
        // A router that cannot be reached, so that its failures have a series.
        let server = Server::configured("[router.webhook]\nurl = \"http://127.0.0.1:9/route\"\n", &[]);
        server.create("t", 1);
        server.produce("t", "settled");
        let item = server.next("t");
        server.settle_ok("ack", "t", &item, json!({}));
        server.produce("t", "hopeless");
        let item = server.next("t");
        server.settle_ok("nack", "t", &item, json!({ "retryable": false }));
        wait_until("the dead letter is counted", || {
            server.metric("driftq_dlq_messages{topic=\"t\"}").is_some_and(|count| count == 1.0)
        });
        server.get("/metrics").body
    })
}

/// Every expression of the dashboard, by the title of its panel or the name of its variable.
fn dashboard_expressions(dashboard: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let mut found = Vec::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            found.push((text(&panel["title"]), text(&target["expr"])));
        }
    }
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        if variable["type"] == "query" {
            let query = text(&variable["query"]["query"]);
            let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')'));
            let (selector, label) =
                inner.and_then(|inner| inner.rsplit_once(", ")).expect("label_values(metric, label)");
            found.push((text(&variable["name"]), format!("sum by ({label}) ({selector})")));
        }
    }
    found
}

/// What the expressions mention and `/metrics` does not have.
fn missing(expressions: &[(String, String)]) -> Vec<String> {
    let (exposition, documented) = (Exposition::parse(metrics()), page("docs/http.md"));
    let mut missing = Vec::new();
    for (name, expression) in expressions {
        match Mentions::of(expression) {
            Ok(mentions) => {
                let of_it = mentions.missing(&exposition, &documented);
                missing.extend(of_it.into_iter().map(|what| format!("{name}: {what}")));
            }
            Err(error) => missing.push(format!("{name}: {error} in {expression}")),
        }
    }
    missing
}

fn alerts() -> Vec<Alert> {
    alerts_of(&page(ALERTS)).expect("alert rules")
}

fn alert_expressions(alerts: &[Alert]) -> Vec<(String, String)> {
    alerts.iter().map(|alert| (alert.name.clone(), alert.expression.clone())).collect()
}

#[test]
fn dashboard_and_alerts_mention_only_what_metrics_have() {
    let dashboard: Value = serde_json::from_str(&page(DASHBOARD)).expect("JSON");
    let of_dashboard = dashboard_expressions(&dashboard);
    assert!(of_dashboard.len() > 40, "{}", of_dashboard.len());
    assert_eq!(missing(&of_dashboard), Vec::<String>::new());
    let of_alerts = alert_expressions(&alerts());
    assert!(of_alerts.len() > 15, "{}", of_alerts.len());
    assert_eq!(missing(&of_alerts), Vec::<String>::new());
}

#[test]
fn misspelled_metric_in_a_copy_is_found() {
    let planted = page(DASHBOARD).replacen("driftq_messages_acked_total", "driftq_message_acked_total", 1);
    let dashboard: Value = serde_json::from_str(&planted).expect("JSON");
    let found = missing(&dashboard_expressions(&dashboard));
    assert_eq!(found, ["Acked: there is no series of driftq_message_acked_total"]);
    let planted = page(ALERTS).replacen("reason=\"storage_full\"", "reason=\"disk_full\"", 1);
    let found = missing(&alert_expressions(&alerts_of(&planted).expect("rules")));
    assert_eq!(found, ["DriftqStorageFull: produce_rejected_total has no reason=\"disk_full\""]);
    let planted = page(ALERTS).replacen("by (instance, reason)", "by (instance, cause)", 1);
    assert_eq!(missing(&alert_expressions(&alerts_of(&planted).expect("rules"))).len(), 1);
}

#[test]
fn legends_name_labels_that_their_expressions_keep() {
    let dashboard: Value = serde_json::from_str(&page(DASHBOARD)).expect("JSON");
    let exposition = Exposition::parse(metrics());
    for panel in dashboard["panels"].as_array().expect("panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            let (expression, legend) = (target["expr"].as_str().expect("text"), target["legendFormat"].as_str());
            let mentions = Mentions::of(expression).expect("PromQL");
            for label in legend.expect("text").split("{{").skip(1).filter_map(|part| part.split("}}").next()) {
                let of_series = mentions.selectors.iter().any(|selector| {
                    exposition.series.get(&selector.metric).is_some_and(|labels| labels.contains_key(label))
                });
                let is_kept = match mentions.labels.is_empty() {
                    true => of_series || label == "instance",
                    false => mentions.labels.iter().any(|kept| kept == label),
                };
                assert!(is_kept, "{}: {label} of the legend is not in {expression}", panel["title"]);
            }
        }
    }
}

#[test]
fn panels_have_titles_descriptions_and_places_of_their_own() {
    let dashboard: Value = serde_json::from_str(&page(DASHBOARD)).expect("JSON");
    let mut places = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for panel in dashboard["panels"].as_array().expect("panels") {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64().expect("an id")), "{title}: another panel has its id");
        let is_row = panel["type"] == "row";
        assert!(
            is_row || panel["description"].as_str().is_some_and(|text| text.ends_with('.')),
            "{title}: description"
        );
        let size = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in size("x")..size("x") + size("w") {
            for y in size("y")..size("y") + size("h") {
                assert!(x < 24, "{title} is too far right");
                assert_eq!(places.insert((x, y), title), None, "{title} covers another panel");
            }
        }
    }
}

#[test]
fn every_alert_has_all_it_needs_and_a_section_in_the_runbook() {
    let operations = page("docs/operations.md");
    let sections: BTreeSet<String> = operations
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| line.trim_start_matches('#').trim().to_lowercase())
        .collect();
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let Alert { name, hold, severity, summary, description, runbook, .. } = &alert;
        assert!(names.insert(name.clone()), "{name} exists twice");
        assert!(hold.ends_with(['s', 'm', 'h']), "{name} has no `for`");
        assert!(["critical", "warning"].contains(&&**severity), "{name} has severity {severity:?}");
        assert!(!summary.is_empty() && description.ends_with('.'), "{name} has no summary or no description");
        assert_eq!(runbook, &format!("docs/operations.md#{}", name.to_lowercase()), "{name}");
        assert!(sections.contains(&name.to_lowercase()), "docs/operations.md has no section {name}");
    }
    let described = operations.lines().filter_map(|line| line.trim_start_matches('#').trim().strip_prefix("Driftq"));
    for name in described.filter(|name| !name.contains(' ')) {
        assert!(
            names.contains(&format!("Driftq{name}")),
            "docs/operations.md describes Driftq{name}, which is no alert"
        );
    }
}

#[test]
fn metrics_have_conventional_names() {
    let exposition = Exposition::parse(metrics());
    assert_eq!(exposition.unconventional(), Vec::<String>::new());
    let without_series: Vec<_> = exposition.kinds.keys().filter(|name| exposition.has_no_series(name)).collect();
    let is_histogram = |name: &&&String| exposition.kinds[**name] == "histogram";
    let without_series: Vec<_> = without_series.iter().filter(|name| !is_histogram(name)).collect();
    assert!(without_series.is_empty(), "the test must make them occur: {without_series:?}");
}

#[test]
fn every_metric_is_documented() {
    let documented = page("docs/http.md");
    // `…_acked_total` stands for the same beginning as in the name before it.
    let is_documented = |name: &str| {
        let ends = name.match_indices('_').map(|(at, _)| &name[at..]);
        documented.contains(&format!("`{name}"))
            || ends.into_iter().any(|end| documented.contains(&format!("`…{end}`")))
    };
    let exposition = Exposition::parse(metrics());
    let missing: Vec<_> = exposition.kinds.keys().filter(|name| !is_documented(name)).collect();
    assert!(missing.is_empty(), "docs/http.md does not have {missing:?}");
}

/// Runs `promtool` with these arguments and this standard input. `None` where it is not installed.
fn promtool(arguments: &[&str], input: &str) -> Option<(bool, String)> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            println!("skipped: promtool, because it cannot be run: {error}");
            return None;
        }
    };
    // It may end before it has read everything.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
}

#[test]
fn promtool_accepts_rules_and_metrics() {
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(ALERTS);
    let rules = rules.to_str().expect("UTF-8");
    let Some((is_valid, text)) = promtool(&["check", "rules", rules], "") else { return };
    assert!(is_valid, "{text}");
    let (is_valid, text) = promtool(&["check", "metrics"], metrics()).expect("it has just run");
    assert!(is_valid && text.trim().is_empty(), "{text}");
    let (is_valid, _) = promtool(&["check", "metrics"], "# TYPE a_total gauge\na_total 1\n").expect("it has just run");
    assert!(!is_valid, "a name against the conventions is found");
}
