//! The work on one message: begin, run the handler, report the outcome.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::value::RawValue;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::Instrument as _;

use super::context::Context;
use super::outcome::{HandlerError, Outputs};
use super::replay::{stored, unstored};
use super::shared::{Job, Run, WorkerScope, WorkerShared};
use crate::cancel::Cause;
use crate::client::{Failing, Step};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::heartbeat::Held;
use crate::message::Message;
use crate::produce::Produce;
use crate::store::{Begin, Begun, DeliveryRef, EffectStatus, Ended, Finish, Grant, Identity, Scope};

/// Requests that end a message are repeated until its lease is lost, which ends them.
pub(super) const SETTLE_WITHIN: Duration = Duration::from_secs(24 * 60 * 60);
/// The pause of a slot after the store could not be asked.
const STORE_PAUSE: Duration = Duration::from_secs(1);
/// A message of a dead-letter topic cannot be dead-lettered again. It is delivered again after this time.
const DEAD_LETTER_PAUSE: Duration = Duration::from_secs(60);
const DEAD_LETTERS: &str = "dlq.";

/// How the work on a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Completed,
    Failed,
    Lost,
    Released,
}

/// The right to run the effect of a message, and its heartbeat.
struct Granted {
    identity: Identity,
    grant: Grant,
    held: Held,
}

enum Started {
    /// Run the handler. Without a grant there is no store.
    Run(Option<Granted>),
    Replay(Ended),
    /// Return the message; the slot pauses.
    Elsewhere(Duration),
    Refused(Error),
    Lost,
}

/// Why a handler was stopped, or what it returned.
enum Ran {
    Returned(Result<Outputs, HandlerError>),
    Cancelled(Cause),
}

impl WorkerShared {
    pub(super) async fn work(self: &Arc<Self>, job: Job) -> Ending {
        let (ending, pause) = self.work_on(&job).await;
        drop(job);
        if !pause.is_zero() {
            tokio::select! {
                () = sleep(pause) => {}
                _ = self.stopping.cancelled() => {}
            }
        }
        ending
    }

    async fn work_on(self: &Arc<Self>, job: &Job) -> (Ending, Duration) {
        let granted = match self.begin(job).await {
            Started::Run(granted) => granted,
            Started::Replay(ended) => return (self.replay(job, &ended).await, Duration::ZERO),
            Started::Elsewhere(pause) => return (self.release(job).await, pause),
            Started::Refused(error) => {
                self.failed(job, error.kind().as_str(), error.message());
                let failing = Failing::retryable(error.message());
                return (self.nack(job, failing).await, STORE_PAUSE);
            }
            Started::Lost => return (Ending::Lost, Duration::ZERO),
        };
        let ending = match self.run(job).await {
            Ran::Returned(Ok(outputs)) => match outputs.into_parts() {
                Ok((result, produce)) => self.complete(job, granted.as_ref(), result, produce).await,
                Err(defect) => {
                    let text = format!("the result is no JSON: {}", defect.message());
                    self.fail(job, granted.as_ref(), &HandlerError::permanent(text)).await
                }
            },
            Ran::Returned(Err(error)) => self.fail(job, granted.as_ref(), &error).await,
            Ran::Cancelled(Cause::LeaseLost) => Ending::Lost,
            Ran::Cancelled(Cause::Shutdown) => self.give_back(job, granted.as_ref()).await,
        };
        (ending, Duration::ZERO)
    }

