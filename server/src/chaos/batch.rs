//! Faults of batches: single lines are repeated, and the answers are held or cut as a whole.
//!
//! A batch of a known length is received first, and known by the digest of its body. One that is sent as it comes is
//! known by its first line: its answers may be awaited before the next line is sent.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::http::request;
use hyper::{Method, Response, StatusCode};

use super::arrivals::Arrival;
use super::body::{Cut, GatewayBody, Gone, PieceSender};
use super::draw::{Fault, Hit, RequestKind, digest};
use super::exchange::{Answer, before, delay_answer, receive, remove_framing, restart, whole};
use super::lines::{Lines, Part, content, lines_of};
use super::played::Detail;
use super::state::{Chaos, KnownRequest};

/// A longer batch counts as one that is sent as it comes.
const WHOLE_BYTES_MAX: usize = 64 << 20;
/// The answer to a batch that is sent as it comes is cut in one of so many first lines.
const CUT_LINES: u64 = 16;

/// Whether a request is a batch, one request per line.
pub(super) fn is_batch(head: &request::Parts) -> bool {
    let is_route = matches!(
        head.uri.path(),
        "/v1/produce" | "/v1/ack" | "/v1/nack" | "/v1/complete" | "/v1/idempotency/begin" | "/v1/idempotency/finish"
    );
    let kind = head.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let media_type = kind.split(';').next().unwrap_or_default().trim();
    is_route && head.method == Method::POST && media_type.eq_ignore_ascii_case("application/x-ndjson")
}

/// Carries out a batch.
pub(super) async fn carry_out(chaos: Rc<Chaos>, head: request::Parts, arrival: Arrival, body: Incoming) -> Answer {
    let is_known = body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES_MAX as u64);
    if !is_known {
        return Streamed { chaos, head, arrival }.carry_out(body).await;
    }
    match receive(&chaos, body, WHOLE_BYTES_MAX).await {
        Ok(body) => carry_out_whole(&chaos, &head, arrival, &body).await,
        Err(refused) => refused.map(|refusal| refusal.answer(&chaos, &head)),
    }
}

async fn carry_out_whole(chaos: &Chaos, head: &request::Parts, arrival: Arrival, body: &[u8]) -> Answer {
    let request = chaos.know(RequestKind::Whole, head, digest(body));
    before(chaos, &request, arrival).await;
    let mut expected = ExpectedAnswers::default();
    let mut repeated = Vec::with_capacity(body.len());
    for line in lines_of(body) {
        repeated.extend_from_slice(line);
        if expected.add_line(chaos, head, line) {
            if !line.ends_with(b"\n") {
                repeated.push(b'\n');
            }
            repeated.extend_from_slice(line);
        }
    }
    let answer = chaos.upstream.call(head, repeated.into()).await.map_err(|_| Cut)?;
    chaos.arrivals.carry_out(arrival);
    restart(chaos, &request)?;
    let cut = chaos.draw(Fault::DropReply, request.subject);
    if answer.head.status != StatusCode::OK {
        // It was refused as a whole.
        if cut.is_some() {
            request.play(chaos, Fault::DropReply, Detail::of("answer"));
            return Err(Cut);
        }
        delay_answer(chaos, &request).await;
        return Ok(whole(answer.head, answer.body));
    }
    let answers: Vec<&[u8]> = lines_of(&answer.body).filter(|_| expected.next_counts()).collect();
    let answers_len = answers.len() as u64;
    let Some(hit) = cut.filter(|_| answers_len > 0) else {
        delay_answer(chaos, &request).await;
        return Ok(whole(answer.head, answers.concat().into()));
    };
    let line = 1 + hit.pick(0, answers_len);
    request.play(chaos, Fault::DropReply, Detail::of("answer").with_line(line));
    let (sent, rest) = answers.split_at(line as usize - 1);
    let mut sent = sent.concat();
    sent.extend_from_slice(rest.first().map_or(&[][..], |line| &line[..line.len() / 2]));
    let mut head = answer.head;
    remove_framing(&mut head.headers);
    head.headers.insert(CONTENT_LENGTH, answers.iter().map(|answer| answer.len()).sum::<usize>().into());
    let (out, pieces) = GatewayBody::pieces();
    tokio::task::spawn_local(async move {
        if out.send(sent.into()).await.is_ok() {
            out.cut().await;
        }
    });
    Ok(Response::from_parts(head, pieces))
}

/// Which answers of the broker are those of lines, and which of their repetitions.
#[derive(Debug, Default)]
struct ExpectedAnswers {
    /// Of each line in progress, whether its answer counts.
    counting: VecDeque<bool>,
}

impl ExpectedAnswers {
    /// A line is sent to the broker. Returns whether it is to be sent again: then the second answer counts.
    fn add_line(&mut self, chaos: &Chaos, head: &request::Parts, line: &[u8]) -> bool {
        let line = content(line);
        if line.is_empty() {
            // It has no answer.
            return false;
        }
        let request = chaos.know(RequestKind::Line, head, digest(line));
        let is_repeated = chaos.draw(Fault::Duplicate, request.subject).is_some();
        if is_repeated {
            request.play(chaos, Fault::Duplicate, Detail::of("line"));
            self.counting.push_back(false);
        }
        self.counting.push_back(true);
        is_repeated
    }

    /// Whether the broker's next answer counts. One that answers no line, such as that a body ended early, does.
    fn next_counts(&mut self) -> bool {
        self.counting.pop_front().unwrap_or(true)
    }
}

/// A batch that is sent as it comes.
struct Streamed {
    chaos: Rc<Chaos>,
    head: request::Parts,
    arrival: Arrival,
}

/// What both directions of it share.
#[derive(Default)]
struct Progress {
    expected: ExpectedAnswers,
    /// The batch, once its first line is known.
    request: Option<KnownRequest>,
}

