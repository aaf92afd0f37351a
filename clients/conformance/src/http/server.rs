//! A server of few routes: the ledger.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::parser::{Event, Head, Parser, Side};

/// A request with its body.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Method, path and headers.
    pub head: Head,
    /// The body.
    pub body: Vec<u8>,
}

/// Answers the requests of one connection until it ends: `answer` returns a status and a JSON body.
pub fn serve(mut connection: TcpStream, mut answer: impl FnMut(&Request) -> (u16, String)) {
    let mut parser = Parser::new(Side::Requests);
    let mut request = Request::default();
    let mut buffer = [0; 16 * 1024];
    while let Ok(length @ 1..) = connection.read(&mut buffer) {
        for event in parser.feed(&buffer[..length]) {
            match event {
                Event::Head(head) => request = Request { head, body: Vec::new() },
                Event::Body(bytes) => request.body.extend_from_slice(&bytes),
                Event::End => {
                    let (status, body) = answer(&request);
                    let text = format!(
                        "HTTP/1.1 {status} -\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                        body.len()
                    );
                    if connection.write_all(text.as_bytes()).is_err() {
                        return;
                    }
                }
            }
        }
        if parser.is_broken() {
            return;
        }
    }
}
