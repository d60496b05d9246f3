//! Makes and reads ed25519 keys, signs by them, and checks signatures.
//!
//! A secret key is a file of PKCS#8, as OpenSSL writes and reads it, or lies behind a program that signs.  A public key is one
//! short word for trust files.
//! Knows nothing of what is signed and of whom to trust.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom as _, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use smelt_store::Digest;

use crate::signer::{PUBLIC, Program, SIGN, Unsigned};

/// A secret key of RSA with 16,384 bits has 13 KiB, one of ed25519 has 119 bytes: what is longer is no key.
const KEY_FILE_BYTES_MAX: u64 = 16 << 10;
/// What RFC 7468 allows in a line of PEM.
const PEM_COLUMNS: usize = 64;
/// What stands before the 32 bytes of a secret key in PKCS#8: version 1 of RFC 5208, which every program reads, and the
/// names of RFC 8410.
const SECRET_PREFIX: [u8; 16] = *b"\x30\x2e\x02\x01\0\x30\x05\x06\x03\x2b\x65\x70\x04\x22\x04\x20";
/// What stands before the 32 bytes of a public key in a SubjectPublicKeyInfo of RFC 8410.
const PUBLIC_PREFIX: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\0";
/// Tells texts of this kind from those of kinds to come.
const PUBLIC_WORD: &str = "ed25519:";

/// A key that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The system has no random numbers.
    #[error("the system gives no random numbers to make a key of")]
    Random,
    /// The system refused.
    #[error("cannot read the key {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Others than its owner may read or change it.
    #[error("others than its owner may use the key {} (mode {mode:03o}): chmod 600 {0}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions, the lowest nine bits.
        mode: u32,
    },
    /// A file that holds no secret key.
    #[error("{}: {problem}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: Box<KeyError>,
    },
    /// No PEM of a secret key.
    #[error(
        "this is no PEM of a secret key without a password: openssl genpkey -algorithm ed25519 makes one"
    )]
    NotPem,
    /// A secret key of another kind, or a damaged one.
    #[error("this is no ed25519 key ({reason}): openssl genpkey -algorithm ed25519 makes one")]
    NotEd25519 {
        /// What the library said.
        reason: String,
    },
    /// A program that was asked for a signature or its public key.
    #[error("{} {word}: {problem}", program.display())]
    Program {
        /// The program.
        program: PathBuf,
        /// What it was asked.
        word: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// No text of a public key.  It is not repeated: it might be a secret one.
    #[error("this is no public key: one is \"{PUBLIC_WORD}\" and 44 characters of base64")]
    NotPublic,
}

impl From<Unsigned> for KeyError {
    fn from(Unsigned { program, word, problem }: Unsigned) -> Self {
        Self::Program { program, word, problem }
    }
}

/// A secret key.
pub struct SigningKey(Secret);

/// Where it lies.
enum Secret {
    Here(Ed25519KeyPair),
    /// Behind a program, which said that this is its public half.
    Behind(Program, PublicKey),
}

