//! Speaks to a registry by the distribution specification: who asks, redirects, how long an answer may take.
//!
//! Knows requests and their answers; what manifests and blobs mean is known by those who ask.

use std::fmt;
use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use serde::Deserialize;
use smelt_store::Digest;
use ureq::http::{HeaderMap, Response, Uri};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body, SendBody};

use super::auth::{Challenge, Credentials};
use super::document::{INDEX_TYPE, MANIFEST_BYTES_MAX, MANIFEST_TYPE};
use super::place::{Content, Name, PlaceError};

/// Storage of others is one or two redirects away; more is a circle.
const REDIRECTS_MAX: u32 = 5;
/// Name look-up, connection and TLS together.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// No byte for so long is an end.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// For a short answer, and beside the bytes of a long one.
const ANSWER_MAX: Duration = Duration::from_secs(120);
/// A line that is slower carries no gigabytes, and a server that gives a byte now and then is held to it.
const SLOWEST_BYTES_S: u64 = 4 << 10;
/// A token is a few kilobytes, what a registry says of an error less.
const SHORT_BYTES_MAX: u64 = 1 << 20;
/// Of what a registry says of an error.
const ERROR_SHOWN_MAX: usize = 160;
/// What was cut off or is said to pass by itself is asked again so often.
const TRIES_MAX: u32 = 4;
/// Before the second try; before each later one twice as long.
const PAUSE: Duration = Duration::from_millis(if cfg!(test) { 1 } else { 300 });

/// How a registry is asked.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Who asks; nobody in particular where it is not said.
    pub credentials: Option<Credentials>,
    /// An authority in PEM that vouches for the registry's name, and the file that holds it.
    pub authority: Option<(PathBuf, String)>,
}

/// A repository of a registry.
pub struct Registry {
    agent: Agent,
    is_secure: bool,
    host: String,
    name: String,
    credentials: Option<Credentials>,
    /// What it wanted to hear the last time.
    authorization: Mutex<Option<Arc<str>>>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Registry({}/{})", self.host, self.name)
    }
}

/// A request.
struct Ask<'a> {
    method: &'a str,
    /// Where at the registry, or where that sent us.
    uri: Uri,
    headers: Vec<(&'static str, String)>,
    content: Option<Content<'a>>,
    /// How many bytes go or come.
    bytes: u64,
    /// For errors.
    what: &'a str,
}

