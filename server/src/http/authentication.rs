//! Finds out who sends a request, from its head alone: nothing of a body is read for a client that is not known.
//!
//! A client shows a key as `Authorization: Bearer dq_…`, or a certificate with a name to which a key is bound. What the
//! key may do is decided by the core, with the topics that the request ends up at; here a request is refused early if
//! no grant of its key has the verb of the route.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use driftq_core::types::{Caller, KeyId};

use super::address_limit::client_of;
use super::api::Api;
use super::connection_names::ConnectionNames;
use super::error::ApiError;
use super::head::RequestHead;
use super::requester::Requester;
use super::timeouts::Peer;
use crate::access::{AuthenticationFailure, KeyTable, KnownKey, RateLimit, ShownKey};
use crate::config::{AuthSettings, Settings};
use crate::driver::{AccessMark, Unready};
use crate::endpoint::Permission;
use crate::tls::PeerNames;

/// The scheme of the header, in any case.
const SCHEME: &str = "bearer";
/// The time after which an address may fail once more.
const FAILURES_INTERVAL: Duration = Duration::from_secs(1);
/// Refusals of one key at once that are audited, each of which is a record in the log, and the time for one more.
const REFUSALS_BURST: u32 = 30;
const REFUSALS_INTERVAL: Duration = Duration::from_secs(1);

/// What bounds failures and refusals, over all reactors.
#[derive(Debug)]
pub(crate) struct AccessLimits {
    /// Failed authentications, by address.
    failures: RateLimit<IpAddr>,
    /// Audited requests that were refused, by key.
    refusals: RateLimit<KeyId>,
}

impl AccessLimits {
    pub(super) fn new(auth: &AuthSettings) -> Self {
        Self {
            failures: RateLimit::new(auth.failures_max, FAILURES_INTERVAL),
            refusals: RateLimit::new(REFUSALS_BURST, REFUSALS_INTERVAL),
        }
    }

    /// Counts an audited request that was refused to `key`.
    pub(super) fn count_refusal(&self, key: KeyId) {
        // Beyond the rate it is refused before it gets here, but for those that were under way.
        let _ = self.refusals.count(key, Instant::now());
    }
}

/// What a request shows of its sender.
#[derive(Clone, Debug)]
enum Credential {
    Nothing,
    Malformed,
    Key(ShownKey),
    Certificate(Arc<PeerNames>),
}

impl Credential {
    fn of(head: &RequestHead<'_>, peer: &Peer) -> Self {
        let Some(header) = head.authorization else {
            return peer.certificate.as_ref().map_or(Self::Nothing, |names| Self::Certificate(Arc::clone(names)));
        };
        if head.authorization_count > 1 {
            return Self::Malformed;
        }
        let value = header.as_bytes();
        match value.split_at_checked(SCHEME.len()) {
            Some((scheme, key)) if scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) && key.starts_with(b" ") => {
                ShownKey::parse(key.trim_ascii()).map_or(Self::Malformed, Self::Key)
            }
            // A proxy may have added what it has authenticated by another scheme.
            _ => Self::Nothing,
        }
    }
}

/// Authenticates the requests of one reactor.
#[derive(Debug)]
pub(super) struct Authenticator {
    keys: KeyTable,
    /// Without any key in the store requests need none: no other machine reaches the broker, or the operator allows it.
    may_be_open: bool,
}

/// Who sends a request.
pub(super) enum Admission {
    /// It is known, or refused.
    Known(Result<Requester, ApiError>),
    /// The reactor does not know the key: it has to be read from the pipeline.
    Unknown(PendingKey),
}

/// A key that is to be read.
pub(super) struct PendingKey {
    credential: Credential,
    mark: AccessMark,
    permission: Permission,
    address: IpAddr,
    names: Rc<ConnectionNames>,
}

impl Authenticator {
    pub(super) fn new(settings: &Settings) -> Rc<Self> {
        let may_be_open = settings.http.insecure || settings.addr.ip().to_canonical().is_loopback();
        Rc::new(Self { keys: KeyTable::default(), may_be_open })
    }

    /// The sender of a request that needs `permission`.
    pub(super) fn admit(
        &self,
        api: &Api,
        permission: Permission,
        head: &RequestHead<'_>,
        peer: &Peer,
        names: &Rc<ConnectionNames>,
    ) -> Admission {
        let address = peer.address;
        let anonymous = || Requester::anonymous(Caller::anonymous(Some(address)), names);
        if permission == Permission::Open {
            return Admission::Known(Ok(anonymous()));
        }
        let Some(mark) = api.driver.access_mark() else {
            // No command is accepted, and what else there is has nothing of any tenant.
            let unready = || ApiError::from(Unready::Recovering);
            return Admission::Known(if self.may_be_open { Ok(anonymous()) } else { Err(unready()) });
        };
        let is_open = self.may_be_open && !mark.has_keys;
        let known = match Credential::of(head, peer) {
            Credential::Nothing | Credential::Certificate(_) if is_open => Ok(anonymous()),
            Credential::Nothing => Err(AuthenticationFailure::Missing),
            Credential::Malformed => Err(AuthenticationFailure::Malformed),
            credential => match self.known(&credential, mark) {
                Some(key) => return Admission::Known(check(api, &key, &credential, permission, address, names)),
                None => {
                    let names = Rc::clone(names);
                    return Admission::Unknown(PendingKey { credential, mark, permission, address, names });
                }
            },
        };
        Admission::Known(known.map_err(|failure| refuse(api, failure, address)))
    }

