//! Fetches pictures from other hosts, never from places that only this machine can reach.
//!
//! Names are looked up once for each connection, the addresses are judged, and the connection goes to
//! one of those that were judged: an answer that changes between both (DNS rebinding) changes nothing.
//! Redirects are connections like the first.

use std::io::Read as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::Weak;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use smelt_runtime::image::FILE_BYTES_MAX;
use ureq::Agent;
use ureq::Timeout;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};

use super::{address, camera, is_camera};

/// How long all pictures of a request may take, from the first name to the last byte: less than others wait for
/// the place that is held meanwhile.
const FETCH_TIME_MAX: Duration = Duration::from_secs(15);

/// Bytes of a picture that are read before it is looked whether they are still wanted.
const CHUNK_BYTES: usize = 64 << 10;

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
    /// It is called a camera, and is none.
    #[error(
        "a camera's address is rtsp://[USER[:PASSWORD]@]HOST[:PORT]/PATH, with %40 and the like for signs in USER and PASSWORD"
    )]
    NoCamera,
    /// The host is in a private network.
    #[error("the host is not of the public internet, and this server fetches from no other")]
    Private,
    /// The pictures are too long.
    #[error("all files of other hosts have more than the {FILE_BYTES_MAX} bytes allowed")]
    TooLong,
    /// It took too long.
    #[error("fetching all files of other hosts took longer than {} s; send them in the request", FETCH_TIME_MAX.as_secs())]
    TooSlow,
    /// Nobody waits for it any more.
    #[error("who asked has left")]
    Left,
    /// The host did not give it.
    #[error("cannot fetch it: {0}")]
    Failed(String),
}

/// What the pictures of one request may take together.
#[derive(Debug)]
pub(crate) struct Errand {
    until: Instant,
    /// Lives as long as somebody waits for the answer.
    asker: Weak<()>,
    /// Bytes that may still come.
    bytes: AtomicU64,
}

impl Errand {
    /// Begins now, for `asker`.
    pub(crate) fn new(asker: Weak<()>) -> Self {
        let bytes = AtomicU64::new(FILE_BYTES_MAX);
        Self { until: Instant::now() + FETCH_TIME_MAX, asker, bytes }
    }

    /// The time that is left.
    pub(super) fn left(&self) -> Result<Duration, RemoteError> {
        let left = self.until.saturating_duration_since(Instant::now());
        match self.asker.strong_count() {
            0 => Err(RemoteError::Left),
            _ if left.is_zero() => Err(RemoteError::TooSlow),
            _ => Ok(left),
        }
    }

    /// Takes so many of the bytes that may come.
    pub(super) fn take(&self, bytes: usize) -> Result<(), RemoteError> {
        let less = |left: u64| left.checked_sub(bytes as u64);
        let taken = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.map(drop).map_err(|_| RemoteError::TooLong)
    }
}

/// Fetches pictures within a reach.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    agent: Agent,
    reach: Reach,
}

impl Remote {
    /// Fetches from where `reach` says.
    pub(crate) fn new(reach: Reach) -> Self {
        let config = Config::builder()
            .max_redirects(REDIRECTS_MAX)
            .user_agent(concat!("smelt/", env!("CARGO_PKG_VERSION")))
            // A proxy would look names up itself, where nobody judges them.
            .proxy(None)
            // A connection that is kept would pass the judge by.
            .max_idle_connections(0)
            .build();
        let judge = Judge { reach, inner: DefaultResolver::default() };
        Self { agent: Agent::with_parts(config, DefaultConnector::default(), judge), reach }
    }

    /// The bytes at `url`; blocks.
    pub(super) fn get(&self, url: &str, errand: &Errand) -> Result<Vec<u8>, RemoteError> {
        if url.len() > URL_BYTES_MAX {
            return Err(RemoteError::UrlTooLong(url.len()));
        }
        if is_camera(url) {
            return camera::record(url, |host, port| self.judged(host, port, errand), errand);
        }
        let request = self.agent.get(url).config().timeout_global(Some(errand.left()?)).build();
        let response = request.call().map_err(failed)?;
        let mut body = response.into_body().into_with_config().limit(FILE_BYTES_MAX).reader();
        let (mut file, mut chunk) = (Vec::new(), vec![0; CHUNK_BYTES]);
        loop {
            let bytes = body.read(&mut chunk).map_err(|error| failed(error.into()))?;
            if bytes == 0 {
                return Ok(file);
            }
            errand.left()?;
            errand.take(bytes)?;
            file.extend_from_slice(&chunk[..bytes]);
        }
    }
}

