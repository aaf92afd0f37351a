//! A client that records every call before it is sent and every response after it was read.

use std::io;
use std::sync::Arc;

use driftq_history::Phase;
use serde_json::{Value, json};

use super::recorder::Recorder;
use crate::http::{CallError, Client, Connection, Reply, Request, Stream};

/// The result of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum CallResult {
    /// Success, with the response body.
    Ok(Value),
    /// Proven to have had no effect: the status, or 0 if the connection was refused.
    Rejected(u16),
    /// Unknown: the call may have had an effect.
    Unknown,
}

impl CallResult {
    /// Whether the call succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok(_))
    }
}

/// A client that makes one call after the other.
#[derive(Debug)]
pub struct RecordedClient {
    recorder: Arc<Recorder>,
    client: Client,
    name: String,
    incarnation: u64,
    connection: Option<Connection>,
}

impl RecordedClient {
    /// A client with a name that is unique in the history.
    #[must_use]
    pub fn new(recorder: &Arc<Recorder>, client: &Client, name: String) -> Self {
        Self { recorder: Arc::clone(recorder), client: client.clone(), name, incarnation: 0, connection: None }
    }

    /// Makes a call, on the connection of the previous one if it is still open.
    pub fn call(&mut self, op: &str, args: &Value) -> CallResult {
        self.write(op, Phase::Invoke, args, Value::Null);
        let reply = self.send(&route(op), &args.to_string());
        if reply.is_err() {
            self.connection = None;
        }
        self.conclude(op, args, reply)
    }

    fn send(&mut self, target: &str, body: &str) -> Result<Reply, CallError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.client.connect()?),
        };
        Ok(connection.call(&Request::post(target, body))?)
    }

    /// Opens a stream, whose deliveries and end are recorded.
    pub fn consume(&mut self, args: &Value) -> Option<Deliveries<'_>> {
        self.write("consume", Phase::Invoke, args, Value::Null);
        match self.client.consume(&query(args)) {
            Ok(stream) if stream.head.status == 200 => {
                Some(Deliveries { client: self, args: args.clone(), stream: Some(stream), ended: false })
            }
            Ok(stream) => {
                self.conclude("consume", args, Ok(stream.head));
                None
            }
            Err(error) => {
                self.conclude("consume", args, Err(error));
                None
            }
        }
    }

    fn conclude(&mut self, op: &str, args: &Value, reply: Result<Reply, CallError>) -> CallResult {
        let (phase, result) = classify(&reply);
        self.write(op, phase, args, result.clone());
        match phase {
            Phase::Ok => CallResult::Ok(result),
            Phase::Fail => CallResult::Rejected(reply.map_or(0, |reply| reply.status)),
            Phase::Info | Phase::Invoke => {
                self.incarnation += 1;
                CallResult::Unknown
            }
        }
    }

    fn write(&self, op: &str, phase: Phase, args: &Value, result: Value) {
        self.recorder.write((&self.name, self.incarnation), op, phase, args, result);
    }
}

/// The phase that ends a call: a failure only if it is proven that nothing happened.
fn classify(reply: &Result<Reply, CallError>) -> (Phase, Value) {
    match reply {
        Ok(Reply { status: 204, .. }) => (Phase::Ok, json!({})),
        Ok(reply) if (200..300).contains(&reply.status) => (Phase::Ok, reply.json()),
        Ok(reply) => {
            let mut result = reply.json();
            if !result.is_object() {
                result = json!({ "error": reply.body });
            }
            result["status"] = reply.status.into();
            let proven = (400..500).contains(&reply.status);
            (if proven { Phase::Fail } else { Phase::Info }, result)
        }
        Err(CallError::Connect(error)) => (Phase::Fail, json!({ "error": error.to_string() })),
        Err(CallError::NoResponse(error)) => (Phase::Info, json!({ "error": error.to_string() })),
    }
}

/// An open stream.
#[derive(Debug)]
pub struct Deliveries<'a> {
    client: &'a mut RecordedClient,
    args: Value,
    stream: Option<Stream>,
    ended: bool,
}

impl Deliveries<'_> {
    /// The next message; nothing once the stream has ended or failed.
    #[expect(clippy::should_implement_trait, reason = "a stream is to be read to its end or dropped, not adapted")]
    pub fn next(&mut self) -> Option<Value> {
        match self.stream.as_mut()?.item() {
            Ok(Some(item)) => {
                self.client.write("deliver", Phase::Ok, &self.args, item.clone());
                Some(item)
            }
            Ok(None) => {
                self.stream = None;
                self.ended = true;
                self.client.write("consume", Phase::Ok, &self.args, json!({}));
                None
            }
            Err(error) => {
                self.abort(&error);
                None
            }
        }
    }

    /// Whether the server ended the stream, as opposed to a failed connection.
    #[must_use]
    pub fn ended(&self) -> bool {
        self.ended
    }

    fn abort(&mut self, error: &io::Error) {
        self.stream = None;
        self.client.write("consume", Phase::Info, &self.args, json!({ "error": error.to_string() }));
        self.client.incarnation += 1;
    }
}

