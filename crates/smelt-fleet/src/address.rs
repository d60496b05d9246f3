//! Where the servers of a fleet are, as a person writes it: `grpc://HOST:PORT`, and which of its results are meant.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A name of an instance is part of every message.
const INSTANCE_BYTES_MAX: usize = 256;

/// `grpc[s]://HOST:PORT[/INSTANCE]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Address {
    /// By TLS.
    pub is_secure: bool,
    /// `HOST:PORT`.
    pub host: String,
    /// Which of the server's results are meant; empty where it has but one set of them.
    pub instance: String,
}

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a fleet's server: {problem}; write grpc://HOST:PORT or grpcs://HOST:PORT/INSTANCE"
)]
pub struct NotAnAddress {
    text: String,
    problem: &'static str,
}

impl Address {
    /// As HTTP/2 names it.
    pub(crate) fn url(&self) -> String {
        format!("{}://{}", if self.is_secure { "https" } else { "http" }, self.host)
    }
}

impl FromStr for Address {
    type Err = NotAnAddress;

    fn from_str(text: &str) -> Result<Self, NotAnAddress> {
        let not = |problem| NotAnAddress { text: text.to_owned(), problem };
        let (scheme, rest) = text.split_once("://").ok_or(not("it has no scheme"))?;
        let is_secure = match scheme {
            "grpc" => false,
            "grpcs" => true,
            _ => return Err(not("its scheme is another one")),
        };
        let (host, instance) = rest.split_once('/').unwrap_or((rest, ""));
        check_host(host).map_err(not)?;
        let instance = instance.trim_end_matches('/');
        let is_odd = |one: char| one.is_control() || one.is_whitespace();
        if instance.len() > INSTANCE_BYTES_MAX || instance.contains(is_odd) {
            return Err(not("its instance is no name"));
        }
        Ok(Self { is_secure, host: host.to_owned(), instance: instance.to_owned() })
    }
}

impl TryFrom<String> for Address {
    type Error = NotAnAddress;

    fn try_from(text: String) -> Result<Self, NotAnAddress> {
        text.parse()
    }
}

impl From<Address> for String {
    fn from(address: Address) -> Self {
        address.to_string()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { is_secure, host, instance } = self;
        write!(f, "grpc{}://{host}", if *is_secure { "s" } else { "" })?;
        if instance.is_empty() { Ok(()) } else { write!(f, "/{instance}") }
    }
}

/// `nats://HOST:PORT`, or `tls://HOST:PORT`: where leases are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LockAddress {
    /// By TLS.
    pub is_secure: bool,
    /// `HOST:PORT`.
    pub host: String,
}

/// A text that is no such address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a lock server: {problem}; write nats://HOST:PORT or tls://HOST:PORT"
)]
pub struct NotALockAddress {
    text: String,
    problem: &'static str,
}

impl FromStr for LockAddress {
    type Err = NotALockAddress;

    fn from_str(text: &str) -> Result<Self, NotALockAddress> {
        let not = |problem| NotALockAddress { text: text.to_owned(), problem };
        let (scheme, host) = text.split_once("://").ok_or(not("it has no scheme"))?;
        let is_secure = match scheme {
            "nats" => false,
            "tls" => true,
            _ => return Err(not("its scheme is another one")),
        };
        check_host(host).map_err(not)?;
        Ok(Self { is_secure, host: host.to_owned() })
    }
}

impl fmt::Display for LockAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_secure { "tls" } else { "nats" }, self.host)
    }
}

impl TryFrom<String> for LockAddress {
    type Error = NotALockAddress;

    fn try_from(text: String) -> Result<Self, NotALockAddress> {
        text.parse()
    }
}

impl From<LockAddress> for String {
    fn from(address: LockAddress) -> Self {
        address.to_string()
    }
}

/// The word that stands for neighbours that are found.
const FOUND: &str = "mdns";
/// Neighbours of a list: those of a large site, and a line of some 10 KiB.
const LISTED_MAX: usize = 500;

/// Neighbours of a board: `HOST:PORT,…`, and `mdns` for those that announce themselves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PeerList {
    /// Those that are named, `HOST:PORT` each.
    pub hosts: Vec<String>,
    /// Whether they are looked for on the network besides.
    pub is_found: bool,
}

/// A text that is no such list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} names no neighbours: {problem}; write HOST:PORT,HOST:PORT or mdns")]
pub struct NoPeers {
    text: String,
    problem: &'static str,
}

