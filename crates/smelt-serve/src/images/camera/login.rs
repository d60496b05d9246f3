//! Answers a camera that asks who asks: Digest (RFC 2069, RFC 7616) and Basic (RFC 7617).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::Md5;
use sha2::{Digest as _, Sha256};

use super::camera_address::Login;

/// The longest challenge that is answered: those of cameras have some hundred bytes.
const CHALLENGE_BYTES_MAX: usize = 1024;

/// What a camera wants to know, in the words of its headers.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Challenge {
    Basic,
    Digest(Digest),
}

/// Secrets are not sent, but what they make of the camera's words.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Digest {
    realm: String,
    nonce: String,
    opaque: Option<String>,
    sha256: bool,
    /// What is asked is counted.
    counts: bool,
    count: u32,
}

impl Challenge {
    /// The best of those that are offered; `None` if we know none.
    pub(super) fn best<'a>(offered: impl Iterator<Item = &'a str>) -> Option<Self> {
        offered.filter_map(Self::read).max_by_key(|one| match one {
            Self::Basic => 0,
            Self::Digest(digest) => 1 + u8::from(digest.sha256),
        })
    }

    fn read(header: &str) -> Option<Self> {
        let (scheme, rest) = header.split_once(' ').unwrap_or((header, ""));
        match () {
            () if scheme.eq_ignore_ascii_case("basic") => Some(Self::Basic),
            () if scheme.eq_ignore_ascii_case("digest") => Digest::read(rest).map(Self::Digest),
            () => None,
        }
    }

    /// The header that answers it for what is asked next; `own` is a word that was never used before.
    pub(super) fn answer(&mut self, login: &Login, method: &str, url: &str, own: &str) -> String {
        match self {
            Self::Basic => {
                let both = format!("{}:{}", login.user, login.password);
                format!("Basic {}", STANDARD.encode(both))
            }
            Self::Digest(digest) => digest.answer(login, method, url, own),
        }
    }
}

impl Digest {
    /// `None` if what is said back would be too long, or could end a line.
    fn read(text: &str) -> Option<Self> {
        let ends_lines = |letter: char| letter.is_control() && letter != '\t';
        if text.len() > CHALLENGE_BYTES_MAX || text.contains(ends_lines) {
            return None;
        }
        let mut digest = Self::default();
        for (name, value) in words(text) {
            match &name.to_ascii_lowercase()[..] {
                "realm" => digest.realm = value,
                "nonce" => digest.nonce = value,
                "opaque" => digest.opaque = Some(value),
                "algorithm" if value.eq_ignore_ascii_case("MD5") => {}
                "algorithm" if value.eq_ignore_ascii_case("SHA-256") => digest.sha256 = true,
                "algorithm" => return None,
                "qop" => {
                    digest.counts = true;
                    let mut kinds = value.split(',').map(str::trim);
                    kinds.find(|kind| kind.eq_ignore_ascii_case("auth"))?;
                }
                _ => {}
            }
        }
        (!digest.nonce.is_empty()).then_some(digest)
    }

    fn hash(&self, text: &str) -> String {
        match self.sha256 {
            true => hex(&Sha256::digest(text)),
            false => hex(&Md5::digest(text)),
        }
    }

    fn answer(&mut self, login: &Login, method: &str, url: &str, own: &str) -> String {
        let Self { realm, nonce, .. } = &*self;
        let user = &login.user;
        let who = self.hash(&format!("{user}:{realm}:{}", login.password));
        let what = self.hash(&format!("{method}:{url}"));
        let (between, told) = match self.counts {
            true => {
                let count = format!("{:08x}", self.count + 1);
                let told = format!(", qop=auth, nc={count}, cnonce=\"{own}\"");
                (format!("{nonce}:{count}:{own}:auth"), told)
            }
            false => (nonce.clone(), String::new()),
        };
        let response = self.hash(&format!("{who}:{between}:{what}"));
        let (user, realm, nonce) = (quoted(user), quoted(realm), quoted(nonce));
        let opaque = self.opaque.as_ref().map(|opaque| format!(", opaque={}", quoted(opaque)));
        let opaque = opaque.unwrap_or_default();
        let algorithm = if self.sha256 { ", algorithm=SHA-256" } else { "" };
        self.count += 1;
        format!(
            "Digest username={user}, realm={realm}, nonce={nonce}, uri={}, response=\"{response}\"{algorithm}{told}{opaque}",
            quoted(url)
        )
    }
}

