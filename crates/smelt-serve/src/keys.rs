//! Knows who may ask.
//!
//! A key is kept as its digest, and all are compared in full, so how long a refusal takes tells
//! nothing of any key.  Knows nothing of routes.

use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use crate::client::{Client, Limits};

/// Most keys: each is compared for every request.
const KEYS_MAX: usize = 1024;

/// The longest file of keys that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The longest name of a key: it is written with every request.
const NAME_BYTES_MAX: usize = 64;

/// Where keys are sent beside `Authorization`: by clients of Anthropic's API, and of Azure's.
const KEY_HEADERS: [&str; 2] = ["x-api-key", "api-key"];

/// Why keys could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum KeysError {
    /// The file cannot be read.
    #[error("cannot read keys from {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file has no key, which would lock everybody out or let everybody in.
    #[error("{} holds no key; write one a line", .0.display())]
    Empty(PathBuf),
    /// A key cannot be sent; with where it was given.
    #[error("{0}: a key must be visible ASCII characters without spaces, at least one")]
    Unsendable(String),
    /// What stands behind a key is no limit; with where it stands.
    #[error(
        "{at}: {word:?} is none of name=NAME, requests=N, tokens=N (both a minute), slots=N, kept=SIZE and metrics=yes, each once; N is at least 1, and a SIZE as in 64MiB"
    )]
    Limit {
        /// The file and line.
        at: String,
        /// What stands there.
        word: String,
    },
    /// A name is none; with where it was given.
    #[error("{0}: a name has 1 to {NAME_BYTES_MAX} letters, digits, dots, dashes and underscores")]
    Name(String),
    /// Two keys have one name; log and metrics could not tell them apart.
    #[error("two keys are called {0:?}; give each a name of its own")]
    Twice(String),
    /// There are too many.
    #[error("{0} keys are more than {KEYS_MAX}")]
    TooMany(usize),
}

/// The keys that open the server; none leave it open.
#[derive(Clone, Default)]
pub struct Keys {
    all: Vec<Key>,
}

#[derive(Clone)]
struct Key {
    digest: [u8; 32],
    client: Client,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.all.len())
    }
}

impl Keys {
    /// Takes keys as they are given, called `given-1` and so on.
    ///
    /// # Errors
    /// [`KeysError`] if one cannot be sent in a header, or they are too many.
    pub fn new<S: AsRef<str>>(keys: &[S]) -> Result<Self, KeysError> {
        if !keys.iter().all(|key| is_sendable(key.as_ref())) {
            return Err(KeysError::Unsendable("--api-key or SMELT_API_KEY".to_owned()));
        }
        let key = |(number, key): (usize, &S)| {
            let digest = digest(key.as_ref().as_bytes());
            let name = format!("given-{number}");
            Key { digest, client: Client::numbered(name, identity(&digest), Limits::default()) }
        };
        Self { all: (1..).zip(keys).map(key).collect() }.checked()
    }

    /// Reads a file of one key a line, each with its name and limits behind it, as in `KEY name=kitchen
    /// requests=60 tokens=100000 slots=2 kept=64MiB`, and `metrics=yes` if it is told what all use; a key without a name is called by its number, as in `key-1`.  Empty
    /// lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// [`KeysError`], also if there is no key.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let failed = |source| KeysError::Read { path: path.into(), source };
        let mut text = String::new();
        let file = fs::File::open(path).map_err(failed)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let key = |(number, (line, text)): (usize, (u32, &str))| {
            line_of(text, number, &format!("{}:{line}", path.display()))
        };
        let all = (1..).zip(lines).map(key).collect::<Result<Vec<Key>, KeysError>>()?;
        match all.is_empty() {
            true => Err(KeysError::Empty(path.into())),
            false => Self { all }.checked(),
        }
    }

    /// These keys and those.
    ///
    /// # Errors
    /// If they are too many together, or two have one name.
    pub fn and(mut self, others: Self) -> Result<Self, KeysError> {
        self.all.extend(others.all);
        self.checked()
    }

    fn checked(self) -> Result<Self, KeysError> {
        if self.all.len() > KEYS_MAX {
            return Err(KeysError::TooMany(self.all.len()));
        }
        let mut names: Vec<&str> = self.all.iter().filter_map(|key| key.client.name()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(KeysError::Twice(pair[0].to_owned())),
            None => Ok(self),
        }
    }

    /// The same keys, of which those that were there `before`, by name or else as they are, have used what they had.
    #[must_use]
    pub(crate) fn go_on(self, before: &Self) -> Self {
        for key in &self.all {
            let same =
                before.all.iter().find(|other| other.client.identity() == key.client.identity());
            if let Some(same) = same {
                key.client.goes_on(&same.client);
            }
        }
        self
    }

    /// Whether anybody may ask.
    pub fn is_open(&self) -> bool {
        self.all.is_empty()
    }

    /// Who asks, if `headers` hold a key: as `Bearer KEY`, as the password of `Basic`, which browsers ask for, or
    /// in `x-api-key` or `api-key`, as clients of Anthropic and Azure send it.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> Option<Client> {
        match self.is_open() {
            true => Some(Client::anybody()),
            false => given(headers).and_then(|key| self.find(&key)),
        }
    }

    /// Compares with all keys in full, whichever it is.
    fn find(&self, key: &[u8]) -> Option<Client> {
        let digest = digest(key);
        let found = self.all.iter().fold(None, |found, known| {
            let is_equal: bool = known.digest.ct_eq(&digest).into();
            if is_equal { Some(&known.client) } else { found }
        });
        found.cloned()
    }
}