impl PeerList {
    /// Whether there is nobody to ask.
    pub fn is_empty(&self) -> bool {
        self.hosts.is_empty() && !self.is_found
    }
}

impl FromStr for PeerList {
    type Err = NoPeers;

    fn from_str(text: &str) -> Result<Self, NoPeers> {
        let mut list = Self::default();
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            if word == FOUND {
                list.is_found = true;
                continue;
            }
            let not = |problem| NoPeers { text: word.to_owned(), problem };
            if word.contains("://") {
                return Err(not("it has a scheme"));
            }
            check_host(word).map_err(not)?;
            list.hosts.push(word.to_owned());
            if list.hosts.len() > LISTED_MAX {
                return Err(not("it is one more than the 500 that a list may have"));
            }
        }
        Ok(list)
    }
}

impl TryFrom<String> for PeerList {
    type Error = NoPeers;

    fn try_from(text: String) -> Result<Self, NoPeers> {
        text.parse()
    }
}

impl From<PeerList> for String {
    fn from(list: PeerList) -> Self {
        list.to_string()
    }
}

impl fmt::Display for PeerList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.is_found.then_some(FOUND);
        let words: Vec<&str> = self.hosts.iter().map(String::as_str).chain(found).collect();
        f.write_str(&words.join(","))
    }
}

/// Why a text is no `HOST:PORT`.
fn check_host(host: &str) -> Result<(), &'static str> {
    let (name, port) = host.rsplit_once(':').ok_or("it has no port")?;
    if name.is_empty() || name.contains(['@', '?', '#', ' ', '/']) {
        return Err("its host is no name");
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err("its port is none from 1 to 65535"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        let parts = |text: &str| {
            let address: Address = text.parse().unwrap();
            assert_eq!(address.to_string(), text);
            (address.is_secure, address.host, address.instance)
        };
        let expect = |is_secure, host: &str, instance: &str| {
            (is_secure, host.to_owned(), instance.to_owned())
        };
        assert_eq!(parts("grpc://10.0.0.1:5200"), expect(false, "10.0.0.1:5200", ""));
        assert_eq!(parts("grpcs://cache.lan:443/a/b"), expect(true, "cache.lan:443", "a/b"));
        assert_eq!(parts("grpc://[::1]:5200"), expect(false, "[::1]:5200", ""));
    }

    #[test]
    fn a_lock_server_has_a_port_and_no_secret() {
        for (text, is_secure) in [("nats://10.0.0.1:4222", false), ("tls://lock.lan:4222", true)] {
            let address: LockAddress = text.parse().unwrap();
            assert_eq!((address.is_secure, address.to_string().as_str()), (is_secure, text));
        }
        for (text, problem) in [
            ("lock:4222", "it has no scheme"),
            ("grpc://lock:4222", "its scheme is another one"),
            ("nats://lock", "it has no port"),
            ("nats://token@lock:4222", "its host is no name"),
            ("nats://lock:4222/more", "its port is none"),
        ] {
            let error = text.parse::<LockAddress>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("nats://HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn neighbours_are_a_list_or_found_or_both() {
        let list = |text: &str| text.parse::<PeerList>().unwrap();
        assert_eq!(list("a:1, [::1]:2,").hosts, ["a:1", "[::1]:2"]);
        assert_eq!((list("mdns").is_found, list("").is_empty()), (true, true));
        assert_eq!(list("a:1,mdns").to_string(), "a:1,mdns");
        for (text, problem) in [
            ("a", "it has no port"),
            ("grpc://a:1", "it has a scheme"),
            ("token@a:1", "its host is no name"),
            (&vec!["a:1"; 501].join(","), "one more than the 500"),
        ] {
            let error = text.parse::<PeerList>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("HOST:PORT"), "{error}");
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_form() {
        for (text, problem) in [
            ("cache:5200", "it has no scheme"),
            ("http://cache:5200", "its scheme is another one"),
            ("grpc://cache", "it has no port"),
            ("grpc://:5200", "its host is no name"),
            ("grpc://user@cache:5200", "its host is no name"),
            ("grpc://cache:0", "its port is none from 1 to 65535"),
            ("grpc://cache:65536", "its port is none from 1 to 65535"),
            ("grpc://cache:1/a b", "its instance is no name"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("grpc://HOST:PORT"), "{error}");
        }
    }
}
