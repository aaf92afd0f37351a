//! Which addresses may be listened on: what other machines can reach needs keys, and keys need TLS.

use std::net::IpAddr;

/// How clients reach the broker, and what protects it from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exposure {
    /// The listen address.
    pub(crate) address: IpAddr,
    /// Connections use TLS.
    pub(crate) has_tls: bool,
    /// At least one key is stored, so that requests need one, or may be stored in a log that is not read yet.
    pub(crate) has_keys: bool,
    /// `--insecure`: the operator allows everything.
    pub(crate) is_insecure: bool,
    /// `--behind-tls-proxy`: clients use TLS up to a proxy in front of the broker.
    pub(crate) is_behind_tls_proxy: bool,
}

/// Why an address is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExposureError {
    /// Other machines can reach the address, and no request needs a key.
    #[error(
        "other machines can reach it, and without a key each of them may do everything. Create the first key with \
         `driftqd keys create --admin` or give --admin-key-file; or listen on a loopback address, such as 127.0.0.1; \
         or give --insecure if every client of the network may do everything; --tls-cert, --tls-key and \
         --behind-tls-proxy alone keep no client out"
    )]
    NoKeys,
    /// Keys would be sent in plain text.
    #[error(
        "other machines can reach it, and keys would be sent to it in plain text. Give --tls-cert and --tls-key, \
         --behind-tls-proxy if clients reach it through a proxy that terminates TLS, or --insecure"
    )]
    PlainKeys,
}

impl Exposure {
    /// Whether the address may be listened on.
    pub(crate) fn check(self) -> Result<(), ExposureError> {
        if self.address.to_canonical().is_loopback() || self.is_insecure {
            return Ok(());
        }
        if !self.has_keys {
            return Err(ExposureError::NoKeys);
        }
        if self.has_tls || self.is_behind_tls_proxy { Ok(()) } else { Err(ExposureError::PlainKeys) }
    }
}

#[cfg(test)]
mod tests {
    use super::ExposureError::{NoKeys, PlainKeys};
    use super::*;

    #[test]
    fn address_of_the_network_needs_keys_and_keys_need_tls() {
        // TLS, keys, --insecure, --behind-tls-proxy.
        for (flags, other_machines) in [
            ([false, false, false, false], Err(NoKeys)),
            ([false, false, false, true], Err(NoKeys)),
            ([false, false, true, false], Ok(())),
            ([false, false, true, true], Ok(())),
            ([false, true, false, false], Err(PlainKeys)),
            ([false, true, false, true], Ok(())),
            ([false, true, true, false], Ok(())),
            ([false, true, true, true], Ok(())),
            ([true, false, false, false], Err(NoKeys)),
            ([true, false, false, true], Err(NoKeys)),
            ([true, false, true, false], Ok(())),
            ([true, false, true, true], Ok(())),
            ([true, true, false, false], Ok(())),
            ([true, true, false, true], Ok(())),
            ([true, true, true, false], Ok(())),
            ([true, true, true, true], Ok(())),
        ] {
            let [has_tls, has_keys, is_insecure, is_behind_tls_proxy] = flags;
            let check = |address: &str| {
                let address = address.parse().expect("an address");
                Exposure { address, has_tls, has_keys, is_insecure, is_behind_tls_proxy }.check()
            };
            for address in ["0.0.0.0", "10.1.2.3", "::", "fe80::1", "::ffff:10.1.2.3"] {
                assert_eq!(check(address), other_machines, "{address} {flags:?}");
            }
            for address in ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"] {
                assert_eq!(check(address), Ok(()), "{address} {flags:?}");
            }
        }
    }
}
