//! One request on its way to the broker and back, with the faults of a request.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};
use hyper::http::{request, response};
use hyper::{Method, Request, Response, StatusCode, Uri, Version};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::batch;
use super::body::{Cut, GatewayBody};
use super::deliveries::{DeliveryStream, Subscription};
use super::draw::{Fault, Hit, RequestKind, digest};
use super::played::Detail;
use super::state::{Chaos, KnownRequest, target};
use crate::json::object;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");

/// What a request or a stream is cut at: one of so many first lines.
const CUT_LINES: u64 = 8;
/// How long a request that suffers no faults waits for a broker that is being restarted, and how often it asks.
const RETRY_MAX: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// The answer, or nothing but a cut.
pub(super) type Answer = Result<Response<GatewayBody>, Cut>;

/// Whether requests of this path suffer nothing.
pub(super) fn is_exempt(path: &str) -> bool {
    matches!(path, "/v1/healthz" | "/v1/version" | "/v1/chaos" | "/metrics")
}

/// Answers a request. A client that does not wait for its answer does not undo the request: it is carried out by a task
/// of its own.
pub(super) async fn respond(chaos: Rc<Chaos>, request: Request<Incoming>) -> Answer {
    let is_http2 = request.version() >= Version::HTTP_2;
    let (mut head, body) = request.into_parts();
    prepare_head(&mut head);
    if is_exempt(head.uri.path()) {
        return pass_on(&chaos, &head, body).await.map(|answer| fit_version(answer, is_http2));
    }
    if chaos.outage.is_down() {
        return Ok(recovering(&chaos, &head));
    }
    let (send, answer) = oneshot::channel();
    let epoch = chaos.outage.epoch();
    tokio::task::spawn_local(async move {
        let crash = chaos.outage.crash_after(epoch);
        let answer = tokio::select! {
            biased;
            () = crash => Err(Cut),
            answer = Exchange::begin(&chaos, head).carry_out(body) => answer,
        };
        // The client may be gone.
        let _ = send.send(answer);
    });
    answer.await.unwrap_or(Err(Cut)).map(|answer| fit_version(answer, is_http2))
}

/// A request that may suffer faults.
struct Exchange {
    chaos: Rc<Chaos>,
    head: request::Parts,
    arrival: super::arrivals::Arrival,
}

impl Exchange {
    fn begin(chaos: &Rc<Chaos>, head: request::Parts) -> Self {
        Self { chaos: Rc::clone(chaos), head, arrival: chaos.arrivals.arrive() }
    }

    async fn carry_out(self, body: Incoming) -> Answer {
        if batch::is_batch(&self.head) {
            let Self { chaos, head, arrival } = self;
            return batch::carry_out(chaos, head, arrival, body).await;
        }
        let body = match receive(&self.chaos, body, self.chaos.body_bytes_max).await {
            Ok(body) => body,
            Err(refused) => return refused.map(|refusal| refusal.answer(&self.chaos, &self.head)),
        };
        let request = self.chaos.know(RequestKind::Whole, &self.head, digest(&body));
        before(&self.chaos, &request, self.arrival).await;
        if self.head.method == Method::GET && self.head.uri.path() == "/v1/consume" {
            return self.consume(request, body).await;
        }
        let call = || self.chaos.upstream.call(&self.head, body.clone());
        let mut answer = call().await.map_err(|_| Cut)?;
        let is_repeated = self.head.method != Method::GET;
        if is_repeated && self.chaos.draw(Fault::Duplicate, request.subject).is_some() {
            request.play(&self.chaos, Fault::Duplicate, Detail::of("request"));
            answer = call().await.map_err(|_| Cut)?;
        }
        self.chaos.arrivals.carry_out(self.arrival);
        after(&self.chaos, &request).await?;
        Ok(whole(answer.head, answer.body))
    }

