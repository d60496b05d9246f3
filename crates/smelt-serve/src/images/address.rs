//! Says which addresses are of the public internet.
//!
//! By the IANA registries of special-purpose addresses for IPv4 and IPv6 (RFC 6890 and its
//! followers).  Addresses that carry another one inside are as public as that one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether everybody means the same host by `address`, and that is not in a private network.
pub(super) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let is_special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_documentation()
        || a == 0
        // Shared by providers' networks, RFC 6598.
        || (a == 100 && b & 0xc0 == 64)
        // Protocol assignments, and the relay of 6to4.
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        // Benchmarks, RFC 2544.
        || (a == 198 && b & 0xfe == 18)
        // Multicast, reserved, broadcast.
        || a >= 224;
    !is_special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let words = address.segments();
    let inside = |at: usize| {
        let [a, b] = words[at].to_be_bytes();
        let [c, d] = words[at + 1].to_be_bytes();
        Ipv4Addr::new(a, b, c, d)
    };
    match words {
        // Mapped addresses, and those of translators (RFC 6052).
        [0, 0, 0, 0, 0, 0xffff, ..] | [0x64, 0xff9b, 0, 0, 0, 0, ..] => is_public_v4(inside(6)),
        // 6to4.
        [0x2002, ..] => is_public_v4(inside(1)),
        // Teredo, ORCHID, benchmarks and other assignments; documentation.
        [0x2001, b, ..] if b < 0x200 || b == 0xdb8 => false,
        [0x3fff, b, ..] if b < 0x1000 => false,
        // Of all others only global unicast is handed out.
        [first, ..] => first & 0xe000 == 0x2000,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(addresses: &[&str], expect: bool) {
        for address in addresses {
            assert_eq!(is_public(address.parse().unwrap()), expect, "{address}");
        }
    }

    #[test]
    fn hosts_of_the_internet_are_public() {
        check(&["1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "198.20.0.1"], true);
        check(&["2606:4700::1111", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::808:808"], true);
        check(&["2002:808:808::1"], true);
    }

    #[test]
    fn everything_else_is_not() {
        check(&["0.0.0.0", "10.1.2.3", "127.0.0.1", "127.9.9.9", "169.254.169.254"], false);
        check(&["172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1", "192.0.0.1"], false);
        check(&["192.0.2.1", "198.18.0.1", "198.19.9.9", "203.0.113.5", "192.88.99.1"], false);
        check(&["224.0.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255"], false);
        check(&["::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1", "ff02::1"], false);
        check(&["::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1", "::127.0.0.1"], false);
        check(&["2001:db8::1", "2001::1", "2002:7f00:1::1", "3fff::1", "64:ff9b:1::1"], false);
    }
}
