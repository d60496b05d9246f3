//! Judges whether an output is vouched for by somebody whose word counts.
//!
//! Pure: it reads no clock, no file and no network, so it comes before anything is fetched.

use std::collections::BTreeMap;

use smelt_store::Digest;

use crate::dsse::{Envelope, PAYLOAD_TYPE};
use crate::remote::Key;
use crate::statement::Statement;
use crate::trust::{Purpose, Trust, TrustedKey, date_text};

/// What a statement must be of, to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked<'a> {
    /// The key that was looked up.
    pub key: Key,
    /// The fleet's name of this instance.
    pub instance: &'a str,
    /// How many trusted keys must vouch; none is the same as one.
    pub least: usize,
}

/// What a key is needed for.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// What is vouched for.
    pub purpose: Purpose,
    /// The facts of the device that it depends on.
    pub facts: &'a BTreeMap<String, String>,
}

impl<'a> Claim<'a> {
    /// What it takes to vouch for the output of a statement.
    pub fn of(statement: &'a Statement) -> Self {
        let facts = &statement.provenance.device;
        let purpose = if facts.is_empty() { Purpose::Portable } else { Purpose::Device };
        Self { purpose, facts }
    }
}

/// A statement that counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Vouched {
    /// What is vouched for.
    pub statement: Statement,
    /// The names of the trusted keys whose signatures hold and that may vouch for it, in the order of the signatures.
    pub by: Vec<String>,
}

/// Why a statement does not count.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Nobody vouches.
    #[error("nobody signed it")]
    Unsigned,
    /// Somebody unknown vouches.
    #[error(
        "it is signed by the key {id}, which is not trusted here: ask its owner for its public key, then: smelt fleet trust KEY --name NAME"
    )]
    UnknownKey {
        /// The name in the envelope: 64 hex digits for keys that smelt can use.
        id: String,
    },
    /// It was changed behind its signature, or somebody else signed in that name.
    #[error(
        "the signature of \"{name}\" does not hold: it was changed, or \"{name}\" did not sign it"
    )]
    BadSignature {
        /// The trusted key's name.
        name: String,
    },
    /// The key counts no more, nor did it ever.
    #[error(
        "it is signed by \"{name}\", revoked on {date}: build it again, or let another key sign it"
    )]
    Revoked {
        /// The trusted key's name.
        name: String,
        /// When.
        date: String,
    },
    /// The key's time is over.
    #[error(
        "it is signed by \"{name}\", trusted until {until}: change that, or let another key sign it"
    )]
    Expired {
        /// The trusted key's name.
        name: String,
        /// When.
        until: String,
    },
    /// The key may vouch for other things.
    #[error(
        "\"{name}\" signed it, but is not trusted for \"{purpose}\": add that to its \"for\", if it should be"
    )]
    NotForThis {
        /// The trusted key's name.
        name: String,
        /// What it may not vouch for.
        purpose: Purpose,
    },
    /// The key may vouch for results of other devices.
    #[error("\"{name}\" signed it and is trusted only where {fact} is {wants:?}: here it is {}", quoted(has.as_ref()))]
    OtherFacts {
        /// The trusted key's name.
        name: String,
        /// The fact.
        fact: String,
        /// What the trust file wants of it.
        wants: String,
        /// What the statement says of it, if anything.
        has: Option<String>,
    },
    /// The server gave a statement of something else.
    #[error("it is the statement of another output, {}: the server's entry is wrong, so push again", key.short())]
    OtherKey {
        /// The content key that the statement is of.
        key: Digest,
    },
    /// It is of another instance.
    #[error("it is for the instance {instance:?} and not for this one: push it to this one")]
    OtherInstance {
        /// The instance that the statement is for.
        instance: String,
    },
    /// What was signed cannot be read.
    #[error("what was signed is no use: {0}")]
    BadStatement(String),
    /// Too few vouch.
    #[error("{have} of {need} trusted keys vouch for it: have it signed by {} more", need - have)]
    TooFew {
        /// How many do.
        have: usize,
        /// How many must.
        need: usize,
    },
}

