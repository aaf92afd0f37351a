//! What a reactor knows of the keys that clients show it.
//!
//! The core has all keys. A reactor copies what it needs to compare a secret when a key is first shown, and forgets all
//! copies when the keys have changed, so that a revoked key costs no memory. A copy that is out of date does no harm:
//! nothing of a key but its certificate's name ever changes, and whether it is still there is checked by the core with
//! every command.

use std::cell::{RefCell, RefMut};
use std::collections::HashMap;
use std::sync::Arc;

use driftq_core::Pipeline;
use driftq_core::types::{CertificateSan, Key, KeyDigest, KeyId, TenantId, TenantName, Timestamp, Verb, Verbs};

use crate::driver::{AccessMark, Driver};
use crate::tls::PeerNames;

/// A stored key, as far as the edge needs it.
#[derive(Clone, Debug)]
pub(crate) struct KnownKey {
    pub(crate) id: KeyId,
    pub(crate) digest: KeyDigest,
    pub(crate) tenant: TenantId,
    /// The name of the tenant, unless that is the default tenant.
    pub(crate) tenant_name: Option<TenantName>,
    pub(crate) expires_at: Option<Timestamp>,
    /// The verbs of all grants together.
    verbs: Verbs,
    /// Whether it sees and manages all tenants.
    pub(crate) manages_tenants: bool,
}

impl KnownKey {
    fn of(key: &Key, pipeline: &Pipeline) -> Self {
        let access = pipeline.state().access();
        Self {
            id: key.id,
            digest: key.digest,
            tenant: key.tenant,
            tenant_name: access.tenants().name(key.tenant).cloned(),
            expires_at: key.expires_at,
            verbs: key.grants.iter().flat_map(|grant| grant.verbs.iter()).collect(),
            manages_tenants: key.manages_tenants(),
        }
    }

    /// Whether it has a grant of the verb, on whatever topics.
    pub(crate) fn has(&self, verb: Verb) -> bool {
        self.verbs.contains(verb)
    }
}

/// Certificates whose keys a reactor knows; beyond, it forgets all of them.
const CERTIFICATES_MAX: usize = 10_000;

/// The keys that a reactor knows.
#[derive(Debug, Default)]
pub(crate) struct KeyTable(RefCell<Known>);

#[derive(Debug, Default)]
struct Known {
    mark: AccessMark,
    keys: HashMap<KeyId, KnownKey>,
    /// The keys of certificates, by the names in them.
    certificates: HashMap<Arc<PeerNames>, KnownKey>,
}

impl KeyTable {
    /// What is known as of `mark`.
    fn at(&self, mark: AccessMark) -> RefMut<'_, Known> {
        let mut known = self.0.borrow_mut();
        if known.mark != mark {
            *known = Known { mark, ..Known::default() };
        }
        known
    }

    /// The key with this id, if the reactor knows it.
    pub(crate) fn known(&self, id: KeyId, mark: AccessMark) -> Option<KnownKey> {
        self.at(mark).keys.get(&id).cloned()
    }

    /// The key with this id, from the pipeline; `None` if there is none.
    pub(crate) async fn read(&self, driver: &Driver, id: KeyId, mark: AccessMark) -> Option<KnownKey> {
        let read = move |pipeline: &Pipeline| Some(KnownKey::of(pipeline.state().access().keys().get(id)?, pipeline));
        let key = driver.read(read).wait().await.flatten()?;
        self.at(mark).keys.insert(id, key.clone());
        Some(key)
    }

    /// The key of a certificate, if the reactor knows it.
    pub(crate) fn known_of_certificate(&self, names: &Arc<PeerNames>, mark: AccessMark) -> Option<KnownKey> {
        self.at(mark).certificates.get(names).cloned()
    }

    /// The key of a certificate, from the pipeline: the one to which the first of its names is bound that is bound to
    /// any, URIs first.
    pub(crate) async fn read_of_certificate(
        &self,
        driver: &Driver,
        names: Arc<PeerNames>,
        mark: AccessMark,
    ) -> Option<KnownKey> {
        let of_names = Arc::clone(&names);
        let read = move |pipeline: &Pipeline| {
            let keys = pipeline.state().access().keys();
            let mut names = of_names.uris.iter().chain(&of_names.dns);
            let key = names.find_map(|name| keys.bound_to(&CertificateSan::new(name).ok()?))?;
            Some(KnownKey::of(key, pipeline))
        };
        let key = driver.read(read).wait().await.flatten()?;
        let mut known = self.at(mark);
        if known.certificates.len() >= CERTIFICATES_MAX {
            known.certificates.clear();
        }
        known.certificates.insert(names, key.clone());
        Some(key)
    }
}
