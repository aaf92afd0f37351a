//! What a handler sees of its worker.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep};

use super::outcome::{HandlerError, to_json};
use super::shared::WorkerShared;
use crate::cancel::Cancel;
use crate::canonical::request_hash;
use crate::error::{Error, ErrorKind};
use crate::heartbeat::Held;
use crate::idempotency_key::idempotency_key;
use crate::message::Message;
use crate::store::{Begin, Begun, EffectStatus, Ended, Finish, Grant, Identity, Scope};

/// The shortest wait before an effect that is in progress elsewhere is asked for again.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// The surroundings of one run of a handler. Clones are the same.
#[derive(Clone)]
pub struct Context {
    message: Arc<Message>,
    cancel: Cancel,
    worker: Arc<WorkerShared>,
}

impl Context {
    pub(super) fn new(message: &Arc<Message>, cancel: &Cancel, worker: &Arc<WorkerShared>) -> Self {
        Self { message: Arc::clone(message), cancel: cancel.clone(), worker: Arc::clone(worker) }
    }

    /// The message.
    #[must_use]
    pub fn message(&self) -> &Arc<Message> {
        &self.message
    }

    /// The number of this delivery, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.message.attempts
    }

    /// The name under which the worker holds the message.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.worker.owner
    }

    /// Waits until the run is cancelled: its lease is lost, or the worker stops. The future of the handler is dropped
    /// then by itself; this is for tasks and threads that it has started.
    pub async fn cancelled(&self) {
        self.cancel.cancelled().await;
    }

    /// Whether the run is cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancel.cause().is_some()
    }

    /// Runs `run` once for this message, `name` and `args`, whatever happens: its result is stored, and a later attempt
    /// gets the stored one. It is run again only after a failure that was recorded, or after a worker that died in it.
    ///
    /// # Errors
    /// What `run` returned. A [`Permanent`](crate::Permanent) error is stored, and every later attempt gets it, too.
    ///
    /// # Examples
    /// ```no_run
    /// # use driftq_client::{Context, HandlerError};
    /// # async fn charge(amount: u32) -> Result<String, std::io::Error> { Ok(String::new()) }
    /// # async fn handler(context: Context) -> Result<(), HandlerError> {
    /// let receipt: String = context.side_effect("charge", &("customer-7", 950), || charge(950)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn side_effect<A, T, E, F, R>(&self, name: &str, args: &A, run: F) -> Result<T, HandlerError>
    where
        A: Serialize + ?Sized,
        T: Serialize + DeserializeOwned,
        E: Into<HandlerError>,
        F: FnOnce() -> R,
        R: Future<Output = Result<T, E>>,
    {
        let identity = self.effect_identity(name, args)?;
        let (grant, held) = match self.acquire(&identity).await? {
            Acquired::Grant(grant, held) => (grant, held),
            Acquired::Ended(ended) => return replayed(name, &ended),
        };
        let result = match run().await {
            Ok(result) => to_json(&result).map(|json| (result, json)).map_err(|error| {
                HandlerError::permanent(format!("the result of the side effect {name} is no JSON: {}", error.message()))
            }),
            Err(error) => Err(error.into()),
        };
        let status = match &result {
            Ok(_) => EffectStatus::Succeeded,
            Err(error) if error.is_permanent() => EffectStatus::FailedFinal,
            Err(_) => EffectStatus::FailedRetryable,
        };
        let finish = Finish::new(identity, grant.lease_token, status);
        let finish = match &result {
            Ok((_, json)) => finish.result(json.clone()),
            Err(error) => finish.last_error(error.text()),
        };
        held.ends_now();
        self.worker.store.finish(&finish).await.map_err(|error| lost(name, &error))?;
        drop(held);
        result.map(|(result, _)| result)
    }

    fn effect_identity<A: Serialize + ?Sized>(&self, name: &str, args: &A) -> Result<Identity, HandlerError> {
        let wrong = |error: Error| HandlerError::permanent(format!("the side effect {name}: {}", error.message()));
        let message_key = self.message.effective_key();
        let parts = [(&*self.worker.topic).into(), (&*self.worker.group).into(), message_key.into()];
        let id = idempotency_key(parts).map_err(wrong)?;
        let hash = request_hash(args).map_err(wrong)?;
        let key = idempotency_key([name.into(), hash.into()]).map_err(wrong)?;
        Ok(Identity { tenant: self.message.envelope.tenant_id.clone(), scope: Scope::task(id), key })
    }

    /// Waits for the right to run an effect, or for its end.
    async fn acquire(&self, identity: &Identity) -> Result<Acquired, HandlerError> {
        let worker = &self.worker;
        let begin = Begin::new(identity.clone(), &*worker.owner).lease(worker.lease);
        loop {
            let asked = Instant::now();
            let grant = match worker.store.begin(&begin).await? {
                Begun::Execute(grant) => grant,
                Begun::Replay(ended) => return Ok(Acquired::Ended(ended)),
                Begun::InProgress { retry_after } => {
                    sleep(retry_after.max(WAIT_MIN)).await;
                    continue;
                }
                Begun::Retryable { .. } => match worker.store.reacquire(identity, &worker.owner, worker.lease).await {
                    Ok(grant) => grant,
                    // Another worker was faster.
                    Err(error) if error.is_lease_lost() => {
                        sleep(WAIT_MIN).await;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            let since = match worker.in_time(identity, &grant.lease_token, asked).await {
                Ok(since) => since,
                // It has ended meanwhile.
                Err(error) if error.is_lease_lost() => {
                    sleep(WAIT_MIN).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let (identity, token) = (identity.clone(), grant.lease_token.clone());
            let held = worker.heartbeats.effect(identity, token, &self.message, since, &self.cancel);
            return Ok(Acquired::Grant(grant, held));
        }
    }
}

enum Acquired {
    Grant(Grant, Held),
    Ended(Ended),
}

fn replayed<T: DeserializeOwned>(name: &str, ended: &Ended) -> Result<T, HandlerError> {
    if ended.status != EffectStatus::Succeeded {
        return Err(HandlerError::permanent(ended.last_error.clone()));
    }
    if ended.result_lost {
        return Err(HandlerError::permanent(format!("the stored result of the side effect {name} was lost")));
    }
    let json = ended.result.as_ref().map_or("null", |result| result.get());
    serde_json::from_str(json).map_err(|error| {
        HandlerError::permanent(format!("the stored result of the side effect {name} has another type: {error}"))
    })
}

/// The outcome of a side effect that could not be stored.
fn lost(name: &str, error: &Error) -> HandlerError {
    let what = match error.kind() {
        ErrorKind::StaleLease | ErrorKind::Conflict | ErrorKind::NotFound => "was taken over",
        _ => "could not be recorded",
    };
    HandlerError::retry(format!("the side effect {name} {what}: {}", error.message()))
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("message", &self.message).finish_non_exhaustive()
    }
}
