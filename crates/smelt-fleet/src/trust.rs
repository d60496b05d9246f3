//! Says whose word counts here: the keys that a person has trusted, and for what.
//!
//! The trust file is TOML, one `[[key]]` for each key:
//!
//! ```text
//! [[key]]
//! name = "bench"
//! key = "ed25519:…"
//! for = ["portable", "device", "delivery"]    # "portable" and "device" if it is left out; "heartbeat" alone vouches for nothing, "work" is asked of workers
//! facts = { sm = "87" }                       # of devices: only results of such a one
//! until = "2027-06-01"                        # from that moment on it counts no more
//! revoked = "2026-11-28"                      # and nothing it ever vouched for
//!
//! [deliveries]
//! least = 2                                   # so many keys must vouch for what is delivered
//! ```
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use smelt_store::Digest;
use toml::Value;

use crate::keys::{KeyError, PublicKey};
use crate::statement::{from_rfc3339, to_rfc3339};

/// A key takes 200 bytes, so 256 take 50 KiB; the rest is for comments.
pub const TRUST_BYTES_MAX: usize = 1 << 20;
/// A fleet has a few builders, and people who sign.
pub const KEYS_MAX: usize = 256;
/// Names are words of commands and of lines on a terminal.
const NAME_BYTES_MAX: usize = 64;

/// What a key may vouch for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// Results that are the same on every device.
    Portable,
    /// Results that depend on facts of a device.
    Device,
    /// What is handed over to be run.
    Delivery,
    /// That its board is here, and nothing else: every key that is believed says that.
    Heartbeat,
    /// What workers are to build: that is any program, so a key that vouches for results has it only where that is said.
    Work,
}

impl Purpose {
    /// Its word in trust files.
    pub fn word(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Device => "device",
            Self::Delivery => "delivery",
            Self::Heartbeat => "heartbeat",
            Self::Work => "work",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A key whose word counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedKey {
    /// What people call it: at most 64 letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// The key.
    pub key: PublicKey,
    /// What it may vouch for, at least one.
    pub purposes: BTreeSet<Purpose>,
    /// What the facts of a device must be for it to vouch for results of that device.
    pub facts: BTreeMap<String, String>,
    /// The first second of the Unix era in which it counts no more.
    pub until: Option<u64>,
    /// When it was revoked, in seconds of the Unix era.  Nothing that it vouched for counts, before or after.
    pub revoked: Option<u64>,
}

/// The keys whose word counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// No two have one name or are one key, if they came by [`Trust::add`].
    pub keys: Vec<TrustedKey>,
    /// How many must vouch for a delivery; none is the same as one.
    pub deliveries_least: usize,
}

/// A trust file that cannot be read, or a change that it does not take.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// See [`TRUST_BYTES_MAX`].
    #[error("a trust file of {bytes} bytes, at most {TRUST_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// See [`KEYS_MAX`].
    #[error("more than {KEYS_MAX} keys are trusted: remove those that are not needed")]
    TooMany,
    /// No TOML of this form.
    #[error("line {line}: {problem}")]
    NotTrust {
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        problem: String,
    },
    /// A name that is no word.
    #[error(
        "{name:?} is no name of a key: take at most {NAME_BYTES_MAX} letters, digits, -, _ and ."
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// What should be a public key is none.
    #[error("key \"{name}\": {problem}")]
    BadKey {
        /// The key's name.
        name: String,
        /// What is wrong.
        problem: KeyError,
    },
    /// What should be a date is none.
    #[error(
        "key \"{name}\": {text:?} is no date as 2027-06-01, and no time as 2027-06-01T12:00:00Z"
    )]
    BadDate {
        /// The key's name.
        name: String,
        /// What stands there.
        text: String,
    },
    /// A key that vouches for nothing.
    #[error(
        "key \"{name}\" is for nothing: name \"portable\", \"device\", \"delivery\", \"heartbeat\" or \"work\", or remove it"
    )]
    NoPurpose {
        /// The key's name.
        name: String,
    },
    /// Two keys of one name.
    #[error(
        "another key is called \"{name}\" already: take another name, or remove that key first"
    )]
    NameTwice {
        /// The name.
        name: String,
    },
    /// One key with two names.
    #[error("the key of \"{name}\" is trusted already, as \"{before}\": change that entry instead")]
    KeyTwice {
        /// The new name.
        name: String,
        /// The name that it has.
        before: String,
    },
    /// Nothing of that name.
    #[error("no trusted key is called {name:?}; there are: {}", names.join(", "))]
    NoSuchKey {
        /// The name.
        name: String,
        /// All there are.
        names: Vec<String>,
    },
}

