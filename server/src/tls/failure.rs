//! Why handshakes fail, as the metric names it.

use std::io;

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeFailure {
    /// The client did not complete it in time.
    Timeout,
    /// It had stalled, and its place was given to another.
    Displaced,
    /// The client sent a request without TLS.
    PlainHttp,
    /// Client and broker have no version, cipher suite or protocol in common.
    Incompatible,
    /// The client has no certificate, or one that is not accepted.
    ClientCertificate,
    /// The client gave up with an alert, such as for a certificate that it does not accept.
    Alert,
    /// The client closed the connection.
    Closed,
    /// The client sent something that is not TLS, or not as TLS requires it.
    Malformed,
}

impl HandshakeFailure {
    pub(crate) const ALL: [Self; 8] = [
        Self::Timeout,
        Self::Displaced,
        Self::PlainHttp,
        Self::Incompatible,
        Self::ClientCertificate,
        Self::Alert,
        Self::Closed,
        Self::Malformed,
    ];

    /// The `reason` of the metric.
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Displaced => "displaced",
            Self::PlainHttp => "plain_http",
            Self::Incompatible => "incompatible",
            Self::ClientCertificate => "client_certificate",
            Self::Alert => "alert",
            Self::Closed => "closed",
            Self::Malformed => "malformed",
        }
    }
}

impl From<&io::Error> for HandshakeFailure {
    fn from(error: &io::Error) -> Self {
        use rustls::Error;
        match error.get_ref().and_then(|inner| inner.downcast_ref::<Error>()) {
            None => Self::Closed,
            Some(Error::PeerIncompatible(_) | Error::NoApplicationProtocol) => Self::Incompatible,
            Some(Error::NoCertificatesPresented | Error::InvalidCertificate(_)) => Self::ClientCertificate,
            Some(Error::AlertReceived(_)) => Self::Alert,
            Some(_) => Self::Malformed,
        }
    }
}
