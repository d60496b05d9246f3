//! Says that a board is here and what it runs, as a small statement of in-toto, and judges what others say so.
//!
//! The subject is the board's key, and nobody else signs for it.  Pure: it reads no clock, no file and no network.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use smelt_store::Digest;

use crate::counts::Counts;
use crate::dsse::{Envelope, PAYLOAD_TYPE, Signature};
use crate::judge::{Refusal, signers};
use crate::keys::{KeyError, PublicKey, SigningKey};
use crate::remote::plain;
use crate::small_statement;
use crate::statement::{from_rfc3339, named, to_rfc3339};
use crate::trust::Trust;

/// The form of what is said; another form gets another number.
const PREDICATE_TYPE: &str = "urn:smelt:heartbeat:1";
/// An envelope: usual ones take 2 KiB, and one whose texts and lists are as long as they may be 20.
pub const BEAT_BYTES_MAX: usize = 32 << 10;
/// A board that has not been heard of for a day is off.  What is older is no news, whoever brings it.
pub const BEAT_AGE_MAX_S: u64 = 24 * 3600;
/// Clocks of boards that hear of the time differ by less.
const AHEAD_MAX_S: u64 = 300;
/// A server has one model or a few.
pub const DEPLOYMENTS_MAX: usize = 8;
/// Of a name or a fact: they are words on a terminal.
const TEXT_CHARS_MAX: usize = 80;
/// Twelve are known.
const FACTS_MAX: usize = 16;

/// What a board does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It answers requests.
    Serve,
    /// It serves its neighbours.
    Peer,
    /// It has ended a run.
    Run,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Serve => "serve",
            Self::Peer => "peer",
            Self::Run => "run",
        })
    }
}

/// A deployment that is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Deployed {
    /// What clients call it.
    pub name: String,
    /// The digest of its files.
    pub tree: Digest,
}

/// What a board says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Its name, for a person.
    pub board: String,
    /// The key by which it vouches for that.
    pub key: PublicKey,
    /// What it does.
    pub role: Role,
    /// The fleet's name of its instance.
    pub instance: String,
    /// When it said so, in seconds of the Unix era.
    pub at: u64,
    /// What it runs: a name, a blank and a version.
    pub version: String,
    /// Its facts, by their names.
    pub facts: BTreeMap<String, String>,
    /// What it serves or has built.
    pub deployments: Vec<Deployed>,
    /// What the fleet has given it.
    pub counts: Counts,
}

/// What somebody has put where boards are announced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announced {
    /// Under which name.
    pub name: String,
    /// An envelope, if it is one.
    pub envelope: Vec<u8>,
}

/// A board that was heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What it says.
    pub beat: Beat,
    /// What its key is called here.
    pub by: String,
}

/// Why what was announced does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotHeard {
    /// Its key is nobody's who is known here, and it did sign it.
    #[error("nobody here knows its key: smelt fleet trust {key} --name NAME --for heartbeat")]
    Stranger {
        /// The key.
        key: PublicKey,
    },
    /// Nobody who is believed signed it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It is no heartbeat, or a damaged one.
    #[error("it is no heartbeat: {0}")]
    Odd(String),
    /// One board speaks for another.
    #[error("it speaks for another key than that which signed it")]
    OtherKey,
    /// Somebody has put it where another one belongs, or it is of another fleet.
    #[error("it was put under a name that is not its own")]
    OtherName,
    /// It is of a time that is over.
    #[error("it is {} h old: its board is off, its clock is wrong, or somebody repeats what it said", age_s / 3600)]
    Old {
        /// How old.
        age_s: u64,
    },
    /// It is of a time that is to come.
    #[error(
        "it says that it is of {at}, which is to come: its clock is wrong, or this machine's is"
    )]
    Ahead {
        /// When it says to be of.
        at: String,
    },
    /// This machine has heard of later.
    #[error("somebody repeats what its board said before {seen}")]
    Replayed {
        /// What was seen of it last.
        seen: String,
    },
}

/// Of each name when what was announced there was said last, in seconds of the Unix era, as far as this machine has seen.
pub type Seen = BTreeMap<String, u64>;

