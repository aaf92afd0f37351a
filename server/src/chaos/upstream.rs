//! Requests of the gateway to the broker.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::http::{request, response};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::body::GatewayBody;

/// Connections that are kept.
const IDLE_MAX: usize = 64;
/// An idle connection is not used again after this time, or half of that for which the broker keeps it.
const IDLE_TIME_MAX: Duration = Duration::from_secs(5);

/// Connections to the broker.
#[derive(Debug)]
pub(super) struct Upstream {
    addr: SocketAddr,
    idle_time_max: Duration,
    /// The one that was used last is the last one.
    idle: RefCell<Vec<Idle>>,
}

#[derive(Debug)]
struct Idle {
    sender: SendRequest<GatewayBody>,
    since: Instant,
}

/// The broker has not answered: it has crashed or stopped.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoAnswer {
    #[error(transparent)]
    Connect(#[from] std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
}

impl Upstream {
    /// The broker at `addr`, which keeps idle connections for `idle_time`.
    pub(super) fn new(addr: SocketAddr, idle_time: Duration) -> Self {
        Self { addr, idle_time_max: IDLE_TIME_MAX.min(idle_time / 2), idle: RefCell::default() }
    }

    /// Sends a request whose body is known, and receives the whole answer.
    pub(super) async fn call(&self, head: &request::Parts, body: Bytes) -> Result<WholeAnswer, NoAnswer> {
        let (response, sender) = self.exchange(clone_request(head, GatewayBody::whole(body))).await?;
        let (head, body) = response.into_parts();
        let body = body.collect().await?.to_bytes();
        self.keep(sender);
        Ok(WholeAnswer { head, body })
    }

    /// Sends a request. Its answer comes as it is read; the connection is not used again.
    pub(super) async fn open(&self, head: &request::Parts, body: GatewayBody) -> Result<Response<Incoming>, NoAnswer> {
        Ok(self.exchange(clone_request(head, body)).await?.0)
    }

    async fn exchange(
        &self,
        mut request: Request<GatewayBody>,
    ) -> Result<(Response<Incoming>, SendRequest<GatewayBody>), NoAnswer> {
        while let Some(mut sender) = self.take_idle() {
            if sender.ready().await.is_err() {
                continue;
            }
            match sender.try_send_request(request).await {
                Ok(response) => return Ok((response, sender)),
                Err(mut error) => match error.take_message() {
                    // The broker closed the connection before it was used.
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(request).await?;
        Ok((response, sender))
    }

    async fn connect(&self) -> Result<SendRequest<GatewayBody>, NoAnswer> {
        let socket = TcpStream::connect(self.addr).await?;
        socket.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
        tokio::task::spawn_local(async move {
            // Its error is that of the request in progress.
            let _ = connection.await;
        });
        Ok(sender)
    }

    /// Forgets the connections to a broker that has crashed.
    pub(super) fn forget_idle(&self) {
        self.idle.borrow_mut().clear();
    }

    fn take_idle(&self) -> Option<SendRequest<GatewayBody>> {
        let idle = self.idle.borrow_mut().pop()?;
        if idle.since.elapsed() <= self.idle_time_max {
            return Some(idle.sender);
        }
        // All others are idle for longer.
        self.idle.borrow_mut().clear();
        None
    }

    fn keep(&self, sender: SendRequest<GatewayBody>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < IDLE_MAX && !sender.is_closed() {
            idle.push(Idle { sender, since: Instant::now() });
        }
    }
}

/// An answer that was received to its end.
#[derive(Debug)]
pub(super) struct WholeAnswer {
    pub(super) head: response::Parts,
    pub(super) body: Bytes,
}

/// A request with this head.
fn clone_request(head: &request::Parts, body: GatewayBody) -> Request<GatewayBody> {
    let mut request = Request::new(body);
    *request.method_mut() = head.method.clone();
    *request.uri_mut() = head.uri.clone();
    *request.headers_mut() = head.headers.clone();
    request
}
