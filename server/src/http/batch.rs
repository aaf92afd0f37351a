//! Batches: one request per line, one response line each, in order. The fast path.
//!
//! Lines are submitted as they arrive, and response lines are sent as they become durable; the response may begin
//! before the request ends. The number of lines in progress and the bytes of response lines that the client has not
//! read are bounded. A router with a webhook is asked about several lines at the same time; they are still submitted in
//! their order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use driftq_core::command::{Ack, Begin, Complete, Produce};
use driftq_core::types::{Now, TopicName, WallClock};
use driftq_core::{Command, Request};
use hyper::StatusCode;

use super::api::Api;
use super::body_budget::BodyBytes;
use super::claim_fields::{AckFields, NackFields};
use super::complete::{RoutedStep, StepRouting, parse_step, route_step, write_completed};
use super::error::ApiError;
use super::fields::from_plain_json;
use super::idempotency::{parse_begin, parse_finish, write_begun};
use super::message_fields::{MessageHeaders, ProduceFields};
use super::produce::{route, write_produced};
use super::request_body::RequestBody;
use super::requester::Requester;
use super::response::{ApiResponse, lines, whole_lines};
use super::response_body::PollLines;
use crate::driver::{ReplyResult, ReplySink};
use crate::json::{Json, object};
use crate::metrics::Metrics;
use crate::otlp::OpenSpan;
use crate::router::{Company, RouterFailure};

/// Most lines in progress: submitted and without a response line.
const PENDING_MAX: usize = 4_096;
/// Bytes of unsent response lines beyond which no further line is submitted.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// Most lines that wait for the router: as many as a webhook is asked at a time.
const ROUTING_MAX: usize = 64;
/// Bytes of values that wait for the router beyond which no further line is read.
const ROUTING_BYTES_MAX: usize = 4 << 20;

/// How long the head of the response waits for the first line of the request.
const HEAD_DELAY: Duration = Duration::from_millis(20);

/// What the lines of a batch are.
#[derive(Debug)]
pub(crate) enum BatchKind {
    /// Produces, each with the trace context of the request.
    Produce { trace: Option<String> },
    /// Acks.
    Ack,
    /// Nacks.
    Nack,
    /// Completed steps, each message of them with the trace context of the request.
    Complete { trace: Option<String> },
    /// Begins of effects.
    Begin,
    /// Finishes of effects.
    Finish,
}

/// A batch in progress, which is also the body of its response.
pub(crate) struct BatchBody {
    api: Rc<Api>,
    kind: BatchKind,
    responses: Rc<ResponseLines>,
    /// The body of the request; `None` once it has ended.
    body: Option<RequestBody>,
    from: Requester,
    /// Received and not yet split into lines.
    chunk: Bytes,
    /// When it was received: the clocks are read once for all its lines.
    now: Now,
    /// The beginning of a line whose end is not yet received.
    partial: Vec<u8>,
    /// Its memory.
    partial_bytes: BodyBytes,
    /// The rest of the current line is dropped: the line is too long and was refused.
    is_skipping: bool,
    /// Response lines were sent since the body was last polled.
    has_sent: bool,
    /// Lines that wait for the router, and those behind them, in order.
    routing: VecDeque<Routing>,
    /// Bytes of the values in `routing`.
    routing_bytes: usize,
    /// The wait for room in the log.
    room: Option<Pin<Box<dyn Future<Output = bool>>>>,
    /// The log had no room in time: lines are not held up again before it has.
    is_room_given_up: bool,
    /// The body has ended, and its last line is not submitted yet.
    is_ending: bool,
    /// Ends with the batch; `None` if it is not recorded.
    span: Option<OpenSpan>,
}

/// A line that waits for the router or behind one that does.
enum Routing {
    Asked { asking: Pin<Box<dyn Future<Output = RoutedLine>>>, value_bytes: usize },
    Known { line: RoutedLine, value_bytes: usize },
}

/// A line that has passed the router.
enum Line {
    Produce(Box<Produce>, Option<RouterFailure>),
    Step(RoutedStep),
}

/// The line, or its error.
type RoutedLine = Result<Line, ApiError>;