    async fn consume(self, request: KnownRequest, body: Bytes) -> Answer {
        let subscription = Subscription::of(self.head.uri.query(), &body);
        let response = self.chaos.upstream.open(&self.head, GatewayBody::whole(body)).await.map_err(|_| Cut)?;
        self.chaos.arrivals.carry_out(self.arrival);
        let (mut head, stream) = response.into_parts();
        if head.status != StatusCode::OK {
            let body = stream.collect().await.map_err(|_| Cut)?.to_bytes();
            after(&self.chaos, &request).await?;
            return Ok(whole(head, body));
        }
        restart(&self.chaos, &request)?;
        // The stream itself is the answer, and is cut later.
        let cut = self.chaos.draw(Fault::DropReply, request.subject);
        delay_answer(&self.chaos, &request).await;
        let cut_in = cut.map(|hit| (1 + hit.pick(0, CUT_LINES), request.into_suffered_by()));
        let (out, pieces) = GatewayBody::pieces();
        tokio::task::spawn_local(DeliveryStream::new(self.chaos, subscription, out, cut_in).run(stream));
        remove_framing(&mut head.headers);
        Ok(Response::from_parts(head, pieces))
    }
}

/// The faults of a request before it is carried out.
pub(super) async fn before(chaos: &Chaos, request: &KnownRequest, arrival: super::arrivals::Arrival) {
    if let Some(hit) = chaos.draw(Fault::Delay, request.subject)
        && !holds_answer(hit)
    {
        let ms = chaos.delay_ms(hit);
        request.play(chaos, Fault::Delay, Detail::of("request").with_ms(ms));
        sleep(Duration::from_millis(ms)).await;
    }
    if chaos.draw(Fault::Reorder, request.subject).is_some() {
        request.play(chaos, Fault::Reorder, Detail::of("request"));
        chaos.arrivals.wait_for_later(arrival).await;
    }
}

/// The faults of a request that has been carried out and whose answer is known.
async fn after(chaos: &Chaos, request: &KnownRequest) -> Result<(), Cut> {
    restart(chaos, request)?;
    if chaos.draw(Fault::DropReply, request.subject).is_some() {
        request.play(chaos, Fault::DropReply, Detail::of("answer"));
        return Err(Cut);
    }
    delay_answer(chaos, request).await;
    Ok(())
}

/// Crashes the broker if this request suffers a restart.
pub(super) fn restart(chaos: &Chaos, request: &KnownRequest) -> Result<(), Cut> {
    match chaos.draw(Fault::Restart, request.subject) {
        Some(hit) => {
            chaos.crash(hit, request);
            Err(Cut)
        }
        None => Ok(()),
    }
}

pub(super) async fn delay_answer(chaos: &Chaos, request: &KnownRequest) {
    if let Some(hit) = chaos.draw(Fault::Delay, request.subject)
        && holds_answer(hit)
    {
        let ms = chaos.delay_ms(hit);
        request.play(chaos, Fault::Delay, Detail::of("answer").with_ms(ms));
        sleep(Duration::from_millis(ms)).await;
    }
}

/// Whether a delay holds the answer and not the request.
fn holds_answer(delay: Hit) -> bool {
    delay.pick(1, 2) == 1
}

/// Passes a request on that suffers nothing, also if the broker is being restarted meanwhile.
async fn pass_on(chaos: &Chaos, head: &request::Parts, body: Incoming) -> Answer {
    let body = match receive(chaos, body, chaos.body_bytes_max).await {
        Ok(body) => body,
        Err(refused) => return refused.map(|refusal| refusal.answer(chaos, head)),
    };
    if head.uri.path() == "/v1/chaos" && head.method == Method::GET {
        return Ok(report(chaos, head));
    }
    let until = Instant::now() + RETRY_MAX;
    loop {
        match chaos.upstream.call(head, body.clone()).await {
            Ok(answer) => return Ok(whole(answer.head, answer.body)),
            Err(_) if Instant::now() >= until => return Err(Cut),
            Err(_) => sleep(RETRY_INTERVAL).await,
        }
    }
}

/// `GET /v1/chaos`.
fn report(chaos: &Chaos, head: &request::Parts) -> Response<GatewayBody> {
    let parameters = head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let mut after = 0;
    for (_, value) in parameters.filter(|(name, _)| *name == "after") {
        match value.parse() {
            Ok(number) => after = number,
            Err(_) => return Refusal::invalid(format!("bad after: {value:?}")).answer(chaos, head),
        }
    }
    json(chaos, head, StatusCode::OK, chaos.report(after).into())
}

