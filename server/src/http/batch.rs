//! Batches: one request per line, one response line each, in order. The fast path.
//!
//! Lines are submitted as they arrive, and response lines are sent as they become durable; the response may begin
//! before the request ends. The number of lines in progress and the bytes of response lines that the client has not
//! read are bounded.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use driftq_core::command::Ack;
use driftq_core::command::Produce;
use driftq_core::types::TopicName;
use driftq_core::{Command, Request};
use hyper::StatusCode;

use super::api::Api;
use super::claim_fields::AckFields;
use super::error::ApiError;
use super::fields::from_json;
use super::message_fields::{MessageHeaders, ProduceFields};
use super::produce::{route, write_produced};
use super::request_body::RequestBody;
use super::response::{ApiResponse, lines, whole_lines};
use super::response_body::PollLines;
use crate::driver::{ReplyResult, ReplySink};
use crate::json::object;
use crate::metrics::Metrics;

/// Most lines in progress: submitted and without a response line.
const PENDING_MAX: usize = 4_096;
/// Bytes of unsent response lines beyond which no further line is submitted.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// How long the head of the response waits for the first line of the request.
const HEAD_DELAY: Duration = Duration::from_millis(20);

/// What the lines of a batch are.
#[derive(Debug)]
pub(crate) enum BatchKind {
    /// Produces, each with the trace context of the request.
    Produce { trace: Option<String> },
    /// Acks.
    Ack,
}

/// A batch in progress, which is also the body of its response.
pub(crate) struct BatchBody {
    api: Rc<Api>,
    kind: BatchKind,
    responses: Rc<ResponseLines>,
    /// The body of the request; `None` once it has ended.
    body: Option<RequestBody>,
    /// Received and not yet split into lines.
    chunk: Bytes,
    /// The beginning of a line whose end is not yet received.
    partial: Vec<u8>,
    /// The rest of the current line is dropped: the line is too long and was refused.
    is_skipping: bool,
    /// Response lines were sent since the body was last polled.
    has_sent: bool,
    /// A message that waits for the router.
    routing: Option<Pin<Box<dyn Future<Output = Box<Produce>>>>>,
}

impl BatchBody {
    pub(crate) fn new(api: Rc<Api>, kind: BatchKind, body: RequestBody) -> Self {
        let responses = Rc::new(ResponseLines { metrics: Rc::clone(&api.metrics), inner: RefCell::default() });
        Self {
            api,
            kind,
            responses,
            body: Some(body),
            chunk: Bytes::new(),
            partial: Vec::new(),
            is_skipping: false,
            has_sent: false,
            routing: None,
        }
    }

    /// The response to the batch. If the request is complete and its replies arrive soon, all lines leave with the head
    /// in one write (measured: `docs/performance.md`). A client that waits for the response before it sends more gets
    /// the head, then lines as they become available.
    pub(crate) async fn respond(mut self) -> ApiResponse {
        let mut delay = None;
        let whole = std::future::poll_fn(|context| {
            self.submit_lines(context);
            let mut responses = self.responses.inner.borrow_mut();
            if self.is_complete(&responses) {
                return Poll::Ready(Some(std::mem::take(&mut responses.out)));
            }
            if responses.out.len() >= UNSENT_BYTES_MAX || (self.body.is_some() && !responses.out.is_empty()) {
                return Poll::Ready(None);
            }
            if self.body.is_some() && responses.pending.is_empty() {
                let delay = delay.get_or_insert_with(|| Box::pin(tokio::time::sleep(HEAD_DELAY)));
                std::task::ready!(delay.as_mut().poll(context));
                return Poll::Ready(None);
            }
            responses.waker = Some(context.waker().clone());
            Poll::Pending
        });
        match whole.await {
            Some(whole) => whole_lines(whole),
            None => lines(self),
        }
    }

    /// Whether every line of the request has its response line.
    fn is_complete(&self, responses: &ResponseLinesInner) -> bool {
        self.body.is_none() && self.chunk.is_empty() && self.routing.is_none() && responses.pending.is_empty()
    }