impl Registry {
    pub(crate) fn new(
        (is_secure, host, name): (bool, &str, &str),
        Access { credentials, authority }: Access,
    ) -> Result<Self, PlaceError> {
        let roots = authority.map_or(Ok(RootCerts::WebPki), |(path, pem)| roots(&path, &pem))?;
        let tls = TlsConfig::builder().root_certs(roots).build();
        let config = Agent::config_builder()
            .tls_config(tls)
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .user_agent(concat!("smelt/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT_MAX))
            .timeout_recv_response(Some(SILENCE_MAX))
            .timeout_per_read(Some(SILENCE_MAX));
        let (host, name) = (host.to_owned(), name.to_owned());
        let (agent, authorization) = (config.build().new_agent(), Mutex::new(None));
        Ok(Self { agent, is_secure, host, name, credentials, authorization })
    }

    pub(crate) fn host(&self) -> &str {
        &self.host
    }

    fn uri(&self, path: &str) -> Result<Uri, PlaceError> {
        let scheme = if self.is_secure { "https" } else { "http" };
        let text = format!("{scheme}://{}/v2/{}/{path}", self.host, self.name);
        text.parse().map_err(|error| self.gone(format!("{text}: {error}")))
    }

    fn gone(&self, why: impl ToString) -> PlaceError {
        PlaceError::Gone { place: self.host.clone(), why: why.to_string() }
    }

    fn wrong(&self, what: &str, why: impl Into<String>) -> PlaceError {
        let (place, what, why) = (self.host.clone(), what.to_owned(), why.into());
        PlaceError::Wrong { place, what, why }
    }

    pub(crate) fn manifest(&self, name: Name<'_>) -> Result<Option<Vec<u8>>, PlaceError> {
        let path = match name {
            Name::Tag(tag) => format!("manifests/{tag}"),
            Name::Digest(digest) => format!("manifests/sha256:{digest}"),
        };
        let accept = format!("{MANIFEST_TYPE}, {INDEX_TYPE}");
        self.document(&path, ("Accept", accept), "a manifest")
    }

    /// What is about a manifest, by a registry that keeps a list.
    pub(crate) fn referrers(&self, manifest: Digest) -> Result<Option<Vec<u8>>, PlaceError> {
        let path = format!("referrers/sha256:{manifest}");
        self.document(&path, ("Accept", INDEX_TYPE.to_owned()), "the list of who vouches")
    }

    /// A short answer, if there is one.
    fn document(
        &self,
        path: &str,
        header: (&'static str, String),
        what: &str,
    ) -> Result<Option<Vec<u8>>, PlaceError> {
        let uri = self.uri(path)?;
        let ask = Ask { method: "GET", uri, headers: vec![header], content: None, bytes: 0, what };
        let mut answer = self.follow(ask)?;
        match answer.status().as_u16() {
            200 => {}
            404 => return Ok(None),
            _ => return Err(self.refused(what, &mut answer)),
        }
        let mut content = Vec::new();
        let read = answer.body_mut().as_reader().take(MANIFEST_BYTES_MAX + 1);
        read_all(read, &mut content).map_err(|error| self.gone(error))?;
        if content.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(self.wrong(what, format!("it is longer than {MANIFEST_BYTES_MAX} bytes")));
        }
        Ok(Some(content))
    }

    pub(crate) fn has(&self, digest: Digest, bytes: u64) -> Result<bool, PlaceError> {
        let (uri, what) = (self.uri(&format!("blobs/sha256:{digest}"))?, "a layer");
        let ask = Ask { method: "HEAD", uri, headers: Vec::new(), content: None, bytes: 0, what };
        let mut answer = self.follow(ask)?;
        match answer.status().as_u16() {
            // Who says how long it is must say it right.
            200 => Ok(length(answer.headers()).is_none_or(|length| length == bytes)),
            404 => Ok(false),
            _ => Err(self.refused(what, &mut answer)),
        }
    }

    pub(crate) fn read(
        &self,
        digest: Digest,
        from: u64,
        bytes: u64,
    ) -> Result<(u64, Box<dyn Read + '_>), PlaceError> {
        let (uri, what) = (self.uri(&format!("blobs/sha256:{digest}"))?, "a layer");
        // A compressed answer would have other bytes than those that are named.
        let mut headers = vec![("Accept-Encoding", "identity".to_owned())];
        if from > 0 {
            headers.push(("Range", format!("bytes={from}-{}", bytes.saturating_sub(1))));
        }
        let mut answer =
            self.follow(Ask { method: "GET", uri, headers, content: None, bytes, what })?;
        let begins = match answer.status().as_u16() {
            200 => 0,
            206 if begin(answer.headers()) == Some(from) => from,
            206 => return Err(self.wrong(what, "it answers another part than was asked for")),
            404 => return Err(self.wrong(&format!("layer {}", digest.short()), "it is not there")),
            _ => return Err(self.refused(what, &mut answer)),
        };
        let reader = answer.into_body().into_reader();
        Ok((begins, Box::new(reader.take(bytes.saturating_sub(begins).saturating_add(1)))))
    }

    pub(crate) fn write(&self, digest: Digest, content: Content<'_>) -> Result<(), PlaceError> {
        let (what, empty) = ("a layer", Content::Text(&[]));
        let uri = self.uri("blobs/uploads/")?;
        let ask = Ask {
            method: "POST",
            uri: uri.clone(),
            headers: Vec::new(),
            content: Some(empty),
            bytes: 0,
            what,
        };
        let mut answer = self.ask(ask)?;
        if answer.status().as_u16() != 202 {
            return Err(self.refused(what, &mut answer));
        }
        let location = header(answer.headers(), "location");
        let location =
            location.ok_or_else(|| self.wrong(what, "it does not say where to send it"))?;
        let at = target(&uri, location).map_err(|why| self.wrong(what, why))?.to_string();
        let join = if at.contains('?') { '&' } else { '?' };
        let uri = format!("{at}{join}digest=sha256:{digest}");
        let uri = uri.parse().map_err(|error| self.wrong(what, format!("{uri}: {error}")))?;
        let headers = vec![("Content-Type", "application/octet-stream".to_owned())];
        let bytes = content.bytes();
        let ask = Ask { method: "PUT", uri, headers, content: Some(content), bytes, what };
        let mut answer = self.ask(ask)?;
        match answer.status().as_u16() {
            201 => Ok(()),
            _ => Err(self.refused(what, &mut answer)),
        }
    }

    pub(crate) fn put_manifest(
        &self,
        name: Name<'_>,
        media_type: &str,
        json: &[u8],
    ) -> Result<bool, PlaceError> {
        let path = match name {
            Name::Tag(tag) => format!("manifests/{tag}"),
            Name::Digest(digest) => format!("manifests/sha256:{digest}"),
        };
        let (uri, what) = (self.uri(&path)?, "a manifest");
        let headers = vec![("Content-Type", media_type.to_owned())];
        let (content, bytes) = (Some(Content::Text(json)), json.len() as u64);
        let mut answer = self.ask(Ask { method: "PUT", uri, headers, content, bytes, what })?;
        match answer.status().as_u16() {
            201 => Ok(answer.headers().contains_key("oci-subject")),
            _ => Err(self.refused(what, &mut answer)),
        }
    }

    /// Asks, and again where it is sent on to.
    fn follow(&self, ask: Ask<'_>) -> Result<Response<Body>, PlaceError> {
        let mut ask = ask;
        for _ in 0..=REDIRECTS_MAX {
            let (uri, headers) = (ask.uri.clone(), ask.headers.clone());
            let Ask { method, content, bytes, what, .. } = ask;
            let answer = self.ask(ask)?;
            let is_redirect = matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = header(answer.headers(), "location").filter(|_| is_redirect);
            let Some(location) = location else { return Ok(answer) };
            let uri = target(&uri, location).map_err(|why| self.wrong(what, why))?;
            ask = Ask { method, uri, headers, content, bytes, what };
        }
        Err(self.wrong(ask.what, format!("more than {REDIRECTS_MAX} redirects")))
    }

    /// Asks once; who is asked who asks says it and asks again.
    fn ask(&self, ask: Ask<'_>) -> Result<Response<Body>, PlaceError> {
        let is_own = is_same_origin(&ask.uri, &self.uri("")?);
        let known = self.authorization.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let known = known.filter(|_| is_own);
        let answer = self.once(&ask, known.as_deref())?;
        if answer.status().as_u16() != 401 || !is_own {
            return Ok(answer);
        }
        let challenges = answer.headers().get_all("www-authenticate").iter();
        let challenge = challenges.filter_map(|it| Challenge::parse(it.to_str().ok()?)).next();
        let Some(new) = challenge.map(|it| self.answer(&it)).transpose()?.flatten() else {
            return Ok(answer);
        };
        let new: Arc<str> = new.into();
        *self.authorization.lock().unwrap_or_else(PoisonError::into_inner) = Some(new.clone());
        self.once(&ask, Some(&new))
    }

    /// What the header says that answers a challenge; nothing where nobody in particular asks.
    fn answer(&self, challenge: &Challenge) -> Result<Option<String>, PlaceError> {
        let basic = self.credentials.as_ref().map(Credentials::basic);
        let Challenge::Bearer { realm, service, scope } = challenge else { return Ok(basic) };
        let what = "who asks";
        let mut url = realm.clone();
        let fields = [("service", service.as_ref()), ("scope", scope.as_ref())];
        for (field, value) in fields.into_iter().filter_map(|(field, it)| Some((field, it?))) {
            let join = if url.contains('?') { '&' } else { '?' };
            url = format!("{url}{join}{field}={}", escaped(value));
        }
        let own = self.uri("")?;
        let uri = target(&own, &url).map_err(|why| self.wrong(what, why))?;
        let headers = Vec::new();
        let ask = Ask { method: "GET", uri, headers, content: None, bytes: 0, what };
        let mut answer = self.once(&ask, basic.as_deref())?;
        if answer.status().as_u16() != 200 {
            return Err(self.refused(what, &mut answer));
        }
        let token: Token = short(&mut answer)
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or_else(|| self.wrong(what, "its server of tokens gives none"))?;
        let token = token.token.or(token.access_token);
        let token =
            token.filter(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_graphic()));
        let token = token.ok_or_else(|| self.wrong(what, "its server of tokens gives none"))?;
        Ok(Some(format!("Bearer {token}")))
    }

    /// Asks, and again where what went wrong may pass by itself.
    fn once(
        &self,
        ask: &Ask<'_>,
        authorization: Option<&str>,
    ) -> Result<Response<Body>, PlaceError> {
        let mut pause = PAUSE;
        for _ in 1..TRIES_MAX {
            match self.try_once(ask, authorization) {
                Err(Failure::Passing(_)) => thread::sleep(pause),
                Err(Failure::Lasting(error)) => return Err(error),
                Ok(answer) => return Ok(answer),
            }
            pause *= 2;
        }
        self.try_once(ask, authorization).map_err(|failure| match failure {
            Failure::Passing(error) | Failure::Lasting(error) => error,
        })
    }

    fn try_once(
        &self,
        ask: &Ask<'_>,
        authorization: Option<&str>,
    ) -> Result<Response<Body>, Failure> {
        let bad = |error: ureq::http::Error| Failure::Lasting(self.gone(error));
        let mut request = ureq::http::Request::builder().method(ask.method).uri(&ask.uri);
        for (name, value) in &ask.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = authorization {
            request = request.header("Authorization", authorization);
        }
        let most = ANSWER_MAX + Duration::from_secs(ask.bytes / SLOWEST_BYTES_S);
        let answer = match &ask.content {
            None => {
                let request = request.body(()).map_err(bad)?;
                let request =
                    self.agent.configure_request(request).timeout_global(Some(most)).build();
                self.agent.run(request)
            }
            Some(content) => {
                let mut reader = content.open().map_err(Failure::Lasting)?;
                let request = request.header("Content-Length", content.bytes());
                let body = SendBody::from_reader(&mut reader);
                let request = request.body(body).map_err(bad)?;
                let request =
                    self.agent.configure_request(request).timeout_global(Some(most)).build();
                self.agent.run(request)
            }
        };
        let answer = answer.map_err(|error| match &error {
            ureq::Error::Io(io) if io.kind() != io::ErrorKind::InvalidData => {
                Failure::Passing(self.gone(error))
            }
            ureq::Error::ConnectionFailed | ureq::Error::Protocol(_) => {
                Failure::Passing(self.gone(error))
            }
            // Who let us wait once does so again.
            _ => Failure::Lasting(self.gone(error)),
        })?;
        match answer.status().as_u16() {
            status @ (408 | 425 | 429 | 500..=599) => {
                Err(Failure::Passing(self.gone(format!("it answers with status {status}"))))
            }
            _ => Ok(answer),
        }
    }

    /// Why it does not do what was asked, in its own words where it has some.
    fn refused(&self, what: &str, answer: &mut Response<Body>) -> PlaceError {
        let status = answer.status().as_u16();
        let said = short(answer).and_then(|json| serde_json::from_slice::<Said>(&json).ok());
        let said = said.and_then(|said| said.errors.into_iter().next());
        let said = said.map(|it| format!("{} {}", it.code, it.message));
        let said: String = said.unwrap_or_default().chars().take(ERROR_SHOWN_MAX).collect();
        let why = match (status, said.trim()) {
            (401 | 403, _) if self.credentials.is_none() => format!(
                "it wants to know who asks (status {status}): $SMELT_REGISTRY_USER and $SMELT_REGISTRY_PASSWORD say it, or docker login"
            ),
            (401 | 403, _) => format!("it does not let this user do that (status {status})"),
            (_, "") => format!("it answers with status {status}"),
            (_, said) => format!("{said} (status {status})"),
        };
        PlaceError::Refused { place: self.host.clone(), what: what.to_owned(), why }
    }
}

/// Why one try brought no answer.
enum Failure {
    /// May be different next time.
    Passing(PlaceError),
    /// Will be the same next time.
    Lasting(PlaceError),
}

#[derive(Deserialize)]
struct Token {
    token: Option<String>,
    access_token: Option<String>,
}

/// How registries say errors.
#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    errors: Vec<SaidError>,
}

