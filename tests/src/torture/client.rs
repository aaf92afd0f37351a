//! A client that makes no call and sees no answer without its being in the history.

use std::io;
use std::sync::Arc;

use driftq_history::Phase;
use serde_json::{Value, json};

use super::recorder::Recorder;
use crate::http::{CallError, Connection, Reply, Request, Server, Stream};

/// What came of a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done, with the answer's body.
    Ok(Value),
    /// Certainly not done: the status, 0 where nobody listened.
    Refused(u16),
    /// Nobody knows.
    Unknown,
}

impl Answer {
    /// Whether it was answered with success.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Ok(_))
    }
}

/// Whoever makes calls, one after the other.
#[derive(Debug)]
pub struct Client {
    recorder: Arc<Recorder>,
    server: Server,
    name: String,
    incarnation: u64,
    connection: Option<Connection>,
}

impl Client {
    /// A client of that name, which no other may have.
    #[must_use]
    pub fn new(recorder: &Arc<Recorder>, server: &Server, name: String) -> Self {
        Self { recorder: Arc::clone(recorder), server: server.clone(), name, incarnation: 0, connection: None }
    }

    /// Makes a call, on the connection of the one before if that is still there.
    pub fn call(&mut self, op: &str, args: &Value) -> Answer {
        self.write(op, Phase::Invoke, args, Value::Null);
        let sent = self.send(&route(op), &args.to_string());
        if sent.is_err() {
            self.connection = None;
        }
        self.conclude(op, args, sent)
    }

    fn send(&mut self, target: &str, body: &str) -> Result<Reply, CallError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(self.server.connect()?),
        };
        Ok(connection.call(&Request::post(target, body))?)
    }

    /// Opens a stream, whose messages and end are written down as this client's.
    pub fn consume(&mut self, args: &Value) -> Option<Deliveries<'_>> {
        self.write("consume", Phase::Invoke, args, Value::Null);
        match self.server.consume(&query(args)) {
            Ok(stream) if stream.head.status == 200 => {
                Some(Deliveries { client: self, args: args.clone(), stream: Some(stream), ended_well: false })
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

    /// Ends a call in the history, as it must be classed.
    fn conclude(&mut self, op: &str, args: &Value, ended: Result<Reply, CallError>) -> Answer {
        let (phase, result) = class(&ended);
        self.write(op, phase, args, result.clone());
        match phase {
            Phase::Ok => Answer::Ok(result),
            Phase::Fail => Answer::Refused(ended.map_or(0, |reply| reply.status)),
            Phase::Info | Phase::Invoke => {
                self.incarnation += 1;
                Answer::Unknown
            }
        }
    }

    fn write(&self, op: &str, phase: Phase, args: &Value, result: Value) {
        self.recorder.write((&self.name, self.incarnation), op, phase, args, result);
    }
}

/// How a call has ended: only what proves that nothing happened is a failure.
fn class(ended: &Result<Reply, CallError>) -> (Phase, Value) {
    match ended {
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
        Err(CallError::NoConnection(error)) => (Phase::Fail, json!({ "error": error.to_string() })),
        Err(CallError::NoAnswer(error)) => (Phase::Info, json!({ "error": error.to_string() })),
    }
}

/// An open stream.
#[derive(Debug)]
pub struct Deliveries<'a> {
    client: &'a mut Client,
    args: Value,
    stream: Option<Stream>,
    ended_well: bool,
}

impl Deliveries<'_> {
    /// The next message; nothing once the stream has ended or was torn.
    #[expect(clippy::should_implement_trait, reason = "an iterator would promise that it can be left lying about")]
    pub fn next(&mut self) -> Option<Value> {
        match self.stream.as_mut()?.item() {
            Ok(Some(item)) => {
                self.client.write("deliver", Phase::Ok, &self.args, item.clone());
                Some(item)
            }
            Ok(None) => {
                self.stream = None;
                self.ended_well = true;
                self.client.write("consume", Phase::Ok, &self.args, json!({}));
                None
            }
            Err(error) => {
                self.tear(&error);
                None
            }
        }
    }

    /// Whether the server ended it, as opposed to its having been torn.
    #[must_use]
    pub fn ended_well(&self) -> bool {
        self.ended_well
    }

    fn tear(&mut self, error: &io::Error) {
        self.stream = None;
        self.client.write("consume", Phase::Info, &self.args, json!({ "error": error.to_string() }));
        self.client.incarnation += 1;
    }
}

