//! Reads as much of PromQL as is needed to find the metrics and the labels that an expression mentions.

use super::exposition::Exposition;

/// Names before a parenthesis that are no functions, with the labels that follow them.
const LABEL_LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Other names that are no metrics.
const KEYWORDS: [&str; 8] = ["and", "or", "unless", "bool", "offset", "inf", "nan", "atan2"];
/// What Prometheus adds to every series.
const ADDED_LABELS: [&str; 2] = ["instance", "job"];

/// A metric that an expression mentions, and the matchers of its labels.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    pub(super) metric: String,
    /// Label, operator, value.
    pub(super) matchers: Vec<(String, String, String)>,
}

/// What an expression mentions.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Mentions {
    pub(super) selectors: Vec<Selector>,
    /// Labels by which it aggregates or joins.
    pub(super) labels: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Symbol(char),
    /// A number or a range.
    Other,
}

impl Mentions {
    /// # Errors
    /// What is not understood.
    pub(super) fn of(expression: &str) -> Result<Self, String> {
        let mut tokens = tokens(expression)?.into_iter().peekable();
        let mut found = Self::default();
        let mut depth = 0_i32;
        while let Some(token) = tokens.next() {
            match token {
                Token::Symbol('(') => depth += 1,
                Token::Symbol(')') => depth -= 1,
                Token::Symbol('{') => return Err("a selector without a metric".to_owned()),
                Token::Name(name) if LABEL_LISTS.contains(&&*name) => {
                    if tokens.next_if_eq(&Token::Symbol('(')).is_some() {
                        loop {
                            match tokens.next() {
                                Some(Token::Name(label)) => found.labels.push(label),
                                Some(Token::Symbol(',')) => {}
                                Some(Token::Symbol(')')) => break,
                                other => return Err(format!("{other:?} in the labels of {name}")),
                            }
                        }
                    } else if !name.starts_with("group_") {
                        return Err(format!("{name} without labels"));
                    }
                }
                Token::Name(name) if KEYWORDS.contains(&&*name.to_ascii_lowercase()) => {}
                // A function, or an aggregation with its labels in front or behind.
                Token::Name(_) if tokens.peek() == Some(&Token::Symbol('(')) => {}
                Token::Name(name)
                    if ["sum", "min", "max", "avg", "count", "topk"].contains(&&*name)
                        && matches!(tokens.peek(), Some(Token::Name(next)) if LABEL_LISTS.contains(&&**next)) => {}
                Token::Name(metric) => {
                    let mut selector = Selector { metric, matchers: Vec::new() };
                    if tokens.next_if_eq(&Token::Symbol('{')).is_some() {
                        selector.matchers = matchers(&mut tokens)?;
                    }
                    found.selectors.push(selector);
                }
                _ => {}
            }
        }
        if depth != 0 || found.selectors.is_empty() {
            return Err(format!("no metric or unbalanced parentheses: {depth}"));
        }
        Ok(found)
    }

    /// What of it `/metrics` does not have. `documented` has values that occur only when something has happened.
    pub(super) fn missing(&self, exposition: &Exposition, documented: &str) -> Vec<String> {
        let mut missing = Vec::new();
        for Selector { metric, matchers } in self.selectors.iter().filter(|selector| selector.metric != "up") {
            let Some(labels) = exposition.series.get(metric) else {
                missing.push(format!("there is no series of {metric}"));
                continue;
            };
            for (label, operator, value) in matchers.iter().filter(|(label, ..)| !ADDED_LABELS.contains(&&**label)) {
                let Some(values) = labels.get(label) else {
                    missing.push(format!("{metric} has no label {label}"));
                    continue;
                };
                // A variable of the dashboard, or a pattern, stands for any value.
                let alternatives = value.split('|').filter(|value| !value.contains(['$', '.', '*', '[', '(']));
                let is_known = |value: &&str| values.contains(*value) || documented.contains(&format!("`{value}`"));
                let unknown = alternatives.filter(|value| !is_known(value));
                missing.extend(unknown.map(|value| format!("{metric} has no {label}{operator}\"{value}\"")));
            }
        }
        let has = |label: &str| {
            let mut of = self.selectors.iter().filter_map(|selector| exposition.series.get(&selector.metric));
            ADDED_LABELS.contains(&label) || of.any(|labels| labels.contains_key(label))
        };
        missing
            .extend(self.labels.iter().filter(|label| !has(label)).map(|label| format!("nothing has a label {label}")));
        missing
    }
}

