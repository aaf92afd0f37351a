//! Reads the file of alert rules, as far as it uses YAML: maps by indentation, lists of maps, folded texts.

/// An alert rule.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Alert {
    pub(super) name: String,
    pub(super) expression: String,
    pub(super) hold: String,
    pub(super) severity: String,
    pub(super) summary: String,
    pub(super) description: String,
    pub(super) runbook: String,
}

/// The rules of a file, in order.
///
/// # Errors
/// A line that is not understood.
pub(super) fn alerts_of(text: &str) -> Result<Vec<Alert>, String> {
    let mut alerts: Vec<Alert> = Vec::new();
    let mut folded = None;
    for line in text.lines().filter(|line| !line.trim().is_empty() && !line.trim_start().starts_with('#')) {
        let indent = line.len() - line.trim_start().len();
        if let (Some(parent), Some(alert)) = (folded, alerts.last_mut())
            && indent > parent
        {
            alert.expression.push(' ');
            alert.expression.push_str(line.trim());
            continue;
        }
        folded = None;
        let (key, value) = line.trim().split_once(':').ok_or_else(|| format!("no key in {line:?}"))?;
        let value = value.trim().trim_matches('"').to_owned();
        let alert = match key {
            "groups" | "- name" | "rules" => continue,
            "- alert" => {
                alerts.push(Alert { name: value, ..Alert::default() });
                continue;
            }
            _ => alerts.last_mut().ok_or_else(|| format!("{key} before the first alert"))?,
        };
        let field = match key {
            "labels" | "annotations" => continue,
            "expr" => &mut alert.expression,
            "for" => &mut alert.hold,
            "severity" => &mut alert.severity,
            "summary" => &mut alert.summary,
            "description" => &mut alert.description,
            "runbook_url" => &mut alert.runbook,
            other => return Err(format!("{other} is not understood")),
        };
        if !field.is_empty() {
            return Err(format!("{key} is given twice"));
        }
        match &*value {
            ">-" => folded = Some(indent),
            _ => *field = value,
        }
    }
    Ok(alerts)
}

#[test]
fn rules_are_read() {
    let text = "# Rules.\ngroups:\n  - name: g\n    rules:\n      - alert: A\n        expr: >-\n          a\n          > 1\n\
        \x20       for: 5m\n        labels:\n          severity: warning\n        annotations:\n\
        \x20         summary: \"s: {{ $value }}\"\n          runbook_url: docs/x.md#a\n      - alert: B\n        expr: b > 0\n";
    let alerts = alerts_of(text).expect("rules");
    let [a, b] = &alerts[..] else { panic!("{alerts:?}") };
    assert_eq!((&*a.name, a.expression.trim(), &*a.hold, &*a.severity), ("A", "a > 1", "5m", "warning"));
    assert_eq!((&*a.summary, &*a.runbook, &*a.description), ("s: {{ $value }}", "docs/x.md#a", ""));
    assert_eq!((&*b.name, &*b.expression), ("B", "b > 0"));
    for bad in ["- alert: A\nexpr: a\nexpr: b\n", "expr: a\n", "- alert: A\nwhen: 5m\n", "- alert: A\nexpr\n"] {
        assert!(alerts_of(bad).is_err(), "{bad}");
    }
}
