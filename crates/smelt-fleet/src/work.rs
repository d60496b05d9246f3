//! Says what a worker is to build, as a small statement of in-toto that whoever wants it has signed, and judges what comes.
//!
//! A pipeline may run any program, so a worker does nothing for a stranger.  What it is asked for twice it has built once:
//! the statement bears no time, and whoever repeats one gets the same result.  Pure: no clock, no file and no network.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use smelt_store::Digest;

use crate::dsse::{Envelope, PAYLOAD_TYPE};
use crate::judge::{Claim, Refusal, entitled, signers};
use crate::keys::{KeyError, SigningKey};
use crate::remote::plain;
use crate::small_statement;
use crate::statement::{Named, named};
use crate::trust::{Purpose, Trust};

/// The form of what is said; another form gets another number.
const PREDICATE_TYPE: &str = "urn:smelt:work:1";
/// An envelope: names, settings and some hundred bytes for each input.
pub const WORK_BYTES_MAX: usize = 256 << 10;
/// A pipeline that a person wrote has some KiB; it travels as one blob of one message.
pub const PIPELINE_BYTES_MAX: usize = 1 << 20;
/// A large stage has a hundred inputs.
const INPUTS_MAX: usize = 1024;
/// A command line has a few.
const SETS_MAX: usize = 256;
/// Twelve are known.
const FACTS_MAX: usize = 16;

/// An output that a stage is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputOutput {
    /// The content key under which it is published.
    pub key: Digest,
    /// The digest of its files.
    pub tree: Digest,
}

/// What a worker is to build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkRequest {
    /// The stage's name.
    pub stage: String,
    /// The digest of the pipeline's text.
    pub pipeline: Digest,
    /// What the pipeline's parameters are set to, as `name=value`.
    pub sets: Vec<String>,
    /// The outputs that the stage is made of, by the names of their stages.
    pub inputs: BTreeMap<String, InputOutput>,
    /// What must be true of the machine that builds it.
    pub machine: BTreeMap<String, String>,
    /// The fleet's name of its instance.
    pub instance: String,
}

/// Why a worker does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotDone {
    /// Nobody who is believed asks for it.
    #[error("nobody asks for it whose work is done here: {0}")]
    Refused(#[from] Refusal),
    /// It is none, or a damaged one.
    #[error("it is no request: {0}")]
    Odd(String),
    /// It is for another fleet.
    #[error("it is for the instance {0:?}")]
    OtherInstance(String),
    /// What came with it is not what was signed.
    #[error("the pipeline that came with it is another one")]
    OtherPipeline,
}

/// What a request says besides its stage and pipeline.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Predicate {
    sets: Vec<String>,
    inputs: BTreeMap<String, InputOutput>,
    machine: BTreeMap<String, String>,
    instance: String,
}

impl WorkRequest {
    /// Signs it.
    ///
    /// # Errors
    /// If the key's program does not.
    pub fn sign(&self, key: &SigningKey) -> Result<Vec<u8>, KeyError> {
        let predicate = Predicate {
            sets: self.sets.clone(),
            inputs: self.inputs.clone(),
            machine: self.machine.clone(),
            instance: self.instance.clone(),
        };
        small_statement::sign(named(&self.stage, self.pipeline), PREDICATE_TYPE, predicate, key)
    }

    /// Reads what was signed.
    fn from_json(json: &[u8]) -> Result<Self, String> {
        let (Named { name, digest }, predicate) = small_statement::read(json, PREDICATE_TYPE)?;
        let Predicate { sets, inputs, machine, instance } = predicate;
        if sets.len() > SETS_MAX || inputs.len() > INPUTS_MAX || machine.len() > FACTS_MAX {
            return Err("it says too much".to_owned());
        }
        Ok(Self { stage: name, pipeline: digest.sha256, sets, inputs, machine, instance })
    }
}