impl Streamed {
    async fn carry_out(self, body: Incoming) -> Answer {
        let progress = Rc::new(RefCell::new(Progress::default()));
        let (out, pieces) = GatewayBody::pieces();
        let Self { chaos, head, arrival } = self;
        let requests =
            Requests { chaos: Rc::clone(&chaos), head: head.clone(), arrival, progress: Rc::clone(&progress) };
        tokio::task::spawn_local(requests.run(body, out));
        let response = chaos.upstream.open(&head, pieces).await.map_err(|_| Cut)?;
        chaos.arrivals.carry_out(arrival);
        let (mut head, body) = response.into_parts();
        if head.status != StatusCode::OK {
            let body = body.collect().await.map_err(|_| Cut)?.to_bytes();
            return Ok(whole(head, body));
        }
        let (out, pieces) = GatewayBody::pieces();
        tokio::task::spawn_local(Answers { chaos, progress, out }.run(body));
        remove_framing(&mut head.headers);
        Ok(Response::from_parts(head, pieces))
    }
}

/// The lines on their way to the broker.
struct Requests {
    chaos: Rc<Chaos>,
    head: request::Parts,
    arrival: Arrival,
    progress: Rc<RefCell<Progress>>,
}

impl Requests {
    async fn run(self, body: Incoming, out: PieceSender) {
        let mut lines = Lines::new(body, self.chaos.body_bytes_max);
        loop {
            match lines.next().await {
                Ok(Some(part)) => {
                    if self.pass_on(part, &out).await.is_err() {
                        return;
                    }
                }
                Ok(None) => return,
                // The client is gone, in the middle of its batch.
                Err(_) => return out.cut().await,
            }
        }
    }

    async fn pass_on(&self, part: Part, out: &PieceSender) -> Result<(), Gone> {
        let line = match part {
            Part::Line(line) => line,
            Part::Fragment { bytes, is_last } => {
                if is_last {
                    // The broker refuses it, once.
                    self.progress.borrow_mut().expected.counting.push_back(true);
                }
                return out.send(bytes).await;
            }
        };
        self.begin(&line).await;
        let is_repeated = self.progress.borrow_mut().expected.add_line(&self.chaos, &self.head, &line);
        if !is_repeated {
            return out.send(line).await;
        }
        let mut twice = line.to_vec();
        if !line.ends_with(b"\n") {
            twice.push(b'\n');
        }
        twice.extend_from_slice(&line);
        out.send(twice.into()).await
    }

    /// The first line decides which faults the batch suffers.
    async fn begin(&self, line: &[u8]) {
        if self.progress.borrow().request.is_some() || content(line).is_empty() {
            return;
        }
        let request = self.chaos.know(RequestKind::Whole, &self.head, digest(content(line)));
        before(&self.chaos, &request, self.arrival).await;
        self.progress.borrow_mut().request = Some(request);
    }
}

/// The answers on their way to the client.
struct Answers {
    chaos: Rc<Chaos>,
    progress: Rc<RefCell<Progress>>,
    out: PieceSender,
}

impl Answers {
    async fn run(self, body: Incoming) {
        if let Ok(Err(Cut)) = self.pass_on(body).await {
            self.out.cut().await;
        }
    }

    async fn pass_on(&self, body: Incoming) -> Result<Result<(), Cut>, Gone> {
        let mut lines = Lines::new(body, usize::MAX);
        let mut answered = 0;
        let mut cut: Option<(Hit, KnownRequest)> = None;
        loop {
            let next = tokio::select! {
                next = lines.next() => next,
                () = self.out.gone() => return Err(Gone),
            };
            let line = match next {
                Ok(Some(Part::Line(line) | Part::Fragment { bytes: line, .. })) => line,
                Ok(None) => break,
                // The broker has crashed.
                Err(_) => return Ok(Err(Cut)),
            };
            if !self.progress.borrow_mut().expected.next_counts() {
                continue;
            }
            answered += 1;
            let request = self.progress.borrow().request.clone();
            if answered == 1
                && let Some(request) = request
            {
                delay_answer(&self.chaos, &request).await;
                cut = self.chaos.draw(Fault::DropReply, request.subject).map(|hit| (hit, request));
            }
            if let Some((hit, request)) = cut.take_if(|(hit, _)| 1 + hit.pick(0, CUT_LINES) == answered) {
                let line_number = 1 + hit.pick(0, CUT_LINES);
                request.play(&self.chaos, Fault::DropReply, Detail::of("answer").with_line(line_number));
                self.out.send(line.slice(..line.len() / 2)).await?;
                return Ok(Err(Cut));
            }
            self.out.send(line).await?;
        }
        let request = self.progress.borrow().request.clone();
        if let Some(request) = request
            && restart(&self.chaos, &request).is_err()
        {
            return Ok(Err(Cut));
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;
    use hyper::header::HeaderValue;

    use super::*;

    fn is_batch_request(method: Method, path: &str, kind: &str) -> bool {
        let mut request = Request::new(());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().expect("a path");
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_str(kind).expect("a value"));
        is_batch(&request.into_parts().0)
    }

    #[test]
    fn batch_is_recognized_by_route_and_content_type() {
        for kind in ["application/x-ndjson", "Application/X-NDJSON; charset=utf-8", " application/x-ndjson "] {
            assert!(is_batch_request(Method::POST, "/v1/ack?x=1", kind), "{kind}");
        }
        assert!(!is_batch_request(Method::POST, "/v1/ack", "application/json"));
        assert!(!is_batch_request(Method::GET, "/v1/ack", "application/x-ndjson"));
        assert!(!is_batch_request(Method::POST, "/v1/topics", "application/x-ndjson"));
    }
}