impl SigningKey {
    /// Makes one, and the PKCS#8 PEM to keep of it, which OpenSSL reads too.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn generate() -> Result<(Self, String), KeyError> {
        let mut seed = [0; 32];
        SystemRandom::new().fill(&mut seed).map_err(|_| KeyError::Random)?;
        let der = [SECRET_PREFIX.as_slice(), &seed].concat();
        Ok((Self::from_seed(&seed), pem("PRIVATE KEY", &der)))
    }

    pub(crate) fn from_seed(seed: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed");
        Self(Secret::Here(pair))
    }

    /// The one behind a program, which prints its public half if it is asked for `public`, and the signature of what it reads
    /// if it is asked to `sign`.
    ///
    /// # Errors
    /// If it does not run, takes longer than a minute, or prints no key.
    pub fn of_program(path: &Path) -> Result<Self, KeyError> {
        Self::behind(Program::new(path))
    }

    pub(crate) fn behind(program: Program) -> Result<Self, KeyError> {
        let said = program.public()?;
        let public = PublicKey::from_pem(&said).or_else(|| said.trim().parse().ok());
        let public = public.ok_or_else(|| program.wrong(PUBLIC, "it printed no ed25519 key"))?;
        Ok(Self(Secret::Behind(program, public)))
    }

    /// Reads PKCS#8 PEM of version 1, as OpenSSL writes it, or 2, which repeats the public key.  What stands around the
    /// key is passed over.
    ///
    /// # Errors
    /// If it is none, has a password, or is of another kind.
    pub fn from_pem(text: &str) -> Result<Self, KeyError> {
        let der = from_pem(text, "PRIVATE KEY").ok_or(KeyError::NotPem)?;
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der);
        pair.map(|pair| Self(Secret::Here(pair)))
            .map_err(|error| KeyError::NotEd25519 { reason: error.to_string() })
    }

    /// Reads a file of PKCS#8 PEM that only its owner may read.
    ///
    /// # Errors
    /// If it cannot be read, others may use it, or it is none.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let failed = |source| KeyError::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Open { path: path.to_owned(), mode });
        }
        let mut text = String::new();
        file.take(KEY_FILE_BYTES_MAX).read_to_string(&mut text).map_err(failed)?;
        let wrong = |problem| KeyError::File { path: path.to_owned(), problem: Box::new(problem) };
        Self::from_pem(&text).map_err(wrong)
    }

    /// Its public half.
    pub fn public(&self) -> PublicKey {
        match &self.0 {
            Secret::Here(pair) => {
                let bytes = pair.public_key().as_ref().try_into();
                PublicKey(bytes.expect("ed25519 has public keys of 32 bytes"))
            }
            Secret::Behind(_, public) => *public,
        }
    }

    /// Signs by RFC 8032: the same key and message make the same signature.
    ///
    /// # Errors
    /// If the program does not, behind which the key lies, or its signature does not hold.
    pub fn sign(&self, message: &[u8]) -> Result<[u8; 64], KeyError> {
        match &self.0 {
            Secret::Here(pair) => {
                let signature = pair.sign(message);
                Ok(signature.as_ref().try_into().expect("ed25519 has signatures of 64 bytes"))
            }
            Secret::Behind(program, public) => {
                let signature = program.sign(message)?;
                let wrong = || program.wrong(SIGN, "its signature is not by its public key");
                let holds = public.verify(message, &signature);
                Ok(holds.then_some(signature).ok_or_else(wrong)?)
            }
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey(of {})", self.public())
    }
}

/// A public key, written as `ed25519:` and its 32 bytes in base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey([u8; 32]);

impl PublicKey {
    /// Whether its secret half made that signature of that message.
    pub fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }

    /// Its name in envelopes: SHA-256 of its DER, so `openssl pkey -pubin -outform DER | sha256sum` says it too.
    pub fn id(&self) -> Digest {
        Digest::of(&self.to_der())
    }

    /// The word for trust files.
    pub fn to_text(&self) -> String {
        self.to_string()
    }

    /// A SubjectPublicKeyInfo in PEM, which OpenSSL reads.
    pub fn to_pem(&self) -> String {
        pem("PUBLIC KEY", &self.to_der())
    }

    /// Reads what [`Self::to_pem`] writes, whatever stands around it.
    pub(crate) fn from_pem(text: &str) -> Option<Self> {
        let der = from_pem(text, "PUBLIC KEY")?;
        Some(Self(der.strip_prefix(&PUBLIC_PREFIX)?.try_into().ok()?))
    }

    fn to_der(self) -> Vec<u8> {
        [PUBLIC_PREFIX.as_slice(), &self.0].concat()
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PUBLIC_WORD}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    /// Reads what [`PublicKey::to_text`] writes; no other text is the same key.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = text.strip_prefix(PUBLIC_WORD).and_then(|text| STANDARD.decode(text).ok());
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or(KeyError::NotPublic)
    }
}