impl Refusal {
    /// How far the signature came on its way to be accepted.
    fn reach(&self) -> usize {
        match self {
            Self::Unsigned => 0,
            Self::UnknownKey { .. } => 1,
            Self::BadSignature { .. } => 2,
            Self::Revoked { .. } => 3,
            Self::Expired { .. } => 4,
            Self::NotForThis { .. } => 5,
            Self::OtherFacts { .. } => 6,
            Self::TooFew { .. } => 7,
            Self::BadStatement(_) | Self::OtherKey { .. } | Self::OtherInstance { .. } => 8,
        }
    }
}

fn quoted(has: Option<&String>) -> String {
    has.map_or("not said".to_owned(), |has| format!("{has:?}"))
}

/// Judges a statement that was found for what is asked; `now` is in seconds of the Unix era.
///
/// Nothing of the statement is read before a trusted signature of it holds.
///
/// # Errors
/// Why it does not count.  Of several signatures that do not count, the one that came farthest says why.
pub fn judge(
    trust: &Trust,
    envelope: &Envelope,
    asked: &Asked<'_>,
    now: u64,
) -> Result<Vouched, Refusal> {
    let signers = signers(trust, envelope, now)?;
    if envelope.payload_type != PAYLOAD_TYPE {
        let problem = format!("its type is {:?}, not {PAYLOAD_TYPE:?}", envelope.payload_type);
        return Err(Refusal::BadStatement(problem));
    }
    let statement = Statement::from_json(&envelope.payload)
        .map_err(|error| Refusal::BadStatement(error.to_string()))?;
    let by = entitled(&signers, &Claim::of(&statement), asked.least)?;
    check_asked(&statement, asked)?;
    Ok(Vouched { statement, by })
}

/// The names of the trusted keys that signed an envelope and may vouch for something, whatever its payload is: so
/// deliveries are judged too.
///
/// # Errors
/// If fewer than `least` may, or none; why as in [`judge`].
pub fn vouching(
    trust: &Trust,
    envelope: &Envelope,
    claim: &Claim<'_>,
    least: usize,
    now: u64,
) -> Result<Vec<String>, Refusal> {
    entitled(&signers(trust, envelope, now)?, claim, least)
}

/// By which time a board judges: one without a clock takes the latest that it has seen signed.  Both are in seconds of
/// the Unix era.
pub fn newest_seen(now: u64, seen: Option<u64>) -> u64 {
    seen.map_or(now, |seen| seen.max(now))
}

/// The trusted keys whose signatures hold and count now.
pub(crate) fn signers<'a>(
    trust: &'a Trust,
    envelope: &Envelope,
    now: u64,
) -> Result<Vec<&'a TrustedKey>, Refusal> {
    let signed = envelope.pae();
    let ours = envelope.signatures.iter().map(|signature| {
        let unknown = || Refusal::UnknownKey { id: signature.key.to_string() };
        let key = trust.by_id(signature.key).ok_or_else(unknown)?;
        if !key.key.verify(&signed, &signature.signature) {
            return Err(Refusal::BadSignature { name: key.name.clone() });
        }
        check_alive(key, now).map(|()| key)
    });
    let strangers = envelope.strangers.iter().map(|stranger| {
        let id = stranger.id.chars().take(80).flat_map(char::escape_debug).collect();
        Err(Refusal::UnknownKey { id })
    });
    passing(ours.chain(strangers))
}

/// The names of the signers that may vouch for this, each once.
pub(crate) fn entitled(
    signers: &[&TrustedKey],
    claim: &Claim<'_>,
    least: usize,
) -> Result<Vec<String>, Refusal> {
    let may = passing(signers.iter().map(|key| check_claim(key, claim).map(|()| *key)))?;
    let mut by: Vec<String> = Vec::new();
    for key in may {
        if !by.contains(&key.name) {
            by.push(key.name.clone());
        }
    }
    let (have, need) = (by.len(), least);
    if have < need { Err(Refusal::TooFew { have, need }) } else { Ok(by) }
}

/// Those that pass; where none does, why the one that came farthest does not.
fn passing<T>(all: impl Iterator<Item = Result<T, Refusal>>) -> Result<Vec<T>, Refusal> {
    let (passed, failed): (Vec<_>, Vec<_>) = all.partition(Result::is_ok);
    match passed.is_empty() {
        true => Err(farthest(failed.into_iter().filter_map(Result::err))),
        false => Ok(passed.into_iter().flatten().collect()),
    }
}

