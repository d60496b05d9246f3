//! Asks one server at a time: redirects, who may see the token, which failures pass by themselves.
//!
//! Knows URLs and headers; what the bytes mean is known by those who ask.

use std::fs::File;
use std::io::{self, Read};
use std::thread;
use std::time::Duration;

use ureq::http::{HeaderMap, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use super::error::{HubError, fault};
use super::settings::{Settings, Token};

/// The hub answers with at most two; more is a circle.
const REDIRECTS_MAX: u32 = 5;
/// Tries in a row that brought nothing.
const TRIES_MAX: u32 = 5;
/// The same where the cache has an answer, if an older one: nobody waits long for a hub that is away.
const TRIES_MAX_BESIDE_CACHE: u32 = 2;
/// Tries in all: a connection cut every few bytes ends too.
const TRIES_IN_ALL_MAX: u32 = 200;
/// No server is waited for longer than this between two tries.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// The whole list of a distribution takes a quarter of this.
const AUTHORITIES_BYTES_MAX: u64 = 1 << 20;
/// Name look-up, connection and TLS together.
const CONNECT_MAX: Duration = Duration::from_secs(20);

/// Why one try brought no answer.
pub(super) enum Failure {
    /// May be different next time.
    Passing {
        why: String,
        /// What the server asks for.
        pause: Option<Duration>,
    },
    /// Will be the same next time.
    Lasting(HubError),
}

impl Failure {
    pub(super) fn passing(why: impl Into<String>) -> Self {
        Self::Passing { why: why.into(), pause: None }
    }
}

/// From where on a file is wanted.
#[derive(Clone, Copy)]
pub(super) struct From<'a> {
    pub(super) offset: u64,
    /// How many bytes are wanted; all of the rest without it.
    pub(super) count: Option<u64>,
    /// The rest is of use only if the file is still this one.
    pub(super) etag: Option<&'a str>,
}

impl From<'_> {
    /// All of a file.
    pub(super) const START: Self = Self { offset: 0, count: None, etag: None };

    /// As a header says it; nothing where all is wanted.
    fn range(&self) -> Option<String> {
        let Self { offset, count, .. } = *self;
        let last = count.map(|count| offset.saturating_add(count).saturating_sub(1));
        let last = last.map_or_else(String::new, |last| last.to_string());
        (offset > 0 || count.is_some()).then(|| format!("bytes={offset}-{last}"))
    }
}

/// The answer at the end of the redirects.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    /// The content's hash, as the hub itself names it.
    pub(super) hub_etag: Option<String>,
    /// The whole size, as the hub itself names it.
    pub(super) hub_size: Option<u64>,
    pub(super) body: Body,
}

impl Answer {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }
}

/// Holds the connections and the token.
pub(super) struct Client {
    agent: Agent,
    endpoint: Uri,
    token: Option<Token>,
    pause: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    Get,
    Head,
}

