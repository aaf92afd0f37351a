//! Faults of batches.

use serde_json::{Value, json};

use super::support::{LINES, TestBroker, message};

const HEADERS: &str = "Content-Type: application/x-ndjson\r\nConnection: close\r\n";

fn values(count: usize) -> Vec<String> {
    (0..count).map(|number| number.to_string()).collect()
}

fn batch_of(values: &[String]) -> String {
    values.iter().map(|value| message(value) + "\n").collect()
}

/// Asserts that every answer has the offset of the last message with its value.
#[track_caller]
fn assert_second_answers_count(broker: &TestBroker, values: &[String], answers: &[Value]) {
    let stored = broker.values("t");
    assert!(stored.len() > values.len() + 3 && stored.len() < 2 * values.len() - 3, "some lines came twice");
    assert!(stored.is_sorted_by_key(|value| value.parse::<usize>().expect("a number")), "{stored:?}");
    let offsets: Vec<usize> = answers.iter().map(|answer| answer["offset"].as_u64().expect("one") as usize).collect();
    let last_of = |value| stored.iter().rposition(|stored| stored == value).expect("stored");
    assert_eq!(offsets, values.iter().map(last_of).collect::<Vec<_>>());
    assert_eq!(broker.played("duplicate").len(), stored.len() - values.len());
}

#[test]
fn lines_are_repeated_in_order_and_their_second_answers_count() {
    let broker = TestBroker::with_chaos("seed=1,duplicate=0.5");
    broker.create("t");
    let before = broker.played("duplicate").len();
    let values = values(30);
    // The last line has no end, and may be repeated all the same.
    let body = batch_of(&values);
    let reply = broker.try_call("POST", "/v1/produce", &[LINES], body.trim_end()).expect("a response");
    assert!(reply.header("content-length").is_some(), "a whole answer");
    let answers: Vec<Value> = reply.body.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(before, 0, "the creation of the topic was not repeated");
    assert_second_answers_count(&broker, &values, &answers);
    assert!(broker.played("duplicate").iter().all(|played| played["detail"] == json!({ "of": "line" })));
}

#[test]
fn batch_that_is_sent_as_it_comes_is_answered_line_by_line() {
    let broker = TestBroker::with_chaos("seed=1,duplicate=0.5");
    broker.create("t");
    let mut connection = broker.connect_raw();
    let headers = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n";
    let head = format!("POST /v1/produce HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", broker.addr());
    connection.send(head.as_bytes()).expect("sent");
    let values = values(30);
    let mut answers = Vec::new();
    for (index, value) in values.iter().enumerate() {
        let line = message(value) + "\n";
        connection.send(format!("{:x}\r\n{line}\r\n", line.len()).as_bytes()).expect("sent");
        if index == 0 {
            assert_eq!(connection.head().expect("a head").status, 200);
        }
        // The next line is sent once this one is answered.
        let answer = connection.chunk().expect("read").expect("an answer");
        answers.extend(answer.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")));
    }
    connection.send(b"0\r\n\r\n").expect("sent");
    assert_eq!(connection.chunk().expect("read"), None, "a complete answer");
    assert_second_answers_count(&broker, &values, &answers);
}

/// The body of an answer that was read to the end of its connection.
fn body_of(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").expect("a head").1
}

#[test]
fn answer_of_a_batch_is_cut_in_the_middle_of_a_line() {
    let broker = TestBroker::with_chaos("seed=2,drop-reply=0.5");
    broker.create("t");
    let (values, mut whole, mut cut) = (values(10), 0, 0);
    for round in 0..12 {
        let body = batch_of(&values.iter().map(|value| format!("{round}{value}")).collect::<Vec<_>>());
        let answer = broker.send_raw(&broker.encode("POST", "/v1/produce", HEADERS, &body));
        let body = body_of(&answer);
        if body.ends_with("}\n") {
            assert_eq!(body.lines().count(), 10);
            whole += 1;
        } else {
            assert!(body.lines().count() <= 10 && !body.ends_with('\n'), "{body}");
            let played = broker.played("drop-reply").pop().expect("it was cut");
            assert_eq!(played["detail"]["line"], body.lines().count(), "{body}");
            cut += 1;
        }
        assert_eq!(broker.values("t").len(), 10 * (round + 1), "all lines were carried out");
    }
    assert!(whole > 2 && cut > 2, "{whole} whole, {cut} cut");
}

#[test]
fn answer_of_a_batch_that_is_sent_as_it_comes_is_cut_in_the_middle_of_a_line() {
    let broker = TestBroker::with_chaos("seed=2,drop-reply=1");
    let absent: String = (0..16).map(|_| message("x") + "\n").collect();
    let headers = "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n";
    let head = format!("POST /v1/produce HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", broker.addr());
    let answer = broker.send_raw(&format!("{head}{:x}\r\n{absent}\r\n0\r\n\r\n", absent.len()));
    assert!(answer.starts_with("HTTP/1.1 200") && !answer.ends_with("0\r\n\r\n"), "{answer}");
    let line = broker.played("drop-reply")[0]["detail"]["line"].as_u64().expect("a number") as usize;
    assert_eq!(answer.matches("}\n").count(), line - 1, "{answer}");
}
