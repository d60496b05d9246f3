//! Fetches pictures from other hosts, never from places that only this machine can reach.
//!
//! Names are looked up once for each connection, the addresses are judged, and the connection goes to
//! one of those that were judged: an answer that changes between both (DNS rebinding) changes nothing.
//! Redirects are connections like the first.

use std::net::IpAddr;
use std::time::Duration;

use smelt_runtime::image::FILE_BYTES_MAX;
use ureq::Agent;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::address;

/// How long a picture may take, from the name to the last byte.  The asker's slot is not held meanwhile.
const FETCH_TIME_MAX: Duration = Duration::from_secs(15);

/// Redirects that are followed: from a name to its store, and once more.
const REDIRECTS_MAX: u32 = 3;

/// The longest address: what servers and browsers take.
const URL_BYTES_MAX: usize = 8 << 10;

/// Where pictures may be fetched from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Hosts of the public internet.
    Public,
    /// Any host, those of the local network too: cameras.
    Anywhere,
    /// These addresses.
    #[cfg(test)]
    Only(IpAddr),
}

impl Reach {
    fn holds(self, address: IpAddr) -> bool {
        match self {
            Self::Public => address::is_public(address),
            Self::Anywhere => true,
            #[cfg(test)]
            Self::Only(only) => address == only,
        }
    }
}

/// Why a picture was not fetched.
#[derive(Debug, thiserror::Error)]
pub(super) enum RemoteError {
    /// The address is too long.
    #[error("the address has {0} bytes, more than {URL_BYTES_MAX}")]
    UrlTooLong(usize),
    /// The host is in a private network.
    #[error("the host is not of the public internet, and this server fetches from no other")]
    Private,
    /// The picture is too long.
    #[error("the picture has more than the {FILE_BYTES_MAX} bytes allowed")]
    TooLong,
    /// It took too long.
    #[error("fetching it took longer than {} s", FETCH_TIME_MAX.as_secs())]
    TooSlow,
    /// The host did not give it.
    #[error("cannot fetch it: {0}")]
    Failed(String),
}

/// Fetches pictures within a reach.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    agent: Agent,
}

impl Remote {
    /// Fetches from where `reach` says.
    pub(crate) fn new(reach: Reach) -> Self {
        let config = Config::builder()
            .timeout_global(Some(FETCH_TIME_MAX))
            .max_redirects(REDIRECTS_MAX)
            .user_agent(concat!("smelt/", env!("CARGO_PKG_VERSION")))
            // A proxy would look names up itself, where nobody judges them.
            .proxy(None)
            // A connection that is kept would pass the judge by.
            .max_idle_connections(0)
            .build();
        let judge = Judge { reach, inner: DefaultResolver::default() };
        Self { agent: Agent::with_parts(config, DefaultConnector::default(), judge) }
    }

    /// The bytes at `url`; blocks.
    pub(super) fn get(&self, url: &str) -> Result<Vec<u8>, RemoteError> {
        if url.len() > URL_BYTES_MAX {
            return Err(RemoteError::UrlTooLong(url.len()));
        }
        let response = self.agent.get(url).call().map_err(failed)?;
        let body = response.into_body().into_with_config().limit(FILE_BYTES_MAX);
        body.read_to_vec().map_err(failed)
    }
}

fn failed(error: ureq::Error) -> RemoteError {
    match error {
        ureq::Error::Io(error) if error.get_ref().is_some_and(|inner| inner.is::<NotPublic>()) => {
            RemoteError::Private
        }
        ureq::Error::BodyExceedsLimit(_) => RemoteError::TooLong,
        ureq::Error::Timeout(_) => RemoteError::TooSlow,
        error => RemoteError::Failed(error.to_string()),
    }
}

/// Looks names up, and passes on only addresses within the reach.
#[derive(Debug)]
struct Judge {
    reach: Reach,
    inner: DefaultResolver,
}

/// A name of which no address is within the reach.
#[derive(Debug, thiserror::Error)]
#[error("no address within reach")]
struct NotPublic;