/// The key of a line.
fn line_of(text: &str, number: usize, at: &str) -> Result<Key, KeysError> {
    let mut words = text.split_whitespace();
    let key = words.next().unwrap_or_default();
    if !is_sendable(key) {
        return Err(KeysError::Unsendable(at.to_owned()));
    }
    let (mut name, mut limits) = (None, Limits::default());
    for word in words {
        let wrong = || KeysError::Limit { at: at.to_owned(), word: word.to_owned() };
        let (field, value) = word.split_once('=').ok_or_else(wrong)?;
        let count = || value.parse::<u64>().ok().filter(|count| *count > 0);
        let is_first = match field {
            "name" if !is_name(value) => return Err(KeysError::Name(at.to_owned())),
            "name" => name.replace(value.to_owned()).is_none(),
            "requests" => limits.requests.replace(count().ok_or_else(wrong)?).is_none(),
            "tokens" => limits.tokens.replace(count().ok_or_else(wrong)?).is_none(),
            "slots" => limits.slots.replace(count().ok_or_else(wrong)? as usize).is_none(),
            "kept" => limits.kept_bytes.replace(size(value).ok_or_else(wrong)?).is_none(),
            "metrics" if value == "yes" => !std::mem::replace(&mut limits.sees_all, true),
            _ => false,
        };
        if !is_first {
            return Err(wrong());
        }
    }
    let digest = digest(key.as_bytes());
    let numbered = || Client::numbered(format!("key-{number}"), identity(&digest), limits);
    let client = name.map_or_else(numbered, |name| Client::named(name, limits));
    Ok(Key { digest, client })
}

/// What tells a key without a name from others, wherever it stands: the space keeps it from being a name.
fn identity(digest: &[u8; 32]) -> String {
    format!("sha256 {}", STANDARD.encode(digest))
}

fn is_name(name: &str) -> bool {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_letter)
}

/// Bytes, as in 64MiB.
fn size(text: &str) -> Option<u64> {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10), ("B", 0)];
    let (count, shift) =
        units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, *shift)))?;
    count.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Whether a key can be sent in a header.
fn is_sendable(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_graphic())
}