#[derive(Deserialize)]
struct SaidError {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

fn read_all(mut reader: impl Read, to: &mut Vec<u8>) -> io::Result<()> {
    reader.read_to_end(to).map(drop)
}

/// A short answer as a whole.
fn short(answer: &mut Response<Body>) -> Option<Vec<u8>> {
    let mut content = Vec::new();
    read_all(answer.body_mut().as_reader().take(SHORT_BYTES_MAX), &mut content).ok()?;
    Some(content)
}

/// The authorities of a file.
fn roots(path: &std::path::Path, pem: &str) -> Result<RootCerts, PlaceError> {
    let certificates = parse_pem(pem.as_bytes()).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        let source = io::Error::other("it holds no certificate in PEM");
        return Err(PlaceError::Io { verb: "read", path: path.to_owned(), source });
    }
    Ok(RootCerts::from(certificates))
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

fn length(headers: &HeaderMap) -> Option<u64> {
    header(headers, "content-length")?.parse().ok()
}

/// Where the part begins that an answer is.
fn begin(headers: &HeaderMap) -> Option<u64> {
    let (first, _) = header(headers, "content-range")?.strip_prefix("bytes ")?.split_once('-')?;
    first.parse().ok()
}

/// As it stands behind a `?`.
fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/,".contains(&byte);
    text.bytes().fold(String::new(), |all, byte| match is_plain(byte) {
        true => all + char::from(byte).encode_utf8(&mut [0; 4]),
        false => all + &format!("%{byte:02X}"),
    })
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
    let to: Uri = url.parse().map_err(|error| format!("it sends us to no URL: {error}"))?;
    match to.scheme_str() {
        Some("https") => Ok(to),
        Some("http") if scheme == "http" => Ok(to),
        _ => Err("it sends us away from TLS".to_owned()),
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
    fn who_is_sent_on_stays_within_tls() {
        let at = uri("https://registry:8443/v2/a/blobs/b?c=d");
        let check = |location: &str, to: &str| assert_eq!(target(&at, location).unwrap(), uri(to));
        check("/x?y=z#f", "https://registry:8443/x?y=z");
        check("//cdn/x", "https://cdn/x");
        check("https://cdn/x", "https://cdn/x");
        for bad in ["http://registry:8443/x", "x", "", "ftp://hub/x", "file:///etc/passwd"] {
            assert!(target(&at, bad).is_err(), "{bad}");
        }
        assert!(target(&uri("http://registry/x"), "http://cdn/x").is_ok());
        assert!(is_same_origin(&at, &uri("https://REGISTRY:8443/")));
        for other in ["https://registry/", "http://registry:8443/", "https://cdn:8443/"] {
            assert!(!is_same_origin(&at, &uri(other)), "{other}");
        }
    }

    #[test]
    fn scopes_are_escaped() {
        assert_eq!(escaped("repository:a/b:pull,push"), "repository:a/b:pull,push");
        assert_eq!(escaped("a b&c=d"), "a%20b%26c%3Dd");
    }
}
