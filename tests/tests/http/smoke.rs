//! Produce, consume, ack and restart.

use crate::harness::Server;

#[test]
fn message_survives_crash_until_acked() {
    let server = Server::start();
    server.create("t", 1);
    assert_eq!(server.produce("t", "one"), (0, 0));
    let server = server.crash_and_restart();
    let items = server.fetch("t", "g");
    assert_eq!(items.len(), 1);
    assert_eq!((&items[0]["value"], &items[0]["attempts"]), (&"one".into(), &1.into()));
    let acked = server.post("/v1/ack?topic=t&group=g&partition=0&offset=0&owner=w", "");
    assert_eq!((acked.status, acked.body.as_str()), (204, ""));
    let server = server.crash_and_restart();
    assert_eq!(server.fetch("t", "g").len(), 0);
}
