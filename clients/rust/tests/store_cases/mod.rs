//! Runs the cases that every store passes: `clients/conformance/store_cases.json`, described beside it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use driftq_client::{Begin, Begun, EffectStatus, Error, Finish, Identity, OnExpired, Scope, Store};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

type Fields = Map<String, Value>;

const CASES: &str = include_str!("../../../conformance/store_cases.json");
/// How many calls of a race are made at most.
const RACERS_MAX: usize = 100;

#[derive(Clone, Deserialize)]
struct Case {
    name: String,
    #[serde(default)]
    effects: HashMap<String, Fields>,
    steps: Vec<Fields>,
}

impl Case {
    fn crashes(&self) -> bool {
        self.steps.iter().any(|step| step["do"] == "crash")
    }
}

/// Runs all cases; those in which the server crashes one after the other, the others together. Panics with the names
/// of those that fail.
pub(crate) async fn run_all(store: Arc<dyn Store>, mut crash: impl AsyncFnMut()) {
    let cases: Vec<Case> = serde_json::from_str(CASES).expect("the cases");
    assert!(cases.len() > 40, "{} cases", cases.len());
    let (crashing, others): (Vec<_>, Vec<_>) = cases.into_iter().partition(Case::crashes);
    let mut running = JoinSet::new();
    for case in others {
        let mut run = Run::new(Arc::clone(&store), &case);
        running.spawn(async move {
            let ended = run.steps(&case, async || unreachable!("no step of this case is a crash")).await;
            ended.map_err(|error| format!("{}: {error}", case.name))
        });
    }
    let mut failures = Vec::new();
    while let Some(ended) = running.join_next().await {
        failures.extend(ended.expect("a case that ends").err());
    }
    for case in crashing {
        let ended = Run::new(Arc::clone(&store), &case).steps(&case, &mut crash).await;
        failures.extend(ended.err().map(|error| format!("{}: {error}", case.name)));
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// One run of a case.
struct Run {
    store: Arc<dyn Store>,
    identities: HashMap<String, Identity>,
    grants: HashMap<String, String>,
}

impl Run {
    fn new(store: Arc<dyn Store>, case: &Case) -> Self {
        let suffix = format!("{:016x}", RandomState::new().hash_one(&case.name));
        let mut identities: HashMap<_, _> =
            case.effects.iter().map(|(name, fields)| (name.clone(), identity(fields, &suffix))).collect();
        if identities.is_empty() {
            identities.insert("a".to_owned(), identity(&Map::new(), &suffix));
        }
        Self { store, identities, grants: HashMap::new() }
    }

    async fn steps(&mut self, case: &Case, mut crash: impl AsyncFnMut()) -> Result<(), String> {
        for (number, step) in case.steps.iter().enumerate() {
            let done = match text(step, "do").unwrap_or_default() {
                "wait" => {
                    tokio::time::sleep(Duration::from_millis(step["ms"].as_u64().expect("a number"))).await;
                    Ok(())
                }
                "crash" => {
                    crash().await;
                    Ok(())
                }
                "race" => self.race(step).await,
                _ => self.call_and_check(step).await,
            };
            done.map_err(|error| format!("step {number}, {}: {error}", Value::Object(step.clone())))?;
        }
        Ok(())
    }

    async fn race(&self, step: &Fields) -> Result<(), String> {
        let steps: Vec<Fields> = match step.get("steps") {
            Some(steps) => decoded(steps),
            None => vec![decoded(&step["step"]); decoded(&step["times"])],
        };
        assert!((2..=RACERS_MAX).contains(&steps.len()), "a race of {}", steps.len());
        let mut racing = JoinSet::new();
        for (number, mut step) in steps.into_iter().enumerate() {
            step.entry("owner").or_insert_with(|| json!(format!("w{number}")));
            let call = Call::of(self, &step);
            racing.spawn(async move {
                match call.make().await {
                    Ok(answer) => text(&answer, "decision").unwrap_or("ok").to_owned(),
                    Err(error) => error.kind().as_str().to_owned(),
                }
            });
        }
        let mut outcomes: BTreeMap<String, u64> = BTreeMap::new();
        while let Some(outcome) = racing.join_next().await {
            *outcomes.entry(outcome.expect("a call that ends")).or_default() += 1;
        }
        let expected: Vec<BTreeMap<String, u64>> = decoded(&step["outcomes"]);
        if expected.contains(&outcomes) { Ok(()) } else { Err(format!("{outcomes:?}")) }
    }

    async fn call_and_check(&mut self, step: &Fields) -> Result<(), String> {
        let expected = step.get("expect").and_then(Value::as_object).cloned().unwrap_or_default();
        let answer = match Call::of(self, step).make().await {
            Ok(answer) => answer,
            Err(error) if expected.contains_key("error") => return check_error(&expected, &error),
            Err(error) => return Err(error.to_string()),
        };
        for (name, value) in &expected {
            let found = answer.get(name);
            let is_right = match name.as_str() {
                "newer_than" => text(&answer, "lease_token") > self.grants.get(as_text(value)).map(String::as_str),
                "retry_after_ms_max" => {
                    let after = answer["retry_after_ms"].as_u64().unwrap_or_default();
                    after > 0 && Some(after) <= value.as_u64()
                }
                "result_bytes" => answer["result"].as_str().map(|text| text.len() as u64 + 2) == value.as_u64(),
                "kept_for_ms" => since_update_ms(&answer, "expires_at") == value.as_i64(),
                "leased_for_ms" => since_update_ms(&answer, "lease_until") == value.as_i64(),
                _ => found == Some(value),
            };
            if !is_right {
                return Err(format!("expected {name} {value}, found {}", Value::Object(answer)));
            }
        }
        if let Some(name) = text(step, "as") {
            let token = text(&answer, "lease_token").ok_or("no token")?;
            self.grants.insert(name.to_owned(), token.to_owned());
        }
        Ok(())
    }
}

/// A call of the store, with all that it needs.
struct Call {
    store: Arc<dyn Store>,
    identity: Identity,
    step: Fields,
    token: String,
}

impl Call {
    fn of(run: &Run, step: &Fields) -> Self {
        let token = text(step, "token").unwrap_or_default();
        let token = run.grants.get(token).map_or(token, String::as_str).to_owned();
        let identity = run.identities[text(step, "effect").unwrap_or("a")].clone();
        Self { store: Arc::clone(&run.store), identity, step: step.clone(), token }
    }

    async fn make(&self) -> Result<Fields, Error> {
        let (step, of) = (&self.step, &self.identity);
        let owner = text(step, "owner").unwrap_or("w");
        let lease = duration(step, "lease_ms").unwrap_or_default();
        let answer = match text(step, "do").unwrap_or_default() {
            "begin" => {
                let mut begin = Begin::new(of.clone(), owner).lease(lease);
                begin.ttl = duration(step, "ttl_ms");
                begin.request_hash = text(step, "request_hash").map(str::to_owned);
                begin.on_expired = step.get("on_expired").map(decoded::<OnExpired>);
                answer_of(&self.store.begin(&begin).await?)
            }
            "reacquire" => answer_of(&Begun::Execute(self.store.reacquire(of, owner, lease).await?)),
            "finish" => {
                self.store.finish(&self.finish()).await?;
                json!({})
            }
            "renew" => {
                self.store.renew(of, &self.token, lease).await?;
                json!({})
            }
            "get" => match self.store.get(of).await? {
                Some(effect) => plain(&effect),
                None => json!({"unknown": true}),
            },
            "forget" => json!({"known": self.store.forget(of).await?}),
            other => panic!("there is no step {other:?}"),
        };
        Ok(decoded(&answer))
    }

    fn finish(&self) -> Finish {
        let size = |name| self.step.get(name).map(decoded::<usize>);
        let mut finish = Finish::new(self.identity.clone(), &self.token, decoded::<EffectStatus>(&self.step["status"]));
        finish.result = match (self.step.get("result"), size("result_bytes")) {
            (_, Some(size)) => Some(raw(&json!("x".repeat(size - 2)))),
            (None | Some(Value::Null), None) => None,
            (Some(result), None) => Some(raw(result)),
        };
        finish.response_code = self.step.get("response_code").map_or(0, decoded::<i32>);
        let error = text(&self.step, "last_error").unwrap_or_default().to_owned();
        finish.last_error = size("last_error_bytes").map_or(error, |size| "x".repeat(size));
        finish
    }
}

fn answer_of(begun: &Begun) -> Value {
    let mut answer = match begun {
        Begun::Execute(grant) => plain(grant),
        Begun::Replay(ended) => plain(ended),
        // Rounded up: less than a millisecond is more than nothing.
        Begun::InProgress { retry_after } => json!({"retry_after_ms": retry_after.as_micros().div_ceil(1000) as u64}),
        Begun::Retryable { attempt, last_error } => json!({"attempt": attempt, "last_error": last_error}),
        other => panic!("a decision that is not known: {other:?}"),
    };
    answer["decision"] = json!(begun.decision());
    answer
}

fn check_error(expected: &Fields, error: &Error) -> Result<(), String> {
    let found = json!({"error": error.kind().as_str(), "status": error.status(), "code": error.code()});
    if expected.iter().all(|(name, value)| found[name] == *value) { Ok(()) } else { Err(found.to_string()) }
}

/// By way of a text: results are raw.
fn plain(value: &impl serde::Serialize) -> Value {
    serde_json::from_str(&serde_json::to_string(value).expect("JSON")).expect("JSON")
}

fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("JSON")
}

fn decoded<T: DeserializeOwned>(value: &Value) -> T {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

fn as_text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    fields.get(name).map(as_text)
}

fn duration(fields: &Fields, name: &str) -> Option<Duration> {
    fields.get(name).map(|ms| Duration::from_millis(decoded(ms)))
}

fn since_update_ms(effect: &Fields, name: &str) -> Option<i64> {
    let time = |name| text(effect, name)?.parse::<jiff::Timestamp>().ok();
    let passed = time(name)?.as_microsecond() - time("updated_at")?.as_microsecond();
    Some((passed + 500).div_euclid(1000))
}

fn identity(fields: &Fields, suffix: &str) -> Identity {
    let scope = fields.get("scope").map_or(Scope::Tenant, decoded);
    let key = match (text(fields, "key").unwrap_or("k"), fields.get("key_bytes")) {
        (_, Some(size)) => format!("{suffix:x<width$}", width = decoded::<usize>(size)),
        ("", None) => String::new(),
        (key, None) => format!("{key}-{suffix}"),
    };
    Identity::new(scope, key).tenant(text(fields, "tenant").unwrap_or_default())
}
