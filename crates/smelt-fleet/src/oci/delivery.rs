//! Says what is delivered under which name and as which version, as a statement of in-toto, and judges whether it is to be taken.
//!
//! The subject is the manifest of the artifact.  The outputs are named as well, so that one that was taken can be judged again
//! without the manifest.  Pure: it reads no clock, no file and no network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smelt_store::Digest;

use super::artifact::OUTPUTS_MAX;
use super::reference::{is_name, is_tag};
use crate::dsse::{Envelope, PAYLOAD_TYPE};
use crate::judge::{Claim, Refusal, farthest, vouching};
use crate::statement::{Named, TYPE, from_rfc3339, named, to_rfc3339};
use crate::trust::{Purpose, Trust};

const PREDICATE_TYPE: &str = "urn:smelt:delivery:1";
/// Digests of all outputs, a name and a few numbers.
const DELIVERY_BYTES_MAX: usize = 64 << 10;
/// A version that no counter reaches would be the last one.
const VERSION_MAX: u64 = 1 << 53;
/// Versions of one name that are remembered: the one that answers, one to go back to, and some that were refused.
const TAKEN_MAX: usize = 8;

/// What is vouched for by whoever signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// What it is called: `NAME:TAG`.
    pub name: String,
    /// Which of that name, from 1: a later one has a higher number.
    pub version: u64,
    /// The manifest of the artifact.
    pub manifest: Digest,
    /// The outputs in it, each behind those that it refers to.
    pub outputs: Vec<Digest>,
    /// When it was signed first, in seconds of the Unix era.
    pub signed: u64,
    /// What made it, as `smelt 0.1.0`.
    pub builder: String,
}

/// The JSON of one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire {
    #[serde(rename = "_type")]
    form: String,
    subject: Vec<Named>,
    predicate_type: String,
    predicate: Predicate,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Predicate {
    version: u64,
    outputs: Vec<Digest>,
    signed_on: String,
    builder: String,
}

/// Whether a text may be the name of a delivery.
pub fn is_called(name: &str) -> bool {
    name.rsplit_once(':').is_some_and(|(name, tag)| is_name(name) && is_tag(tag))
}

impl Delivery {
    /// Writes it, in one line.
    ///
    /// # Errors
    /// If [`Self::from_json`] would refuse what was written: so nobody signs what no one reads.
    pub fn to_json(&self) -> Result<Vec<u8>, String> {
        let wire = Wire {
            form: TYPE.to_owned(),
            subject: vec![named(&self.name, self.manifest)],
            predicate_type: PREDICATE_TYPE.to_owned(),
            predicate: Predicate {
                version: self.version,
                outputs: self.outputs.clone(),
                signed_on: to_rfc3339(self.signed),
                builder: self.builder.clone(),
            },
        };
        let json = serde_json::to_vec(&wire).expect("digests, texts and numbers are JSON");
        Self::from_json(&json)?;
        Ok(json)
    }

    /// Reads one.
    ///
    /// # Errors
    /// What is wrong, as the end of a sentence.
    pub fn from_json(json: &[u8]) -> Result<Self, String> {
        if json.len() > DELIVERY_BYTES_MAX {
            return Err(format!(
                "a statement of {} bytes, at most {DELIVERY_BYTES_MAX} are read",
                json.len()
            ));
        }
        let wire: Wire = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        for (field, found, expected) in
            [("_type", &wire.form, TYPE), ("predicateType", &wire.predicate_type, PREDICATE_TYPE)]
        {
            if found != expected {
                let found: String = found.chars().take(80).collect();
                return Err(format!("its {field} is {found:?}, and this smelt reads {expected:?}"));
            }
        }
        let Ok([Named { name, digest }]) = <[Named; 1]>::try_from(wire.subject) else {
            return Err("it is not of one manifest".to_owned());
        };
        let Predicate { version, outputs, signed_on, builder } = wire.predicate;
        if !is_called(&name) {
            return Err(format!("{:?} is no NAME:TAG", name.chars().take(80).collect::<String>()));
        }
        if !(1..=VERSION_MAX).contains(&version) {
            return Err(format!("its version {version} is none from 1 to {VERSION_MAX}"));
        }
        if outputs.is_empty() || outputs.len() > OUTPUTS_MAX {
            return Err(format!("it is of {} outputs, not of 1 to {OUTPUTS_MAX}", outputs.len()));
        }
        let signed = from_rfc3339(&signed_on).ok_or("its time is none as 2026-11-28T13:25:00Z")?;
        Ok(Self { name, version, manifest: digest.sha256, outputs, signed, builder })
    }
}

