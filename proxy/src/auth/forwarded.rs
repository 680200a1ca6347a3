//! Whose request it is that came through other proxies: `X-Forwarded-For` counts as far as those are ours who wrote it.
//! Pure.

use http::HeaderMap;
use std::{net::IpAddr, str::FromStr};

/// Entries of the header that are looked at, from the end.
const HOPS: usize = 16;

/// A range of addresses, as `192.0.2.0/24`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// Not a range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write an IP address, or a range such as 10.0.0.0/8 or fd00::/8")]
pub struct NotANetwork;

impl FromStr for Network {
    type Err = NotANetwork;
    fn from_str(text: &str) -> Result<Self, NotANetwork> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse().map_err(|_| NotANetwork)?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| NotANetwork)?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits <= most { Ok(Self { address, bits }) } else { Err(NotANetwork) }
    }
}

impl Network {
    /// Whether an address is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(u128::from(own.to_bits()), u128::from(other.to_bits()), 32, self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => same(own.to_bits(), other.to_bits(), 128, self.bits),
            _ => false,
        }
    }
}

fn same(own: u128, other: u128, width: u8, bits: u8) -> bool {
    bits == 0 || (own ^ other) >> (width - bits) == 0
}

/// The client's address: where the connection came from, or, where that is a trusted proxy, who that one says, and so on
/// backwards to the first that is not trusted.
pub(crate) fn client(peer: IpAddr, headers: &HeaderMap, trusted: &[Network]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    if !is_trusted(peer) {
        return peer;
    }
    let values = headers.get_all("x-forwarded-for").iter().filter_map(|value| value.to_str().ok());
    let entries: Vec<&str> = values.flat_map(|value| value.split(',')).map(str::trim).collect();
    let mut client = peer;
    for entry in entries.iter().rev().take(HOPS) {
        // What can't be read was not written by one of ours.
        let Some(address) = address(entry) else { break };
        client = address;
        if !is_trusted(address) {
            break;
        }
    }
    client
}

/// Some proxies write the port as well.
fn address(entry: &str) -> Option<IpAddr> {
    let plain = entry.trim_start_matches('[').trim_end_matches(']');
    plain.parse().ok().or_else(|| entry.parse::<std::net::SocketAddr>().ok().map(|socket| socket.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn of(peer: &str, forwarded: &[&str], trusted: &[&str]) -> String {
        let trusted: Vec<Network> = trusted.iter().map(|text| text.parse().unwrap()).collect();
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append("x-forwarded-for", HeaderValue::from_str(value).unwrap());
        }
        client(peer.parse().unwrap(), &headers, &trusted).to_string()
    }

    #[test]
    fn only_trusted_proxies_are_believed() {
        assert_eq!(of("192.0.2.1", &["10.9.9.9"], &[]), "192.0.2.1");
        assert_eq!(of("10.0.0.1", &["198.51.100.7"], &["10.0.0.0/8"]), "198.51.100.7");
        // Whatever the client itself wrote stands before what our proxies did.
        assert_eq!(of("10.0.0.1", &["1.1.1.1, 198.51.100.7", "10.0.0.2"], &["10.0.0.0/8"]), "198.51.100.7");
        assert_eq!(of("10.0.0.1", &["1.1.1.1, what"], &["10.0.0.0/8"]), "10.0.0.1");
        assert_eq!(of("10.0.0.1", &[], &["10.0.0.0/8"]), "10.0.0.1");
        assert_eq!(of("::1", &["[2001:db8::7]:4711"], &["::1"]), "2001:db8::7");
        assert_eq!(of("10.0.0.1", &["198.51.100.7:4711"], &["10.0.0.1"]), "198.51.100.7");
    }

    #[test]
    fn ranges_are_read_or_refused() {
        for bad in ["", "10.0.0.0/33", "::/129", "host", "10.0.0.0/", "10.0.0.0/-1"] {
            assert_eq!(bad.parse::<Network>(), Err(NotANetwork), "{bad}");
        }
        let contains =
            |network: &str, address: &str| network.parse::<Network>().unwrap().contains(address.parse().unwrap());
        assert!(contains("0.0.0.0/0", "255.1.2.3") && contains("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!contains("10.0.0.0/9", "10.128.0.0") && !contains("::/0", "10.0.0.1"));
        assert!(contains("fd00::/8", "fd12::1") && !contains("fd00::/8", "fe00::1"));
    }

    proptest! {
        #[test]
        fn any_header_is_read_without_a_panic(value in "[ -~]{0,200}") {
            of("10.0.0.1", &[&value], &["10.0.0.0/8", "::/0"]);
        }
    }
}
