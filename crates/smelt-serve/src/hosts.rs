//! Knows under which names the server may be asked, and by whose pages.
//!
//! A page of any site may send its visitor's browser to an address of their own machine, by a name that it lets point there
//! (DNS rebinding), and is asked by nobody for a key where there is none.  So a server that listens for its own machine alone
//! answers to names that no page can give itself, and to pages that it knows.  Knows nothing of routes.

use std::net::IpAddr;

use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri};

use crate::error::ApiError;

/// Under which names the server is asked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hosts {
    /// Whether names and origins are looked at; if not, keys or the network say who asks.
    pub(crate) is_guarded: bool,
    /// Names beside localhost and addresses, in small letters.
    pub(crate) allowed: Vec<String>,
    /// Origins whose pages may ask; `*` is any.
    pub(crate) origins: Vec<HeaderValue>,
}

impl Hosts {
    /// Whether a request may be answered, by what it says of where it is sent and of who sends it.
    ///
    /// # Errors
    /// 403, naming the header and the flag that allows it; 400, if it names several hosts.
    pub(crate) fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
        if !self.is_guarded {
            return Ok(());
        }
        let mut named = headers.get_all(HOST).iter();
        let host = named.next().map(HeaderValue::as_bytes);
        if named.next().is_some() {
            return Err(ApiError::bad("the request has more than one Host"));
        }
        let of_uri = uri.authority().map(|authority| authority.as_str().as_bytes());
        for host in [host, of_uri].into_iter().flatten() {
            self.check_host(host)?;
        }
        match headers.get(ORIGIN) {
            Some(origin) if !self.knows(origin, host) => {
                let shown = String::from_utf8_lossy(origin.as_bytes());
                Err(refused(format!(
                    "pages of {shown:?} may not ask; start smelt with --cors-origin"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_host(&self, host: &[u8]) -> Result<(), ApiError> {
        let name = name(host);
        let is_own = name.as_deref().is_some_and(|name| is_own(name) || self.allows(name));
        if is_own {
            return Ok(());
        }
        let shown = String::from_utf8_lossy(host);
        Err(refused(format!("this server is not called {shown:?}; start smelt with --allow-host")))
    }

    fn allows(&self, name: &str) -> bool {
        self.allowed.iter().any(|allowed| allowed == name)
    }

    /// Whether a page may ask: of this very server, or of an origin that was named.
    fn knows(&self, origin: &HeaderValue, host: Option<&[u8]>) -> bool {
        let is_named = self.origins.iter().any(|known| known == "*" || known == origin);
        let place = [&b"http://"[..], b"https://"];
        let place = place.iter().find_map(|scheme| origin.as_bytes().strip_prefix(*scheme));
        is_named || place.is_some_and(|place| Some(place) == host)
    }
}

fn refused(why: String) -> ApiError {
    ApiError::new(StatusCode::FORBIDDEN, why).code("host_not_allowed")
}

/// The name or address of a host, without its port, in small letters.
fn name(host: &[u8]) -> Option<String> {
    let authority = Authority::try_from(host).ok()?;
    // Who it asks as has no place in it, and behind a colon is a port.
    let rest = authority.as_str().strip_prefix(authority.host())?;
    let is_port = |port: &str| port.is_empty() || port.parse::<u16>().is_ok();
    let is_whole = rest.is_empty() || rest.strip_prefix(':').is_some_and(is_port);
    let name = authority.host().trim_end_matches('.').to_ascii_lowercase();
    is_whole.then_some(name)
}

/// Whether browsers look a name up nowhere: so nobody can let it point here.
fn is_own(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost") || address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        let allowed = vec!["board.local".to_owned()];
        let origins = vec![HeaderValue::from_static("https://ui.example")];
        Hosts { is_guarded: true, allowed, origins }
    }

    #[track_caller]
    fn check(hosts: &Hosts, host: &str, origin: Option<&str>, expect: Result<(), u16>) {
        let mut headers = HeaderMap::new();
        headers.insert(HOST, host.parse().unwrap());
        if let Some(origin) = origin {
            headers.insert(ORIGIN, origin.parse().unwrap());
        }
        let found = hosts.check(&Uri::from_static("/v1/models"), &headers);
        assert_eq!(found.map_err(|error| error.status.as_u16()), expect, "{host} {origin:?}");
    }

    #[test]
    fn only_names_that_no_page_can_give_itself_are_answered() {
        for host in [
            "localhost",
            "LOCALHOST:8000",
            "localhost.",
            "a.localhost:1",
            "127.0.0.1:8000",
            "192.168.1.7",
            "[::1]:8000",
            "board.local:8000",
            "Board.Local",
        ] {
            check(&hosts(), host, None, Ok(()));
        }
        for host in [
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
            "evil.example@localhost",
            "xlocalhost",
            "other.local",
            "localhost:evil.example",
            "localhost:80:evil.example",
            "localhost:99999",
            "",
            "a b",
        ] {
            check(&hosts(), host, None, Err(403));
        }
        check(&Hosts::default(), "evil.example", Some("https://evil.example"), Ok(()));
    }

    #[test]
    fn pages_of_elsewhere_are_refused_unless_they_are_named() {
        let host = "127.0.0.1:8000";
        for origin in ["http://127.0.0.1:8000", "https://127.0.0.1:8000", "https://ui.example"] {
            check(&hosts(), host, Some(origin), Ok(()));
        }
        for origin in ["null", "https://evil.example", "http://127.0.0.1", "http://localhost:8000"]
        {
            check(&hosts(), host, Some(origin), Err(403));
        }
        let any = Hosts { origins: vec![HeaderValue::from_static("*")], ..hosts() };
        check(&any, host, Some("null"), Ok(()));
    }

    #[test]
    fn a_request_names_one_host() {
        let mut headers = HeaderMap::new();
        headers.append(HOST, HeaderValue::from_static("localhost"));
        headers.append(HOST, HeaderValue::from_static("evil.example"));
        let error = hosts().check(&Uri::from_static("/"), &headers).unwrap_err();
        assert_eq!(error.status, 400);
        let elsewhere = Uri::from_static("http://evil.example/v1/models");
        headers = [(HOST, HeaderValue::from_static("localhost"))].into_iter().collect();
        assert_eq!(hosts().check(&elsewhere, &headers).unwrap_err().status, 403);
        // A client so old that it says nothing is no browser.
        assert!(hosts().check(&Uri::from_static("/"), &HeaderMap::new()).is_ok());
    }
}