impl Resolver for Judge {
    fn resolve(
        &self,
        uri: &Uri,
        config: &Config,
        timeout: NextTimeout,
    ) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let all = self.inner.resolve(uri, config, timeout)?;
        let mut judged = self.empty();
        for address in all.iter().filter(|address| self.reach.holds(address.ip())) {
            judged.push(*address);
        }
        match judged.is_empty() {
            true => Err(ureq::Error::Io(std::io::Error::other(NotPublic))),
            false => Ok(judged),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpListener};

    use super::*;

    /// A host that answers every request with `answer`; ends with the test.
    fn host(address: &str, answer: Vec<u8>) -> SocketAddr {
        let listener = TcpListener::bind(address).unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                _ = stream.read(&mut [0; 4096]);
                _ = stream.write_all(&answer);
            }
        });
        at
    }

    fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 {status}\r\n{headers}connection: close\r\n\r\n");
        [head.as_bytes(), body].concat()
    }

    #[test]
    fn a_picture_is_fetched_from_within_the_reach() {
        let at = host("127.0.0.1:0", answer("200 OK", "content-length: 2\r\n", b"hi"));
        let remote = Remote::new(Reach::Anywhere);
        assert_eq!(remote.get(&format!("http://{at}/a.png")).unwrap(), b"hi");
        assert_eq!(remote.get(&format!("http://localhost:{}/", at.port())).unwrap(), b"hi");
    }

    #[test]
    fn private_hosts_are_not_asked() {
        let at = host("127.0.0.1:0", answer("200 OK", "content-length: 2\r\n", b"hi"));
        let remote = Remote::new(Reach::Public);
        let port = at.port();
        for name in ["127.0.0.1", "localhost", "[::1]", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"] {
            let got = remote.get(&format!("http://{name}:{port}/"));
            // Some spellings are no address to the library and are looked up; none may succeed.
            assert!(matches!(got, Err(RemoteError::Private | RemoteError::Failed(_))), "{name}");
        }
        let got = remote.get(&format!("http://127.0.0.1:{port}/"));
        assert!(matches!(got, Err(RemoteError::Private)), "{got:?}");
    }

    #[test]
    fn a_redirect_is_judged_like_the_first_address() {
        let inside = host("127.0.0.2:0", answer("200 OK", "content-length: 2\r\n", b"hi"));
        let headers = format!("location: http://{inside}/\r\ncontent-length: 0\r\n");
        let outside = host("127.0.0.1:0", answer("302 Found", &headers, b""));
        let url = format!("http://{outside}/");
        assert_eq!(Remote::new(Reach::Anywhere).get(&url).unwrap(), b"hi");
        let remote = Remote::new(Reach::Only(outside.ip()));
        assert!(matches!(remote.get(&url), Err(RemoteError::Private)));
    }

    #[test]
    fn redirects_without_end_and_refusals_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let headers = format!("location: http://{at}/\r\ncontent-length: 0\r\n");
        let at = host(&at.to_string(), answer("302 Found", &headers, b""));
        let remote = Remote::new(Reach::Anywhere);
        assert!(matches!(remote.get(&format!("http://{at}/")), Err(RemoteError::Failed(_))));
        let at = host("127.0.0.1:0", answer("404 Not Found", "content-length: 0\r\n", b""));
        let error = remote.get(&format!("http://{at}/")).unwrap_err();
        assert!(error.to_string().contains("404"), "{error}");
        let long = format!("http://{at}/{}", "a".repeat(URL_BYTES_MAX));
        assert!(matches!(remote.get(&long), Err(RemoteError::UrlTooLong(_))));
    }

    #[test]
    fn a_picture_without_end_is_cut_off() {
        let endless = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = endless.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = endless.accept().unwrap();
            _ = stream.read(&mut [0; 4096]);
            _ = stream.write_all(&answer("200 OK", "", b""));
            let zeros = vec![0; 1 << 20];
            while stream.write_all(&zeros).is_ok() {}
        });
        let got = Remote::new(Reach::Anywhere).get(&format!("http://{at}/"));
        assert!(matches!(got, Err(RemoteError::TooLong)), "{:?}", got.map(|bytes| bytes.len()));
    }
}
