//! TLS: a server whose certificate is trusted, and servers that must not get a byte of a request.
//!
//! The certificate here is for tests only. It is valid for `localhost` until 2126 and signed by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use driftq_client::{Client, ErrorKind, Produce};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::stub::{Reply, Seen, Stub, serve_with};
use crate::support::{quick, soon};

pub(crate) const CERTIFICATE: &str = include_str!("certificate.pem");
const KEY: &str = include_str!("key.pem");

/// A broker behind TLS; how many requests it has got.
pub(crate) async fn start() -> (String, Arc<AtomicUsize>) {
    let certificate = CertificateDer::from_pem_slice(CERTIFICATE.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(KEY.as_bytes()).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a pair");
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://localhost:{}", listener.local_addr().expect("an address").port());
    let requests = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&requests);
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, count) = (acceptor.clone(), Arc::clone(&count));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(tcp).await else { return };
                let answer = move |seen: Seen| {
                    count.fetch_add(1, Ordering::Relaxed);
                    match seen.target.as_str() {
                        "/v1/version" => Reply::Json(200, r#"{"version":"0.1.0"}"#.to_owned()),
                        _ => Reply::Json(200, r#"{"topic":"t","partition":0,"offset":1}"#.to_owned()),
                    }
                };
                serve_with(stream, &answer).await;
            });
        }
    });
    (url, requests)
}

/// A server that answers without TLS, and the URL with which a client asks it for TLS.
pub(crate) async fn start_without_tls() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.read_buf(&mut Vec::new()).await;
            let _ = tcp.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    url
}

async fn error_of(client: &Client) -> driftq_client::Error {
    let message = Produce::new("t", "v").idempotency_key("k");
    soon("an error", client.produce(&message)).await.expect_err("refused")
}

#[tokio::test]
async fn server_with_a_trusted_certificate_is_used() {
    let (url, requests) = start().await;
    let client = quick(url).ca_pem(CERTIFICATE).build().expect("a client");
    client.produce(&Produce::new("t", "v")).await.expect("produced");
    assert_eq!(requests.load(Ordering::Relaxed), 2, "the version, and the message");
}

#[tokio::test]
async fn self_signed_certificate_is_refused_at_once() {
    let (url, requests) = start().await;
    // The system trusts other certificates, or none at all.
    let error = match quick(url).build() {
        Ok(client) => error_of(&client).await,
        Err(error) => error,
    };
    assert_eq!((error.kind(), error.status()), (ErrorKind::Tls, 0), "{error}");
    assert!(!error.retry_is_safe());
    assert_eq!(requests.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn certificate_of_another_host_is_refused_at_once() {
    let (url, requests) = start().await;
    let url = url.replace("localhost", "127.0.0.2");
    let client = quick(url).ca_pem(CERTIFICATE).build().expect("a client");
    let error = error_of(&client).await;
    assert!(matches!(error.kind(), ErrorKind::Tls | ErrorKind::Unavailable), "{error}");
    assert_eq!(requests.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn server_without_tls_is_a_tls_error() {
    let error = error_of(&quick(start_without_tls().await).ca_pem(CERTIFICATE).build().expect("a client")).await;
    assert_eq!(error.kind(), ErrorKind::Tls, "{error}");
}

#[tokio::test]
async fn server_that_does_not_answer_the_handshake_is_unavailable() {
    // It waits for the end of a head that does not come.
    let stub = Stub::replies([Reply::ok()]).await;
    let limit = Duration::from_millis(200);
    let url = stub.url().replace("http://", "https://");
    let client = quick(url).timeout(limit).retry_for(limit).ca_pem(CERTIFICATE).build().expect("a client");
    let error = soon("an error", client.produce(&Produce::new("t", "v"))).await.expect_err("no handshake");
    assert_eq!((error.kind(), error.retry_is_safe()), (ErrorKind::Unavailable, true), "{error}");
}

#[tokio::test]
async fn file_without_certificates_is_misuse() {
    let error = Client::builder().url("https://localhost").ca_pem("no PEM").build().expect_err("misuse");
    assert_eq!(error.kind(), ErrorKind::Misuse);
}