/// A trust file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Row>,
    #[serde(default)]
    deliveries: DeliveriesRow,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DeliveriesRow {
    #[serde(default)]
    least: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    key: String,
    #[serde(rename = "for", default = "usual_purposes")]
    purposes: BTreeSet<Purpose>,
    #[serde(default)]
    facts: BTreeMap<String, String>,
    until: Option<String>,
    revoked: Option<String>,
}

/// What a key is for whose owner was not asked.
pub fn usual_purposes() -> BTreeSet<Purpose> {
    BTreeSet::from([Purpose::Portable, Purpose::Device])
}

impl Trust {
    /// Reads a trust file.
    ///
    /// # Errors
    /// If it is no such file, is too long, or has an entry that [`Self::add`] refuses.
    pub fn parse(text: &str) -> Result<Self, TrustError> {
        if text.len() > TRUST_BYTES_MAX {
            return Err(TrustError::TooLong { bytes: text.len() });
        }
        let file: File = toml::from_str(text).map_err(|error| not_trust(text, &error))?;
        let mut trust = Self { deliveries_least: file.deliveries.least, ..Self::default() };
        for row in file.key {
            trust.add(row.trusted()?)?;
        }
        Ok(trust)
    }

    /// Writes a trust file.  One that people wrote comments in is better changed in place: see [`TrustedKey::to_toml`].
    pub fn to_toml(&self) -> String {
        let keys = self.keys.iter().map(TrustedKey::to_toml);
        let least = self.deliveries_least;
        let deliveries = (least > 0).then(|| format!("[deliveries]\nleast = {least}\n"));
        keys.chain(deliveries).collect::<Vec<_>>().join("\n")
    }

    /// Trusts one more key.
    ///
    /// # Errors
    /// If its name or the key itself is there already, it has no proper name or no purpose, or there are too many.
    pub fn add(&mut self, new: TrustedKey) -> Result<(), TrustError> {
        check_name(&new.name)?;
        let name = new.name.clone();
        if self.keys.len() >= KEYS_MAX {
            return Err(TrustError::TooMany);
        }
        if new.purposes.is_empty() {
            return Err(TrustError::NoPurpose { name });
        }
        if self.keys.iter().any(|key| key.name == name) {
            return Err(TrustError::NameTwice { name });
        }
        if let Some(same) = self.keys.iter().find(|key| key.key == new.key) {
            return Err(TrustError::KeyTwice { name, before: same.name.clone() });
        }
        self.keys.push(new);
        Ok(())
    }

    /// Lets nothing count that a key vouched for; `date` is in seconds of the Unix era.  A key that was revoked before
    /// keeps its date.
    ///
    /// # Errors
    /// If no key has that name.
    pub fn revoke(&mut self, name: &str, date: u64) -> Result<(), TrustError> {
        let names = || self.keys.iter().map(|key| key.name.clone()).collect();
        let Some(at) = self.keys.iter().position(|key| key.name == name) else {
            return Err(TrustError::NoSuchKey { name: name.to_owned(), names: names() });
        };
        self.keys[at].revoked.get_or_insert(date);
        Ok(())
    }

    /// The key of that name in envelopes, revoked or not.
    pub fn by_id(&self, id: Digest) -> Option<&TrustedKey> {
        self.keys.iter().find(|key| key.key.id() == id)
    }
}

impl TrustedKey {
    /// Its `[[key]]`, to be put at the end of any trust file.
    pub fn to_toml(&self) -> String {
        let text = |text: &str| Value::String(text.to_owned());
        let purposes = self.purposes.iter().map(|purpose| text(purpose.word())).collect();
        let facts = self.facts.iter().map(|(fact, value)| (fact.clone(), text(value))).collect();
        let date = |date: Option<u64>| date.map(|date| text(&date_text(date)));
        let rows = [
            ("name", Some(text(&self.name))),
            ("key", Some(text(&self.key.to_text()))),
            ("for", Some(Value::Array(purposes))),
            ("facts", (!self.facts.is_empty()).then_some(Value::Table(facts))),
            ("until", date(self.until)),
            ("revoked", date(self.revoked)),
        ];
        let rows = rows.into_iter().filter_map(|(field, value)| Some((field, value?)));
        rows.fold("[[key]]\n".to_owned(), |all, (field, value)| {
            all + &format!("{field} = {value}\n")
        })
    }
}

