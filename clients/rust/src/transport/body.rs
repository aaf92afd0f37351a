//! The body of an answer, piece by piece or as a whole.

use std::fmt;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::endpoint::Endpoint;
use super::failure::{Failure, Repeat};
use super::pool::InUse;
use crate::error::Error;

/// The longest answer that is read, and the longest line of a stream. The broker's are shorter.
pub(crate) const BYTES_MAX: usize = 128 << 20;

/// The body of an answer, and the connection it comes from.
pub(crate) struct Body {
    incoming: Incoming,
    connection: Option<InUse>,
}

impl Body {
    pub(crate) fn new(incoming: Incoming, connection: InUse) -> Self {
        Self { incoming, connection: Some(connection) }
    }

    /// The next bytes; none at the end. Dropping the future loses nothing.
    pub(crate) async fn chunk(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        loop {
            let Some(frame) = self.incoming.frame().await else {
                if let Some(connection) = self.connection.take() {
                    connection.keep();
                }
                return None;
            };
            match frame {
                Ok(frame) => match frame.into_data() {
                    Ok(data) if data.is_empty() => {}
                    Ok(data) => return Some(Ok(data)),
                    // Trailers.
                    Err(_) => {}
                },
                Err(error) => return Some(Err(error)),
            }
        }
    }

    /// Reads all of it: the bytes that came, and why there are no more of them if it was cut short.
    pub(crate) async fn read_all(mut self, endpoint: &Endpoint) -> (Bytes, Option<Failure>) {
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        let mut cut = None;
        while let Some(chunk) = self.chunk().await {
            match chunk {
                Ok(data) if first.is_empty() => first = data,
                Ok(data) => {
                    if rest.is_empty() {
                        rest.extend_from_slice(&first);
                    }
                    rest.extend_from_slice(&data);
                    if rest.len() > BYTES_MAX {
                        let message = format!("{}: the answer has more than {BYTES_MAX} bytes", endpoint);
                        cut = Some(Failure::new(Error::protocol(message), Repeat::Never));
                        break;
                    }
                }
                Err(error) => {
                    cut = Some(Failure::cut(&endpoint.to_string(), &error));
                    break;
                }
            }
        }
        (if rest.is_empty() { first } else { rest.freeze() }, cut)
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Body")
    }
}