    fn known(&self, credential: &Credential, mark: AccessMark) -> Option<KnownKey> {
        match credential {
            Credential::Key(shown) => self.keys.known(shown.id, mark),
            Credential::Certificate(certificate) => self.keys.known_of_certificate(certificate, mark),
            Credential::Nothing | Credential::Malformed => None,
        }
    }

    /// The sender of a request whose key had to be read.
    pub(super) async fn resolve(&self, api: &Api, pending: PendingKey) -> Result<Requester, ApiError> {
        let PendingKey { credential, mark, permission, address, names } = pending;
        let (key, failure) = match &credential {
            Credential::Key(shown) => {
                (self.keys.read(&api.driver, shown.id, mark).await, AuthenticationFailure::Unknown)
            }
            Credential::Certificate(certificate) => {
                let key = self.keys.read_of_certificate(&api.driver, Arc::clone(certificate), mark).await;
                (key, AuthenticationFailure::Missing)
            }
            Credential::Nothing | Credential::Malformed => (None, AuthenticationFailure::Missing),
        };
        match key {
            Some(key) => check(api, &key, &credential, permission, address, &names),
            None => Err(refuse(api, failure, address)),
        }
    }
}

/// Compares the secret, and refuses what the key has no grant for on any topic.
fn check(
    api: &Api,
    key: &KnownKey,
    credential: &Credential,
    permission: Permission,
    address: IpAddr,
    names: &Rc<ConnectionNames>,
) -> Result<Requester, ApiError> {
    if let Credential::Key(shown) = credential
        && !shown.has_digest(&key.digest)
    {
        return Err(refuse(api, AuthenticationFailure::WrongSecret, address));
    }
    if key.expires_at.is_some_and(|at| at <= api.driver.broker_now()) {
        return Err(refuse(api, AuthenticationFailure::Expired, address));
    }
    match permission {
        // The core audits these refusals, and has to be asked.
        Permission::Verb(_) if permission.is_audited() => {
            let refusals = &api.shared.access.refusals;
            refusals.check(&key.id, Instant::now()).map_err(|after| {
                ApiError::refused_too_often("too much was refused to this key; try again later", "refusals", after)
            })?;
        }
        Permission::Verb(verb) if !key.has(verb) => {
            return Err(ApiError::permission_denied(format!("permission denied: the key has no grant to {verb}")));
        }
        Permission::Verb(_) | Permission::AnyKey | Permission::Open => {}
    }
    Ok(Requester::with_key(Caller::key(key.id, Some(address)), key, names))
}

/// Counts a failure: 401, or 429 if the address has failed too often. A valid key is accepted from there nevertheless:
/// clients behind one proxy must not lock each other out, and 256 random bits cannot be guessed.
fn refuse(api: &Api, failure: AuthenticationFailure, address: IpAddr) -> ApiError {
    api.metrics.count_failed_authentication(failure);
    match api.shared.access.failures.count(client_of(address), Instant::now()) {
        Ok(()) => {
            tracing::debug!(%address, reason = failure.reason(), "authentication failed");
            ApiError::unauthenticated(failure.message())
        }
        Err(after) => {
            api.metrics.count_throttled_authentication();
            let message = "authentication failed too often from this address; try again later";
            ApiError::refused_too_often(message, "authentication", after)
        }
    }
}

/// Counts a request that the core has refused as unauthenticated, although its key was known here.
pub(super) fn count_refused(api: &Api) {
    api.metrics.count_failed_authentication(AuthenticationFailure::Refused);
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use hyper::header::{AUTHORIZATION, HeaderMap, HeaderValue};

    use super::*;
    use crate::access::NewKey;

    fn credential(values: &[&[u8]], certificate: bool) -> Credential {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(AUTHORIZATION, HeaderValue::from_bytes(value).expect("a value"));
        }
        let names = certificate.then(|| Arc::new(PeerNames { uris: vec!["spiffe://a".to_owned()], dns: Vec::new() }));
        let peer = Peer { address: Ipv4Addr::LOCALHOST.into(), certificate: names };
        Credential::of(&RequestHead::of(&headers), &peer)
    }

    #[test]
    fn header_with_a_key_is_read_in_any_case_of_its_scheme() {
        let key = NewKey::random().expect("random numbers");
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let header = format!("{scheme} {}", key.text);
            let Credential::Key(shown) = credential(&[header.as_bytes()], true) else { panic!("{header}") };
            assert_eq!(shown.id, key.id);
        }
        let header = format!("Bearer {}", key.text);
        for wrong in ["Bearer x", "Bearer ", "bearer dq_", &header[..header.len() - 1], &format!("{header} x")] {
            assert!(matches!(credential(&[wrong.as_bytes()], true), Credential::Malformed), "{wrong}");
        }
        assert!(matches!(credential(&[header.as_bytes(), header.as_bytes()], false), Credential::Malformed));
        assert!(matches!(credential(&[b"Bearer \xff"], false), Credential::Malformed));
    }

    #[test]
    fn certificate_counts_without_a_header_only() {
        assert!(matches!(credential(&[], true), Credential::Certificate(_)));
        assert!(matches!(credential(&[], false), Credential::Nothing));
        for other in ["Basic YTpi", "", "Bearer", "Bearerdq_"] {
            assert!(matches!(credential(&[other.as_bytes()], true), Credential::Nothing), "{other}");
        }
    }
}