impl Row {
    fn trusted(self) -> Result<TrustedKey, TrustError> {
        let Self { name, key, purposes, facts, until, revoked } = self;
        let bad = |problem| TrustError::BadKey { name: name.clone(), problem };
        let key = key.parse().map_err(bad)?;
        let date = |text: Option<String>| text.map(|text| date(&name, &text)).transpose();
        let (until, revoked) = (date(until)?, date(revoked)?);
        Ok(TrustedKey { name, key, purposes, facts, until, revoked })
    }
}

fn not_trust(text: &str, error: &toml::de::Error) -> TrustError {
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
    let line = 1 + before.matches('\n').count();
    let words = error.message().lines().map(str::trim).collect::<Vec<_>>();
    TrustError::NotTrust { line, problem: words.join(", ") }
}

fn check_name(name: &str) -> Result<(), TrustError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins_plain = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if !begins_plain || name.len() > NAME_BYTES_MAX || !name.chars().all(is_plain) {
        return Err(TrustError::BadName { name: name.chars().take(NAME_BYTES_MAX).collect() });
    }
    Ok(())
}

/// The moment that a trust file means, in seconds of the Unix era; a day begins at midnight in UTC.
///
/// # Errors
/// If it is neither a date nor a time.
pub fn date(name: &str, text: &str) -> Result<u64, TrustError> {
    let day = || from_rfc3339(&format!("{text}{MIDNIGHT}"));
    let bad = || TrustError::BadDate { name: name.to_owned(), text: text.to_owned() };
    from_rfc3339(text).or_else(day).ok_or_else(bad)
}

const MIDNIGHT: &str = "T00:00:00Z";

/// As a trust file writes a moment, in seconds of the Unix era: `2027-06-01`, or with the time where that is not midnight.
pub fn date_text(seconds: u64) -> String {
    let text = to_rfc3339(seconds);
    text.strip_suffix(MIDNIGHT).map(str::to_owned).unwrap_or(text)
}