/// What a heartbeat says besides its board.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Predicate {
    key: String,
    role: Role,
    instance: String,
    at: String,
    version: String,
    facts: BTreeMap<String, String>,
    deployments: Vec<Deployed>,
    counts: Counts,
}

impl Beat {
    /// Under which name it is announced: that of its fleet, its key and what it does.
    pub fn name(&self) -> String {
        format!("{}.{}.{}", fleet_name(&self.instance), self.key.id(), self.role)
    }

    /// Signs it; texts and lists that are longer than others take are cut.
    ///
    /// # Errors
    /// If the key's program does not.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, KeyError> {
        let short = |text: &str| plain(text).chars().take(TEXT_CHARS_MAX).collect::<String>();
        let facts = self.facts.iter().take(FACTS_MAX);
        let deployments = self.deployments.iter().take(DEPLOYMENTS_MAX);
        let predicate = Predicate {
            key: self.key.to_string(),
            role: self.role,
            instance: self.instance.clone(),
            at: to_rfc3339(self.at),
            version: short(&self.version),
            facts: facts.map(|(fact, value)| (short(fact), short(value))).collect(),
            deployments: deployments
                .map(|it| Deployed { name: short(&it.name), tree: it.tree })
                .collect(),
            counts: self.counts,
        };
        let board = named(&short(&self.board), self.key.id());
        small_statement::sign(board, PREDICATE_TYPE, predicate, key)
    }

    /// Reads what was signed.
    fn from_json(json: &[u8]) -> Result<Self, String> {
        let (subject, predicate) = small_statement::read(json, PREDICATE_TYPE)?;
        let Predicate { key, role, instance, at, version, facts, deployments, counts } = predicate;
        let key: PublicKey = key.parse().map_err(|_| "its key is none".to_owned())?;
        if key.id() != subject.digest.sha256 {
            return Err("it is of another key than it says".to_owned());
        }
        if facts.len() > FACTS_MAX || deployments.len() > DEPLOYMENTS_MAX {
            return Err("it says too much".to_owned());
        }
        let at = from_rfc3339(&at).ok_or("it does not say when it is of")?;
        let (board, version) = (plain(&subject.name), plain(&version));
        let facts = facts.iter().map(|(fact, value)| (plain(fact), plain(value))).collect();
        let clean = |it: Deployed| Deployed { name: plain(&it.name), ..it };
        let deployments = deployments.into_iter().map(clean).collect();
        Ok(Self { board, key, role, instance, at, version, facts, deployments, counts })
    }
}

/// What the names of all boards of a fleet begin with.
pub fn fleet_name(instance: &str) -> String {
    Digest::of(instance.as_bytes()).short()
}

/// Judges what was announced to the fleet of that name; `now` is in seconds of the Unix era.
///
/// # Errors
/// Why it does not count.
pub fn hear(
    trust: &Trust,
    announced: &Announced,
    instance: &str,
    seen: &Seen,
    now: u64,
) -> Result<Heard, NotHeard> {
    let Announced { name, envelope } = announced;
    if envelope.len() > BEAT_BYTES_MAX {
        return Err(NotHeard::Odd(format!("it has {} bytes", envelope.len())));
    }
    let odd = |problem: String| NotHeard::Odd(plain(&problem));
    let envelope = Envelope::from_json(envelope).map_err(|error| odd(error.to_string()))?;
    let by = match signers(trust, &envelope, now) {
        Ok(by) => by,
        Err(unknown @ Refusal::UnknownKey { .. }) => {
            return Err(stranger(&envelope).unwrap_or(unknown.into()));
        }
        Err(refusal) => return Err(refusal.into()),
    };
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(odd(format!("its type is {:?}", envelope.payload_type)));
    }
    let beat = Beat::from_json(&envelope.payload).map_err(odd)?;
    let by = by.iter().find(|by| by.key == beat.key).ok_or(NotHeard::OtherKey)?;
    if beat.instance != instance || beat.name() != *name {
        return Err(NotHeard::OtherName);
    }
    check_time(&beat, seen.get(name).copied(), now)?;
    Ok(Heard { beat, by: by.name.clone() })
}

