//! What passes through the proxy is parsed whole, however its bytes are cut.

use driftq_conformance::http::{Event, Head, Parser, Side};

/// The messages in these bytes: heads with bodies, and whether they are complete; fed in pieces of this length.
fn messages(side: Side, bytes: &[u8], piece: usize) -> Vec<(Head, String, bool)> {
    let mut parser = Parser::new(side);
    let mut messages: Vec<(Head, String, bool)> = Vec::new();
    let mut events: Vec<Event> = bytes.chunks(piece).flat_map(|chunk| parser.feed(chunk)).collect();
    events.extend(parser.end());
    for event in events {
        match (event, messages.last_mut()) {
            (Event::Head(head), _) => messages.push((head, String::new(), false)),
            (Event::Body(bytes), Some((_, body, _))) => body.push_str(std::str::from_utf8(&bytes).expect("text")),
            (Event::End, Some((.., is_complete))) => *is_complete = true,
            (event, None) => panic!("{event:?} before a head"),
        }
    }
    messages
}

#[test]
fn requests_with_counted_and_chunked_bodies_are_parsed_however_they_are_cut() {
    let bytes = b"POST /v1/ack HTTP/1.1\r\nContent-Length: 4\r\n\r\nbodyGET /v1/topics?limit=1 HTTP/1.1\r\n\r\n\
        POST /v1/produce HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nt: v\r\n\r\n";
    for piece in 1..bytes.len() {
        let messages = messages(Side::Requests, bytes, piece);
        let seen: Vec<_> =
            messages.iter().map(|(head, body, end)| (head.target.as_str(), body.as_str(), *end)).collect();
        assert_eq!(
            seen,
            [("/v1/ack", "body", true), ("/v1/topics?limit=1", "", true), ("/v1/produce", "abc0123456789", true)]
        );
    }
}

#[test]
fn answers_without_a_body_do_not_take_the_next_one_for_it() {
    let bytes =
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
    for piece in 1..bytes.len() {
        let messages = messages(Side::Responses, bytes, piece);
        let seen: Vec<_> = messages.iter().map(|(head, body, end)| (head.status, body.as_str(), *end)).collect();
        assert_eq!(seen, [(204, "", true), (200, "{}", true)]);
    }
}

#[test]
fn answer_without_a_length_ends_with_its_connection_and_a_cut_one_does_not_end() {
    let whole = messages(Side::Responses, b"HTTP/1.1 200 OK\r\n\r\nline\n", 3);
    assert_eq!(whole.iter().map(|(_, body, end)| (body.as_str(), *end)).collect::<Vec<_>>(), [("line\n", true)]);
    let cut = messages(Side::Responses, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nline", 5);
    assert_eq!(cut.iter().map(|(_, body, end)| (body.as_str(), *end)).collect::<Vec<_>>(), [("line", false)]);
}

#[test]
fn bytes_that_are_no_http_are_not_parsed() {
    let mut parser = Parser::new(Side::Requests);
    assert!(parser.feed(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03").is_empty());
    assert!(parser.is_broken());
    assert!(parser.feed(b"GET / HTTP/1.1\r\n\r\n").is_empty());
}
