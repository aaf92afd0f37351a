//! A collector: an HTTP server that decodes what it is sent, and answers as a test wants.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

const TIMEOUT: Duration = Duration::from_secs(30);

/// What it answers.
#[derive(Clone, Debug)]
pub enum Behavior {
    /// 200, as it should be.
    Accepts,
    /// These bytes, and the connection stays open.
    Answers(Vec<u8>),
    /// Nothing: it reads the request and keeps the connection.
    Hangs,
    /// 503, and 200 from the second request on.
    IsUnavailableOnce,
}

impl Behavior {
    /// This status with this header and body.
    pub fn status(status: &str, header: &str, body: &[u8]) -> Self {
        let head = format!("HTTP/1.1 {status}\r\n{header}Content-Length: {}\r\n\r\n", body.len());
        Self::Answers([head.as_bytes(), body].concat())
    }

    /// 200, but so many spans are refused.
    pub fn refuses(spans: i64) -> Self {
        let partial = ExportTracePartialSuccess { rejected_spans: spans, error_message: "no room".to_owned() };
        let answer = ExportTraceServiceResponse { partial_success: Some(partial) };
        Self::status("200 OK", "", &answer.encode_to_vec())
    }
}

/// A request to it.
#[derive(Clone, Debug)]
pub struct Export {
    pub path: String,
    pub head: String,
    pub body: Vec<u8>,
}

/// A running collector. It ends with the process of the tests.
pub struct Collector {
    pub endpoint: String,
    exports: Arc<Mutex<Vec<Export>>>,
}

impl Collector {
    pub fn start(behavior: Behavior) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let exports: Arc<Mutex<Vec<Export>>> = Arc::default();
        let received = Arc::clone(&exports);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (received, behavior) = (Arc::clone(&received), behavior.clone());
                std::thread::spawn(move || serve(stream.unwrap(), &received, &behavior));
            }
        });
        Self { endpoint, exports }
    }

    /// Everything it was sent until now.
    pub fn exports(&self) -> Vec<Export> {
        self.exports.lock().unwrap().clone()
    }

    /// The spans that it was sent until now.
    pub fn spans(&self) -> Vec<Span> {
        let exports = self.exports();
        let traces = exports.iter().filter(|export| export.path.ends_with("/v1/traces"));
        let requests = traces.map(|export| ExportTraceServiceRequest::decode(&export.body[..]).unwrap());
        let scopes = requests.flat_map(|request| request.resource_spans).flat_map(|spans| spans.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Waits until it has these many spans, and returns them.
    #[track_caller]
    pub fn wait_for_spans(&self, count: usize) -> Vec<Span> {
        wait_until(|| self.spans().len() >= count);
        let spans = self.spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    /// The metrics of the newest of at least `count` requests with metrics.
    #[track_caller]
    pub fn wait_for_metrics(&self, count: usize) -> (ExportMetricsServiceRequest, Vec<Metric>) {
        let metrics = || {
            let exports = self.exports().into_iter();
            exports.filter(|export| export.path.ends_with("/v1/metrics")).collect::<Vec<_>>()
        };
        wait_until(|| metrics().len() >= count);
        let request = ExportMetricsServiceRequest::decode(&metrics().pop().unwrap().body[..]).unwrap();
        let metrics = request.resource_metrics[0].scope_metrics[0].metrics.clone();
        (request, metrics)
    }
}

fn serve(stream: TcpStream, received: &Mutex<Vec<Export>>, behavior: &Behavior) {
    let mut writer = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(export) = read_export(&mut reader) {
        let is_first = {
            let mut received = received.lock().unwrap();
            received.push(export);
            received.len() == 1
        };
        let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_vec();
        let answer = match behavior {
            Behavior::Accepts => ok,
            Behavior::Answers(bytes) => bytes.clone(),
            Behavior::Hangs => Vec::new(),
            Behavior::IsUnavailableOnce if is_first => {
                b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n".to_vec()
            }
            Behavior::IsUnavailableOnce => ok,
        };
        // The broker may have left.
        let _ = writer.write_all(&answer);
    }
}

fn read_export(reader: &mut BufReader<TcpStream>) -> Option<Export> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head).ok().filter(|read| *read > 0)?;
    }
    let header = |name: &str| {
        let lower = head.to_ascii_lowercase();
        lower.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let mut body = vec![0; header("content-length:")?.parse().unwrap()];
    reader.read_exact(&mut body).ok()?;
    let path = head.split(' ').nth(1)?.to_owned();
    Some(Export { path, head, body })
}

#[track_caller]
pub fn wait_until(condition: impl Fn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < end, "it did not happen within {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The value of an attribute as text.
pub fn attribute(attributes: &[KeyValue], key: &str) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.clone()?.value? {
        Value::StringValue(text) => Some(text),
        Value::IntValue(number) => Some(number.to_string()),
        other => panic!("{key}: {other:?}"),
    }
}