impl Client {
    pub(super) fn new(settings: &Settings) -> Result<Self, HubError> {
        let endpoint = settings.endpoint.parse().map_err(|error| HubError::BadSetting {
            name: "HF_ENDPOINT".to_owned(),
            why: format!("\"{}\": {error}", settings.endpoint),
        })?;
        let tls = TlsConfig::builder().root_certs(authorities(settings)?).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("smelt/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(settings.silence_max))
            .timeout_per_read(Some(settings.silence_max));
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint,
            token: settings.token.clone(),
            pause: settings.pause,
        })
    }

    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    pub(super) fn patience(&self) -> Patience {
        let (first, pause) = (self.pause, self.pause);
        Patience { first, pause, idle_max: TRIES_MAX, idle: 0, tries: 0 }
    }

    /// What is left of it where the cache can answer instead.
    pub(super) fn patience_beside_cache(&self) -> Patience {
        Patience { idle_max: TRIES_MAX_BESIDE_CACHE, ..self.patience() }
    }

    /// Asks for `url`, from an offset on.
    pub(super) fn get(&self, url: &str, from: From<'_>) -> Result<Answer, Failure> {
        self.follow(Method::Get, url, from)
    }

    /// Asks what the hub says of `url`, without the content.
    pub(super) fn head(&self, url: &str) -> Result<Answer, Failure> {
        self.follow(Method::Head, url, From::START)
    }

    fn follow(&self, method: Method, url: &str, from: From<'_>) -> Result<Answer, Failure> {
        let bad = |why: String| Failure::Lasting(HubError::BadAnswer { url: url.to_owned(), why });
        let mut at: Uri = url.parse().map_err(|error| bad(format!("{error}")))?;
        let (mut linked, mut size, mut hub_etag) = (None, None, None);
        for _ in 0..=REDIRECTS_MAX {
            let is_hub = is_same_origin(&at, &self.endpoint);
            let answer = self.ask(method, &at, from)?;
            // A signed URL that has run out: the hub gives another.
            if !is_hub && matches!(answer.status().as_u16(), 401 | 403) {
                let host = at.host().unwrap_or_default();
                return Err(Failure::passing(format!("{host} refuses what the hub gave out")));
            }
            let (parts, body) = answer.into_parts();
            if is_hub {
                let text = |name| header(&parts.headers, name);
                linked = linked.or_else(|| text("x-linked-etag").and_then(plain_etag));
                size = size.or_else(|| text("x-linked-size").and_then(|size| size.parse().ok()));
                hub_etag = text("etag").and_then(plain_etag).or(hub_etag);
            }
            let status = parts.status.as_u16();
            let location = header(&parts.headers, "location").filter(|_| is_redirect(status));
            let next = location.map(|to| target(&at, to).map_err(bad)).transpose()?;
            // Another host knows less of the file than the hub does.
            let is_known = method == Method::Head && linked.is_some();
            match next {
                Some(next) if !is_known => at = next,
                _ => {
                    let hub_etag = linked.or(hub_etag);
                    let headers = parts.headers;
                    return Ok(Answer { status, headers, hub_etag, hub_size: size, body });
                }
            }
        }
        Err(bad(format!("more than {REDIRECTS_MAX} redirects")))
    }

    /// One request, to one host.
    fn ask(
        &self,
        method: Method,
        at: &Uri,
        from: From<'_>,
    ) -> Result<ureq::http::Response<Body>, Failure> {
        let mut request = match method {
            Method::Get => self.agent.get(at),
            Method::Head => self.agent.head(at),
        };
        // A compressed answer would have other bytes than those that were hashed.
        request = request.header("Accept-Encoding", "identity");
        if let Some(token) = self.token.as_ref().filter(|_| is_same_origin(at, &self.endpoint)) {
            request = request.header("Authorization", token.header());
        }
        if let Some(range) = from.range() {
            request = request.header("Range", range);
            if let Some(etag) = from.etag {
                request = request.header("If-Range", etag);
            }
        }
        let answer = request.call().map_err(|error| failure_of(&error, at))?;
        match answer.status().as_u16() {
            status @ (408 | 425 | 429 | 500..=599) => Err(Failure::Passing {
                why: format!("the server answered with status {status}"),
                pause: header(answer.headers(), "retry-after")
                    .and_then(|seconds| seconds.parse().ok())
                    .map(Duration::from_secs),
            }),
            _ => Ok(answer),
        }
    }
}

/// The authorities of Mozilla's list, or those that the settings name instead.
fn authorities(settings: &Settings) -> Result<RootCerts, HubError> {
    let Some(path) = &settings.authorities else { return Ok(RootCerts::WebPki) };
    let mut text = Vec::new();
    let file = File::open(path).map_err(fault("read SSL_CERT_FILE", path))?;
    let read = file.take(AUTHORITIES_BYTES_MAX).read_to_end(&mut text);
    read.map_err(fault("read SSL_CERT_FILE", path))?;
    let certificates: Vec<_> = parse_pem(&text)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    if certificates.is_empty() {
        let why = format!("{} holds no certificate in PEM", path.display());
        return Err(HubError::BadSetting { name: "SSL_CERT_FILE".to_owned(), why });
    }
    Ok(RootCerts::from(certificates))
}

