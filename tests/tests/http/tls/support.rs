//! Certificates, a broker that uses them, and clients.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use driftq_tests::http::RawConnection;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType, date_time_ymd};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion};
use tempfile::TempDir;

use crate::harness::{Launch, Server, TIMEOUT, config_file, wait_until};

/// A connection with TLS.
pub type Connection = RawConnection<StreamOwned<ClientConnection, TcpStream>>;

/// Signs certificates.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, PEM.
pub struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = params(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("signed"))
    }

    /// Its own certificate, PEM.
    pub fn certificate(&self) -> String {
        self.0.pem()
    }

    /// A certificate for `localhost` and 127.0.0.1.
    pub fn issue(&self, name: &str) -> Identity {
        self.issue_with(name, |_| {})
    }

    /// The same, changed.
    pub fn issue_with(&self, name: &str, change: impl FnOnce(&mut CertificateParams)) -> Identity {
        let mut params = params(name);
        params.subject_alt_names.push(SanType::IpAddress([127, 0, 0, 1].into()));
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("signed");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2100, 1, 1));
    params
}

/// A broker with TLS, and the files of its certificate.
pub struct TlsBroker {
    pub server: Server,
    pub authority: Authority,
    pub cert: PathBuf,
    pub key: PathBuf,
    _folder: TempDir,
}

impl TlsBroker {
    /// A broker with these flags.
    pub fn start(flags: &[&str]) -> Self {
        Self::with(Authority::new("root"), "", flags)
    }

    /// A broker whose certificate `authority` has signed, with this configuration file and these flags. `CLIENT_CA` in
    /// the file stands for the file of the authority's certificate.
    pub fn with(authority: Authority, toml: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let (cert, key, ca) = (path("tls.crt"), path("tls.key"), path("ca.crt"));
        write_identity(&cert, &key, &authority.issue("first"));
        write(&ca, &authority.certificate());
        let toml = toml.replace("CLIENT_CA", &format!("{:?}", text(&ca)));
        let config = config_file(folder.path(), &toml);
        let tls = ["--config", &config, "--tls-cert", text(&cert), "--tls-key", text(&key)];
        let server = Launch::new(&path("data"), &[&tls, flags].concat()).start_listening();
        let broker = Self { server, authority, cert, key, _folder: folder };
        broker.server.log_with("listening on https://127.0.0.1:");
        broker
    }

    /// A broker that answers requests without a client certificate.
    pub fn ready(flags: &[&str]) -> Self {
        let broker = Self::start(flags);
        broker.wait_until_ready(&broker.client());
        broker
    }

    pub fn wait_until_ready(&self, client: &TlsClient) {
        wait_until("it is ready", || client.get("/v1/readyz").is_ok_and(|status| status == 200));
    }

    /// A client that trusts the broker's authority.
    pub fn client(&self) -> TlsClient {
        TlsClient::new(self.server.addr, &self.authority.certificate())
    }

    /// The value of a metric.
    #[track_caller]
    pub fn metric(&self, series: &str) -> f64 {
        let mut connection = self.client().connect().expect("connected");
        let metrics = connection.request("GET", "/metrics", "").expect("metrics").1;
        let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {series} in {metrics}")).parse().expect("a number")
    }

    /// How many handshakes failed for this reason.
    #[track_caller]
    pub fn failed(&self, reason: &str) -> f64 {
        self.metric(&format!("driftq_tls_handshakes_failed_total{{reason=\"{reason}\"}}"))
    }
}

/// A client of a broker with TLS.
pub struct TlsClient {
    pub addr: SocketAddr,
    pub config: ClientConfig,
}

impl TlsClient {
    /// Trusts these roots, PEM.
    pub fn new(addr: SocketAddr, roots: &str) -> Self {
        Self::of(addr, roots, rustls::DEFAULT_VERSIONS, None)
    }

    /// Speaks one version only.
    pub fn with_version(addr: SocketAddr, roots: &str, version: &'static SupportedProtocolVersion) -> Self {
        Self::of(addr, roots, &[version], None)
    }

    /// Shows a certificate.
    pub fn with_identity(addr: SocketAddr, roots: &str, identity: &Identity) -> Self {
        Self::of(addr, roots, rustls::DEFAULT_VERSIONS, Some(identity))
    }

    fn of(
        addr: SocketAddr,
        roots: &str,
        versions: &[&'static SupportedProtocolVersion],
        identity: Option<&Identity>,
    ) -> Self {
        let mut store = RootCertStore::empty();
        for root in CertificateDer::pem_slice_iter(roots.as_bytes()) {
            store.add(root.expect("PEM")).expect("a root");
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_protocol_versions(versions).expect("versions").with_root_certificates(store);
        let config = match identity {
            None => builder.with_no_client_auth(),
            Some(Identity { certificate, key }) => {
                let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).map(|found| found.expect("PEM"));
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
                builder.with_client_auth_cert(chain.collect(), key).expect("a certificate")
            }
        };
        Self { addr, config }
    }

    /// A keep-alive connection whose handshake is complete on this side.
    pub fn connect(&self) -> io::Result<Connection> {
        let socket = TcpStream::connect_timeout(&self.addr, TIMEOUT)?;
        socket.set_nodelay(true)?;
        self.complete_handshake(socket)
    }

    /// Uses a connected socket.
    pub fn complete_handshake(&self, mut socket: TcpStream) -> io::Result<Connection> {
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.set_write_timeout(Some(TIMEOUT))?;
        let name = ServerName::try_from("localhost").expect("a name");
        let mut tls = ClientConnection::new(Arc::new(self.config.clone()), name).map_err(io::Error::other)?;
        while tls.is_handshaking() {
            tls.complete_io(&mut socket)?;
        }
        Ok(RawConnection::around(StreamOwned::new(tls, socket)))
    }

    /// The status of a GET on a new connection.
    pub fn get(&self, target: &str) -> io::Result<u16> {
        Ok(self.connect()?.request("GET", target, "")?.0)
    }
}

/// Requests on a keep-alive connection.
pub trait Requests {
    /// The status and the body of the response.
    fn request(&mut self, method: &str, target: &str, body: &str) -> io::Result<(u16, String)>;

    /// The certificate that the broker has shown.
    fn certificate(&mut self) -> Vec<u8>;
}

impl Requests for Connection {
    fn request(&mut self, method: &str, target: &str, body: &str) -> io::Result<(u16, String)> {
        let length = if body.is_empty() { String::new() } else { format!("Content-Length: {}\r\n", body.len()) };
        self.send(format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n{body}").as_bytes())?;
        let reply = self.reply(method)?;
        Ok((reply.status, reply.body))
    }

    fn certificate(&mut self) -> Vec<u8> {
        self.socket().conn.peer_certificates().expect("a certificate")[0].to_vec()
    }
}

/// The certificate of an identity, DER.
pub fn der(identity: &Identity) -> Vec<u8> {
    CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM").to_vec()
}

/// Replaces the files as a program that renews certificates does: each at once, one after the other.
pub fn write_identity(cert: &Path, key: &Path, identity: &Identity) {
    write(cert, &identity.certificate);
    write(key, &identity.key);
}

/// Replaces a file at once. Only its owner can read it.
pub fn write(path: &Path, content: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let new = path.with_extension("new");
    std::fs::write(&new, content).expect("written");
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600)).expect("set");
    std::fs::rename(&new, path).expect("renamed");
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}