/// What the broker says while it recovers its log.
fn recovering(chaos: &Chaos, head: &request::Parts) -> Response<GatewayBody> {
    let mut body = Vec::new();
    object(&mut body, |json| {
        json.plain("error", "UNAVAILABLE");
        json.plain("message", "the broker is recovering its log");
        json.plain("reason", "recovering");
        json.plain("committed", "no");
    });
    json(chaos, head, StatusCode::SERVICE_UNAVAILABLE, body.into())
}

/// A request that the gateway refuses itself.
#[derive(Debug)]
pub(super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    message: String,
}

impl Refusal {
    fn invalid(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, code: "INVALID_ARGUMENT", message }
    }

    pub(super) fn answer(self, chaos: &Chaos, head: &request::Parts) -> Response<GatewayBody> {
        let mut body = Vec::new();
        object(&mut body, |json| {
            json.plain("error", self.code);
            json.text("message", &self.message);
        });
        json(chaos, head, self.status, body.into())
    }
}

fn json(chaos: &Chaos, head: &request::Parts, status: StatusCode, body: Bytes) -> Response<GatewayBody> {
    let mut response = Response::new(GatewayBody::whole(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json; charset=utf-8"));
    headers.insert(REQUEST_ID, head.headers.get(REQUEST_ID).cloned().unwrap_or_else(|| chaos.fresh_id()));
    response
}

/// Receives a body of at most `max` bytes; else its refusal, or a cut if its client is gone or pauses for too long.
pub(super) async fn receive(chaos: &Chaos, body: Incoming, max: usize) -> Result<Bytes, Result<Refusal, Cut>> {
    let too_long = || Refusal {
        status: StatusCode::PAYLOAD_TOO_LARGE,
        code: "PAYLOAD_TOO_LARGE",
        message: format!("the body may have at most {max} bytes"),
    };
    if body.size_hint().lower() > max as u64 {
        return Err(Ok(too_long()));
    }
    let mut body = Limited::new(body, max);
    let mut received = Vec::new();
    loop {
        match timeout(chaos.body_timeout, body.frame()).await {
            Ok(None) => return Ok(received.into()),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    received.extend_from_slice(&data);
                }
            }
            Ok(Some(Err(error))) if error.is::<http_body_util::LengthLimitError>() => return Err(Ok(too_long())),
            Ok(Some(Err(_))) | Err(_) => return Err(Err(Cut)),
        }
    }
}

/// Makes a head that a client sent one for the broker.
fn prepare_head(head: &mut request::Parts) {
    let authority = head.uri.authority().map(|authority| authority.as_str().to_owned());
    if let (Some(authority), false) = (authority, head.headers.contains_key(HOST))
        && let Ok(host) = HeaderValue::from_str(&authority)
    {
        head.headers.insert(HOST, host);
    }
    if let Ok(uri) = target(&head.uri).parse::<Uri>() {
        head.uri = uri;
    }
    remove_framing(&mut head.headers);
    head.headers.remove(EXPECT);
}

/// Removes what is said about one connection and the framing of a body on it.
pub(super) fn remove_framing(headers: &mut HeaderMap) {
    for name in [CONNECTION, CONTENT_LENGTH, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, KEEP_ALIVE] {
        headers.remove(name);
    }
}

/// An answer whose body is known. Whether its connection is closed after it is the broker's decision.
pub(super) fn whole(mut head: response::Parts, body: Bytes) -> Response<GatewayBody> {
    let closes = head.headers.get(CONNECTION).cloned();
    remove_framing(&mut head.headers);
    if let Some(closes) = closes {
        head.headers.insert(CONNECTION, closes);
    }
    Response::from_parts(head, GatewayBody::whole(body))
}

fn fit_version(mut answer: Response<GatewayBody>, is_http2: bool) -> Response<GatewayBody> {
    // The version is that of the connection to the client.
    *answer.version_mut() = Version::default();
    if is_http2 {
        answer.headers_mut().remove(CONNECTION);
    }
    answer
}