    /// Submits lines until the body, the router or a limit must be waited for.
    fn submit_lines(&mut self, context: &mut Context<'_>) {
        loop {
            if let Some(routing) = &mut self.routing {
                let Poll::Ready(produce) = routing.as_mut().poll(context) else { return };
                self.routing = None;
                self.submit_produce(produce);
                continue;
            }
            if self.responses.is_full() {
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
            let Some(body) = &mut self.body else { return };
            if std::mem::take(&mut self.has_sent) || self.responses.has_pending() {
                // The client may have waited for a response line, so this pause does not count.
                body.restart_pause();
            }
            match body.poll_chunk(context) {
                Poll::Pending => return,
                Poll::Ready(Ok(Some(data))) => self.chunk = data,
                Poll::Ready(Ok(None)) => {
                    self.body = None;
                    self.end_line(&[]);
                }
                Poll::Ready(Err(error)) => {
                    self.body = None;
                    self.partial.clear();
                    self.refuse(&error);
                }
            }
        }
    }

    /// Keeps the beginning of a line, or refuses the line if it is too long already.
    fn keep_partial(&mut self, part: &[u8]) {
        let max = self.api.settings.http.body_bytes_max;
        if self.is_skipping || part.is_empty() {
            return;
        }
        if self.partial.len() + part.len() > max {
            self.partial = Vec::new();
            self.is_skipping = true;
            self.refuse(&ApiError::too_large(format!("a line may have at most {max} bytes")));
            return;
        }
        self.partial.extend_from_slice(part);
    }

    /// A line ends with `rest`.
    fn end_line(&mut self, rest: &[u8]) {
        if self.partial.is_empty() && !self.is_skipping && rest.len() <= self.api.settings.http.body_bytes_max {
            self.submit_line(rest);
            return;
        }
        self.keep_partial(rest);
        let line = std::mem::take(&mut self.partial);
        if !std::mem::take(&mut self.is_skipping) {
            self.submit_line(&line);
        }
    }

    fn submit_line(&mut self, line: &[u8]) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match &self.kind {
            BatchKind::Produce { trace } => {
                let headers = MessageHeaders { idempotency_key: None, trace: trace.as_deref() };
                match from_json::<ProduceFields<'_>>(line).and_then(|fields| fields.into_produce(headers)) {
                    Ok(produce) if self.api.router.is_empty() => self.submit_produce(produce),
                    Ok(produce) => self.routing = Some(Box::pin(route(Rc::clone(&self.api), produce))),
                    Err(error) => self.refuse(&error),
                }
            }
            BatchKind::Ack => match from_json::<AckFields<'_>>(line).and_then(|fields| fields.claim()) {
                Ok(claim) => self.submit(Command::Ack(Ack(claim)), Pending::Ack),
                Err(error) => self.refuse(&error),
            },
        }
    }

    /// Adds the response line of a line that is not submitted.
    fn refuse(&self, error: &ApiError) {
        if let BatchKind::Produce { .. } = self.kind {
            self.api.metrics.count_rejected(error.reason());
        }
        self.responses.refuse(error);
    }

    fn submit_produce(&self, produce: Box<Produce>) {
        let topic = produce.topic.clone();
        self.submit(Command::Produce(produce), Pending::Produce(topic));
    }

    fn submit(&self, command: Command, pending: Pending) {
        let sink: Rc<dyn ReplySink> = Rc::clone(&self.responses) as _;
        match self.api.driver.ask_into(command, sink) {
            Ok(()) => self.responses.inner.borrow_mut().pending.push_back(pending),
            Err(unready) => self.refuse(&unready.into()),
        }
    }
}

impl PollLines for BatchBody {
    fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Vec<u8>>> {
        self.submit_lines(context);
        let mut responses = self.responses.inner.borrow_mut();
        if !responses.out.is_empty() {
            self.has_sent = true;
            return Poll::Ready(Some(std::mem::take(&mut responses.out)));
        }
        if self.is_complete(&responses) {
            return Poll::Ready(None);
        }
        responses.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// A line in progress.
enum Pending {
    /// A produce that waits for its reply; the topic is echoed.
    Produce(TopicName),
    /// An ack that waits for its reply.
    Ack,
    /// A response line that waits for the lines before it.
    Ready(Vec<u8>),
}

/// Response lines, in the order of the request's lines.
struct ResponseLines {
    metrics: Rc<Metrics>,
    inner: RefCell<ResponseLinesInner>,
}

#[derive(Default)]
struct ResponseLinesInner {
    pending: VecDeque<Pending>,
    /// Lines ready to be sent.
    out: Vec<u8>,
    waker: Option<Waker>,
}

impl ResponseLines {
    fn is_full(&self) -> bool {
        let inner = self.inner.borrow();
        inner.pending.len() >= PENDING_MAX || inner.out.len() >= UNSENT_BYTES_MAX
    }

    fn has_pending(&self) -> bool {
        !self.inner.borrow().pending.is_empty()
    }

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

impl ReplySink for ResponseLines {
    fn reply(&self, result: ReplyResult) {
        let mut inner = self.inner.borrow_mut();
        let ResponseLinesInner { pending, out, waker } = &mut *inner;
        match (pending.pop_front(), result) {
            (Some(Pending::Produce(topic)), Ok(reply)) => {
                let at = Produce::reply(reply);
                self.metrics.count_routed(at.router);
                object(out, |json| {
                    json.number("status", StatusCode::OK.as_u16());
                    write_produced(json, &topic, &at);
                });
                out.push(b'\n');
            }
            (Some(Pending::Produce(_)), Err(refusal)) => {
                let error = refusal.into();
                self.metrics.count_rejected(ApiError::reason(&error));
                write_error(&error, out);
            }
            (Some(Pending::Ack), Ok(reply)) => {
                Ack::reply(reply);
                out.extend_from_slice(b"{\"status\":204}\n");
            }
            (Some(Pending::Ack), Err(refusal)) => write_error(&refusal.into(), out),
            (Some(Pending::Ready(_)) | None, _) => unreachable!("a reply answers a line that waits for one"),
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