    async fn begin(&self, job: &Job) -> Started {
        let Some(identity) = self.identity(&job.message) else { return Started::Run(None) };
        let mut begin = Begin::new(identity.clone(), &*self.owner).lease(self.lease);
        if matches!(identity.scope, Scope::Consume { .. }) {
            begin = begin.delivery(delivery(&job.message));
        }
        let asked = Instant::now();
        let begun = tokio::select! {
            biased;
            () = job.cancel.lost() => return Started::Lost,
            begun = self.ask(&begin) => begun,
        };
        let begun = match begun {
            Ok(begun) => begun,
            // Another worker has the message, or it is gone.
            Err(error) if error.is_lease_lost() => {
                job.held.ends_now();
                return Started::Lost;
            }
            Err(error) => return Started::Refused(error),
        };
        self.observer.report(&Event::Began { message: &job.message, decision: begun.decision() });
        match begun {
            Begun::Execute(grant) if grant.idempotent => {
                let token = grant.lease_token.clone();
                // Where this fails, the heartbeat of the effect finds out why.
                let since = tokio::select! {
                    biased;
                    () = job.cancel.lost() => return Started::Lost,
                    since = self.in_time(&identity, &token, asked) => since.unwrap_or(asked),
                };
                let held = self.heartbeats.effect(identity.clone(), token, &job.message, since, &job.cancel);
                Started::Run(Some(Granted { identity, grant, held }))
            }
            Begun::Execute(_) => Started::Run(None),
            Begun::Replay(ended) => Started::Replay(ended),
            Begun::InProgress { retry_after } => Started::Elsewhere(self.pause_for(&identity, retry_after)),
            Begun::Retryable { .. } => Started::Elsewhere(STORE_PAUSE),
        }
    }

    /// Begins, and reacquires what failed before.
    async fn ask(&self, begin: &Begin) -> Result<Begun, Error> {
        match self.store.begin(begin).await? {
            Begun::Retryable { attempt, last_error } => {
                match self.store.reacquire(&begin.identity, &begin.owner, begin.lease).await {
                    Ok(grant) => Ok(Begun::Execute(grant)),
                    // Another worker was faster.
                    Err(error) if error.is_lease_lost() => Ok(Begun::Retryable { attempt, last_error }),
                    Err(error) => Err(error),
                }
            }
            begun => Ok(begun),
        }
    }

    /// How long a slot pauses after its message was in progress elsewhere. In the scope `consume` that is the grant of
    /// this same delivery, whose answer was lost: the next delivery takes it over at once.
    fn pause_for(&self, identity: &Identity, retry_after: Duration) -> Duration {
        match identity.scope {
            Scope::Consume { .. } if self.store_is_broker => Duration::ZERO,
            _ => retry_after.min(self.lease),
        }
    }

    fn identity(&self, message: &Message) -> Option<Identity> {
        let scope = match &self.scope {
            WorkerScope::None => return None,
            WorkerScope::Consume => Scope::consume(&*self.topic, &*self.group),
            WorkerScope::Other(scope) => scope.clone(),
        };
        let key = &message.envelope.idempotency_key;
        (!key.is_empty()).then(|| Identity::new(scope, key).tenant(&message.envelope.tenant_id))
    }

