//! Reads the address of a camera: where it is, what is asked of it, and who asks.

use std::fmt;

use ureq::http::Uri;

/// Where cameras listen that do not say where.
const PORT_USUAL: u16 = 554;

/// A camera, as a request names it.
pub(super) struct CameraAddress {
    /// A name or an address, that of IPv6 in brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// What is asked for, without who asks.
    pub(super) url: String,
    pub(super) login: Option<Login>,
}

/// Who asks; never written anywhere but to the camera.
pub(super) struct Login {
    pub(super) user: String,
    pub(super) password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Login")
    }
}

impl CameraAddress {
    /// `None` if `url` is no `rtsp://[user[:password]@]host[:port][/path]`.
    pub(super) fn read(url: &str) -> Option<Self> {
        let uri: Uri = url.parse().ok()?;
        let authority = uri.authority()?;
        let host = authority.host();
        if !uri.scheme_str()?.eq_ignore_ascii_case("rtsp") || host.is_empty() {
            return None;
        }
        let behind = authority.as_str().rsplit_once('@');
        let login = match behind {
            Some((login, _)) => Some(Login::read(login)?),
            None => None,
        };
        // A port that is none would be taken for the usual one.
        let written = behind.map_or(authority.as_str(), |(_, host)| host).len() > host.len();
        let port = if written { authority.port_u16()? } else { PORT_USUAL };
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let url = format!("rtsp://{host}:{port}{path}");
        Some(Self { host: host.to_owned(), port, url, login })
    }
}

impl Login {
    /// `None` if it could end a line of what is sent.
    fn read(text: &str) -> Option<Self> {
        let (user, password) = text.split_once(':').unwrap_or((text, ""));
        let login = Self { user: decoded(user), password: decoded(password) };
        let mut letters = login.user.chars().chain(login.password.chars());
        (!letters.any(char::is_control)).then_some(login)
    }
}

/// Text of an address as it was before `%40` stood for `@`.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, more @ ..] = rest {
        let pair = more.get(..2).filter(|_| *first == b'%');
        // A number may have a sign, which stands for itself here.
        let pair = pair.filter(|pair| pair.iter().all(u8::is_ascii_hexdigit));
        let pair = pair.and_then(|pair| std::str::from_utf8(pair).ok());
        let byte = pair.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[2..] } else { more };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_is_told_apart_from_what_is_asked_for() {
        let place = CameraAddress::read("rtsp://me:p%40s:s%+5%@cam.lan:8554/a/b?c=1&d=2").unwrap();
        assert_eq!((&place.host[..], place.port), ("cam.lan", 8554));
        assert_eq!(place.url, "rtsp://cam.lan:8554/a/b?c=1&d=2");
        assert_eq!(format!("{:?}", place.login), "Some(Login)");
        let login = place.login.unwrap();
        assert_eq!((&login.user[..], &login.password[..]), ("me", "p@s:s%+5%"));
        let plain = CameraAddress::read("RTSP://[fe80::1]").unwrap();
        assert_eq!((&plain.host[..], &plain.url[..]), ("[fe80::1]", "rtsp://[fe80::1]:554/"));
        assert!(plain.login.is_none());
    }

    #[test]
    fn what_is_no_camera_is_none() {
        for url in [
            "rtsps://cam/",
            "rtsp:///a",
            "rtsp://cam:99999/",
            "rtsp://cam:/",
            "rtsp://a b/",
            "rtsp://a%0d%0ab@cam/",
            "",
        ] {
            assert!(CameraAddress::read(url).is_none(), "{url}");
        }
    }
}