impl Drop for Deliveries<'_> {
    /// Hangs up in the middle.
    fn drop(&mut self) {
        if self.stream.is_some() {
            self.tear(&io::Error::other("the client hung up"));
        }
    }
}

fn route(op: &str) -> String {
    match op {
        "begin" | "finish" => format!("/v1/idempotency/{op}"),
        _ => format!("/v1/{op}"),
    }
}

/// The arguments as a query. Names and numbers only: nothing in them needs escaping.
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

    /// A client of a server that answers each connection with the next of these texts, having looked at the history first.
    fn client_of(answers: Vec<&'static str>, folder: &Path) -> (Client, std::thread::JoinHandle<Vec<usize>>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let recorder = Arc::new(Recorder::create(&folder.join("history")).expect("made"));
        let server = Server::on(listener.local_addr().expect("an address"), Duration::from_millis(300));
        let client = Client::new(&recorder, &server, "c".into());
        let path = recorder.path().to_owned();
        let serving = std::thread::spawn(move || {
            let mut seen = Vec::new();
            for answer in answers {
                let (mut socket, _) = listener.accept().expect("a client");
                let mut request = [0; 4096];
                let _ = socket.read(&mut request).expect("a request");
                seen.push(lines(&path).len());
                socket.write_all(answer.as_bytes()).expect("sent");
            }
            seen
        });
        (client, serving)
    }

    #[test]
    fn a_call_is_in_the_history_before_its_first_byte_leaves() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut client, serving) = client_of(vec!["HTTP/1.1 204 No Content\r\n\r\n"], folder.path());
        assert_eq!(client.call("ack", &json!({ "offset": 1 })), Answer::Ok(json!({})));
        assert_eq!(serving.join().expect("served"), [1], "the server sees the invoke in the file");
    }

    #[test]
    fn answers_are_classed_by_what_they_prove() {
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
            assert_eq!(class(&reply(status)).0, phase, "{status}");
        }
        assert_eq!(class(&reply(409)).1, json!({ "error": "E", "status": 409 }));
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        assert_eq!(class(&Err(CallError::NoConnection(refused()))).0, Phase::Fail);
        assert_eq!(class(&Err(CallError::NoAnswer(refused()))).0, Phase::Info);

        // A server that hangs up in the middle of its answer, and one that is not there.
        let (mut client, serving) = client_of(vec!["HTTP/1.1 200 OK\r\nContent-Le"], folder.path());
        assert_eq!(client.call("produce", &json!({ "value": "a" })), Answer::Unknown);
        serving.join().expect("served");
        assert_eq!(client.call("produce", &json!({ "value": "b" })), Answer::Refused(0));
        let found = lines(&folder.path().join("history"));
        let phases: Vec<_> = found.iter().map(|entry| (entry.phase, entry.incarnation)).collect();
        assert_eq!(phases, [(Phase::Invoke, 0), (Phase::Info, 0), (Phase::Invoke, 1), (Phase::Fail, 1)]);
        assert_eq!(found[1].args, json!({ "value": "a" }), "an end repeats its call");
    }

    #[test]
    fn a_stream_that_is_torn_is_nobody_knows_and_one_that_ends_is_ok() {
        let folder = tempfile::tempdir().expect("a folder");
        let whole = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"offset\":1}\n\r\n0\r\n\r\n";
        let torn = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nd\r\n{\"offs";
        let (mut client, serving) = client_of(vec![whole, torn], folder.path());
        for _ in 0..2 {
            let mut stream = client.consume(&json!({ "topic": "t" })).expect("a stream");
            while stream.next().is_some() {}
        }
        serving.join().expect("served");
        let found = lines(&folder.path().join("history"));
        let shape: Vec<_> = found.iter().map(|entry| (entry.op.as_str(), entry.phase)).collect();
        let invoke = ("consume", Phase::Invoke);
        assert_eq!(shape, [invoke, ("deliver", Phase::Ok), ("consume", Phase::Ok), invoke, ("consume", Phase::Info)]);
        assert_eq!(client.incarnation, 1);
    }
}