/// Of several refusals the first that came farthest.
pub(crate) fn farthest(all: impl Iterator<Item = Refusal>) -> Refusal {
    all.fold(Refusal::Unsigned, |before, it| if it.reach() > before.reach() { it } else { before })
}

/// A server may give an old or foreign entry for any key, so what it gives must say itself what it is of.
fn check_asked(statement: &Statement, asked: &Asked<'_>) -> Result<(), Refusal> {
    let is_asked = match asked.key {
        Key::Content(key) => statement.key == key,
        Key::Recipe(recipe) => statement.recipes.contains(&recipe),
        Key::Tree(tree) => statement.tree == tree,
        Key::Anywhere(key) => statement.anywhere == Some(key),
    };
    if !is_asked {
        return Err(Refusal::OtherKey { key: statement.key });
    }
    if statement.instance != asked.instance {
        return Err(Refusal::OtherInstance { instance: statement.instance.clone() });
    }
    Ok(())
}

/// Why nothing it signed counts now, if so.
fn check_alive(key: &TrustedKey, now: u64) -> Result<(), Refusal> {
    let name = key.name.clone();
    match (key.revoked, key.until) {
        (Some(date), _) => Err(Refusal::Revoked { name, date: date_text(date) }),
        (_, Some(until)) if until <= now => Err(Refusal::Expired { name, until: date_text(until) }),
        _ => Ok(()),
    }
}

