//! Many requests in one: a line each way for each, in order. The fast path.
//!
//! Lines are taken as they arrive and answered as they become durable; the answer may begin before the request has ended. How many
//! lines are on their way at once is bounded, and so is what a client does not read of its answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use driftq_core::command::Produce;
use driftq_core::types::TopicName;
use driftq_core::{Command, Reply};
use hyper::StatusCode;

use super::Api;
use super::answer::{Answer, lines};
use super::body::{Inflow, ReplyBody};
use super::error::ApiError;
use super::fields::{AckFields, ProduceFields, ProduceHead, from_json};
use super::produce::{routed, write_produced};
use crate::driver::{Gather, Outcome};
use crate::json::object;
use crate::metrics::Metrics;

/// Lines decided and not yet answered.
const PENDING_MAX: usize = 4_096;
/// Bytes of answers not yet read.
const ANSWERS_BYTES_MAX: usize = 256 << 10;

/// How long a request of which nothing has come but its head is waited for before it gets the head of its answer.
const GRACE: Duration = Duration::from_millis(20);

/// What the lines of a batch ask for.
#[derive(Debug)]
pub(crate) enum BatchKind {
    /// Each is a produce; the trace context of the request is that of each.
    Produce { trace: Option<String> },
    /// Each is an ack.
    Ack,
}

/// The answers to a batch, as a body.
pub(crate) struct BatchBody {
    api: Rc<Api>,
    kind: BatchKind,
    answers: Rc<Answers>,
    /// What still comes in; nothing once it has ended.
    inflow: Option<Inflow>,
    /// What has come in and is not yet taken apart.
    chunk: Bytes,
    /// The beginning of a line whose end has not come.
    partial: Vec<u8>,
    /// The rest of the current line is of no interest: it is too long, which has been said.
    skipping: bool,
    /// Answers have left since more was last asked for.
    has_answered: bool,
    /// A message whose router has not answered yet.
    routing: Option<Pin<Box<dyn Future<Output = Box<Produce>>>>>,
}

impl BatchBody {
    pub(crate) fn new(api: Rc<Api>, kind: BatchKind, inflow: Inflow) -> Self {
        let answers = Rc::new(Answers { metrics: Rc::clone(&api.metrics), inner: RefCell::default() });
        let (chunk, partial) = (Bytes::new(), Vec::new());
        let (skipping, has_answered) = (false, false);
        Self { api, kind, answers, inflow: Some(inflow), chunk, partial, skipping, has_answered, routing: None }
    }

    /// The answer to the batch. One that has come whole and is soon answered gets all its lines at once, in one write; a sender
    /// that waits for the answer before it goes on gets its head, and lines as they come.
    pub(crate) async fn answer(mut self) -> Answer {
        let mut grace = None;
        let whole = std::future::poll_fn(|context| {
            self.take_lines(context);
            let mut answers = self.answers.inner.borrow_mut();
            if self.is_answered(&answers) {
                return Poll::Ready(Some(std::mem::take(&mut answers.out)));
            }
            if answers.out.len() >= ANSWERS_BYTES_MAX || (self.inflow.is_some() && !answers.out.is_empty()) {
                return Poll::Ready(None);
            }
            if self.inflow.is_some() && answers.pending.is_empty() {
                let grace = grace.get_or_insert_with(|| Box::pin(tokio::time::sleep(GRACE)));
                std::task::ready!(grace.as_mut().poll(context));
                return Poll::Ready(None);
            }
            answers.waker = Some(context.waker().clone());
            Poll::Pending
        });
        match whole.await {
            Some(whole) => lines(ReplyBody::Whole(whole.into())),
            None => lines(ReplyBody::Batch(Box::new(self))),
        }
    }

    /// More answers, or the end of them.
    pub(crate) fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.take_lines(context);
        let mut answers = self.answers.inner.borrow_mut();
        if !answers.out.is_empty() {
            self.has_answered = true;
            return Poll::Ready(Some(std::mem::take(&mut answers.out)));
        }
        if self.is_answered(&answers) {
            return Poll::Ready(None);
        }
        answers.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Whether nothing is left to be asked or answered.
    fn is_answered(&self, answers: &AnswersInner) -> bool {
        self.inflow.is_none() && self.chunk.is_empty() && self.routing.is_none() && answers.pending.is_empty()
    }