impl BatchBody {
    pub(crate) fn new(
        api: Rc<Api>,
        kind: BatchKind,
        body: RequestBody,
        from: Requester,
        span: Option<OpenSpan>,
    ) -> Self {
        let partial_bytes = BodyBytes::new(&api.bodies);
        let responses = Rc::new(ResponseLines { metrics: Arc::clone(&api.metrics), inner: RefCell::default() });
        Self {
            api,
            kind,
            responses,
            body: Some(body),
            from,
            chunk: Bytes::new(),
            now: Now::default(),
            partial: Vec::new(),
            partial_bytes,
            is_skipping: false,
            has_sent: false,
            routing: VecDeque::new(),
            routing_bytes: 0,
            room: None,
            is_room_given_up: false,
            is_ending: false,
            span,
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
        let is_read = self.body.is_none() && self.chunk.is_empty() && !self.is_ending;
        is_read && self.routing.is_empty() && responses.pending.is_empty()
    }

    /// Submits lines until the body, the router or a limit must be waited for.
    fn submit_lines(&mut self, context: &mut Context<'_>) {
        self.now = self.api.driver.now();
        self.poll_routing(context);
        loop {
            if self.responses.is_full() || self.is_routing_full() {
                return;
            }
            if self.api.driver.poll_submit(context.waker()).is_pending() {
                return;
            }
            if let Some(end) = memchr::memchr(b'\n', &self.chunk) {
                if self.poll_log_room(self.partial.len() + end, context).is_pending() {
                    return;
                }
                let rest = self.chunk.split_to(end);
                self.chunk.advance(1);
                self.end_line(&rest, context);
                continue;
            }
            let rest = std::mem::take(&mut self.chunk);
            self.keep_partial(&rest);
            if self.is_ending {
                if self.poll_log_room(self.partial.len(), context).is_pending() {
                    return;
                }
                self.is_ending = false;
                self.end_line(&[], context);
            }
            let Some(body) = &mut self.body else { return };
            if std::mem::take(&mut self.has_sent) || self.responses.has_pending() || !self.routing.is_empty() {
                // The client may have waited for a response line, so this pause does not count.
                body.restart_pause();
            }
            match body.poll_chunk(context) {
                Poll::Pending => return,
                Poll::Ready(Ok(Some(data))) => (self.chunk, self.now) = (data, self.api.driver.now()),
                Poll::Ready(Ok(None)) => {
                    self.body = None;
                    self.is_ending = true;
                }
                Poll::Ready(Err(error)) => {
                    self.body = None;
                    self.partial = Vec::new();
                    self.partial_bytes.clear();
                    self.refuse(error);
                }
            }
        }
    }

    /// Ready if a line of `bytes` bytes may be submitted: the log has room, or has had none for long.
    fn poll_log_room(&mut self, bytes: usize, context: &mut Context<'_>) -> Poll<()> {
        if !matches!(self.kind, BatchKind::Produce { .. }) {
            return Poll::Ready(());
        }
        if self.room.is_none() {
            if !self.api.driver.lacks_log_room(bytes) {
                self.is_room_given_up = false;
                return Poll::Ready(());
            }
            if self.is_room_given_up {
                return Poll::Ready(());
            }
        }
        let wait = || {
            let api = Rc::clone(&self.api);
            Box::pin(async move { api.driver.wait_for_log_room(bytes).await }) as Pin<Box<dyn Future<Output = bool>>>
        };
        let room = self.room.get_or_insert_with(wait);
        let has_room = std::task::ready!(room.as_mut().poll(context));
        self.room = None;
        // The client may have waited for a response line.
        self.has_sent = true;
        self.is_room_given_up = !has_room;
        Poll::Ready(())
    }

    fn is_routing_full(&self) -> bool {
        self.routing.len() >= ROUTING_MAX || self.routing_bytes >= ROUTING_BYTES_MAX
    }

    /// Submits the lines that need not wait any longer, in order.
    fn poll_routing(&mut self, context: &mut Context<'_>) {
        for entry in &mut self.routing {
            if let Routing::Asked { asking, value_bytes } = entry
                && let Poll::Ready(line) = asking.as_mut().poll(context)
            {
                *entry = Routing::Known { line, value_bytes: *value_bytes };
            }
        }
        while let Some(Routing::Known { .. }) = self.routing.front() {
            let Some(Routing::Known { line, value_bytes }) = self.routing.pop_front() else { return };
            self.routing_bytes -= value_bytes;
            self.submit_routed(line);
        }
    }

    /// Waits for the router's decisions about a line. It is submitted at once if the router knows and no line waits.
    fn route(
        &mut self,
        value_bytes: usize,
        context: &mut Context<'_>,
        asking: impl Future<Output = RoutedLine> + 'static,
    ) {
        let mut asking: Pin<Box<dyn Future<Output = RoutedLine>>> = Box::pin(asking);
        match (asking.as_mut().poll(context), self.routing.is_empty()) {
            (Poll::Ready(line), true) => return self.submit_routed(line),
            (Poll::Ready(line), false) => self.routing.push_back(Routing::Known { line, value_bytes }),
            (Poll::Pending, _) => self.routing.push_back(Routing::Asked { asking, value_bytes }),
        }
        self.routing_bytes += value_bytes;
    }

    fn submit_routed(&self, line: RoutedLine) {
        match line {
            Ok(line) => self.submit_routed_line(line),
            Err(error) => self.add_refusal(&error),
        }
    }

    /// Submits a line that has passed the router.
    fn submit_routed_line(&self, line: Line) {
        match line {
            Line::Produce(produce, failure) => {
                let topic = produce.topic.clone();
                self.submit(Command::Produce(produce), Pending::Produce(topic, failure));
            }
            Line::Step(routed) => {
                let (step, routing) = routed.submit(&self.api);
                self.submit(Command::Complete(step), Pending::Complete(routing));
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
            return self.skip_line(ApiError::too_large(format!("a line may have at most {max} bytes")));
        }
        if self.partial_bytes.make_room(&mut self.partial, part.len(), max).is_err() {
            return self.skip_line(ApiError::no_memory());
        }
        self.partial.extend_from_slice(part);
    }

    /// Refuses a line before its end.
    fn skip_line(&mut self, error: ApiError) {
        self.partial = Vec::new();
        self.partial_bytes.clear();
        self.is_skipping = true;
        self.refuse(error);
    }

    /// A line ends with `rest`.
    fn end_line(&mut self, rest: &[u8], context: &mut Context<'_>) {
        if self.partial.is_empty() && !self.is_skipping && rest.len() <= self.api.settings.http.body_bytes_max {
            self.submit_line(rest, context);
            return;
        }
        self.keep_partial(rest);
        let line = std::mem::take(&mut self.partial);
        self.partial_bytes.clear();
        if !std::mem::take(&mut self.is_skipping) {
            self.submit_line(&line, context);
        }
    }

    fn submit_line(&mut self, line: &[u8], context: &mut Context<'_>) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        match &self.kind {
            BatchKind::Produce { trace } => {
                let headers = MessageHeaders { idempotency_key: None, trace: trace.as_deref() };
                match from_plain_json::<ProduceFields<'_>>(line)
                    .and_then(|fields| fields.into_produce(&self.from.names, headers))
                {
                    Ok(produce) if self.api.router.is_empty() => {
                        self.submit_routed_line(Line::Produce(produce, None));
                    }
                    Ok(produce) => {
                        let (bytes, routing) =
                            (produce.value().len(), route(Rc::clone(&self.api), produce, Company::Batch));
                        self.route(bytes, context, async {
                            routing.await.map(|(produce, failure)| Line::Produce(produce, failure))
                        });
                    }
                    Err(error) => self.refuse(error),
                }
            }
            BatchKind::Complete { trace } => match parse_step(line, trace.as_deref(), &self.from.names) {
                Ok(step) if self.api.router.is_empty() => {
                    self.submit_routed_line(Line::Step(RoutedStep::unrouted(step)));
                }
                Ok(step) => {
                    let bytes = step.produce.iter().map(|message| message.value().len()).sum();
                    let routing = route_step(Rc::clone(&self.api), step);
                    self.route(bytes, context, async { routing.await.map(Line::Step) });
                }
                Err(error) => self.refuse(error),
            },
            BatchKind::Ack => {
                let claim = from_plain_json::<AckFields<'_>>(line).and_then(|fields| fields.claim(&self.from.names));
                self.submit_parsed(claim.map(Ack), Pending::Settled);
            }
            BatchKind::Nack => {
                let nack = from_plain_json::<NackFields<'_>>(line).and_then(|fields| fields.nack(&self.from.names));
                self.submit_parsed(nack, Pending::Settled);
            }
            BatchKind::Begin => self.submit_parsed(parse_begin(line, &self.from.names), Pending::Begin),
            BatchKind::Finish => self.submit_parsed(parse_finish(line, &self.from.names), Pending::Finish),
        }
    }

    fn submit_parsed(&self, parsed: Result<impl Into<Command>, ApiError>, pending: Pending) {
        match parsed {
            Ok(request) => self.submit(request.into(), pending),
            Err(error) => self.add_refusal(&error),
        }
    }

    /// Refuses a line, behind those that wait for the router.
    fn refuse(&mut self, error: ApiError) {
        match self.routing.is_empty() {
            true => self.add_refusal(&error),
            false => self.routing.push_back(Routing::Known { line: Err(error), value_bytes: 0 }),
        }
    }

    /// Adds the response line of a line that is not submitted.
    fn add_refusal(&self, error: &ApiError) {
        if let BatchKind::Produce { .. } = self.kind {
            self.api.metrics.count_rejected(error.reason());
        }
        self.responses.refuse(error);
    }

    fn submit(&self, command: Command, pending: Pending) {
        let sink: Rc<dyn ReplySink> = Rc::clone(&self.responses) as _;
        let number = self.responses.inner.borrow().next_number();
        match self.api.driver.ask_into(self.now, &self.from.caller, command, sink, number) {
            Ok(()) => self.responses.inner.borrow_mut().pending.push_back(pending),
            Err(unready) => self.add_refusal(&unready.into()),
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

impl Drop for BatchBody {
    fn drop(&mut self) {
        let responses = self.responses.inner.borrow();
        if let Some(span) = self.span.as_ref().filter(|_| self.is_complete(&responses)) {
            span.batch_answered(responses.next_number());
        }
    }
}

/// A line in progress.
enum Pending {
    /// A produce that waits for its reply; the topic is echoed, and a failure of the router reported.
    Produce(TopicName, Option<RouterFailure>),
    /// An ack or nack that waits for its reply.
    Settled,
    /// A complete that waits for its reply, and what became of its routing.
    Complete(StepRouting),
    /// A begin that waits for its reply.
    Begin,
    /// A finish that waits for its reply.
    Finish,
    /// A response line that waits for the lines before it.
    Ready(Vec<u8>),
}

/// Response lines, in the order of the request's lines.
struct ResponseLines {
    metrics: Arc<Metrics>,
    inner: RefCell<ResponseLinesInner>,
}

#[derive(Default)]
struct ResponseLinesInner {
    pending: VecDeque<Pending>,
    /// The number of the first of them.
    first: u64,
    /// Lines ready to be sent.
    out: Vec<u8>,
    waker: Option<Waker>,
}

impl ResponseLinesInner {
    /// The number of the next line that is submitted.
    fn next_number(&self) -> u64 {
        self.first + self.pending.len() as u64
    }
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
    fn reply(&self, number: u64, result: ReplyResult, clock: &WallClock) {
        let mut inner = self.inner.borrow_mut();
        let ResponseLinesInner { pending, first, out, waker } = &mut *inner;
        let at = number.checked_sub(*first).and_then(|at| usize::try_from(at).ok());
        let line = at.and_then(|at| pending.get_mut(at)).expect("a reply answers a line that waits for one");
        if number > *first {
            // A line before it waits for bytes that are read.
            let mut ready = Vec::new();
            self.write(&mut ready, std::mem::replace(line, Pending::Ready(Vec::new())), result, clock);
            *line = Pending::Ready(ready);
            return;
        }
        self.write(out, std::mem::replace(line, Pending::Ready(Vec::new())), result, clock);
        while let Some(Pending::Ready(line)) = pending.front_mut() {
            out.append(line);
            pending.pop_front();
            *first += 1;
        }
        if let Some(waker) = waker.take() {
            waker.wake();
        }
    }
}

impl ResponseLines {
    /// Writes the response line of a line that waited for this reply.
    fn write(&self, out: &mut Vec<u8>, line: Pending, result: ReplyResult, clock: &WallClock) {
        match (line, result) {
            (Pending::Produce(topic, failure), Ok(reply)) => {
                let at = Produce::reply(reply);
                self.metrics.count_routed(at.router);
                write_line(out, |json| write_produced(json, &topic, &at, failure));
            }
            (Pending::Produce(..), Err(refusal)) => {
                let error = refusal.into();
                self.metrics.count_rejected(ApiError::reason(&error));
                write_error(&error, out);
            }
            (Pending::Settled, Ok(_)) => out.extend_from_slice(b"{\"status\":204}\n"),
            (Pending::Complete(routing), Ok(reply)) => {
                let outputs = Complete::reply(reply);
                write_line(out, |json| write_completed(json, &outputs, routing, &self.metrics));
            }
            (Pending::Begin, Ok(reply)) => {
                let begun = Begin::reply(reply);
                write_line(out, |json| write_begun(json, &begun, clock, "effect_status"));
            }
            (Pending::Finish, Ok(_)) => write_line(out, |json| json.flag("ok", true)),
            (Pending::Settled | Pending::Complete(_) | Pending::Begin | Pending::Finish, Err(refusal)) => {
                write_error(&refusal.into(), out);
            }
            (Pending::Ready(_), _) => unreachable!("a reply answers a line that waits for one"),
        }
    }
}

fn write_line(out: &mut Vec<u8>, fields: impl FnOnce(&mut Json)) {
    object(out, |json| {
        json.number("status", StatusCode::OK.as_u16());
        fields(json);
    });
    out.push(b'\n');
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