    /// Runs the handler until it returns, panics, is cancelled or is out of time.
    async fn run(self: &Arc<Self>, job: &Job) -> Ran {
        let deadline = time_left(&job.message.envelope.deadline).map(|left| Instant::now() + left);
        let context = Context::new(&job.message, &job.cancel, self);
        let span = match &self.tracer {
            Some(tracer) => tracer(&job.message),
            None => self.span(&job.message),
        };
        let handler = Guarded(Some(Start { worker: self, message: Arc::clone(&job.message), context }), None);
        let ran = tokio::select! {
            biased;
            cause = job.cancel.cancelled() => return Ran::Cancelled(cause),
            () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                Err(HandlerError::retry("deadline exceeded"))
            }
            returned = handler.instrument(span) => returned,
        };
        // A lease that was lost while the handler blocked its thread.
        match job.cancel.cause() {
            Some(Cause::LeaseLost) => Ran::Cancelled(Cause::LeaseLost),
            _ => Ran::Returned(ran),
        }
    }

    fn span(&self, message: &Message) -> tracing::Span {
        tracing::info_span!(
            "driftq.handle",
            messaging.system = "driftq",
            messaging.destination.name = &*self.topic,
            messaging.message.id = %message.id(),
            driftq.attempt = message.attempts,
            traceparent = message.trace.as_deref(),
        )
    }

    /// The effect of the message has ended before: the handler is not run.
    async fn replay(&self, job: &Job, ended: &Ended) -> Ending {
        if ended.status == EffectStatus::Succeeded {
            let (result, produce) = unstored(ended.result.as_deref());
            return self.complete(job, None, result, produce).await;
        }
        self.failed(job, "permanent", &ended.last_error);
        self.nack(job, Failing::permanent(ended.last_error.clone())).await
    }

    async fn complete(
        &self,
        job: &Job,
        granted: Option<&Granted>,
        result: Option<Box<RawValue>>,
        produce: Vec<Produce>,
    ) -> Ending {
        // Over the broker's store the complete ends the effect, too.
        let granted = match granted.filter(|_| !self.completes_effects()) {
            None => granted,
            Some(granted) => {
                let finished = match stored(result.as_deref(), &produce) {
                    Ok(stored) => self.succeed(job, granted, stored).await,
                    Err(error) => Err(error),
                };
                match finished {
                    // The effect has ended; what is left is the message.
                    Ok(()) => None,
                    Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Misuse) => {
                        return self.fail(job, Some(granted), &HandlerError::permanent(error.message())).await;
                    }
                    Err(_) => return self.lost(job),
                }
            }
        };
        let step = Step::new().result(result).produce(produce).traceparent(job.message.trace.clone());
        job.held.ends_now();
        if let Some(granted) = granted {
            granted.held.ends_now();
        }
        let completed = tokio::select! {
            biased;
            () = job.cancel.lost() => return Ending::Lost,
            completed = self.client.complete_within(&job.claim, &step, SETTLE_WITHIN) => completed,
        };
        match completed {
            Ok(_) => {
                let elapsed = job.received.elapsed();
                self.observer.report(&Event::Completed { message: &job.message, elapsed });
                Ending::Completed
            }
            Err(error) if matches!(error.kind(), ErrorKind::StaleLease | ErrorKind::Conflict) => self.lost(job),
            // The result is too large, or a message is refused: it would be again.
            Err(error) if error.kind() == ErrorKind::Invalid => {
                self.fail(job, granted, &HandlerError::permanent(error.message())).await
            }
            Err(error) => self.fail(job, granted, &HandlerError::retry(error.message())).await,
        }
    }

    /// Stores the result of an effect in a store of its own.
    async fn succeed(&self, job: &Job, granted: &Granted, result: Option<Box<RawValue>>) -> Result<(), Error> {
        let (identity, token) = (granted.identity.clone(), &granted.grant.lease_token);
        self.finish(job, granted, &Finish::new(identity, token, EffectStatus::Succeeded).result(result)).await
    }

    async fn fail(&self, job: &Job, granted: Option<&Granted>, error: &HandlerError) -> Ending {
        let kind = if error.is_permanent { "permanent" } else { "retry" };
        self.failed(job, kind, &error.text);
        let status = if error.is_permanent { EffectStatus::FailedFinal } else { EffectStatus::FailedRetryable };
        if let Some(granted) = granted {
            let finish = Finish::new(granted.identity.clone(), &granted.grant.lease_token, status);
            let mut finish = finish.last_error(&error.text);
            let in_one_step = error.is_permanent && self.completes_effects() && !self.is_dead_letter_topic();
            if in_one_step {
                finish = finish.dead_letter(delivery(&job.message));
                job.held.ends_now();
            }
            match self.finish(job, granted, &finish).await {
                Ok(()) if in_one_step => return Ending::Failed,
                Ok(()) => {}
                Err(error) if error.is_lease_lost() => return self.lost(job),
                // The message is nacked all the same: its next delivery takes the effect over.
                Err(_) => {}
            }
        }
        let failing = if error.is_permanent {
            Failing::permanent(&error.text)
        } else {
            Failing { delay: error.delay.or(self.retry_delay), ..Failing::retryable(&error.text) }
        };
        self.nack(job, failing).await
    }

    /// The worker stops: the effect may be begun by another one at once, and no failure counts.
    async fn give_back(&self, job: &Job, granted: Option<&Granted>) -> Ending {
        if let Some(granted) = granted {
            let status = EffectStatus::FailedRetryable;
            let finish =
                Finish::new(granted.identity.clone(), &granted.grant.lease_token, status).last_error("shutdown");
            if self.finish(job, granted, &finish).await.is_err_and(|error| error.is_lease_lost()) {
                return self.lost(job);
            }
        }
        self.release(job).await
    }

    async fn finish(&self, job: &Job, granted: &Granted, finish: &Finish) -> Result<(), Error> {
        granted.held.ends_now();
        tokio::select! {
            biased;
            () = job.cancel.lost() => Err(Error::new(ErrorKind::StaleLease, "the lease is lost")),
            finished = self.store.finish(finish) => finished,
        }
    }

    async fn nack(&self, job: &Job, failing: Failing) -> Ending {
        let failing = if failing.is_permanent && self.is_dead_letter_topic() {
            Failing::retryable(failing.reason).delay(DEAD_LETTER_PAUSE)
        } else {
            failing
        };
        match self.settle(job, self.client.nack_within(&job.claim, &failing, SETTLE_WITHIN)).await {
            Ok(()) => Ending::Failed,
            Err(_) => self.lost(job),
        }
    }

    /// Returns a message without counting a failure.
    pub(super) async fn release(&self, job: &Job) -> Ending {
        match self.settle(job, self.client.settle_within("/v1/release", &job.claim, SETTLE_WITHIN)).await {
            Ok(()) => {
                self.observer.report(&Event::Released { message: &job.message });
                Ending::Released
            }
            Err(_) => self.lost(job),
        }
    }

    /// Carries out a request that ends the hold of a message, unless the lease is lost before.
    async fn settle(&self, job: &Job, request: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        job.held.ends_now();
        tokio::select! {
            biased;
            () = job.cancel.lost() => Err(Error::new(ErrorKind::StaleLease, "the lease is lost")),
            settled = request => settled,
        }
    }

    fn lost(&self, job: &Job) -> Ending {
        self.lose(job);
        Ending::Lost
    }

    fn failed(&self, job: &Job, kind: &'static str, error: &str) {
        self.observer.report(&Event::Failed { message: &job.message, kind, error });
    }

    fn completes_effects(&self) -> bool {
        self.store_is_broker && self.scope == WorkerScope::Consume
    }

    fn is_dead_letter_topic(&self) -> bool {
        self.topic.starts_with(DEAD_LETTERS)
    }
}

