//! Bounds the connections of each address, over all reactors, so that one machine cannot take all there may be.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::HttpSettings;

/// The bits of an IPv6 address that name a network. Its clients choose the others as they like.
const NETWORK_BITS: u32 = 64;

/// Open connections by their addresses.
#[derive(Debug)]
pub(super) struct AddressLimit {
    max: usize,
    /// Loopback addresses have no limit, and are not counted.
    excepts_loopback: bool,
    open: Mutex<HashMap<IpAddr, usize>>,
}

/// The address has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooMany;

/// Counts a connection of an address until dropped.
#[derive(Debug)]
pub(super) struct AddressPlace {
    limit: Arc<AddressLimit>,
    address: IpAddr,
}

impl AddressLimit {
    /// The limit of the settings. Unless they set one, an address other than loopback gets half of all connections, or
    /// all of them if it is that of a proxy.
    pub(super) fn new(http: &HttpSettings) -> Arc<Self> {
        let (max, excepts_loopback) = match http.connections_per_address_max {
            0 if http.behind_tls_proxy => (http.connections_max, true),
            0 => (http.connections_max.div_ceil(2), true),
            max => (max, false),
        };
        Arc::new(Self { max, excepts_loopback, open: Mutex::default() })
    }

    /// Counts a connection from `address`; nothing if the address has no limit.
    pub(super) fn open(self: &Arc<Self>, address: IpAddr) -> Result<Option<AddressPlace>, TooMany> {
        let address = client_of(address);
        if self.excepts_loopback && address.is_loopback() {
            return Ok(None);
        }
        let mut open = self.lock();
        let count = open.entry(address).or_insert(0);
        if *count >= self.max {
            return Err(TooMany);
        }
        *count += 1;
        Ok(Some(AddressPlace { limit: Arc::clone(self), address }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AddressPlace {
    fn drop(&mut self) {
        let mut open = self.limit.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// What counts as one client: an IPv4 address, or a network of IPv6.
pub(super) fn client_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << NETWORK_BITS)))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(connections_max: usize, connections_per_address_max: usize) -> Arc<AddressLimit> {
        let http = HttpSettings { connections_max, connections_per_address_max, ..HttpSettings::default() };
        AddressLimit::new(&http)
    }

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn address_gets_half_of_all_connections_and_loopback_every_one() {
        let limit = limit(5, 0);
        let open = |text| limit.open(address(text)).map(|place| place.map(std::mem::forget));
        for _ in 0..3 {
            assert_eq!(open("10.0.0.1"), Ok(Some(())));
        }
        assert_eq!(open("10.0.0.1"), Err(TooMany));
        assert_eq!(open("::ffff:10.0.0.1"), Err(TooMany));
        assert_eq!(open("10.0.0.2"), Ok(Some(())));
        for text in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            (0..9).for_each(|_| assert_eq!(open(text), Ok(None), "{text}"));
        }
    }

    #[test]
    fn proxy_gets_every_connection() {
        let http = HttpSettings { connections_max: 5, behind_tls_proxy: true, ..HttpSettings::default() };
        let limit = AddressLimit::new(&http);
        let open: Vec<_> = (0..5).map(|_| limit.open(address("10.0.0.1")).expect("all there may be")).collect();
        assert_eq!(open.len(), 5);
    }

    #[test]
    fn limit_that_is_set_holds_for_loopback_and_for_networks_of_ipv6() {
        let limit = limit(5, 1);
        for (first, same, other) in [
            ("127.0.0.1", "::ffff:127.0.0.1", "127.0.0.2"),
            ("2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"),
            ("::1", "::1", "::2"),
        ] {
            let place = limit.open(address(first)).expect("the first");
            assert_eq!(limit.open(address(same)).expect_err("one too many"), TooMany, "{same}");
            drop(limit.open(address(other)).expect("another client"));
            drop(place);
            drop(limit.open(address(same)).expect("the place is free"));
        }
        assert!(limit.lock().is_empty(), "addresses without connections take no memory");
    }
}
