//! Streams that are cut, end, or are none.

use std::sync::atomic::{AtomicUsize, Ordering};

use driftq_client::{Consume, Consumer, ErrorKind};

use crate::stub::{Reply, Stub};
use crate::support::{Events, line, quick, soon};

async fn offsets(consumer: &mut Consumer, count: usize) -> Vec<u64> {
    let mut offsets = Vec::new();
    for _ in 0..count {
        let message = soon("a message", consumer.next()).await.expect("no error").expect("a message");
        offsets.push(message.offset);
    }
    offsets
}

/// Serves a stream, then another one, and so on; the last one stays open.
async fn streams(replies: Vec<Reply>) -> Stub {
    let count = AtomicUsize::new(0);
    Stub::start(move |_| replies[count.fetch_add(1, Ordering::Relaxed).min(replies.len() - 1)].clone()).await
}

#[tokio::test]
async fn stream_cut_in_the_middle_of_a_line_drops_the_line_and_reconnects() {
    let cut = format!("{}{}", line(0, ""), &line(1, "")[..40]);
    let open = format!("\n{}\n\n{}", line(1, ""), line(2, ""));
    let stub = streams(vec![Reply::CutStream(cut), Reply::OpenStream(open)]).await;
    let events = Events::default();
    let client = quick(stub.url()).on_event(events.hook()).build().expect("a client");
    let mut consumer = client.consume(&Consume::new("t", "g", "o"));
    assert_eq!(offsets(&mut consumer, 3).await, [0, 1, 2]);
    assert_eq!((events.count("connected"), events.count("disconnected unknown")), (2, 1));
}

#[tokio::test]
async fn line_that_comes_in_pieces_is_one_message() {
    const HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ntransfer-encoding: chunked\r\n\r\n";
    let lines = format!("{}{}\n{}", line(0, ""), line(1, ""), line(2, ""));
    let mut text = HEAD.to_owned();
    for piece in lines.as_bytes().chunks(100) {
        text.push_str(&format!("{:x}\r\n{}\r\n", piece.len(), String::from_utf8_lossy(piece)));
    }
    let stub = streams(vec![Reply::Bytes(text.into_bytes()), Reply::OpenStream(line(3, ""))]).await;
    let mut consumer = quick(stub.url()).build().expect("a client").consume(&Consume::new("t", "g", "o"));
    assert_eq!(offsets(&mut consumer, 4).await, [0, 1, 2, 3]);
}

#[tokio::test]
async fn line_that_is_no_message_ends_the_stream_with_a_protocol_event_and_reconnects() {
    let stub = streams(vec![
        Reply::OpenStream(format!("{}this is no json\n{}", line(0, ""), line(9, ""))),
        Reply::OpenStream(format!("{{\"partition\":0}}\n{}", line(9, ""))),
        Reply::OpenStream(line(1, "")),
    ])
    .await;
    let events = Events::default();
    let client = quick(stub.url()).on_event(events.hook()).build().expect("a client");
    let mut consumer = client.consume(&Consume::new("t", "g", "o"));
    assert_eq!(offsets(&mut consumer, 2).await, [0, 1]);
    assert_eq!(events.count("disconnected protocol"), 2);
}

#[tokio::test]
async fn stream_that_ends_or_is_refused_after_it_was_open_reconnects() {
    let end = "HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: 0\r\n\r\n";
    let stub = streams(vec![
        Reply::CutStream(line(0, "")),
        Reply::Bytes(end.as_bytes().to_vec()),
        Reply::error(401, "UNAUTHENTICATED", "not yet"),
        Reply::Cut,
        Reply::OpenStream(line(1, "")),
    ])
    .await;
    let client = quick(stub.url()).build().expect("a client");
    let mut consumer = client.consume(&Consume::new("t", "g", "o"));
    assert_eq!(offsets(&mut consumer, 2).await, [0, 1]);
}

#[tokio::test]
async fn stream_that_would_be_refused_again_is_an_error_before_the_first_connection() {
    let cases = [
        (Reply::error(401, "UNAUTHENTICATED", "unknown key"), ErrorKind::Unauthenticated),
        (Reply::error(404, "NOT_FOUND", "no such topic"), ErrorKind::NotFound),
        (Reply::Raw { status: 200, headers: String::new(), body: b"hello".to_vec() }, ErrorKind::Protocol),
    ];
    for (reply, kind) in cases {
        let stub = streams(vec![Reply::Cut, reply.clone()]).await;
        let client = quick(stub.url()).build().expect("a client");
        let mut consumer = client.consume(&Consume::new("t", "g", "o"));
        let error = soon("an error", consumer.next()).await;
        assert_eq!(error.expect_err("refused").kind(), kind, "{reply:?}");
    }
}

#[tokio::test]
async fn stream_with_a_maximum_asks_for_the_rest_after_a_cut_and_ends() {
    let stub =
        streams(vec![Reply::CutStream(line(0, "")), Reply::OpenStream(format!("{}{}", line(1, ""), line(2, "")))]);
    let stub = stub.await;
    let client = quick(stub.url()).build().expect("a client");
    let mut consumer = client.consume(&Consume::new("t", "g", "o").max(3).prefetch(5));
    assert_eq!(offsets(&mut consumer, 3).await, [0, 1, 2]);
    let targets: Vec<_> = stub.seen().into_iter().map(|seen| seen.target).collect();
    assert_eq!(targets[0], "/v1/consume?topic=t&group=g&owner=o&prefetch=5&max=3");
    assert_eq!(targets[1], "/v1/consume?topic=t&group=g&owner=o&prefetch=5&max=2");
}