fn delivery(message: &Message) -> DeliveryRef {
    let Message { partition, offset, lease_token, .. } = message;
    DeliveryRef { partition: *partition, offset: *offset, lease_token: lease_token.clone() }
}

/// The time until a deadline; nothing without one. The broker has checked that it is one.
fn time_left(deadline: &str) -> Option<Duration> {
    let deadline: Timestamp = deadline.parse().ok()?;
    Some(Duration::try_from(deadline.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO))
}

/// The call of a handler, which may panic as its future may.
struct Start<'a> {
    worker: &'a WorkerShared,
    message: Arc<Message>,
    context: Context,
}

/// A handler whose panics are errors.
struct Guarded<'a>(Option<Start<'a>>, Option<Run>);

impl Future for Guarded<'_> {
    type Output = Result<Outputs, HandlerError>;

    fn poll(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<Self::Output> {
        let Self(start, run) = self.get_mut();
        let polled = catch_unwind(AssertUnwindSafe(|| {
            if let Some(Start { worker, message, context }) = start.take() {
                *run = Some((worker.handler)(message, context));
            }
            match run {
                Some(run) => run.as_mut().poll(task),
                None => Poll::Pending,
            }
        }));
        polled.unwrap_or_else(|panic| {
            // It must not be polled again.
            *run = None;
            Poll::Ready(Err(HandlerError::retry(format!("the handler panicked: {}", text_of(&*panic)))))
        })
    }
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text,
        _ => "without a text",
    }
}