fn digest(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The key that a request gives.
fn given(headers: &HeaderMap) -> Option<Vec<u8>> {
    authorization(headers).or_else(|| {
        let named = KEY_HEADERS.iter().find_map(|name| headers.get(*name));
        named.map(|value| value.as_bytes().trim_ascii().to_vec())
    })
}

fn authorization(headers: &HeaderMap) -> Option<Vec<u8>> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let at = value.iter().position(|byte| *byte == b' ')?;
    let (scheme, key) = (&value[..at], value[at + 1..].trim_ascii());
    if scheme.eq_ignore_ascii_case(b"bearer") {
        return Some(key.to_vec());
    }
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let pair = STANDARD.decode(key).ok()?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(keys: &Keys, header: Option<&str>, expect: bool) {
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert(AUTHORIZATION, value.parse().unwrap());
        }
        assert_eq!(keys.admit(&headers).is_some(), expect, "{header:?}");
    }

    #[test]
    fn only_a_key_opens() {
        let keys = Keys::new(&["first", "second"]).unwrap();
        check(&keys, Some("Bearer first"), true);
        check(&keys, Some("bearer second"), true);
        check(&keys, Some(&format!("Basic {}", STANDARD.encode("me:second"))), true);
        for header in ["Bearer firs", "Bearer firstt", "Bearer ", "Bearer", "first", "Token first"]
        {
            check(&keys, Some(header), false);
        }
        check(&keys, Some(&format!("Basic {}", STANDARD.encode("second:me"))), false);
        check(&keys, Some("Basic !"), false);
        check(&keys, None, false);
        check(&Keys::default(), None, true);
    }

    #[test]
    fn a_file_has_a_key_a_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs::write(&path, "# who\nfirst \n\nsecond\n").unwrap();
        let keys = Keys::read(&path).unwrap();
        check(&keys, Some("Bearer second"), true);
        check(&keys, Some("Bearer #"), false);
        fs::write(&path, "# nobody\n").unwrap();
        assert!(matches!(Keys::read(&path), Err(KeysError::Empty(_))));
        fs::write(&path, "# who\nfirst\nsecönd\n").unwrap();
        let error = Keys::read(&path).unwrap_err().to_string();
        assert!(error.contains("keys:3: a key must be visible"), "{error}");
        assert!(matches!(Keys::read(dir.path()), Err(KeysError::Read { .. })));
        assert!(matches!(Keys::new(&["é"]), Err(KeysError::Unsendable(_))));
    }

    /// The client of a file's only line, or what is wrong with it.
    #[track_caller]
    fn line(text: &str) -> Result<Client, String> {
        line_of(text, 3, "keys:3").map(|key| key.client).map_err(|error| error.to_string())
    }

    #[test]
    fn a_key_has_a_name_and_limits() {
        assert_eq!(line("sesame").unwrap().name(), Some("key-3"));
        let client = line("sesame name=kitchen slots=2 kept=64MiB requests=60 tokens=9").unwrap();
        assert_eq!(client.name(), Some("kitchen"));
        let service = client.of_service(None);
        assert_eq!((service.slots_max, service.kept_bytes_max), (Some(2), Some(64 << 20)));
        for wrong in ["slots", "slots=0", "slots=x", "kept=64", "kept=xMiB", "colour=red"] {
            let error = line(&format!("sesame {wrong}")).unwrap_err();
            assert!(error.starts_with(&format!("keys:3: {wrong:?} is none of")), "{error}");
        }
        assert!(line("sesame slots=1 slots=2").unwrap_err().contains("each once"));
        assert_eq!(client.sees_only(), Some("kitchen"));
        assert_eq!(line("sesame metrics=yes").unwrap().sees_only(), None);
        for wrong in ["sesame metrics=no", "sesame metrics=yes metrics=yes"] {
            assert!(line(wrong).is_err(), "{wrong}");
        }
        assert!(line("sesame name=a,b").unwrap_err().contains("a name has"));
    }

    #[test]
    fn who_asks_is_known_by_name_and_a_name_is_one_keys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        fs::write(&path, "first name=one\nsecond\n").unwrap();
        let keys = Keys::new(&["third"]).unwrap().and(Keys::read(&path).unwrap()).unwrap();
        let name = |key: &str| {
            let headers = [(AUTHORIZATION, format!("Bearer {key}").parse().unwrap())];
            let client = keys.admit(&headers.into_iter().collect());
            client.and_then(|client| client.name().map(str::to_owned))
        };
        assert_eq!(
            ["first", "second", "third"].map(name).map(Option::unwrap),
            ["one", "key-2", "given-1"]
        );
        fs::write(&path, "first name=one\nsecond name=one\n").unwrap();
        assert!(matches!(Keys::read(&path), Err(KeysError::Twice(_))));
        assert_eq!(Keys::default().admit(&HeaderMap::new()).unwrap().name(), None);
    }

    #[test]
    fn what_a_key_without_a_name_has_is_its_own_wherever_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys");
        let client = |text: &str, key: &str| {
            fs::write(&path, text).unwrap();
            let headers = [(AUTHORIZATION, format!("Bearer {key}").parse().unwrap())];
            Keys::read(&path).unwrap().admit(&headers.into_iter().collect()).unwrap()
        };
        let owns = |client: &Client| {
            let reuse = client.reuse(None, false).unwrap();
            (client.identity().map(str::to_owned), reuse, client.of_service(None).id)
        };
        let before = client("first\n", "first");
        let (after, new) = (client("new\nfirst\n", "first"), client("new\nfirst\n", "new"));
        assert_eq!((after.name(), new.name()), (Some("key-2"), before.name()));
        assert_eq!(owns(&after), owns(&before));
        let (new, before) = (owns(&new), owns(&before));
        assert!(new.0 != before.0 && new.1 != before.1 && new.2 != before.2);
        // Who has a name keeps what it has with another key.
        let [old, changed] =
            ["old", "changed"].map(|key| client(&format!("{key} name=kitchen"), key));
        assert_eq!(owns(&old), owns(&changed));
    }

    #[test]
    fn other_headers_hold_keys_too() {
        let keys = Keys::new(&["first"]).unwrap();
        for name in KEY_HEADERS {
            let of =
                |key: &str| [(name.parse().unwrap(), key.parse().unwrap())].into_iter().collect();
            assert!(keys.admit(&of("first")).is_some());
            assert!(keys.admit(&of("Bearer first")).is_none());
        }
    }
}