impl Drop for Deliveries<'_> {
    fn drop(&mut self) {
        if self.stream.is_some() {
            self.abort(&io::Error::other("the client closed the stream"));
        }
    }
}

fn route(op: &str) -> String {
    match op {
        "begin" | "finish" => format!("/v1/idempotency/{op}"),
        _ => format!("/v1/{op}"),
    }
}

/// The arguments as a query. They are names and numbers, which need no escaping.
fn query(args: &Value) -> String {
    let fields = args.as_object().into_iter().flatten();
    let pairs: Vec<String> = fields
        .map(|(name, value)| format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect();
    pairs.join("&")
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::path::Path;
    use std::time::Duration;

    use driftq_history::Entry;

    use super::*;

    fn lines(path: &Path) -> Vec<Entry> {
        let text = std::fs::read_to_string(path).expect("readable");
        text.lines().map(|line| serde_json::from_str(line).expect("an entry")).collect()
    }

    /// A client of a server that sends one of these responses per connection. The thread returns how many lines the
    /// history had when each request arrived.
    fn client_of(responses: Vec<&'static str>, folder: &Path) -> (RecordedClient, std::thread::JoinHandle<Vec<usize>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let recorder = Arc::new(Recorder::create(&folder.join("history")).expect("created"));
        let client = Client::new(listener.local_addr().expect("an address"), Duration::from_millis(300));
        let client = RecordedClient::new(&recorder, &client, "c".into());
        let path = recorder.path().to_owned();
        let serving = std::thread::spawn(move || {
            let mut seen = Vec::new();
            for response in responses {
                let (mut socket, _) = listener.accept().expect("a client");
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).expect("a request");
                seen.push(lines(&path).len());
                socket.write_all(response.as_bytes()).expect("sent");
            }
            seen
        });
        (client, serving)
    }

    #[test]
    fn call_is_in_history_before_it_is_sent() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut client, serving) = client_of(vec!["HTTP/1.1 204 No Content\r\n\r\n"], folder.path());
        assert_eq!(client.call("ack", &json!({ "offset": 1 })), CallResult::Ok(json!({})));
        assert_eq!(serving.join().expect("served"), [1], "the server finds the invoke in the file");
    }

    #[test]
    fn responses_are_classified_by_what_they_prove() {
        let folder = tempfile::tempdir().expect("a folder");
        let reply = |status: u16| -> Result<Reply, CallError> {
            Ok(Reply { status, headers: Vec::new(), body: "{\"error\":\"E\"}".into() })
        };
        for (status, phase) in [
            (200, Phase::Ok),
            (201, Phase::Ok),
            (400, Phase::Fail),
            (409, Phase::Fail),
            (429, Phase::Fail),
            (500, Phase::Info),
            (503, Phase::Info),
            (507, Phase::Info),
        ] {
            assert_eq!(classify(&reply(status)).0, phase, "{status}");
        }
        assert_eq!(classify(&reply(409)).1, json!({ "error": "E", "status": 409 }));
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(classify(&Err(CallError::Connect(refused()))).0, Phase::Fail);
        assert_eq!(classify(&Err(CallError::NoResponse(refused()))).0, Phase::Info);

        // A server that closes the connection in the middle of its response, and one that does not listen.
        let (mut client, serving) = client_of(vec!["HTTP/1.1 200 OK\r\nContent-Le"], folder.path());
        assert_eq!(client.call("produce", &json!({ "value": "a" })), CallResult::Unknown);
        serving.join().expect("served");
        assert_eq!(client.call("produce", &json!({ "value": "b" })), CallResult::Rejected(0));
        let found = lines(&folder.path().join("history"));
        let phases: Vec<_> = found.iter().map(|entry| (entry.phase, entry.incarnation)).collect();
        assert_eq!(phases, [(Phase::Invoke, 0), (Phase::Info, 0), (Phase::Invoke, 1), (Phase::Fail, 1)]);
        assert_eq!(found[1].args, json!({ "value": "a" }), "the end of a call repeats its arguments");
    }

    #[test]
    fn truncated_stream_is_unknown_and_ended_stream_is_ok() {
        let folder = tempfile::tempdir().expect("a folder");
        let complete = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"offset\":1}\n\r\n0\r\n\r\n";
        let truncated = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"offs";
        let (mut client, serving) = client_of(vec![complete, truncated], folder.path());
        for _ in 0..2 {
            let mut stream = client.consume(&json!({ "topic": "t" })).expect("a stream");
            while stream.next().is_some() {}
        }
        serving.join().expect("served");
        let found = lines(&folder.path().join("history"));
        let phases: Vec<_> = found.iter().map(|entry| (entry.op.as_str(), entry.phase)).collect();
        let invoke = ("consume", Phase::Invoke);
        assert_eq!(phases, [invoke, ("deliver", Phase::Ok), ("consume", Phase::Ok), invoke, ("consume", Phase::Info)]);
        assert_eq!(client.incarnation, 1);
    }
}