/// A delivery that counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Vouched {
    /// What is vouched for.
    pub delivery: Delivery,
    /// What was signed, with all signatures of it.
    pub envelope: Envelope,
    /// The names of the trusted keys that vouch for it.
    pub by: Vec<String>,
}

/// Judges what was signed of a delivery; `now` is in seconds of the Unix era, and `least` says how many trusted keys must vouch.
///
/// Nothing of it is read before a trusted signature holds.
///
/// # Errors
/// Why it does not count.
pub fn judge(
    trust: &Trust,
    envelope: &Envelope,
    least: usize,
    now: u64,
) -> Result<Vouched, Refusal> {
    let facts = BTreeMap::new();
    let claim = Claim { purpose: Purpose::Delivery, facts: &facts };
    let by = vouching(trust, envelope, &claim, least, now)?;
    if envelope.payload_type != PAYLOAD_TYPE {
        let problem = format!("its type is {:?}, not {PAYLOAD_TYPE:?}", envelope.payload_type);
        return Err(Refusal::BadStatement(problem));
    }
    let delivery = Delivery::from_json(&envelope.payload).map_err(Refusal::BadStatement)?;
    Ok(Vouched { delivery, envelope: envelope.clone(), by })
}

/// What was signed once, by all who did: each may have put it beside the others in an envelope of his own.
pub fn merged(envelopes: Vec<Envelope>) -> Vec<Envelope> {
    let mut all: Vec<Envelope> = Vec::new();
    for envelope in envelopes {
        let same = |other: &&mut Envelope| {
            (&other.payload_type, &other.payload) == (&envelope.payload_type, &envelope.payload)
        };
        match all.iter_mut().find(same) {
            None => all.push(envelope),
            Some(known) => {
                for signature in envelope.signatures {
                    if !known.signatures.contains(&signature) {
                        known.signatures.push(signature);
                    }
                }
                for stranger in envelope.strangers {
                    if !known.strangers.contains(&stranger) {
                        known.strangers.push(stranger);
                    }
                }
            }
        }
    }
    all
}

/// What is said of a manifest by whoever counts: of several versions the newest.  Whoever copies a manifest to another tag
/// does not make it that tag's: `called` is the name that it must have, where one is known.
///
/// # Errors
/// Why nothing counts; of several reasons that of the statement that came farthest.
pub fn newest(
    trust: &Trust,
    envelopes: Vec<Envelope>,
    (manifest, called): (Digest, Option<&str>),
    least: usize,
    now: u64,
) -> Result<Vouched, Refusal> {
    let judged = merged(envelopes).into_iter().map(|envelope| {
        let vouched = judge(trust, &envelope, least, now)?;
        let Delivery { manifest: of, name, .. } = &vouched.delivery;
        if *of != manifest {
            let why = format!("it is of the manifest {}, not of this one", of.short());
            return Err(Refusal::BadStatement(why));
        }
        match called.filter(|called| called != name) {
            None => Ok(vouched),
            Some(called) => Err(Refusal::BadStatement(format!(
                "it is of {name:?} and not of {called:?}: --name {name} takes it all the same"
            ))),
        }
    });
    let (good, bad): (Vec<_>, Vec<_>) = judged.partition(Result::is_ok);
    let good = good.into_iter().flatten().max_by_key(|vouched| vouched.delivery.version);
    good.ok_or_else(|| farthest(bad.into_iter().filter_map(Result::err)))
}

/// A version that was taken before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    /// What it is called.
    pub name: String,
    /// Which of that name.
    pub version: u64,
    /// Its manifest.
    pub manifest: Digest,
    /// The output that is asked: the last of it.
    pub tree: Digest,
    /// A server has answered with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ran: bool,
    /// Why a server went back from it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// A delivery that is older than one that was taken, or is another one of the same version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotNewer {
    /// Somebody brings back what was replaced.
    #[error(
        "it is version {version} of {name}, and version {newest} was taken before: who wants the older one says --allow-older"
    )]
    Older {
        /// What it is called.
        name: String,
        /// Its version.
        version: u64,
        /// The highest that was taken.
        newest: u64,
    },
    /// Two were signed as the same version.
    #[error(
        "it is version {version} of {name}, and another delivery was taken as that version: push it again, or say --allow-older"
    )]
    Other {
        /// What it is called.
        name: String,
        /// Its version.
        version: u64,
    },
}

/// Whether a delivery may follow what was taken before: none of its name is newer, and none of its version is another one.
///
/// # Errors
/// Why not.
pub fn may_follow(taken: &[Taken], delivery: &Delivery) -> Result<(), NotNewer> {
    let Delivery { name, version, manifest, .. } = delivery;
    let newest = taken.iter().filter(|it| it.name == *name).max_by_key(|it| it.version);
    match newest {
        Some(newest) if newest.version > *version => {
            let (name, version, newest) = (name.clone(), *version, newest.version);
            Err(NotNewer::Older { name, version, newest })
        }
        Some(newest) if newest.version == *version && newest.manifest != *manifest => {
            Err(NotNewer::Other { name: name.clone(), version: *version })
        }
        _ => Ok(()),
    }
}