/// Judges a request that came with the text of a pipeline to the fleet of that name; who asks.  `now` is in seconds of the
/// Unix era.
///
/// # Errors
/// Why it is not done.
pub fn accept(
    trust: &Trust,
    (envelope, pipeline): (&[u8], &[u8]),
    instance: &str,
    now: u64,
) -> Result<(WorkRequest, String), NotDone> {
    let odd = |problem: String| NotDone::Odd(plain(&problem));
    if envelope.len() > WORK_BYTES_MAX || pipeline.len() > PIPELINE_BYTES_MAX {
        return Err(odd(format!("it has {} bytes", envelope.len() + pipeline.len())));
    }
    let envelope = Envelope::from_json(envelope).map_err(|error| odd(error.to_string()))?;
    let signers = signers(trust, &envelope, now)?;
    if envelope.payload_type != PAYLOAD_TYPE {
        return Err(odd(format!("its type is {:?}", envelope.payload_type)));
    }
    let request = WorkRequest::from_json(&envelope.payload).map_err(odd)?;
    // Whoever is trusted with devices of some facts alone may ask these alone.
    let by = entitled(&signers, &Claim { purpose: Purpose::Work, facts: &request.machine }, 1)?;
    if request.instance != instance {
        return Err(NotDone::OtherInstance(plain(&request.instance)));
    }
    if Digest::of(pipeline) != request.pipeline {
        return Err(NotDone::OtherPipeline);
    }
    Ok((request, by.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::trust::TrustedKey;
    use crate::trust::tests::{key, trusted};

    const NOW: u64 = 1_800_000_000;
    const TEXT: &[u8] = b"smelt = 1\n";

    fn request() -> WorkRequest {
        let input = InputOutput { key: Digest::of(b"key"), tree: Digest::of(b"tree") };
        WorkRequest {
            stage: "engine".to_owned(),
            pipeline: Digest::of(TEXT),
            sets: vec!["model=hf:a/b".to_owned()],
            inputs: BTreeMap::from([("quant".to_owned(), input)]),
            machine: BTreeMap::from([("sm".to_owned(), "87".to_owned())]),
            instance: "site".to_owned(),
        }
    }

    fn boss(seed: u8) -> TrustedKey {
        TrustedKey { purposes: BTreeSet::from([Purpose::Work]), ..trusted("bench", seed) }
    }

    fn judged(
        keys: Vec<TrustedKey>,
        envelope: &[u8],
        text: &[u8],
        instance: &str,
    ) -> Result<(WorkRequest, String), NotDone> {
        accept(&Trust { keys, ..Trust::default() }, (envelope, text), instance, NOW)
    }

    #[test]
    fn what_somebody_asks_for_whose_work_is_done_comes_back() {
        let signed = request().sign(&key(1)).unwrap();
        let (found, by) = judged(vec![boss(1)], &signed, TEXT, "site").unwrap();
        assert_eq!((found, by.as_str()), (request(), "bench"));
        // The same request is the same bytes, so that a scheduler takes two for one.
        assert_eq!(signed, request().sign(&key(1)).unwrap());
    }

    #[test]
    fn a_stranger_s_work_is_not_done() {
        let signed = request().sign(&key(2)).unwrap();
        let refused = |keys| judged(keys, &signed, TEXT, "site").unwrap_err();
        assert!(matches!(refused(vec![boss(1)]), NotDone::Refused(Refusal::UnknownKey { .. })));
        // Whoever is believed to build need not be believed to give work.
        let builder = trusted("bench", 2);
        assert!(matches!(refused(vec![builder]), NotDone::Refused(Refusal::NotForThis { .. })));
        let facts = BTreeMap::from([("sm".to_owned(), "110".to_owned())]);
        let elsewhere = TrustedKey { facts, ..boss(2) };
        assert!(matches!(refused(vec![elsewhere]), NotDone::Refused(Refusal::OtherFacts { .. })));
        let revoked = TrustedKey { revoked: Some(1), ..boss(2) };
        assert!(matches!(refused(vec![revoked]), NotDone::Refused(Refusal::Revoked { .. })));
    }

    #[test]
    fn nothing_of_it_is_changed_on_the_way() {
        let signed = request().sign(&key(1)).unwrap();
        let judged =
            |envelope: &[u8], text, instance| judged(vec![boss(1)], envelope, text, instance);
        assert_eq!(judged(&signed, b"smelt = 2\n", "site"), Err(NotDone::OtherPipeline));
        let other = judged(&signed, TEXT, "another");
        assert_eq!(other, Err(NotDone::OtherInstance("site".to_owned())));
        for at in 0..signed.len() {
            let mut spoilt = signed.clone();
            spoilt[at] ^= 1;
            assert!(
                judged(&spoilt, TEXT, "site").map_or(true, |(same, _)| same == request()),
                "{at}"
            );
        }
        let long = vec![b' '; PIPELINE_BYTES_MAX + 1];
        assert!(matches!(judged(&signed, &long, "site"), Err(NotDone::Odd(_))));
    }

    #[test]
    fn a_statement_of_another_form_is_no_request() {
        let payload = br#"{"_type":"https://in-toto.io/Statement/v1"}"#.to_vec();
        let envelope = Envelope::sign(payload, &[&key(1)]).unwrap().to_json().unwrap();
        assert!(matches!(judged(vec![boss(1)], &envelope, TEXT, "site"), Err(NotDone::Odd(_))));
    }
}
