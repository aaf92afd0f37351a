//! The faults that were played: the newest ones, and how many of each.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::draw::Fault;
use crate::config::ChaosSettings;

/// So many are listed.
const LISTED_MAX: usize = 10_000;
/// Characters of a request that are listed.
const REQUEST_CHARS_MAX: usize = 200;

/// A fault that was played.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PlayedFault {
    /// Its number, counted from 1.
    n: u64,
    fault: Fault,
    #[serde(flatten)]
    suffered_by: SufferedBy,
    detail: Detail,
}

/// What suffered a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum SufferedBy {
    /// A request, or a line of a batch.
    Request {
        /// Method, path and query.
        request: String,
        /// The digest of its body, or of its line.
        digest: String,
        /// How often it had come, this time included.
        occurrence: u64,
    },
    /// A delivery.
    Delivery { delivery: DeliveryRef },
}

impl SufferedBy {
    /// A request, or a line of a batch to this method and target.
    pub(super) fn request(method: &str, target: &str, digest: u64, occurrence: u64) -> Self {
        let mut request = format!("{method} {target}");
        if let Some((end, _)) = request.char_indices().nth(REQUEST_CHARS_MAX) {
            request.truncate(end);
            request.push('…');
        }
        Self::Request { request, digest: format!("{digest:016x}"), occurrence }
    }
}

/// What a delivery is known by.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub(super) struct DeliveryRef {
    pub(super) topic: String,
    pub(super) group: String,
    pub(super) partition: u32,
    pub(super) offset: u64,
    pub(super) attempts: u64,
}

/// What happened in particular. It does not depend on the time or on other requests, so that lists can be compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Detail {
    /// What was repeated, held or cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of: Option<&'static str>,
    /// For how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) ms: Option<u64>,
    /// At which line, counted from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) line: Option<u64>,
}

impl Detail {
    pub(super) fn of(of: &'static str) -> Self {
        Self { of: Some(of), ..Self::default() }
    }

    pub(super) fn with_ms(self, ms: u64) -> Self {
        Self { ms: Some(ms), ..self }
    }

    pub(super) fn with_line(self, line: u64) -> Self {
        Self { line: Some(line), ..self }
    }
}

/// All faults that were played, within a bounded memory.
#[derive(Debug, Default)]
struct Played {
    newest: VecDeque<PlayedFault>,
    counts: BTreeMap<Fault, u64>,
}

impl Played {
    /// Adds one.
    fn add(&mut self, fault: Fault, suffered_by: SufferedBy, detail: Detail) {
        let n = self.counts.values().sum::<u64>() + 1;
        *self.counts.entry(fault).or_default() += 1;
        if self.newest.len() == LISTED_MAX {
            self.newest.pop_front();
        }
        self.newest.push_back(PlayedFault { n, fault, suffered_by, detail });
    }

    /// The answer of `GET /v1/chaos`: those with a number above `after`, and the counts of all.
    fn to_json(&self, settings: &ChaosSettings, after: u64) -> String {
        #[derive(Serialize)]
        struct Report<'a> {
            settings: &'a ChaosSettings,
            played: Vec<&'a PlayedFault>,
            counts: BTreeMap<Fault, u64>,
        }
        let played = self.newest.iter().skip_while(|played| played.n <= after).collect();
        let counts = Fault::ALL.map(|fault| (fault, self.counts.get(&fault).copied().unwrap_or_default()));
        let report = Report { settings, played, counts: counts.into() };
        serde_json::to_string(&report).expect("texts and numbers can be written as JSON")
    }
}

/// The same, shared by the threads of the gateway and of a test.
#[derive(Debug, Default)]
pub(super) struct PlayedList(Mutex<Played>);

impl PlayedList {
    /// Adds one.
    pub(super) fn add(&self, fault: Fault, suffered_by: SufferedBy, detail: Detail) {
        self.lock().add(fault, suffered_by, detail);
    }

    /// The answer of `GET /v1/chaos`.
    pub(super) fn to_json(&self, settings: &ChaosSettings, after: u64) -> String {
        self.lock().to_json(settings, after)
    }

    fn lock(&self) -> MutexGuard<'_, Played> {
        // A list whose writer has panicked is still a list.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn report(played: &Played, after: u64) -> Value {
        let settings = "seed=42,duplicate=0.2".parse().expect("valid");
        serde_json::from_str(&played.to_json(&settings, after)).expect("JSON")
    }

    fn ack(occurrence: u64) -> SufferedBy {
        SufferedBy::request("POST", "/v1/ack", 0xabc, occurrence)
    }

    #[test]
    fn report_has_settings_faults_and_counts() {
        let mut played = Played::default();
        played.add(Fault::DropReply, ack(1), Detail::default());
        let delivery = DeliveryRef { topic: "t".into(), group: "g".into(), partition: 0, offset: 3, attempts: 2 };
        played.add(Fault::Expire, SufferedBy::Delivery { delivery }, Detail::of("lease").with_ms(0));
        let expected = json!({
            "settings": {
                "seed": 42, "duplicate": 0.2, "drop-reply": 0.0, "expire": 0.0, "delay": 0.0, "restart": 0.0, "reorder": 0.0,
            },
            "played": [
                {
                    "n": 1, "fault": "drop-reply", "request": "POST /v1/ack", "digest": "0000000000000abc",
                    "occurrence": 1, "detail": {},
                },
                {
                    "n": 2, "fault": "expire", "detail": {"of": "lease", "ms": 0},
                    "delivery": {"topic": "t", "group": "g", "partition": 0, "offset": 3, "attempts": 2},
                },
            ],
            "counts": {"duplicate": 0, "drop-reply": 1, "expire": 1, "delay": 0, "restart": 0, "reorder": 0},
        });
        assert_eq!(report(&played, 0), expected);
        assert_eq!(report(&played, 1)["played"], json!([expected["played"][1]]));
        assert_eq!(report(&played, 2)["played"], json!([]));
    }

    #[test]
    fn list_has_a_bounded_number_of_bounded_entries_and_counts_have_all() {
        let mut played = Played::default();
        let target = format!("/v1/ack?{}", "é".repeat(60_000));
        for n in 0..LISTED_MAX as u64 + 5 {
            played.add(Fault::Delay, SufferedBy::request("POST", &target, 0, n), Detail::default());
        }
        let report = report(&played, 0);
        let listed = report["played"].as_array().expect("a list");
        assert_eq!((listed.len(), &listed[0]["n"], &report["counts"]["delay"]), (10_000, &6.into(), &10_005.into()));
        assert_eq!(listed[0]["request"].as_str().map(|request| request.chars().count()), Some(201));
        let longest = played.newest.iter().map(|played| match &played.suffered_by {
            SufferedBy::Request { request, .. } => request.len(),
            SufferedBy::Delivery { .. } => 0,
        });
        assert!(longest.max() < Some(4 * (REQUEST_CHARS_MAX + 1)));
    }
}