/// The version that a new delivery of a name gets: the next after the newest that is known, here or where it goes.
pub fn next_version(taken: &[Taken], name: &str, there: Option<u64>) -> u64 {
    let here = taken.iter().filter(|it| it.name == name).map(|it| it.version);
    here.chain(there).max().unwrap_or(0).saturating_add(1)
}

/// Remembers that a delivery was taken.  The newest of a name is never forgotten, the oldest are, so that files stay short.
pub fn remember(taken: &mut Vec<Taken>, new: Taken) {
    let name = new.name.clone();
    taken
        .retain(|it| (&it.name, it.version, it.manifest) != (&new.name, new.version, new.manifest));
    taken.push(new);
    let mut versions: Vec<u64> =
        taken.iter().filter(|it| it.name == name).map(|it| it.version).collect();
    versions.sort_unstable();
    if versions.len() > TAKEN_MAX {
        let least = versions[versions.len() - TAKEN_MAX];
        let last = taken.len() - 1;
        let mut at = 0;
        taken.retain(|it| {
            at += 1;
            it.name != name || it.version >= least || at - 1 == last
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::TrustedKey;
    use crate::trust::tests::{key, trusted};

    fn delivery(version: u64) -> Delivery {
        Delivery {
            name: "fleet/demo:prod".to_owned(),
            version,
            manifest: Digest::of(b"manifest"),
            outputs: vec![Digest::of(b"engine"), Digest::of(b"deployment")],
            signed: 1_795_872_300,
            builder: "smelt 0.1.0".to_owned(),
        }
    }

    fn deliverer(name: &str, seed: u8) -> TrustedKey {
        TrustedKey { purposes: [Purpose::Delivery].into(), ..trusted(name, seed) }
    }

    fn trust(keys: Vec<TrustedKey>) -> Trust {
        Trust { keys, ..Trust::default() }
    }

    fn signed(delivery: &Delivery, seeds: &[u8]) -> Envelope {
        let keys: Vec<_> = seeds.iter().map(|&seed| key(seed)).collect();
        Envelope::sign(delivery.to_json().unwrap(), &keys.iter().collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_statement_is_read_as_it_was_written() {
        let json = delivery(7).to_json().unwrap();
        assert_eq!(Delivery::from_json(&json).unwrap(), delivery(7));
        let text = String::from_utf8(json).unwrap();
        for (from, to) in [
            ("delivery:1", "delivery:2"),
            ("Statement/v1", "Statement/v2"),
            ("fleet/demo:prod", "fleet/demo"),
            ("fleet/demo:prod", "../demo:prod"),
            ("\"version\":7", "\"version\":0"),
            ("\"version\":7", "\"version\":9007199254740993"),
            ("\"version\":7", "\"version\":7,\"more\":1"),
            ("2026-", "26-"),
        ] {
            assert!(text.contains(from), "{from}");
            assert!(Delivery::from_json(text.replace(from, to).as_bytes()).is_err(), "{to}");
        }
        let none = Delivery { outputs: Vec::new(), ..delivery(1) };
        let most = Delivery { outputs: vec![Digest::of(b"x"); OUTPUTS_MAX], ..delivery(1) };
        let more = Delivery { outputs: vec![Digest::of(b"x"); OUTPUTS_MAX + 1], ..delivery(1) };
        assert!(none.to_json().is_err() && most.to_json().is_ok() && more.to_json().is_err());
    }

    /// Each refusal, and what lets it through.
    #[test]
    fn who_may_deliver_is_believed_and_nobody_else() {
        let envelope = signed(&delivery(1), &[1]);
        let good = trust(vec![deliverer("boss", 1)]);
        let vouched = judge(&good, &envelope, 1, 10).unwrap();
        assert_eq!((vouched.delivery, vouched.by), (delivery(1), vec!["boss".to_owned()]));
        // A builder is none who delivers.
        let refusal = judge(&trust(vec![trusted("boss", 1)]), &envelope, 1, 10).unwrap_err();
        assert!(
            matches!(refusal, Refusal::NotForThis { purpose: Purpose::Delivery, .. }),
            "{refusal}"
        );
        let refusal = judge(&trust(vec![deliverer("boss", 2)]), &envelope, 1, 10).unwrap_err();
        assert!(matches!(refusal, Refusal::UnknownKey { .. }), "{refusal}");
        let late = TrustedKey { until: Some(10), ..deliverer("boss", 1) };
        assert!(judge(&trust(vec![late.clone()]), &envelope, 1, 9).is_ok());
        let refusal = judge(&trust(vec![late]), &envelope, 1, 10).unwrap_err();
        assert!(matches!(refusal, Refusal::Expired { .. }), "{refusal}");
        let revoked = TrustedKey { revoked: Some(1), ..deliverer("boss", 1) };
        let refusal = judge(&trust(vec![revoked]), &envelope, 1, 10).unwrap_err();
        assert!(matches!(refusal, Refusal::Revoked { .. }), "{refusal}");
        // A statement of a build is none of a delivery, whoever signed it.
        let other = Envelope::sign(b"{}".to_vec(), &[&key(1)]).unwrap();
        let refusal = judge(&good, &other, 1, 10).unwrap_err();
        assert!(matches!(refusal, Refusal::BadStatement(_)), "{refusal}");
    }

    #[test]
    fn two_who_signed_apart_are_two() {
        let both = trust(vec![deliverer("boss", 1), deliverer("test", 2)]);
        let (one, two) = (signed(&delivery(1), &[1]), signed(&delivery(1), &[2]));
        let of = (delivery(1).manifest, Some("fleet/demo:prod"));
        let judged = |envelopes: &[&Envelope], least| {
            newest(&both, envelopes.iter().map(|&it| it.clone()).collect(), of, least, 10)
        };
        assert_eq!(judged(&[&one, &two], 2).unwrap().by, ["boss", "test"]);
        assert!(matches!(judged(&[&one], 2), Err(Refusal::TooFew { have: 1, need: 2 })));
        assert!(matches!(judged(&[&one, &one], 2), Err(Refusal::TooFew { have: 1, need: 2 })));
        // Of another version each has signed alone.
        let other = signed(&delivery(2), &[2]);
        assert!(matches!(judged(&[&one, &other], 2), Err(Refusal::TooFew { .. })));
        assert_eq!(judged(&[&one, &other], 1).unwrap().delivery.version, 2);
        assert!(matches!(judged(&[], 1), Err(Refusal::Unsigned)));
    }

    #[test]
    fn a_statement_counts_for_its_own_manifest_and_name_alone() {
        let trust = trust(vec![deliverer("boss", 1)]);
        let judged = |manifest: Digest, called| {
            newest(&trust, vec![signed(&delivery(1), &[1])], (manifest, called), 1, 10)
        };
        let own = delivery(1).manifest;
        assert!(judged(own, None).is_ok() && judged(own, Some("fleet/demo:prod")).is_ok());
        let refusal = judged(Digest::of(b"other"), None).unwrap_err().to_string();
        assert!(refusal.contains("not of this one"), "{refusal}");
        let refusal = judged(own, Some("fleet/demo:test")).unwrap_err().to_string();
        assert!(refusal.contains("--name fleet/demo:prod"), "{refusal}");
    }

    #[test]
    fn versions_only_rise() {
        let mut taken = Vec::new();
        let take = |delivery: &Delivery| Taken {
            name: delivery.name.clone(),
            version: delivery.version,
            manifest: delivery.manifest,
            tree: delivery.outputs[1],
            ran: false,
            refused: None,
        };
        assert_eq!(next_version(&taken, "fleet/demo:prod", None), 1);
        assert_eq!(next_version(&taken, "fleet/demo:prod", Some(4)), 5);
        remember(&mut taken, take(&delivery(7)));
        assert_eq!(next_version(&taken, "fleet/demo:prod", Some(4)), 8);
        assert_eq!(next_version(&taken, "other:prod", None), 1);
        for version in [7, 8] {
            assert_eq!(may_follow(&taken, &delivery(version)), Ok(()));
        }
        let older = may_follow(&taken, &delivery(6)).unwrap_err();
        assert!(matches!(older, NotNewer::Older { version: 6, newest: 7, .. }), "{older}");
        let other = Delivery { manifest: Digest::of(b"other"), ..delivery(7) };
        assert!(matches!(may_follow(&taken, &other), Err(NotNewer::Other { version: 7, .. })));
        let elsewhere = Delivery { name: "fleet/demo:test".to_owned(), ..delivery(1) };
        assert_eq!(may_follow(&taken, &elsewhere), Ok(()));
        // Who went back on purpose is not refused the newest again, nor is the newest forgotten.
        for version in (8..=40).chain([2]) {
            remember(&mut taken, take(&delivery(version)));
        }
        assert!(taken.len() <= TAKEN_MAX + 1, "{}", taken.len());
        assert!(
            may_follow(&taken, &delivery(39)).is_err() && may_follow(&taken, &delivery(40)).is_ok()
        );
        assert_eq!(taken.last().map(|it| it.version), Some(2));
    }
}
