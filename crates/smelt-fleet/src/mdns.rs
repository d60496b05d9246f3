//! Finds the peers of a site, and announces one, by mDNS (RFC 6762 and 6763, by the crate `mdns-sd`): `_smelt._tcp`.
//!
//! Anybody on the network may announce anything.  Whoever is found is asked for chunks by their digests, and believed nothing.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use mdns_sd::{Receiver, ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};

use crate::remote::plain;

const SERVICE: &str = "_smelt._tcp.local.";
/// How long the network is told that a peer ends.
const GOODBYE_MAX: Duration = Duration::from_millis(500);
/// What is taken in one go: somebody may announce without end.
const EVENTS_MAX: usize = 1000;

fn odd(error: &mdns_sd::Error) -> String {
    format!("mDNS: {}", plain(&error.to_string()))
}

/// Looks for peers until it is dropped.
pub struct Finder {
    daemon: ServiceDaemon,
    events: Receiver<ServiceEvent>,
}

impl Finder {
    /// Begins to look.
    ///
    /// # Errors
    /// If this machine lets nobody.
    pub fn begin() -> Result<Self, String> {
        let daemon = ServiceDaemon::new().map_err(|error| odd(&error))?;
        let events = daemon.browse(SERVICE).map_err(|error| odd(&error))?;
        Ok(Self { daemon, events })
    }

    /// Who was found since the last time.
    pub fn found(&self) -> Vec<SocketAddr> {
        let address = |event| match event {
            ServiceEvent::ServiceResolved(peer) => address(&peer),
            _ => None,
        };
        self.events.try_iter().take(EVENTS_MAX).filter_map(address).collect()
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        let _ = self.daemon.shutdown();
    }
}

/// Where a peer is reached: by IPv4 where it can be, and by no address that means something on one link alone.
fn address(peer: &ResolvedService) -> Option<SocketAddr> {
    let is_fit = |ip: &IpAddr| match ip {
        IpAddr::V4(ip) => !ip.is_unspecified() && !ip.is_multicast(),
        IpAddr::V6(ip) => !ip.is_unspecified() && !ip.is_multicast() && !ip.is_unicast_link_local(),
    };
    let addresses = peer.addresses.iter().map(mdns_sd::ScopedIp::to_ip_addr).filter(is_fit);
    // The least, so that it is the same whenever it is found.
    let address = addresses.min_by_key(|ip| (ip.is_ipv6(), *ip))?;
    (peer.port > 0).then_some(SocketAddr::new(address, peer.port))
}

/// Tells the network of a peer until it is dropped.
pub struct Announcement {
    daemon: ServiceDaemon,
    name: String,
}

impl Announcement {
    /// Announces the peer of that name at every address of this machine.
    ///
    /// # Errors
    /// If this machine lets nobody.
    pub fn begin(name: &str, port: u16) -> Result<Self, String> {
        let daemon = ServiceDaemon::new().map_err(|error| odd(&error))?;
        let host = format!("smelt-{name}.local.");
        let none: &[(&str, &str)] = &[];
        let info = ServiceInfo::new(SERVICE, name, &host, "", port, none);
        let info = info.map_err(|error| odd(&error))?.enable_addr_auto();
        let name = info.get_fullname().to_owned();
        daemon.register(info).map_err(|error| odd(&error))?;
        Ok(Self { daemon, name })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // Else others ask for a while after somebody who is gone, which costs them little.
        if let Ok(done) = self.daemon.unregister(&self.name) {
            let _ = done.recv_timeout(GOODBYE_MAX);
        }
        let _ = self.daemon.shutdown();
    }
}