/// Writes bytes as RFC 7468 has them.
fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----");
    for (at, digit) in STANDARD.encode(der).chars().enumerate() {
        if at % PEM_COLUMNS == 0 {
            text.push('\n');
        }
        text.push(digit);
    }
    text + &format!("\n-----END {label}-----\n")
}

/// The bytes of the first piece of PEM with that label.
fn from_pem(text: &str, label: &str) -> Option<Vec<u8>> {
    let (_, rest) = text.split_once(&format!("-----BEGIN {label}-----"))?;
    let (digits, _) = rest.split_once(&format!("-----END {label}-----"))?;
    STANDARD.decode(digits.split_ascii_whitespace().collect::<String>()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};

    use super::*;

    /// By OpenSSL and by Python's cryptography, as `tests/data/dsse/make.py` says.
    const OPENSSL_SECRET: &str = include_str!("../tests/data/dsse/openssl.pem");
    const OPENSSL_PUBLIC: &str = include_str!("../tests/data/dsse/openssl.pub.pem");
    const PYTHON_SECRET: &str = include_str!("../tests/data/dsse/python.pem");
    const PYTHON_PUBLIC: &str = include_str!("../tests/data/dsse/python.pub.pem");

    fn hex<const N: usize>(text: &str) -> [u8; N] {
        let digits: String = text.split_whitespace().collect();
        std::array::from_fn(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap())
    }

    /// The third test of RFC 8032, 7.1.
    #[test]
    fn signatures_are_those_of_the_rfc() {
        let seed = "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7";
        let public = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025";
        let signature = "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac
            18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a";
        let key = SigningKey::from_seed(&hex(seed));
        assert_eq!(key.public(), PublicKey(hex(public)));
        assert_eq!(key.sign(&[0xaf, 0x82]).unwrap(), hex(signature));
    }

    #[test]
    fn a_signature_holds_for_its_message_and_key() {
        let [key, other] = [1, 2].map(|seed| SigningKey::from_seed(&[seed; 32]));
        let signature = key.sign(b"message").unwrap();
        assert!(key.public().verify(b"message", &signature));
        assert!(!key.public().verify(b"massage", &signature));
        assert!(!other.public().verify(b"message", &signature));
        assert!(!key.public().verify(b"message", &signature[1..]));
        for bit in 0..512 {
            let mut flipped = signature;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!key.public().verify(b"message", &flipped), "bit {bit}");
        }
    }

    #[test]
    fn a_new_key_is_read_again_and_is_another_each_time() {
        let (key, pem) = SigningKey::generate().unwrap();
        assert_eq!(SigningKey::from_pem(&pem).unwrap().public(), key.public());
        assert!(pem.lines().all(|line| line.len() <= PEM_COLUMNS));
        assert_ne!(SigningKey::generate().unwrap().0.public(), key.public());
    }

    #[test]
    fn keys_of_others_are_read() {
        for (secret, public) in [(OPENSSL_SECRET, OPENSSL_PUBLIC), (PYTHON_SECRET, PYTHON_PUBLIC)] {
            let key = SigningKey::from_pem(secret).unwrap();
            assert_eq!(key.public().to_pem(), public);
            let chatty = format!("Key of a test\r\n{}", secret.replace('\n', "\r\n"));
            assert_eq!(SigningKey::from_pem(&chatty).unwrap().public(), key.public());
        }
    }

    #[test]
    fn keys_of_version_2_are_read() {
        let document = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(document.as_ref()).unwrap();
        let key = SigningKey::from_pem(&pem("PRIVATE KEY", document.as_ref())).unwrap();
        assert_eq!(key.public().0, pair.public_key().as_ref());
    }

    #[test]
    fn what_is_no_secret_key_is_refused() {
        let (_, good) = SigningKey::generate().unwrap();
        assert!(SigningKey::from_pem(&good).is_ok());
        let locked = good.replace("PRIVATE", "ENCRYPTED PRIVATE");
        for text in ["", OPENSSL_PUBLIC, &locked, &good[..80], &good.replace('M', "*")] {
            assert!(matches!(SigningKey::from_pem(text), Err(KeyError::NotPem)), "{text}");
        }
        let der = [SECRET_PREFIX.as_slice(), &[7; 32]].concat();
        for (at, _) in der[..SECRET_PREFIX.len()].iter().enumerate() {
            let mut other = der.clone();
            other[at] ^= 0x40;
            let read = SigningKey::from_pem(&pem("PRIVATE KEY", &other));
            assert!(matches!(read, Err(KeyError::NotEd25519 { .. })), "byte {at}");
        }
        for length in 0..der.len() {
            assert!(SigningKey::from_pem(&pem("PRIVATE KEY", &der[..length])).is_err());
        }
    }

    #[test]
    fn a_file_must_be_its_owners_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key.pem");
        fs::write(&path, PYTHON_SECRET).unwrap();
        let with = |mode| {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            SigningKey::read(&path)
        };
        for mode in [0o600, 0o400, 0o700] {
            assert!(with(mode).is_ok());
        }
        for mode in [0o640, 0o620, 0o610, 0o604, 0o602, 0o601, 0o644] {
            let words = with(mode).unwrap_err().to_string();
            assert!(words.ends_with(&format!("chmod 600 {}", path.display())), "{words}");
            assert!(words.contains(&format!("(mode {mode:o})")), "{words}");
        }
        let behind = |bytes: usize| fs::write(&path, "#".repeat(bytes) + PYTHON_SECRET).unwrap();
        behind(KEY_FILE_BYTES_MAX as usize - PYTHON_SECRET.len());
        assert!(with(0o600).is_ok());
        behind(KEY_FILE_BYTES_MAX as usize);
        assert!(matches!(with(0o600), Err(KeyError::File { .. })));
        fs::write(&path, "no key").unwrap();
        let words = with(0o600).unwrap_err().to_string();
        assert!(words.starts_with(&format!("{}: this is no", path.display())), "{words}");
        fs::set_permissions(folder.path(), Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(SigningKey::read(folder.path()), Err(KeyError::Io { .. })));
        let none = SigningKey::read(&folder.path().join("none")).unwrap_err().to_string();
        assert!(none.starts_with("cannot read the key "), "{none}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let key = SigningKey::from_seed(&[7; 32]);
        assert_eq!(format!("{key:?}"), format!("SigningKey(of {})", key.public()));
        let words = PYTHON_SECRET.parse::<PublicKey>().unwrap_err().to_string();
        assert_eq!(words, "this is no public key: one is \"ed25519:\" and 44 characters of base64");
    }

    #[test]
    fn a_public_key_has_one_text() {
        let key = SigningKey::from_seed(&[7; 32]).public();
        let text = key.to_text();
        assert_eq!((text.parse::<PublicKey>().unwrap(), text.len()), (key, 8 + 44));
        let unpadded = text.trim_end_matches('=');
        // The last digit before the padding has two bits that no byte uses.
        let other = format!("{}B=", &text[..50]);
        for bad in ["", "ed25519:", unpadded, &other, &text[8..], &format!("{text} ")] {
            assert!(bad.parse::<PublicKey>().is_err(), "{bad}");
        }
    }

    /// `openssl pkey -pubin -in openssl.pub.pem -outform DER | sha256sum`
    #[test]
    fn the_name_is_what_openssl_says() {
        let expect = include_str!("../tests/data/dsse/openssl.id").trim();
        let key = SigningKey::from_pem(OPENSSL_SECRET).unwrap().public();
        assert_eq!(key.id().to_string(), expect);
    }
}