/// Whose word it is, where that is nobody's who is known here.
fn stranger(envelope: &Envelope) -> Option<NotHeard> {
    let beat = Beat::from_json(&envelope.payload).ok()?;
    let [Signature { key, signature }] = envelope.signatures.as_slice() else { return None };
    let is_own = *key == beat.key.id() && beat.key.verify(&envelope.pae(), signature);
    is_own.then_some(NotHeard::Stranger { key: beat.key })
}

fn check_time(beat: &Beat, seen: Option<u64>, now: u64) -> Result<(), NotHeard> {
    let age_s = now.saturating_sub(beat.at);
    if age_s > BEAT_AGE_MAX_S {
        return Err(NotHeard::Old { age_s });
    }
    if beat.at > now.saturating_add(AHEAD_MAX_S) {
        return Err(NotHeard::Ahead { at: to_rfc3339(beat.at) });
    }
    match seen.filter(|seen| beat.at < *seen) {
        Some(seen) => Err(NotHeard::Replayed { seen: to_rfc3339(seen) }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::tests::{key, trusted};
    use crate::trust::{Purpose, TrustedKey};

    const NOW: u64 = 1_800_000_000;

    fn beat(seed: u8) -> Beat {
        Beat {
            board: "board7".to_owned(),
            key: key(seed).public(),
            role: Role::Serve,
            instance: "site".to_owned(),
            at: NOW - 60,
            version: "smelt 0.1.0".to_owned(),
            facts: BTreeMap::from([("sm".to_owned(), "87".to_owned())]),
            deployments: vec![Deployed { name: "demo".to_owned(), tree: Digest::of(b"demo") }],
            counts: Counts { hits: 3, ..Counts::default() },
        }
    }

    fn announced(beat: &Beat, seed: u8) -> Announced {
        Announced { name: beat.name(), envelope: beat.sign(&key(seed)).unwrap() }
    }

    fn trust(keys: Vec<TrustedKey>) -> Trust {
        Trust { keys, ..Trust::default() }
    }

    fn heard(announced: &Announced) -> Result<Heard, NotHeard> {
        hear(&trust(vec![trusted("seven", 7)]), announced, "site", &Seen::new(), NOW)
    }

    #[test]
    fn a_beat_is_read_as_it_was_signed_and_small() {
        let beat = beat(7);
        let announced = announced(&beat, 7);
        assert_eq!(heard(&announced), Ok(Heard { beat, by: "seven".to_owned() }));
        // The longest that is ever sent.
        let long = "\u{1F980}".repeat(1000);
        let facts = (0..100).map(|n| (format!("{n}{long}"), long.clone())).collect();
        let deployment = Deployed { name: long.clone(), tree: Digest::of(b"") };
        let deployments = vec![deployment; 100];
        let full = Beat { board: long.clone(), version: long, facts, deployments, ..self::beat(7) };
        let full = self::announced(&full, 7);
        let heard = heard(&full).map(|heard| heard.beat.deployments.len());
        assert_eq!(heard, Ok(DEPLOYMENTS_MAX), "{} bytes", full.envelope.len());
    }

    #[test]
    fn whoever_vouches_for_nothing_else_may_beat_and_whoever_is_revoked_may_not() {
        let all = announced(&beat(7), 7);
        let hear = |key: TrustedKey| hear(&trust(vec![key]), &all, "site", &Seen::new(), NOW);
        let alone = TrustedKey { purposes: [Purpose::Heartbeat].into(), ..trusted("seven", 7) };
        assert!(hear(alone).is_ok());
        let revoked = TrustedKey { revoked: Some(1), ..trusted("seven", 7) };
        assert!(matches!(hear(revoked), Err(NotHeard::Refused(Refusal::Revoked { .. }))));
        let late = TrustedKey { until: Some(NOW), ..trusted("seven", 7) };
        assert!(matches!(hear(late), Err(NotHeard::Refused(Refusal::Expired { .. }))));
    }

    #[test]
    fn strangers_are_told_apart_from_forgers() {
        let stranger = heard(&announced(&beat(8), 8));
        assert_eq!(stranger, Err(NotHeard::Stranger { key: key(8).public() }));
        // Another key speaks for the board, whether that is known here or not.
        let forged = heard(&announced(&beat(7), 8));
        assert!(matches!(forged, Err(NotHeard::Refused(Refusal::UnknownKey { .. }))), "{forged:?}");
        let both = trust(vec![trusted("seven", 7), trusted("eight", 8)]);
        let forged = hear(&both, &announced(&beat(7), 8), "site", &Seen::new(), NOW);
        assert_eq!(forged, Err(NotHeard::OtherKey));
        let mut changed = Envelope::from_json(&announced(&beat(7), 7).envelope).unwrap();
        changed.payload[100] ^= 1;
        let changed = Announced { envelope: changed.to_json().unwrap(), ..announced(&beat(7), 7) };
        let forged = heard(&changed);
        assert!(matches!(forged, Err(NotHeard::Refused(Refusal::BadSignature { .. }))));
    }

    #[test]
    fn what_is_repeated_or_old_or_elsewhere_is_refused() {
        let at = |at: u64| announced(&Beat { at, ..beat(7) }, 7);
        assert!(heard(&at(NOW - BEAT_AGE_MAX_S)).is_ok());
        let old = heard(&at(NOW - BEAT_AGE_MAX_S - 1));
        assert_eq!(old, Err(NotHeard::Old { age_s: BEAT_AGE_MAX_S + 1 }));
        assert!(heard(&at(NOW + AHEAD_MAX_S)).is_ok());
        assert!(matches!(heard(&at(NOW + AHEAD_MAX_S + 1)), Err(NotHeard::Ahead { .. })));
        let all = trust(vec![trusted("seven", 7)]);
        let seen = |seen| {
            let seen = Seen::from([(beat(7).name(), seen)]);
            hear(&all, &announced(&beat(7), 7), "site", &seen, NOW)
        };
        assert!(seen(NOW - 60).is_ok());
        assert!(matches!(seen(NOW - 59), Err(NotHeard::Replayed { .. })));
        let other = hear(&all, &announced(&beat(7), 7), "yard", &Seen::new(), NOW);
        assert_eq!(other, Err(NotHeard::OtherName));
        let moved = Announced { name: beat(8).name(), ..announced(&beat(7), 7) };
        assert_eq!(heard(&moved), Err(NotHeard::OtherName));
    }

    #[test]
    fn what_is_no_beat_is_refused_in_a_line() {
        let odd = |envelope: Vec<u8>| heard(&Announced { envelope, ..announced(&beat(7), 7) });
        assert!(matches!(odd(Vec::new()), Err(NotHeard::Odd(_))));
        assert!(matches!(odd(vec![b' '; BEAT_BYTES_MAX + 1]), Err(NotHeard::Odd(_))));
        let payload = String::from_utf8(
            Envelope::from_json(&announced(&beat(7), 7).envelope).unwrap().payload,
        );
        let payload = payload.unwrap();
        let signed = |text: String| {
            let envelope = Envelope::sign(text.into_bytes(), &[&key(7)]).unwrap();
            odd(envelope.to_json().unwrap())
        };
        assert!(signed(payload.clone()).is_ok());
        for (from, to) in [
            ("heartbeat:1", "heartbeat:2"),
            ("\"role\":\"serve\"", "\"role\":\"king\""),
            ("\"at\":\"2", "\"at\":\"x2"),
            ("\"counts\":{", "\"counts\":{\"more\":1,"),
            ("\"predicate\":{", "\"predicate\":{\"more\":1,"),
            (&*key(7).public().to_string(), &*key(8).public().to_string()),
        ] {
            let changed = payload.replace(from, to);
            assert_ne!(changed, payload, "{from}");
            assert!(matches!(signed(changed), Err(NotHeard::Odd(_))), "{from}");
        }
        let line = payload.replace("board7", "board\\u001b7");
        assert_eq!(signed(line).unwrap().beat.board, "board\u{FFFD}7");
    }
}