/// Counts tries, and waits between them.
pub(super) struct Patience {
    first: Duration,
    pause: Duration,
    idle_max: u32,
    idle: u32,
    tries: u32,
}

impl Patience {
    /// Something arrived, so the next failure is the first again.
    pub(super) fn renew(&mut self) {
        (self.idle, self.pause) = (0, self.first);
    }

    /// Waits before the next try, or says that there is none.
    pub(super) fn after(&mut self, failure: Failure, url: &str) -> Result<(), HubError> {
        let (why, asked) = match failure {
            Failure::Lasting(error) => return Err(error),
            Failure::Passing { why, pause } => (why, pause),
        };
        (self.idle, self.tries) = (self.idle + 1, self.tries + 1);
        if self.idle >= self.idle_max || self.tries >= TRIES_IN_ALL_MAX {
            let tries = self.tries;
            return Err(HubError::Unreachable { url: url.to_owned(), why, tries });
        }
        thread::sleep(asked.unwrap_or(self.pause).min(PAUSE_MAX));
        self.pause *= 2;
        Ok(())
    }
}

fn failure_of(error: &ureq::Error, at: &Uri) -> Failure {
    use ureq::Error;
    match error {
        Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => lasting(error, at),
        Error::Io(_)
        | Error::Timeout(_)
        | Error::HostNotFound
        | Error::ConnectionFailed
        | Error::Protocol(_) => Failure::passing(error.to_string()),
        _ => lasting(error, at),
    }
}

/// A certificate that is refused stays refused.
fn lasting(error: &impl ToString, at: &Uri) -> Failure {
    let host = at.host().unwrap_or_default().to_owned();
    Failure::Lasting(HubError::Unreachable { url: host, why: error.to_string(), tries: 1 })
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// Without the quotes and the mark of a weak one, as the cache names blobs.
fn plain_etag(text: &str) -> Option<String> {
    let text = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Where a `Location` leads, seen from `at`.
fn target(at: &Uri, location: &str) -> Result<Uri, String> {
    let location = location.split('#').next().unwrap_or_default();
    let scheme = at.scheme_str().unwrap_or("https");
    let host = at.authority().map_or("", |authority| authority.as_str());
    let url = if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{host}{location}")
    } else {
        location.to_owned()
    };
    let to: Uri = url.parse().map_err(|error| format!("redirects to no URL: {error}"))?;
    match to.scheme_str() {
        Some("https") => Ok(to),
        Some("http") if scheme == "http" => Ok(to),
        _ => Err("redirects away from https".to_owned()),
    }
}

fn is_same_origin(a: &Uri, b: &Uri) -> bool {
    let origin = |uri: &Uri| {
        let is_tls = uri.scheme_str() == Some("https");
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        (is_tls, uri.host().map(str::to_ascii_lowercase), port)
    };
    origin(a) == origin(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn redirects() {
        let at = uri("https://hub:8443/a/b?c=d");
        let check = |location: &str, to: &str| assert_eq!(target(&at, location).unwrap(), uri(to));
        check("/x?y=z#f", "https://hub:8443/x?y=z");
        check("//cdn/x", "https://cdn/x");
        check("https://cdn/x", "https://cdn/x");
        for bad in ["http://hub:8443/x", "x", "", "ftp://hub/x", "file:///etc/passwd"] {
            assert!(target(&at, bad).is_err(), "{bad}");
        }
        assert!(target(&uri("http://hub/x"), "http://cdn/x").is_ok());
    }

    #[test]
    fn origins() {
        let hub = uri("https://hub/x");
        assert!(is_same_origin(&hub, &uri("https://HUB:443/y")));
        for other in ["http://hub/x", "https://hub:444/x", "https://hub.evil/x", "https://cdn/x"] {
            assert!(!is_same_origin(&hub, &uri(other)), "{other}");
        }
    }

    #[test]
    fn etags() {
        assert_eq!(plain_etag("W/\"abc\"").as_deref(), Some("abc"));
        assert_eq!(plain_etag("\"abc\"").as_deref(), Some("abc"));
        assert_eq!(plain_etag("\"\""), None);
    }
}
