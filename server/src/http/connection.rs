//! Connections: accepted up to a limit, served by hyper, closed on timeout or shutdown.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use slab::Slab;
use tokio::net::{TcpListener, TcpStream};

use super::address_limit::{AddressPlace, TooMany};
use super::api::Api;
use super::connection_names::ConnectionNames;
use super::handshake::{Secured, complete_handshake};
use super::service::Service;
use super::socket::Socket;
use super::timeouts::{HeadTimeout, Peer};
use super::transport::{Tcp, Transport};
use super::unsent::{Unsent, WriteTimeout};
use crate::config::HttpSettings;
use crate::metrics::OpenConnection;

/// Pause after the system could not provide another socket.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);
/// Streams of one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 256;
/// Bytes of a request body that an HTTP/2 client may send before they are taken, per stream and per connection.
const H2_STREAM_WINDOW_BYTES: u32 = 128 << 10;
const H2_CONNECTION_WINDOW_BYTES: u32 = 256 << 10;
/// How long an idle HTTP/2 connection may take to end after it was asked to.
const H2_GOODBYE: Duration = Duration::from_secs(1);
/// Response to a connection beyond the limit.
const TOO_MANY_CONNECTIONS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: application/json; charset=utf-8\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 61\r\n\r\n\
{\"error\":\"UNAVAILABLE\",\"message\":\"too many open connections\"}";

/// Response to a connection beyond the limit of its address.
const TOO_MANY_OF_ADDRESS: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\n\
content-type: application/json; charset=utf-8\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 79\r\n\r\n\
{\"error\":\"UNAVAILABLE\",\"message\":\"too many open connections from this address\"}";

/// Spawns hyper's HTTP/2 tasks on the current thread.
#[derive(Clone, Copy, Debug)]
struct LocalExecutor;

impl<F: Future + 'static> hyper::rt::Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// Graceful shutdown of the listener and all connections.
///
/// `hyper_util::server::graceful` does the same with a `tokio::sync::watch`, which takes a lock at every poll of a
/// connection; here a poll reads one `Cell`.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_stopping: Cell<bool>,
    waiters: RefCell<Slab<Waker>>,
}

impl Stop {
    /// Stops accepting, and closes each connection after its current request.
    pub(crate) fn stop(&self) {
        self.is_stopping.set(true);
        self.waiters.borrow().iter().for_each(|(_, waker)| waker.wake_by_ref());
    }

    /// Resolves once stopped.
    pub(super) async fn stopped(&self) {
        let mut waiter = StopWaiter { stop: self, key: None };
        poll_fn(|context| {
            waiter.register(context.waker());
            if self.is_stopping.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Registration of a task that [`Stop::stop`] wakes, until dropped.
struct StopWaiter<'a> {
    stop: &'a Stop,
    key: Option<usize>,
}

impl StopWaiter<'_> {
    /// Registers the task on the first call. Its waker stays the same.
    fn register(&mut self, waker: &Waker) {
        if self.key.is_none() {
            self.key = Some(self.stop.waiters.borrow_mut().insert(waker.clone()));
        }
    }
}

impl Drop for StopWaiter<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.stop.waiters.borrow_mut().remove(key);
        }
    }
}

/// Accepts and serves connections until stopped.
pub(crate) async fn listen(listener: TcpListener, service: Rc<Service>, stop: Rc<Stop>) {
    let api = service.api();
    let builder = builder(&api.settings.http);
    // A shortage is logged when it begins and when it ends, not at every attempt.
    let mut is_short = false;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.stopped() => return,
        };
        if is_short && accepted.is_ok() {
            is_short = false;
            tracing::info!("accepting connections again");
        }
        match accepted {
            Ok((socket, remote)) => {
                // Counted here and not in its task: several may be accepted before the first task runs.
                let open = match admit(api, remote) {
                    Ok(open) => open,
                    Err(refusal) => {
                        // Only what the socket takes at once: a refused connection is not waited for. A client that
                        // expects TLS could not read it.
                        if api.shared.tls.is_none() {
                            let _ = socket.try_write(refusal);
                        }
                        continue;
                    }
                };
                // Responses are written whole; Nagle's algorithm would only delay them.
                let _ = socket.set_nodelay(true);
                let (service, builder, stop) = (Rc::clone(&service), builder.clone(), Rc::clone(&stop));
                let Some(tls) = &api.shared.tls else {
                    let connection = serve((Accepted::Plain(socket), remote.ip()), service, builder, stop);
                    tokio::task::spawn_local(async move {
                        connection.await;
                        drop(open);
                    });
                    continue;
                };
                let place = tokio::select! {
                    place = tls.handshakes.begin() => place,
                    () = stop.stopped() => return,
                };
                let tls = Arc::clone(tls);
                tokio::task::spawn_local(async move {
                    let unsent = Unsent::new(&service.api().unsent, current_task().await);
                    let metrics = &service.api().metrics;
                    if let Some(secured) =
                        complete_handshake(socket, remote, unsent, (&tls, place), metrics, &stop).await
                    {
                        drop(tls);
                        serve((Accepted::Secured(secured), remote.ip()), Rc::clone(&service), builder, stop).await;
                    }
                    drop(open);
                });
            }
            Err(error) if concerns_one_connection(&error) => {}
            Err(error) => {
                if !std::mem::replace(&mut is_short, true) {
                    tracing::warn!("cannot accept connections: {error}; retrying every {ACCEPT_BACKOFF:?}");
                }
                tokio::time::sleep(ACCEPT_BACKOFF).await;
            }
        }
    }
}