impl Remote {
    /// The addresses of a host that are within the reach; one at least.
    fn judged(
        &self,
        host: &str,
        port: u16,
        errand: &Errand,
    ) -> Result<Vec<SocketAddr>, RemoteError> {
        // The resolver knows no other scheme.
        let uri: Result<Uri, _> = format!("http://{host}:{port}/").parse();
        let uri = uri.map_err(|_| RemoteError::NoCamera)?;
        let judge = Judge { reach: self.reach, inner: DefaultResolver::default() };
        let timeout = NextTimeout {
            after: errand.left()?.into(),
            reason: Timeout::Global,
            ..NextTimeout::default()
        };
        let found = judge.resolve(&uri, self.agent.config(), timeout).map_err(failed)?;
        Ok(found.iter().copied().collect())
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
    use std::io::Write as _;
    use std::net::{SocketAddr, TcpListener};
    use std::sync::Arc;

    use super::*;

    /// The bytes at `url`, for somebody who waits.
    fn get(remote: &Remote, url: &str) -> Result<Vec<u8>, RemoteError> {
        let asker = Arc::new(());
        remote.get(url, &Errand::new(Arc::downgrade(&asker)))
    }

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
        assert_eq!(get(&remote, &format!("http://{at}/a.png")).unwrap(), b"hi");
        assert_eq!(get(&remote, &format!("http://localhost:{}/", at.port())).unwrap(), b"hi");
    }

    #[test]
    fn private_hosts_are_not_asked() {
        let at = host("127.0.0.1:0", answer("200 OK", "content-length: 2\r\n", b"hi"));
        let remote = Remote::new(Reach::Public);
        let port = at.port();
        for name in ["127.0.0.1", "localhost", "[::1]", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"] {
            let got = get(&remote, &format!("http://{name}:{port}/"));
            // Some spellings are no address to the library and are looked up; none may succeed.
            assert!(matches!(got, Err(RemoteError::Private | RemoteError::Failed(_))), "{name}");
        }
        let got = get(&remote, &format!("http://127.0.0.1:{port}/"));
        assert!(matches!(got, Err(RemoteError::Private)), "{got:?}");
    }

    #[test]
    fn a_redirect_is_judged_like_the_first_address() {
        let inside = host("127.0.0.2:0", answer("200 OK", "content-length: 2\r\n", b"hi"));
        let headers = format!("location: http://{inside}/\r\ncontent-length: 0\r\n");
        let outside = host("127.0.0.1:0", answer("302 Found", &headers, b""));
        let url = format!("http://{outside}/");
        assert_eq!(get(&Remote::new(Reach::Anywhere), &url).unwrap(), b"hi");
        let remote = Remote::new(Reach::Only(outside.ip()));
        assert!(matches!(get(&remote, &url), Err(RemoteError::Private)));
    }

    #[test]
    fn redirects_without_end_and_refusals_are_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let headers = format!("location: http://{at}/\r\ncontent-length: 0\r\n");
        let at = host(&at.to_string(), answer("302 Found", &headers, b""));
        let remote = Remote::new(Reach::Anywhere);
        assert!(matches!(get(&remote, &format!("http://{at}/")), Err(RemoteError::Failed(_))));
        let at = host("127.0.0.1:0", answer("404 Not Found", "content-length: 0\r\n", b""));
        let error = get(&remote, &format!("http://{at}/")).unwrap_err();
        assert!(error.to_string().contains("404"), "{error}");
        let long = format!("http://{at}/{}", "a".repeat(URL_BYTES_MAX));
        assert!(matches!(get(&remote, &long), Err(RemoteError::UrlTooLong(_))));
    }

    #[test]
    fn all_pictures_of_a_request_share_bytes_and_time_and_end_with_who_asked() {
        let at = host("127.0.0.1:0", answer("200 OK", "content-length: 2\r\n", b"hi"));
        let (remote, url, asker) =
            (Remote::new(Reach::Anywhere), format!("http://{at}/"), Arc::new(()));
        let errand = || Errand::new(Arc::downgrade(&asker));
        let short = Errand { bytes: AtomicU64::new(3), ..errand() };
        assert_eq!(remote.get(&url, &short).unwrap(), b"hi");
        assert!(matches!(remote.get(&url, &short), Err(RemoteError::TooLong)));
        let late = Errand { until: Instant::now(), ..errand() };
        assert!(matches!(remote.get(&url, &late), Err(RemoteError::TooSlow)));
        let left = errand();
        drop(asker);
        assert!(matches!(remote.get(&url, &left), Err(RemoteError::Left)));
    }

    #[test]
    fn a_host_that_trickles_is_left_with_who_asked() {
        let slow = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = slow.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = slow.accept().unwrap();
            _ = stream.read(&mut [0; 4096]);
            _ = stream.write_all(&answer("200 OK", "", b""));
            while stream.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let asker = Arc::new(());
        let errand = Errand::new(Arc::downgrade(&asker));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            drop(asker);
        });
        let got = Remote::new(Reach::Anywhere).get(&format!("http://{at}/"), &errand);
        assert!(matches!(got, Err(RemoteError::Left)), "{got:?}");
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
        let got = get(&Remote::new(Reach::Anywhere), &format!("http://{at}/"));
        assert!(matches!(got, Err(RemoteError::TooLong)), "{:?}", got.map(|bytes| bytes.len()));
    }
}
