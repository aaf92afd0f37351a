//! The outside service: a model, a payment provider and a store of reports in one. It is unique on the identity of an
//! effect, as such services are, and records every attempt. It never crashes, so its memory is its durability.

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use crate::service::{IDEMPOTENCY_KEY, TRACEPARENT};

/// The effects that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// A call of a model.
    Model,
    /// A charge of a customer.
    Charge,
    /// A report.
    Report,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Model, Self::Charge, Self::Report];

    /// The last part of its URL.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Charge => "charge",
            Self::Report => "report",
        }
    }

    /// The topic of the step that has this effect.
    pub(crate) fn topic(self) -> &'static str {
        match self {
            Self::Model => "plan",
            Self::Charge => "tool",
            Self::Report => "report",
        }
    }

    /// How long it takes: half of it before the effect, half of it before the answer.
    fn takes(self) -> Duration {
        Duration::from_millis(match self {
            Self::Model => 60,
            Self::Charge => 40,
            Self::Report => 20,
        })
    }
}

/// What is recorded of one identity.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Recorded {
    /// The number of the first effect: the answer to every attempt.
    pub(crate) number: u64,
    /// How often it was asked for.
    pub(crate) attempts: u64,
    /// How often it happened: 1 where identities are unique.
    pub(crate) effects: u64,
    /// What the first attempt asked for.
    pub(crate) body: Value,
    /// The trace of the first attempt.
    pub(crate) trace: String,
    /// When it happened first.
    pub(crate) at: Instant,
}

/// All effects by kind and identity.
pub(crate) type Effects = HashMap<(Kind, String), Recorded>;

/// The service. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Ledger {
    addr: SocketAddr,
    state: Arc<State>,
    server: JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    is_unique: bool,
    effects: Mutex<Effects>,
}

impl Ledger {
    /// Starts the service at a free port. Without `is_unique` each attempt is an effect.
    ///
    /// # Errors
    /// If it cannot listen.
    pub(crate) async fn start(is_unique: bool) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("the outside service cannot listen: {error}");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        let addr = listener.local_addr().map_err(failed)?;
        let state = Arc::new(State { is_unique, effects: Mutex::default() });
        Ok(Self { addr, state: Arc::clone(&state), server: tokio::spawn(serve(listener, state)) })
    }

    /// Its base URL.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// How many identities have had an effect of this kind.
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.state.effects().keys().filter(|(recorded, _)| *recorded == kind).count()
    }

    /// How many identities have had an effect.
    pub(crate) fn total(&self) -> usize {
        self.state.effects().len()
    }

    /// All that is recorded.
    pub(crate) fn effects(&self) -> Effects {
        self.state.effects().clone()
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl State {
    fn effects(&self) -> MutexGuard<'_, Effects> {
        self.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records an attempt. Returns the number of the effect.
    fn attempt(&self, kind: Kind, identity: String, trace: String, body: Value) -> u64 {
        let mut effects = self.effects();
        let number = effects.len() as u64 + 1;
        let first = Recorded { number, attempts: 0, effects: 0, body, trace, at: Instant::now() };
        let recorded = effects.entry((kind, identity)).or_insert(first);
        recorded.attempts += 1;
        recorded.effects = if self.is_unique { 1 } else { recorded.attempts };
        recorded.number
    }
}

async fn serve(listener: TcpListener, state: Arc<State>) {
    loop {
        // An accept fails where a client is gone again, or where there are too many connections for now.
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(10)).await;
            continue;
        };
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            let service = service_fn(|request| answer(request, &state));
            // Its client has been killed.
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(request: Request<Incoming>, state: &State) -> Result<Response<Full<Bytes>>, Infallible> {
    let (status, body) = match perform(request, state).await {
        Ok(number) => (StatusCode::OK, json!({ "number": number })),
        Err((status, error)) => (status, json!({ "error": error })),
    };
    let mut response = Response::new(Full::from(body.to_string()));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static("application/json"));
    Ok(response)
}

async fn perform(request: Request<Incoming>, state: &State) -> Result<u64, (StatusCode, &'static str)> {
    let kind = Kind::ALL.into_iter().find(|kind| request.uri().path().strip_prefix('/') == Some(kind.name()));
    let kind = kind.ok_or((StatusCode::NOT_FOUND, "no such effect"))?;
    if request.method() != Method::POST {
        return Err((StatusCode::METHOD_NOT_ALLOWED, "an effect is a POST"));
    }
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let (identity, trace) = (header(IDEMPOTENCY_KEY).to_owned(), header(TRACEPARENT).to_owned());
    if identity.is_empty() {
        return Err((StatusCode::BAD_REQUEST, "an effect has an Idempotency-Key"));
    }
    let body = request.into_body().collect().await.map_err(|_| (StatusCode::BAD_REQUEST, "the body was cut short"))?;
    let body =
        serde_json::from_slice(&body.to_bytes()).map_err(|_| (StatusCode::BAD_REQUEST, "the body is no JSON"))?;
    sleep(kind.takes() / 2).await;
    let number = state.attempt(kind, identity, trace, body);
    // A worker that is killed now has had its effect, and does not know.
    sleep(kind.takes() / 2).await;
    Ok(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::service::Service;

    async fn numbers(is_unique: bool) -> (Vec<u64>, Effects) {
        let ledger = Ledger::start(is_unique).await.expect("started");
        let service = Service::new(ledger.url());
        let mut numbers = Vec::new();
        for (identity, body) in [("a", 1), ("b", 2), ("a", 3)] {
            numbers.push(service.call("report", identity, Some("t"), &body.into()).await.expect("answered"));
        }
        assert_eq!(ledger.count(Kind::Report), 2);
        (numbers, ledger.effects())
    }

    #[tokio::test]
    async fn repeated_identity_gets_the_first_answer_and_has_no_second_effect() {
        let (numbers, effects) = numbers(true).await;
        assert_eq!(numbers, [1, 2, 1]);
        let first = &effects[&(Kind::Report, "a".to_owned())];
        assert_eq!((first.attempts, first.effects, &first.body, &*first.trace), (2, 1, &json!(1), "t"));
    }

    #[tokio::test]
    async fn without_unique_identities_each_attempt_is_an_effect() {
        let (_, effects) = numbers(false).await;
        assert_eq!(effects[&(Kind::Report, "a".to_owned())].effects, 2);
        assert_eq!(effects[&(Kind::Report, "b".to_owned())].effects, 1);
    }

    #[tokio::test]
    async fn unknown_effect_and_missing_identity_are_refused() {
        let ledger = Ledger::start(true).await.expect("started");
        let service = Service::new(ledger.url());
        assert!(service.call("refund", "a", None, &json!(1)).await.is_err());
        assert!(service.call("report", "", None, &json!(1)).await.is_err());
        assert!(ledger.effects().is_empty());
    }
}
