//! How often an address may come with a wrong key. Pure.
//!
//! Secrets have 256 bits, so that guessing is hopeless anyway; this keeps whoever tries from filling logs and metrics, and
//! answers him with less work. Right keys are taken all the while: others may sit behind the same address.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

/// Failures of one address that are answered as what they are, in any time so long.
const FAILURES: u32 = 30;
const TIME: Duration = Duration::from_secs(60);
/// Addresses that are remembered; the one whose time ends first makes room.
const ADDRESSES: usize = 16 * 1024;

/// Who has failed lately.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    addresses: HashMap<IpAddr, (u32, Instant)>,
}

/// A client with IPv6 has 2^64 addresses of its own.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        other => other.to_canonical(),
    }
}

impl Failures {
    /// Notes a failure; too many: how long until the next one is answered as what it is.
    pub(crate) fn failed(&mut self, address: IpAddr, now: Instant) -> Option<Duration> {
        let network = network(address);
        if self.addresses.len() >= ADDRESSES && !self.addresses.contains_key(&network) {
            self.addresses.retain(|_, (_, ends)| *ends > now);
            if self.addresses.len() >= ADDRESSES
                && let Some(first) = self.addresses.iter().min_by_key(|(_, (_, ends))| *ends).map(|(of, _)| *of)
            {
                self.addresses.remove(&first);
            }
        }
        let (count, ends) = self.addresses.entry(network).or_insert((0, now + TIME));
        if *ends <= now {
            (*count, *ends) = (0, now + TIME);
        }
        *count = count.saturating_add(1);
        (*count > FAILURES).then(|| ends.saturating_duration_since(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_count_and_each_minute_a_new_one() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let address: IpAddr = "192.0.2.1".parse().unwrap();
        assert!((0..FAILURES).all(|_| failures.failed(address, now).is_none()));
        assert_eq!(failures.failed(address, now + Duration::from_secs(20)), Some(Duration::from_secs(40)));
        assert_eq!(failures.failed("192.0.2.2".parse().unwrap(), now), None);
        assert_eq!(failures.failed(address, now + TIME), None);
    }

    #[test]
    fn a_network_of_addresses_is_one_and_the_table_is_bounded() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let of = |n: u128, host: u128| IpAddr::from(Ipv6Addr::from((0x2001_0db8 << 96) | (n << 64) | host));
        assert!((0..u128::from(FAILURES)).all(|host| failures.failed(of(1, host), now).is_none()));
        assert!(failures.failed(of(1, 999), now).is_some());
        assert!("::ffff:192.0.2.1".parse().is_ok_and(|mapped| network(mapped) == IpAddr::from([192, 0, 2, 1])));
        for n in 0..2 * ADDRESSES as u128 {
            failures.failed(of(n, 1), now);
        }
        assert_eq!(failures.addresses.len(), ADDRESSES);
    }
}