    /// Takes as many lines as there are and may be.
    fn take_lines(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(routing) = &mut self.routing {
                let Poll::Ready(produce) = routing.as_mut().poll(context) else { return };
                self.routing = None;
                self.produce(produce);
                continue;
            }
            if self.answers.is_full() {
                return;
            }
            if let Some(end) = memchr::memchr(b'\n', &self.chunk) {
                let rest = self.chunk.split_to(end);
                self.chunk.advance(1);
                self.end_line(&rest);
                continue;
            }
            let rest = std::mem::take(&mut self.chunk);
            self.keep_partial(&rest);
            let Some(inflow) = &mut self.inflow else { return };
            if std::mem::take(&mut self.has_answered) || self.answers.has_pending() {
                // The sender may have been waiting for us.
                inflow.excuse();
            }
            match inflow.poll(context) {
                Poll::Pending => return,
                Poll::Ready(Ok(Some(data))) => self.chunk = data,
                Poll::Ready(Ok(None)) => {
                    self.inflow = None;
                    self.end_line(&[]);
                }
                Poll::Ready(Err(error)) => {
                    self.inflow = None;
                    self.partial.clear();
                    self.refuse(&error);
                }
            }
        }
    }

    /// Keeps the beginning of a line, unless it is too long already.
    fn keep_partial(&mut self, part: &[u8]) {
        let max = self.api.settings.http.body_bytes_max;
        if self.skipping || part.is_empty() {
            return;
        }
        if self.partial.len() + part.len() > max {
            self.partial = Vec::new();
            self.skipping = true;
            self.refuse(&ApiError::too_large(format!("a line may have at most {max} bytes")));
            return;
        }
        self.partial.extend_from_slice(part);
    }

    /// A line is complete with `rest`.
    fn end_line(&mut self, rest: &[u8]) {
        if self.partial.is_empty() && !self.skipping && rest.len() <= self.api.settings.http.body_bytes_max {
            self.line(rest);
            return;
        }
        self.keep_partial(rest);
        let line = std::mem::take(&mut self.partial);
        if !std::mem::take(&mut self.skipping) {
            self.line(&line);
        }
    }

    fn line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match &self.kind {
            BatchKind::Produce { trace } => {
                let head = ProduceHead { idempotency_key: None, trace: trace.as_deref() };
                match from_json::<ProduceFields<'_>>(line).and_then(|fields| fields.into_produce(head)) {
                    Ok(produce) if self.api.router.is_empty() => self.produce(produce),
                    Ok(produce) => self.routing = Some(Box::pin(routed(Rc::clone(&self.api), produce))),
                    Err(error) => self.refuse(&error),
                }
            }
            BatchKind::Ack => match from_json::<AckFields<'_>>(line).and_then(|fields| fields.claim()) {
                Ok(claim) => self.submit(Command::Ack(claim), Pending::Ack),
                Err(error) => self.refuse(&error),
            },
        }
    }

    /// Answers a line that was not even asked. A refused produce is counted, whatever it was refused for.
    fn refuse(&self, error: &ApiError) {
        if let BatchKind::Produce { .. } = self.kind {
            self.api.metrics.rejected(error.reason());
        }
        self.answers.refuse(error);
    }

    fn produce(&self, produce: Box<Produce>) {
        let topic = produce.topic.clone();
        self.submit(Command::Produce(produce), Pending::Produce(topic));
    }

    fn submit(&self, command: Command, pending: Pending) {
        let gather: Rc<dyn Gather> = Rc::clone(&self.answers) as _;
        match self.api.driver.gather(command, gather) {
            Ok(()) => self.answers.inner.borrow_mut().pending.push_back(pending),
            Err(unready) => self.refuse(&unready.into()),
        }
    }
}

/// What a line waits for.
enum Pending {
    /// A message's place; the topic is echoed.
    Produce(TopicName),
    /// Nothing but its success.
    Ack,
    /// Nothing: this is its answer.
    Ready(Vec<u8>),
}

/// Answers in the order of their lines.
struct Answers {
    metrics: Rc<Metrics>,
    inner: RefCell<AnswersInner>,
}

#[derive(Default)]
struct AnswersInner {
    pending: VecDeque<Pending>,
    out: Vec<u8>,
    waker: Option<Waker>,
}

impl Answers {
    fn is_full(&self) -> bool {
        let inner = self.inner.borrow();
        inner.pending.len() >= PENDING_MAX || inner.out.len() >= ANSWERS_BYTES_MAX
    }

    fn has_pending(&self) -> bool {
        !self.inner.borrow().pending.is_empty()
    }

    /// The answer to a line that was not even asked.
    fn refuse(&self, error: &ApiError) {
        let mut line = Vec::new();
        write_error(error, &mut line);
        let mut inner = self.inner.borrow_mut();
        match inner.pending.is_empty() {
            true => inner.out.append(&mut line),
            false => inner.pending.push_back(Pending::Ready(line)),
        }
    }
}

impl Gather for Answers {
    fn answered(&self, outcome: Outcome) {
        let mut inner = self.inner.borrow_mut();
        let AnswersInner { pending, out, waker } = &mut *inner;
        match (pending.pop_front(), outcome) {
            (Some(Pending::Produce(topic)), Ok(Reply::Produced(at))) => {
                self.metrics.routed(at.router);
                object(out, |json| {
                    json.number("status", StatusCode::OK.as_u16());
                    write_produced(json, &topic, &at);
                });
                out.push(b'\n');
            }
            (Some(Pending::Produce(_)), Err(refusal)) => {
                let error = refusal.into();
                self.metrics.rejected(ApiError::reason(&error));
                write_error(&error, out);
            }
            (Some(Pending::Ack), Ok(Reply::Done)) => out.extend_from_slice(b"{\"status\":204}\n"),
            (Some(Pending::Ack), Err(refusal)) => write_error(&refusal.into(), out),
            (_, outcome) => unreachable!("not an answer to this line: {outcome:?}"),
        }
        while let Some(Pending::Ready(line)) = pending.front_mut() {
            out.append(line);
            pending.pop_front();
        }
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }
}

fn write_error(error: &ApiError, out: &mut Vec<u8>) {
    object(out, |json| {
        json.number("status", error.status.as_u16());
        error.write_fields(json);
    });
    out.push(b'\n');
}

impl std::fmt::Debug for BatchBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchBody").field("kind", &self.kind).finish_non_exhaustive()
    }
}
