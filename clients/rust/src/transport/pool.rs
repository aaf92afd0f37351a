//! Connections that are kept for the next request, one stack for each URL. A connection serves one request at a time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use tokio::time::Instant;

use super::connector::{BoxError, Connector};
use super::endpoint::Endpoint;

/// The broker closes a connection that has been idle for 30 s. One that is dropped earlier cannot be closed while a
/// request is on its way.
const IDLE_MAX: Duration = Duration::from_secs(20);

type Sender = SendRequest<Full<Bytes>>;

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// There is no connection. Nothing was sent.
    Connect(BoxError),
    /// The connection was lost with the request.
    Http(hyper::Error),
}

/// The connections to all URLs of a client. They belong to the runtime on which they were opened.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Shared>);

struct Shared {
    connector: Connector,
    /// For each URL, the connection that was used last at the end.
    idle: Vec<Mutex<Vec<Idle>>>,
}

struct Idle {
    sender: Sender,
    since: Instant,
}

/// A connection whose answer is being read. It is kept for the next request when that has been read to its end, and
/// closed otherwise.
pub(crate) struct InUse {
    sender: Sender,
    /// Where it is kept; nowhere if the URL is none of the client's.
    home: Option<(Pool, usize)>,
}

impl Pool {
    /// For so many URLs.
    pub(crate) fn new(connector: Connector, urls: usize) -> Self {
        let idle = (0..urls).map(|_| Mutex::default()).collect();
        Self(Arc::new(Shared { connector, idle }))
    }

    /// Sends a request to `endpoint`, which is the URL number `index` unless it is none of the client's. A kept
    /// connection that turns out to be closed before the request has left is replaced. `sent` is true from when the
    /// request may have left.
    pub(crate) async fn send(
        &self,
        endpoint: &Endpoint,
        index: Option<usize>,
        mut request: Request<Full<Bytes>>,
        sent: &AtomicBool,
    ) -> Result<(Response<Incoming>, InUse), SendError> {
        let home = index.map(|index| (self.clone(), index));
        while let Some(mut sender) = index.and_then(|index| self.take(index)) {
            if sender.ready().await.is_err() {
                continue;
            }
            sent.store(true, Ordering::Relaxed);
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, InUse { sender, home })),
                Err(mut error) => match error.take_message() {
                    Some(unsent) => {
                        sent.store(false, Ordering::Relaxed);
                        request = unsent;
                    }
                    None => return Err(SendError::Http(error.into_error())),
                },
            }
        }
        // Boxed, as it is rare and large: every future around it would be as large.
        let mut sender = Box::pin(self.open(endpoint)).await?;
        sent.store(true, Ordering::Relaxed);
        let response = sender.send_request(request).await.map_err(SendError::Http)?;
        Ok((response, InUse { sender, home }))
    }

    async fn open(&self, endpoint: &Endpoint) -> Result<Sender, SendError> {
        let stream = self.0.connector.connect(endpoint).await.map_err(SendError::Connect)?;
        let (sender, connection) = http1::handshake(stream).await.map_err(SendError::Http)?;
        tokio::spawn(async move {
            // Its error is that of the request.
            let _ = connection.await;
        });
        Ok(sender)
    }

    fn take(&self, index: usize) -> Option<Sender> {
        let mut idle = self.idle(index);
        let Idle { sender, since } = idle.pop()?;
        if since.elapsed() > IDLE_MAX {
            // Those below have been idle for longer.
            idle.clear();
            return None;
        }
        Some(sender)
    }

    fn idle(&self, index: usize) -> MutexGuard<'_, Vec<Idle>> {
        // A panic cannot leave the list half changed.
        self.0.idle[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InUse {
    /// The answer has been read to its end.
    pub(crate) fn keep(self) {
        if let Some((pool, index)) = self.home
            && !self.sender.is_closed()
        {
            pool.idle(index).push(Idle { sender: self.sender, since: Instant::now() });
        }
    }
}