/// Counts a connection until dropped; the response to one that is refused.
fn admit(api: &Api, remote: SocketAddr) -> Result<(OpenConnection, Option<AddressPlace>), &'static [u8]> {
    let Some(open) = api.metrics.open_connection(api.settings.http.connections_max) else {
        api.metrics.count_refused_connection();
        return Err(TOO_MANY_CONNECTIONS);
    };
    match api.shared.addresses.open(remote.ip()) {
        Ok(place) => Ok((open, place)),
        Err(TooMany) => {
            api.metrics.count_refused_per_address();
            Err(TOO_MANY_OF_ADDRESS)
        }
    }
}

/// Whether an error of `accept` is one of the accepted connection and not of the listener.
fn concerns_one_connection(error: &std::io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

fn builder(http: &HttpSettings) -> auto::Builder<LocalExecutor> {
    let mut builder = auto::Builder::new(LocalExecutor);
    // Responses are short: copying a body behind its head was measured cheaper than a vectored write
    // (`docs/performance.md`). The socket sees when the peer closes its side.
    let http1 = &mut builder.http1();
    http1.header_read_timeout(http.head_timeout).max_buf_size(http.head_bytes_max).writev(false).half_close(true);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .initial_stream_window_size(H2_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(H2_CONNECTION_WINDOW_BYTES)
        .max_header_list_size(u32::try_from(http.head_bytes_max).unwrap_or(u32::MAX))
        .keep_alive_interval(http.head_timeout)
        .keep_alive_timeout(http.head_timeout);
    builder
}

/// A connection that requests can be read from.
enum Accepted {
    Plain(TcpStream),
    Secured(Secured),
}

/// The waker of the current task.
async fn current_task() -> Waker {
    poll_fn(|context| Poll::Ready(context.waker().clone())).await
}

async fn serve(
    (accepted, address): (Accepted, IpAddr),
    service: Rc<Service>,
    mut builder: auto::Builder<LocalExecutor>,
    stop: Rc<Stop>,
) {
    let task = current_task().await;
    let (transport, certificate) = match accepted {
        Accepted::Plain(socket) => {
            (Transport::Plain(Tcp::new(socket, Unsent::new(&service.api().unsent, task.clone()))), None)
        }
        Accepted::Secured(Secured { stream, peer }) => (Transport::Tls(stream), peer),
    };
    let unsent = transport.unsent().clone();
    let (idle_max, write_max) = (service.api().settings.http.head_timeout, service.api().settings.http.write_timeout);
    let mut write_timeout = WriteTimeout::new(unsent.clone(), write_max);
    let mut timeout = HeadTimeout::start(idle_max, task, Peer { address, certificate });
    builder.http1().timer(timeout.handle());
    let handle = timeout.handle();
    if let Some(names) = &handle.peer().certificate {
        tracing::debug!(uris = ?names.uris, dns = ?names.dns, "the client has shown a certificate");
    }
    let socket = Socket::new(transport, handle.clone());
    let names = Rc::new(ConnectionNames::default());
    let service = {
        let (handle, unsent) = (handle.clone(), unsent.clone());
        service_fn(move |request: Request<Incoming>| {
            handle.clear_deadline();
            let is_http2 = request.version() >= Version::HTTP_2;
            if is_http2 {
                unsent.set_http2();
            } else {
                handle.set_response_pending(true);
            }
            let open = is_http2.then(|| handle.open_request(idle_max));
            service.respond(request, &handle, &unsent, &names, open)
        })
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let waker = timeout.waker();
    let mut waiter = StopWaiter { stop: &stop, key: None };
    let (mut is_stopping, mut is_leaving) = (false, false);
    let ended = poll_fn(|context| {
        waiter.register(context.waker());
        if stop.is_stopping.get() && !is_stopping {
            is_stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        let hyper_context = &mut Context::from_waker(&waker);
        if let Poll::Ready(ended) = connection.as_mut().poll(hyper_context) {
            return Poll::Ready(ended);
        }
        if write_timeout.poll(context).is_ready() {
            return Poll::Ready(Err("the client does not read".into()));
        }
        std::task::ready!(timeout.poll(context));
        if unsent.is_http2() && !is_leaving {
            // The client is told, so that it does not lose a request that it is about to send.
            is_leaving = true;
            connection.as_mut().graceful_shutdown();
            timeout.extend(H2_GOODBYE);
            if let Poll::Ready(ended) = connection.as_mut().poll(hyper_context) {
                return Poll::Ready(ended);
            }
            std::task::ready!(timeout.poll(context));
        }
        // Hyper ends the connection if it waits for a head. It does not while the HTTP version is still unknown.
        match connection.as_mut().poll(hyper_context) {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => Poll::Ready(Err("idle timeout".into())),
        }
    });
    if let Err(error) = ended.await {
        tracing::debug!("connection closed: {error}");
    }
}