/// Why it may not vouch for this, if so.
fn check_claim(key: &TrustedKey, claim: &Claim<'_>) -> Result<(), Refusal> {
    let (name, purpose) = (key.name.clone(), claim.purpose);
    if !key.purposes.contains(&purpose) {
        return Err(Refusal::NotForThis { name, purpose });
    }
    if purpose == Purpose::Portable {
        return Ok(());
    }
    match key.facts.iter().find(|(fact, wants)| claim.facts.get(*fact) != Some(wants)) {
        None => Ok(()),
        Some((fact, wants)) => {
            let has = claim.facts.get(fact).cloned();
            Err(Refusal::OtherFacts { name, fact: fact.clone(), wants: wants.clone(), has })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use smelt_random::Random;

    use super::*;
    use crate::dsse::Stranger;
    use crate::keys::SigningKey;
    use crate::statement::tests::any;
    use crate::statement::to_rfc3339;
    use crate::trust::tests::{facts, key, trusted};

    const NOW: u64 = 1_780_000_000;

    /// A statement with an envelope of it and one who trusts its signer, to be spoilt in one way each.
    struct Case {
        trust: Trust,
        statement: Statement,
        signers: Vec<SigningKey>,
        asking: Key,
        instance: String,
        least: usize,
        /// Happens to the envelope on its way.
        spoil: fn(&mut Envelope),
    }

    /// One that is accepted.
    fn case() -> Case {
        let mut statement = any(&mut Random::new(5));
        statement.provenance.device = facts(&[("sm", "87"), ("trt", "10.3")]);
        statement.recipes = vec![Digest::of(b"recipe")];
        Case {
            trust: Trust {
                keys: vec![trusted("bench", 1), trusted("desk", 2)],
                ..Trust::default()
            },
            asking: Key::Content(statement.key),
            instance: statement.instance.clone(),
            statement,
            signers: vec![key(1)],
            least: 1,
            spoil: |_| {},
        }
    }

    impl Case {
        fn judged(&self) -> Result<Vouched, Refusal> {
            let json = self.statement.to_json().unwrap();
            let mut envelope =
                Envelope::sign(json, &self.signers.iter().collect::<Vec<_>>()).unwrap();
            (self.spoil)(&mut envelope);
            let asked = Asked { key: self.asking, instance: &self.instance, least: self.least };
            judge(&self.trust, &envelope, &asked, NOW)
        }
    }

    /// A change leads to a refusal; without it the same is accepted.
    #[track_caller]
    fn check(spoil: impl FnOnce(&mut Case), expect: Refusal) {
        check_twin(|_| {}, spoil, expect);
    }

    /// As [`check`], for a case that is another one to begin with.
    #[track_caller]
    fn check_twin(set: impl FnOnce(&mut Case), spoil: impl FnOnce(&mut Case), expect: Refusal) {
        let mut case = case();
        set(&mut case);
        let vouched = case.judged().unwrap();
        assert_eq!(vouched.statement, case.statement);
        spoil(&mut case);
        assert_eq!(case.judged(), Err(expect));
    }

    fn text(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn nobody_signed() {
        check(|case| case.signers.clear(), Refusal::Unsigned);
    }

    #[test]
    fn somebody_unknown_signed() {
        let refusal = Refusal::UnknownKey { id: key(3).public().id().to_string() };
        check(|case| case.signers = vec![key(3)], refusal.clone());
        check(
            |case| drop(case.trust.keys.remove(0)),
            Refusal::UnknownKey { id: key(1).public().id().to_string() },
        );
        let words = refusal.to_string();
        assert!(words.ends_with("then: smelt fleet trust KEY --name NAME"), "{words}");
    }

    #[test]
    fn another_kind_of_key_signed() {
        let spoil = |envelope: &mut Envelope| {
            let signature = envelope.signatures.remove(0).signature.to_vec();
            envelope.strangers.push(Stranger { id: "a\x1b[2J".to_owned(), signature });
        };
        let id = text("a\\u{1b}[2J");
        check(|case| case.spoil = spoil, Refusal::UnknownKey { id });
    }

    #[test]
    fn the_signature_is_of_something_else() {
        let bad = || Refusal::BadSignature { name: text("bench") };
        check(|case| case.spoil = |envelope| envelope.payload[10] ^= 1, bad());
        check(|case| case.spoil = |envelope| envelope.payload.push(b' '), bad());
        check(|case| case.spoil = |envelope| envelope.payload_type.push('x'), bad());
        check(|case| case.spoil = |envelope| envelope.signatures[0].signature[9] ^= 1, bad());
        // Another's signature in its name.
        let claim: fn(&mut Envelope) = |envelope| envelope.signatures[0].key = key(1).public().id();
        check(|case| (case.signers, case.spoil) = (vec![key(3)], claim), bad());
    }

    #[test]
    fn the_key_was_revoked() {
        let date = 1_700_000_000;
        let refusal = Refusal::Revoked { name: text("bench"), date: text("2023-11-14T22:13:20Z") };
        check(|case| case.trust.revoke("bench", date).unwrap(), refusal);
        // A date to come makes no difference.
        let refusal = Refusal::Revoked { name: text("bench"), date: text("2100-03-01") };
        check(|case| case.trust.revoke("bench", 4_107_542_400).unwrap(), refusal);
        let mut other = case();
        other.trust.revoke("desk", date).unwrap();
        other.judged().unwrap();
    }

    #[test]
    fn the_keys_time_is_over() {
        let until = |until| move |case: &mut Case| case.trust.keys[0].until = Some(until);
        let refusal = Refusal::Expired { name: text("bench"), until: to_rfc3339(NOW) };
        check_twin(until(NOW + 1), until(NOW), refusal.clone());
        check_twin(until(u64::MAX), until(NOW), refusal);
    }

    #[test]
    fn the_key_is_for_other_things() {
        let only = |purpose| {
            move |case: &mut Case| {
                case.trust.keys[0].purposes = BTreeSet::from([purpose]);
            }
        };
        let not = |purpose| Refusal::NotForThis { name: text("bench"), purpose };
        check_twin(only(Purpose::Device), only(Purpose::Portable), not(Purpose::Device));
        check_twin(only(Purpose::Device), only(Purpose::Delivery), not(Purpose::Device));
        let portable = |case: &mut Case| case.statement.provenance.device.clear();
        check_twin(portable, only(Purpose::Device), not(Purpose::Portable));
    }

    #[test]
    fn the_key_is_for_other_devices() {
        let only = |pairs: &[(&str, &str)]| {
            let facts = facts(pairs);
            move |case: &mut Case| case.trust.keys[0].facts = facts
        };
        let other = |fact: &str, wants: &str, has: Option<&str>| Refusal::OtherFacts {
            name: text("bench"),
            fact: text(fact),
            wants: text(wants),
            has: has.map(text),
        };
        let sm = other("sm", "72", Some("87"));
        check_twin(only(&[("sm", "87")]), only(&[("sm", "72")]), sm.clone());
        check_twin(
            only(&[("sm", "87"), ("trt", "10.3")]),
            only(&[("sm", "72"), ("trt", "10.3")]),
            sm,
        );
        let board = other("board", "orin", None);
        assert!(board.to_string().ends_with("is \"orin\": here it is not said"), "{board}");
        check_twin(only(&[("sm", "87")]), only(&[("sm", "87"), ("board", "orin")]), board);
        // What is the same everywhere needs no facts.
        let mut portable = case();
        only(&[("sm", "72")])(&mut portable);
        portable.statement.provenance.device.clear();
        portable.judged().unwrap();
    }

    #[test]
    fn the_statement_is_of_something_else() {
        let refusal = || Refusal::OtherKey { key: case().statement.key };
        let recipe = |text: &'static str| {
            move |case: &mut Case| case.asking = Key::Recipe(Digest::of(text.as_bytes()))
        };
        check(|case| case.asking = Key::Content(Digest::of(b"other")), refusal());
        check_twin(recipe("recipe"), recipe("other"), refusal());
        let tree = |case: &mut Case| case.asking = Key::Tree(case.statement.tree);
        check_twin(tree, |case| case.asking = Key::Tree(case.statement.key), refusal());
        // A recipe key is no content key, nor the other way round.
        check(|case| case.asking = Key::Content(case.statement.recipes[0]), refusal());
        check(|case| case.asking = Key::Recipe(case.statement.key), refusal());
    }

    #[test]
    fn the_statement_is_for_another_instance() {
        let instance = case().instance;
        check(|case| case.instance.push('x'), Refusal::OtherInstance { instance });
    }

    #[test]
    fn what_was_signed_is_no_statement() {
        let resigned = |payload: &[u8], payload_type: &str| {
            let mut envelope = Envelope::sign(payload.to_vec(), &[]).unwrap();
            envelope.payload_type = text(payload_type);
            envelope.countersign(&[&key(1)]).unwrap();
            let case = case();
            let asked = Asked { key: case.asking, instance: &case.instance, least: 1 };
            judge(&case.trust, &envelope, &asked, NOW).map(|vouched| vouched.by)
        };
        let json = case().statement.to_json().unwrap();
        assert_eq!(resigned(&json, PAYLOAD_TYPE), Ok(vec![text("bench")]));
        for (payload, payload_type) in [(b"{}".as_slice(), PAYLOAD_TYPE), (&json, "text/plain")] {
            let judged = resigned(payload, payload_type);
            assert!(matches!(judged, Err(Refusal::BadStatement(_))), "{judged:?}");
        }
    }

    #[test]
    fn two_must_vouch() {
        let both = |case: &mut Case| {
            (case.signers, case.least) = (vec![key(2), key(1)], 2);
            assert_eq!(case.judged().unwrap().by, ["desk", "bench"]);
        };
        let few = Refusal::TooFew { have: 1, need: 2 };
        check_twin(both, |case| case.signers.truncate(1), few.clone());
        // The same one twice, one that is unknown, one that may not.
        check_twin(both, |case| case.signers = vec![key(1), key(1)], few.clone());
        check_twin(both, |case| case.signers = vec![key(1), key(3)], few.clone());
        check_twin(both, |case| case.trust.revoke("desk", 0).unwrap(), few.clone());
        let no_device =
            |case: &mut Case| case.trust.keys[1].purposes.retain(|one| *one != Purpose::Device);
        check_twin(both, no_device, few);
        let three = Refusal::TooFew { have: 2, need: 3 };
        check_twin(both, |case| case.least = 3, three);
    }

    #[test]
    fn one_that_counts_is_enough() {
        let mut case = case();
        case.signers = vec![key(3), key(2), key(1)];
        case.trust.revoke("desk", 0).unwrap();
        assert_eq!(case.judged().unwrap().by, ["bench"]);
        case.spoil = |envelope| {
            let mut bad = envelope.signatures[2];
            bad.signature[0] ^= 1;
            envelope.signatures.insert(0, bad);
        };
        assert_eq!(case.judged().unwrap().by, ["bench"]);
        case.least = 0;
        assert_eq!(case.judged().unwrap().by, ["bench"]);
        case.signers.clear();
        case.spoil = |_| {};
        assert_eq!(case.judged(), Err(Refusal::Unsigned));
    }

    #[test]
    fn the_signature_that_came_farthest_says_why() {
        let mut case = case();
        case.signers = vec![key(3), key(1), key(2)];
        case.trust.revoke("bench", 0).unwrap();
        case.trust.keys[1].until = Some(0);
        let expired = Refusal::Expired { name: text("desk"), until: text("1970-01-01") };
        assert_eq!(case.judged(), Err(expired));
        case.spoil = |envelope| envelope.signatures[2].signature[0] ^= 1;
        let revoked = Refusal::Revoked { name: text("bench"), date: text("1970-01-01") };
        assert_eq!(case.judged(), Err(revoked));
        case.spoil = |envelope| envelope.signatures[1].signature[0] ^= 1;
        case.signers.pop();
        assert_eq!(case.judged(), Err(Refusal::BadSignature { name: text("bench") }));
    }

    #[test]
    fn a_delivery_needs_keys_for_deliveries() {
        let mut trust = case().trust;
        let envelope = Envelope::sign(b"any list".to_vec(), &[&key(1), &key(2)]).unwrap();
        let none = BTreeMap::new();
        let claim = Claim { purpose: Purpose::Delivery, facts: &none };
        let not = Refusal::NotForThis { name: text("bench"), purpose: Purpose::Delivery };
        assert_eq!(vouching(&trust, &envelope, &claim, 2, NOW), Err(not));
        trust.keys[1].purposes.insert(Purpose::Delivery);
        assert_eq!(vouching(&trust, &envelope, &claim, 1, NOW), Ok(vec![text("desk")]));
        let few = Refusal::TooFew { have: 1, need: 2 };
        assert_eq!(vouching(&trust, &envelope, &claim, 2, NOW), Err(few));
    }

    #[test]
    fn the_newest_time_counts() {
        assert_eq!(newest_seen(5, None), 5);
        assert_eq!(newest_seen(5, Some(4)), 5);
        assert_eq!(newest_seen(0, Some(4)), 4);
    }

    /// An envelope that securesystemslib made, with a statement that `tests/data/dsse/make.py` wrote without smelt.
    #[test]
    fn an_envelope_of_securesystemslib_is_accepted() {
        let json = include_bytes!("../tests/data/dsse/envelope.json");
        let public = include_str!("../tests/data/dsse/public.txt").trim();
        let envelope = Envelope::from_json(json).unwrap();
        let key = public.parse().unwrap();
        let trust =
            Trust { keys: vec![TrustedKey { key, ..trusted("python", 0) }], ..Trust::default() };
        let key = Key::Content(Digest::of(b"content"));
        let asked = Asked { key, instance: "fleet/one", least: 1 };
        let Vouched { statement, by } = judge(&trust, &envelope, &asked, NOW).unwrap();
        assert_eq!(by, ["python"]);
        assert_eq!(statement.provenance.device, facts(&[("sm", "87")]));
        assert_eq!(to_rfc3339(statement.finished), "2026-11-28T13:25:00Z");
        let key = Key::Recipe(Digest::of(b"other"));
        let other = judge(&trust, &envelope, &Asked { key, ..asked }, NOW);
        assert_eq!(other, Err(Refusal::OtherKey { key: statement.key }));
    }

    /// The other way round: this one is written again byte for byte, and `tests/data/dsse/check.py` verified it once.
    #[test]
    fn an_envelope_that_securesystemslib_accepted_is_what_smelt_writes() {
        let theirs =
            Envelope::from_json(include_bytes!("../tests/data/dsse/envelope.json")).unwrap();
        let statement = Statement::from_json(&theirs.payload).unwrap();
        let ours = Envelope::sign(statement.to_json().unwrap(), &[&key(1), &key(2)]).unwrap();
        let expect = include_bytes!("../tests/data/dsse/ours.json");
        assert_eq!(ours.to_json().unwrap(), expect);
    }
}
