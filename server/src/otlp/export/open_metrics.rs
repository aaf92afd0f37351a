//! Reads the OpenMetrics text format, as this program writes it.

/// The series of one name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Family<'a> {
    pub(super) name: &'a str,
    pub(super) kind: &'a str,
    pub(super) help: &'a str,
    pub(super) samples: Vec<Sample<'a>>,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample<'a> {
    /// What follows the name of the family: `_total`, `_bucket`, …
    pub(super) suffix: &'a str,
    pub(super) labels: Vec<(&'a str, String)>,
    pub(super) value: Value,
}

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value {
    Int(i64),
    Float(f64),
}

impl Value {
    fn parse(text: &str) -> Option<Self> {
        let float = || text.parse().ok().map(Self::Float);
        text.parse().ok().map(Self::Int).or_else(float)
    }

    pub(super) fn as_f64(self) -> f64 {
        match self {
            Self::Int(value) => value as f64,
            Self::Float(value) => value,
        }
    }

    /// Zero for what is no count.
    pub(super) fn as_count(self) -> u64 {
        if let Self::Int(value) = self { u64::try_from(value).unwrap_or(0) } else { 0 }
    }
}

/// The families of a text, without those that have no series. What is not of the format is left out.
pub(super) fn parse(text: &str) -> Vec<Family<'_>> {
    let mut families: Vec<Family<'_>> = Vec::new();
    let mut help = ("", "");
    for line in text.lines() {
        match line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", "HELP", name, text] => help = (name, text.trim_end_matches('.')),
            ["#", "TYPE", name, kind] => {
                let help = if help.0 == name { help.1 } else { "" };
                families.push(Family { name, kind, help, samples: Vec::new() });
            }
            _ => {
                if let Some(family) = families.last_mut() {
                    let sample = sample(family.name, line);
                    family.samples.extend(sample);
                }
            }
        }
    }
    families.retain(|family| !family.samples.is_empty());
    families
}

/// The sample of a line, if it is one of this family.
fn sample<'a>(family: &str, line: &'a str) -> Option<Sample<'a>> {
    let rest = line.strip_prefix(family)?;
    let (suffix, rest) = rest.split_at(rest.find(['{', ' '])?);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    let value = Value::parse(rest.split_whitespace().next()?)?;
    Some(Sample { suffix, labels, value })
}

/// The labels up to the brace that closes them, and what follows it.
fn labels(mut text: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once("=\"")?;
        let (value, rest) = quoted(rest)?;
        labels.push((name, value));
        text = rest.strip_prefix(',').unwrap_or(rest);
    }
}

/// The text up to the quotation mark that ends it, unescaped, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    loop {
        match chars.next()? {
            (at, '"') => return Some((value, &text[at + 1..])),
            (_, '\\') => value.push(match chars.next()?.1 {
                'n' => '\n',
                escaped => escaped,
            }),
            (_, plain) => value.push(plain),
        }
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family as Series;
    use prometheus_client::metrics::gauge::ConstGauge;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn families_are_read_as_they_are_written() {
        let mut registry = Registry::with_prefix("driftq");
        let series: Series<[(&str, &str); 2], Counter> = Series::default();
        series.get_or_create(&[("topic", "a\"b\\c\nd},e=\"f"), ("reason", "")]).inc_by(7);
        registry.register("lost", "What was lost", series);
        registry.register("ratio", "A ratio", ConstGauge::new(0.25));
        registry.register("empty", "No series", Series::<[(&str, &str); 1], Counter>::default());
        let mut text = String::new();
        encode(&mut text, &registry).expect("written");
        let found = parse(&text);
        let labels = vec![("topic", "a\"b\\c\nd},e=\"f".to_owned()), ("reason", String::new())];
        let lost = vec![Sample { suffix: "_total", labels, value: Value::Int(7) }];
        let ratio = vec![Sample { suffix: "", labels: Vec::new(), value: Value::Float(0.25) }];
        assert_eq!(
            found,
            [
                Family { name: "driftq_lost", kind: "counter", help: "What was lost", samples: lost },
                Family { name: "driftq_ratio", kind: "gauge", help: "A ratio", samples: ratio },
            ]
        );
    }

    #[test]
    fn what_is_not_of_the_format_is_left_out() {
        for line in ["a", "a x", "a{", "a{b=\"c} 1", "a{b} 1", "b 1", "", "# EOF", "a{b=\"\\"] {
            assert_eq!(parse(&format!("# TYPE a gauge\n{line}\n")), [], "{line}");
        }
        assert_eq!(parse("a 1\n"), []);
        assert_eq!(parse("# TYPE a gauge\na inf\n")[0].samples[0].value, Value::Float(f64::INFINITY));
    }
}