/// `name=value` or `name="value"`, a comma between.
fn words(text: &str) -> Vec<(String, String)> {
    let (mut words, mut letters) = (Vec::new(), text.chars().peekable());
    while letters.peek().is_some() {
        let name: String = letters.by_ref().take_while(|letter| *letter != '=').collect();
        let name = name.trim_start_matches([',', ' ', '\t']).trim_end().to_owned();
        let mut value = String::new();
        if letters.next_if_eq(&'"').is_some() {
            while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
                value.extend(if letter == '\\' { letters.next() } else { Some(letter) });
            }
        } else {
            while let Some(letter) = letters.next_if(|letter| *letter != ',') {
                value.push(letter);
            }
        }
        words.push((name, value.trim().to_owned()));
    }
    words
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(user: &str, password: &str) -> Login {
        Login { user: user.to_owned(), password: password.to_owned() }
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // RFC 7616, 3.9.1.
        let asked = |algorithm: &str| {
            format!(
                "Digest realm=\"http-auth@example.org\", qop=\"auth, auth-int\", algorithm={algorithm}, nonce=\"7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v\", opaque=\"FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS\""
            )
        };
        let (md5, sha) = (asked("MD5"), asked("SHA-256"));
        let own = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ";
        let mut md5 = Challenge::best([&md5[..]].into_iter()).unwrap();
        let mut best =
            Challenge::best(["Basic realm=\"a\"", &sha[..], &asked("MD5")[..]].into_iter())
                .unwrap();
        let mufasa = login("Mufasa", "Circle of Life");
        let said = md5.answer(&mufasa, "GET", "/dir/index.html", own);
        assert!(said.contains("response=\"8ca523f5e9506fed4657c9700eebdbec\""), "{said}");
        assert!(said.contains("nc=00000001") && !said.contains("Circle"), "{said}");
        let said = best.answer(&mufasa, "GET", "/dir/index.html", own);
        let expect = "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1";
        assert!(said.contains(expect), "{said}");
        assert!(best.answer(&mufasa, "GET", "/", own).contains("nc=00000002"));
    }

    #[test]
    fn old_cameras_and_basic_are_answered() {
        let header = "Digest realm=\"a \\\"b\\\", c\",nonce=1f";
        let mut challenge = Challenge::best([header].into_iter()).unwrap();
        let said = challenge.answer(&login("me", "secret"), "DESCRIBE", "rtsp://cam/", "");
        assert!(
            said.contains("realm=\"a \\\"b\\\", c\", nonce=\"1f\", uri=\"rtsp://cam/\""),
            "{said}"
        );
        assert!(!said.contains("qop"), "{said}");
        let mut basic = Challenge::best(["Basic"].into_iter()).unwrap();
        assert_eq!(basic.answer(&login("me", "secret"), "", "", ""), "Basic bWU6c2VjcmV0");
    }

    #[test]
    fn what_is_not_known_is_not_answered() {
        for header in [
            "",
            "Bearer",
            "Digest",
            "Digest nonce=a, algorithm=MD5-sess",
            "Digest nonce=a, qop=auth-int",
            "Digest nonce=\"a\nb\"",
            &format!("Digest nonce={}", "a".repeat(CHALLENGE_BYTES_MAX)),
        ] {
            assert_eq!(Challenge::best([header].into_iter()), None, "{header}");
        }
    }
}