fn matchers(tokens: &mut impl Iterator<Item = Token>) -> Result<Vec<(String, String, String)>, String> {
    let mut matchers = Vec::new();
    let (mut label, mut operator) = (String::new(), String::new());
    for token in tokens {
        match token {
            Token::Name(name) if label.is_empty() => label = name,
            Token::Symbol(symbol @ ('=' | '!' | '~')) => operator.push(symbol),
            Token::Text(value) if !label.is_empty() && ["=", "!=", "=~", "!~"].contains(&&*operator) => {
                matchers.push((std::mem::take(&mut label), std::mem::take(&mut operator), value));
            }
            Token::Symbol(',') if label.is_empty() => {}
            Token::Symbol('}') if label.is_empty() => return Ok(matchers),
            other => return Err(format!("{other:?} in a selector, after {label:?} {operator:?}")),
        }
    }
    Err("a selector has no end".to_owned())
}

fn tokens(expression: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = expression.trim_start();
    while let Some(first) = rest.chars().next() {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let length = match first {
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let length = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
                tokens.push(Token::Name(rest[..length].to_owned()));
                length
            }
            '0'..='9' => {
                tokens.push(Token::Other);
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.').unwrap_or(rest.len())
            }
            '"' => {
                let end = rest[1..].find('"').ok_or("a text has no end")?;
                tokens.push(Token::Text(rest[1..=end].to_owned()));
                end + 2
            }
            '[' => {
                tokens.push(Token::Other);
                rest.find(']').ok_or("a range has no end")? + 1
            }
            '(' | ')' | '{' | '}' | ',' | '=' | '!' | '~' | '<' | '>' | '+' | '-' | '*' | '/' | '%' | '^' | '@' => {
                tokens.push(Token::Symbol(first));
                1
            }
            other => return Err(format!("{other:?} is not understood")),
        };
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

#[test]
fn metrics_matchers_and_labels_are_found() {
    let expression = "histogram_quantile(0.99, sum by (le, x) (rate(a_bucket{b=\"c\", d=~\"$e|f\"}[5m]))) > 0.5 \
        and on (instance) topk(3, g) / ignoring(h) group_left() clamp_min(i offset 5m, 1) unless up{job=\"k\"} == 0";
    let found = Mentions::of(expression).expect("PromQL");
    let metrics: Vec<_> = found.selectors.iter().map(|selector| &*selector.metric).collect();
    assert_eq!(metrics, ["a_bucket", "g", "i", "up"]);
    let matcher = |label: &str, operator: &str, value: &str| (label.to_owned(), operator.to_owned(), value.to_owned());
    assert_eq!(found.selectors[0].matchers, [matcher("b", "=", "c"), matcher("d", "=~", "$e|f")]);
    assert_eq!(found.labels, ["le", "x", "instance", "h"]);
}

#[test]
fn what_is_not_promql_is_an_error() {
    for text in ["", "1 + 2", "sum(", "a{b=c}", "a{b=\"c\"", "{b=\"c\"}", "sum by a (b)", "a[5m", "a;", "a{b==\"c\"}"] {
        assert!(Mentions::of(text).is_err(), "{text}");
    }
}

#[test]
fn misspelled_metric_label_and_value_are_missing() {
    let exposition = Exposition::parse("a_total{reason=\"full\"} 1\nb{topic=\"t\"} 2\n");
    for (expression, expected) in [
        ("rate(a_total{reason=\"full\"}[5m]) + b{topic=~\"$topic\"}", 0),
        ("rate(a_total{reason=\"lost\", instance=\"i\"}[5m])", 0),
        ("rate(a_totl[5m])", 1),
        ("rate(a_total{raeson=\"full\"}[5m])", 1),
        ("rate(a_total{reason=~\"full|ful\"}[5m])", 1),
        ("sum by (topic, group) (b)", 1),
        ("sum by (instance) (b) or up{job=\"driftq\"}", 0),
    ] {
        let missing = Mentions::of(expression).expect("PromQL").missing(&exposition, "reasons: `lost`");
        assert_eq!(missing.len(), expected, "{expression}: {missing:?}");
    }
}
