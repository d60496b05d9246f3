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
use subtle::{Choice, ConstantTimeEq as _};

/// Most keys: each is compared for every request.
const KEYS_MAX: usize = 1024;

/// The longest file of keys that is read.
const FILE_BYTES_MAX: u64 = 1 << 20;

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
    /// There are too many.
    #[error("{0} keys are more than {KEYS_MAX}")]
    TooMany(usize),
}

/// The keys that open the server; none leave it open.
#[derive(Clone, Default)]
pub struct Keys {
    digests: Vec<[u8; 32]>,
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} keys", self.digests.len())
    }
}

impl Keys {
    /// Takes keys as they are given.
    ///
    /// # Errors
    /// [`KeysError`] if one cannot be sent in a header, or they are too many.
    pub fn new<S: AsRef<str>>(keys: &[S]) -> Result<Self, KeysError> {
        if keys.len() > KEYS_MAX {
            return Err(KeysError::TooMany(keys.len()));
        }
        if !keys.iter().all(|key| is_sendable(key.as_ref())) {
            return Err(KeysError::Unsendable("--api-key or SMELT_API_KEY".to_owned()));
        }
        Ok(Self { digests: keys.iter().map(|key| digest(key.as_ref().as_bytes())).collect() })
    }

    /// Reads a file of one key a line; empty lines and those that begin with `#` are passed over.
    ///
    /// # Errors
    /// [`KeysError`], also if there is no key.
    pub fn read(path: &Path) -> Result<Self, KeysError> {
        let failed = |source| KeysError::Read { path: path.into(), source };
        let mut text = String::new();
        let file = fs::File::open(path).map_err(failed)?;
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let lines = (1..).zip(text.lines().map(str::trim));
        let keys: Vec<(u32, &str)> =
            lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')).collect();
        if keys.is_empty() {
            return Err(KeysError::Empty(path.into()));
        }
        if let Some((line, _)) = keys.iter().find(|(_, key)| !is_sendable(key)) {
            return Err(KeysError::Unsendable(format!("{}:{line}", path.display())));
        }
        Self::new(&keys.into_iter().map(|(_, key)| key).collect::<Vec<_>>())
    }

    /// These keys and those.
    ///
    /// # Errors
    /// If they are too many together.
    pub fn and(mut self, others: Self) -> Result<Self, KeysError> {
        self.digests.extend(others.digests);
        match self.digests.len() {
            keys if keys > KEYS_MAX => Err(KeysError::TooMany(keys)),
            _ => Ok(self),
        }
    }

    /// Whether anybody may ask.
    pub fn is_open(&self) -> bool {
        self.digests.is_empty()
    }

    /// Whether `headers` hold a key: as `Bearer KEY`, or as the password of `Basic`, which browsers ask
    /// for.
    pub(crate) fn admit(&self, headers: &HeaderMap) -> bool {
        self.is_open() || given(headers).is_some_and(|key| self.holds(&key))
    }

    fn holds(&self, key: &[u8]) -> bool {
        let digest = digest(key);
        let equal = self.digests.iter().map(|known| known.ct_eq(&digest));
        equal.fold(Choice::from(0), |any, equal| any | equal).into()
    }
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
        assert_eq!(keys.admit(&headers), expect, "{header:?}");
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
        fs::write(&path, "# who\nfirst\ntwo words\n").unwrap();
        let error = Keys::read(&path).unwrap_err().to_string();
        assert!(error.contains("keys:3: a key must be visible"), "{error}");
        assert!(matches!(Keys::read(dir.path()), Err(KeysError::Read { .. })));
        assert!(matches!(Keys::new(&["é"]), Err(KeysError::Unsendable(_))));
    }
}
