//! The figures of `GET /metrics` that are shown here.

use std::collections::HashMap;

/// The samples of one scrape, by name with labels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metrics(HashMap<String, f64>);

impl Metrics {
    /// Reads the text of a scrape. Lines that are no samples are skipped.
    pub(crate) fn parse(text: &str) -> Self {
        let samples = text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| {
            let (name, value) = line.rsplit_once(' ')?;
            Some((name.to_owned(), value.parse().ok()?))
        });
        Self(samples.collect())
    }

    /// A sample without labels; 0 where there is none.
    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// A sample that counts something.
    pub(crate) fn count(&self, name: &str) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts are whole and positive")]
        let count = self.get(name) as u64;
        count
    }

    /// The values of a metric by one label, which it has alone.
    pub(crate) fn by_label(&self, name: &str, label: &str) -> Vec<(String, f64)> {
        let start = format!("{name}{{{label}=\"");
        let mut found: Vec<_> = self
            .0
            .iter()
            .filter_map(|(series, value)| {
                let escaped = series.strip_prefix(&start)?.strip_suffix("\"}")?;
                Some((unescape(escaped), *value))
            })
            .collect();
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }

    /// A bound that the given share of a histogram's observations does not exceed: the upper end of its bucket, or
    /// infinity behind the last one. None without observations.
    pub(crate) fn quantile(&self, histogram: &str, share: f64) -> Option<f64> {
        let wanted = self.get(&format!("{histogram}_count")) * share;
        let start = format!("{histogram}_bucket{{le=\"");
        let mut buckets: Vec<(f64, f64)> = self
            .0
            .iter()
            .filter_map(|(series, count)| {
                let bound = series.strip_prefix(&start)?.strip_suffix("\"}")?;
                Some((if bound == "+Inf" { f64::INFINITY } else { bound.parse().ok()? }, *count))
            })
            .collect();
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        buckets.into_iter().find(|(_, count)| wanted > 0.0 && *count >= wanted).map(|(bound, _)| bound)
    }
}

/// The value of a label as it was before it was written.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some('n') => plain.push('\n'),
                Some(other) => plain.push(other),
                None => {}
            },
            character => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# TYPE a counter\na_total 3\nd{topic=\"x \\\"y\\\"\"} 2\nd{topic=\"b\"} 0\n\
        h_count 10\nh_bucket{le=\"0.1\"} 5\nh_bucket{le=\"0.2\"} 9\nh_bucket{le=\"+Inf\"} 10\nnothing\n";

    #[test]
    fn samples_labels_and_quantiles_are_read() {
        let metrics = Metrics::parse(TEXT);
        assert_eq!((metrics.count("a_total"), metrics.count("absent")), (3, 0));
        assert_eq!(metrics.by_label("d", "topic"), [("b".to_owned(), 0.0), ("x \"y\"".to_owned(), 2.0)]);
        assert_eq!(metrics.quantile("h", 0.5), Some(0.1));
        assert_eq!(metrics.quantile("h", 0.9), Some(0.2));
        assert_eq!(metrics.quantile("h", 0.99), Some(f64::INFINITY));
        assert_eq!(metrics.quantile("absent", 0.5), None);
    }
}