#[cfg(test)]
pub(crate) mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::keys::SigningKey;

    pub(crate) fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    pub(crate) fn trusted(name: &str, seed: u8) -> TrustedKey {
        TrustedKey {
            name: name.to_owned(),
            key: key(seed).public(),
            purposes: usual_purposes(),
            facts: BTreeMap::new(),
            until: None,
            revoked: None,
        }
    }

    pub(crate) fn facts(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|&(fact, value)| (fact.to_owned(), value.to_owned())).collect()
    }

    fn full() -> String {
        format!(
            "[[key]]\nname = \"bench\"\nkey = \"{}\"\nfor = [\"portable\", \"device\", \"delivery\"]\n\
             facts = {{ sm = \"87\" }}\nuntil = \"2027-06-01\"\nrevoked = \"2026-11-28T13:25:00Z\"\n",
            key(1).public()
        )
    }

    #[test]
    fn a_trust_file_is_read_as_it_was_written() {
        let text = full();
        let trust = Trust::parse(&text).unwrap();
        let expect = TrustedKey {
            purposes: BTreeSet::from([Purpose::Portable, Purpose::Device, Purpose::Delivery]),
            facts: facts(&[("sm", "87")]),
            until: Some(1_811_808_000),
            revoked: Some(1_795_872_300),
            ..trusted("bench", 1)
        };
        assert_eq!(trust.keys, [expect]);
        assert_eq!(trust.to_toml(), text);
        assert_eq!(Trust::parse("").unwrap(), Trust::default());
        let two = format!("{text}\n[deliveries]\nleast = 2\n");
        let counted = Trust::parse(&two).unwrap();
        assert_eq!((counted.deliveries_least, counted.to_toml()), (2, two));
        assert!(Trust::parse("[deliveries]\nmost = 2\n").is_err());
        let short = format!("[[key]]\nname = \"desk\"\nkey = \"{}\"\n", key(2).public());
        let both = Trust::parse(&format!("# mine\n{text}\n{short}")).unwrap();
        assert_eq!(both.keys[1], trusted("desk", 2));
        assert_eq!(Trust::parse(&both.to_toml()).unwrap(), both);
        let mut odd = trusted("odd", 3);
        odd.facts = facts(&[("a \"b\"\n", "é\\\0"), ("", "")]);
        let odd = Trust { keys: vec![odd], ..Trust::default() };
        assert_eq!(Trust::parse(&odd.to_toml()).unwrap(), odd);
    }

    #[track_caller]
    fn refused(from: &str, to: &str, words: &str) {
        Trust::parse(&full()).unwrap();
        let text = full().replacen(from, to, 1);
        assert_ne!(text, full());
        let error = Trust::parse(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }

    #[test]
    fn other_trust_files_are_refused() {
        refused("[[key]]", "[[keys]]", "line 1: unknown field `keys`");
        refused("facts", "fact", "line 5: unknown field `fact`");
        refused("\"device\"", "\"devices\"", "line 4: unknown variant `devices`");
        refused("name = \"bench\"\n", "", "missing field `name`");
        refused("[\"portable\", \"device\", \"delivery\"]", "[]", "\"bench\" is for nothing");
        refused("\"bench\"", "\"-bench\"", "\"-bench\" is no name of a key");
        refused("\"bench\"", "\"a b\"", "\"a b\" is no name of a key");
        refused("\"bench\"", "\"\"", "\"\" is no name of a key");
        refused("ed25519:", "rsa:", "key \"bench\": this is no public key");
        refused("2027-06-01", "2027-06-31", "key \"bench\": \"2027-06-31\" is no date");
        refused("28T13:25:00Z", "28 13:25", "\"2026-11-28 13:25\" is no date");
        refused("\"2027-06-01\"", "2027-06-01", "line 6: invalid type");
    }

    #[test]
    fn a_name_and_a_key_are_there_once() {
        let mut trust = Trust::default();
        trust.add(trusted("bench", 1)).unwrap();
        let words = trust.add(trusted("bench", 2)).unwrap_err().to_string();
        assert!(words.starts_with("another key is called \"bench\" already: "), "{words}");
        let words = trust.add(trusted("desk", 1)).unwrap_err().to_string();
        assert!(words.starts_with("the key of \"desk\" is trusted already, as \"bench\": "));
        trust.add(trusted("desk", 2)).unwrap();
        assert_eq!(trust.keys.len(), 2);
        let twice = format!("{0}{0}", full());
        assert!(matches!(Trust::parse(&twice), Err(TrustError::NameTwice { .. })));
    }

    #[test]
    fn what_is_revoked_must_be_there_and_stays_revoked() {
        let mut trust =
            Trust { keys: vec![trusted("bench", 1), trusted("desk", 2)], ..Trust::default() };
        let words = trust.revoke("bank", 1).unwrap_err().to_string();
        assert_eq!(words, "no trusted key is called \"bank\"; there are: bench, desk");
        trust.revoke("bench", 1).unwrap();
        trust.revoke("bench", 2).unwrap();
        assert_eq!((trust.keys[0].revoked, trust.keys[1].revoked), (Some(1), None));
    }

    #[test]
    fn trust_files_are_limited() {
        let many = |count: usize| {
            let row = |at: usize| {
                let mut seed = [0; 32];
                seed[..8].copy_from_slice(&at.to_le_bytes());
                let key = SigningKey::from_seed(&seed).public();
                TrustedKey { key, ..trusted(&format!("key-{at}"), 0) }.to_toml()
            };
            Trust::parse(&(0..count).map(row).collect::<String>())
        };
        assert_eq!(many(KEYS_MAX).unwrap().keys.len(), KEYS_MAX);
        assert!(matches!(many(KEYS_MAX + 1), Err(TrustError::TooMany)));
        let filled = |bytes: usize| full() + &"#".repeat(bytes - full().len());
        Trust::parse(&filled(TRUST_BYTES_MAX)).unwrap();
        let long = Trust::parse(&filled(TRUST_BYTES_MAX + 1));
        assert!(matches!(long, Err(TrustError::TooLong { .. })));
        let name = "x".repeat(NAME_BYTES_MAX);
        Trust::default().add(trusted(&name, 1)).unwrap();
        assert!(Trust::default().add(trusted(&format!("{name}x"), 1)).is_err());
    }

    #[test]
    fn no_damage_makes_it_panic() {
        let mut random = Random::new(1);
        for _ in 0..3000 {
            let mut text = full().into_bytes();
            let at = random.below(text.len());
            text[at] = random.next_u64() as u8 & 0x7f;
            let Ok(trust) = Trust::parse(&String::from_utf8(text).unwrap()) else { continue };
            assert_eq!(Trust::parse(&trust.to_toml()).unwrap(), trust);
        }
    }
}
