//! Sockets: accepted, bounded in number, served by hyper, and let go of in time.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Api;
use super::body::ReplyBody;

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

/// Accepts connections until `stop` says so.
pub(crate) async fn listen(listener: TcpListener, api: Rc<Api>, mut stop: watch::Receiver<bool>) {
    let builder = Rc::new(builder(&api));
    let connections_max = api.settings.http.connections_max;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.changed() => return,
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
                let connection = serve(socket, Rc::clone(&api), Rc::clone(&builder), stop.clone());
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
    builder.http1().timer(TokioTimer::new()).header_read_timeout(http.head_timeout).max_buf_size(http.head_bytes_max);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(H2_STREAMS_MAX)
        .max_header_list_size(u32::try_from(http.head_bytes_max).unwrap_or(u32::MAX))
        .keep_alive_interval(http.head_timeout)
        .keep_alive_timeout(http.head_timeout);
    builder
}

async fn serve(socket: TcpStream, api: Rc<Api>, builder: Rc<auto::Builder<Here>>, mut stop: watch::Receiver<bool>) {
    // Answers are written whole; waiting to fill a segment would only delay them.
    let _ = socket.set_nodelay(true);
    let head_timeout = api.settings.http.head_timeout;
    let spoke = Rc::new(Cell::new(false));
    let service = {
        let spoke = Rc::clone(&spoke);
        service_fn(move |request: Request<Incoming>| {
            spoke.set(true);
            let api = Rc::clone(&api);
            async move { Ok::<Response<ReplyBody>, Infallible>(api.answer(request).await) }
        })
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(socket), service));
    // Until it has said which HTTP it speaks, hyper waits for a connection without end.
    let mut silence = pin!(tokio::time::sleep(head_timeout));
    let (mut listening, mut stopping) = (true, false);
    loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!("a connection ended: {error}");
                }
                return;
            }
            () = silence.as_mut(), if listening => {
                // Asked only now: the condition of a branch is looked at once, when waiting begins.
                if !spoke.get() {
                    return;
                }
                listening = false;
            }
            _ = stop.changed(), if !stopping => {
                stopping = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}
