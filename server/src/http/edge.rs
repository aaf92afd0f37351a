//! Sockets: accepted, bounded in number, served by hyper, and let go of in time.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use slab::Slab;
use tokio::net::{TcpListener, TcpStream};

use super::Api;
use super::patience::Patience;
use super::socket::Socket;

/// How long nothing is accepted after the system had no more sockets to give.
const BREATH: Duration = Duration::from_millis(100);
/// Streams of one HTTP/2 connection.
const H2_STREAMS_MAX: u32 = 256;
/// What a connection too many is told.
const TOO_MANY: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json; charset=utf-8\r\n\
connection: close\r\nretry-after: 1\r\ncontent-length: 61\r\n\r\n\
{\"error\":\"UNAVAILABLE\",\"message\":\"too many open connections\"}";

/// Runs what HTTP/2 wants to have run beside its connection.
#[derive(Clone, Copy, Debug)]
struct Here;

impl<F: Future + 'static> hyper::rt::Executor<F> for Here {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

/// The end of all connections, announced once.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    announced: Cell<bool>,
    /// Whom to wake.
    waiting: RefCell<Slab<Waker>>,
}

impl Stop {
    /// Nothing more is accepted, and connections end after what they are at.
    pub(crate) fn announce(&self) {
        self.announced.set(true);
        self.waiting.borrow().iter().for_each(|(_, waker)| waker.wake_by_ref());
    }

    /// Comes back when it was announced.
    async fn announced(&self) {
        let mut seat = Seat { stop: self, key: None };
        poll_fn(|context| {
            seat.take(context.waker());
            if self.announced.get() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// A place among those who are woken.
struct Seat<'a> {
    stop: &'a Stop,
    key: Option<usize>,
}

impl Seat<'_> {
    /// Takes the place, if that was not done. A task's waker stays the same.
    fn take(&mut self, waker: &Waker) {
        if self.key.is_none() {
            self.key = Some(self.stop.waiting.borrow_mut().insert(waker.clone()));
        }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.stop.waiting.borrow_mut().remove(key);
        }
    }
}

/// Accepts connections until `stop` is announced.
pub(crate) async fn listen(listener: TcpListener, api: Rc<Api>, stop: Rc<Stop>) {
    let builder = builder(&api);
    let connections_max = api.settings.http.connections_max;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.announced() => return,
        };
        match accepted {
            Ok((socket, _)) if api.metrics.connections() >= connections_max => {
                api.metrics.connection_refused();
                // As much of it as the socket takes at once; nobody waits for a stranger.
                let _ = socket.try_write(TOO_MANY);
            }
            Ok((socket, _)) => {
                // Counted before it is served: many may be accepted before the first of them has its turn.
                let open = api.metrics.connection();
                let connection = serve(socket, Rc::clone(&api), builder.clone(), Rc::clone(&stop));
                tokio::task::spawn_local(async move {
                    connection.await;
                    drop(open);
                });
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                tracing::warn!("accepting a connection: {error}");
                tokio::time::sleep(BREATH).await;
            }
        }
    }
}

/// Whether only the connection that was being accepted is concerned.
fn is_of_one_connection(error: &std::io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

fn builder(api: &Api) -> auto::Builder<Here> {
    let http = &api.settings.http;
    let mut builder = auto::Builder::new(Here);
    // Answers are short: to copy a body behind its head costs less than to hand the system two pieces.
    builder.http1().header_read_timeout(http.head_timeout).max_buf_size(http.head_bytes_max).writev(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_header_list_size(u32::try_from(http.head_bytes_max).unwrap_or(u32::MAX))
        .keep_alive_interval(http.head_timeout)
        .keep_alive_timeout(http.head_timeout);
    builder
}

async fn serve(socket: TcpStream, api: Rc<Api>, mut builder: auto::Builder<Here>, stop: Rc<Stop>) {
    // Answers are written whole; waiting to fill a segment would only delay them.
    let _ = socket.set_nodelay(true);
    let task = poll_fn(|context| Poll::Ready(context.waker().clone())).await;
    let mut patience = Patience::begin(api.settings.http.head_timeout, task);
    builder.http1().timer(patience.timer());
    let service = {
        let timer = patience.timer();
        service_fn(move |request: Request<Incoming>| {
            timer.nothing_owed();
            if request.version() < Version::HTTP_2 {
                timer.take_turn();
            }
            api.answer(request, &timer)
        })
    };
    let turn = patience.timer();
    let socket = Socket::new(socket, turn.clone());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    let bell = patience.waker();
    let mut seat = Seat { stop: &stop, key: None };
    let mut stopping = false;
    let ended = poll_fn(|context| {
        seat.take(context.waker());
        if stop.announced.get() && !stopping {
            stopping = true;
            connection.as_mut().graceful_shutdown();
        }
        let hyper = &mut Context::from_waker(&bell);
        if let Poll::Ready(ended) = connection.as_mut().poll(hyper) {
            return Poll::Ready(ended);
        }
        if turn.is_closed() && !turn.is_ours() {
            // The peer went before it was known that it would be needed: hyper looks again and sees.
            return connection.as_mut().poll(hyper);
        }
        std::task::ready!(patience.poll(context));
        // Hyper takes notice, if it is hyper that waits; it is not while nobody has said which HTTP is spoken.
        match connection.as_mut().poll(hyper) {
            Poll::Ready(ended) => Poll::Ready(ended),
            Poll::Pending => Poll::Ready(Err("its sender kept quiet".into())),
        }
    });
    if let Err(error) = ended.await {
        tracing::debug!("a connection ended: {error}");
    }
}
