//! Wraps a payload and signatures of it as one JSON document, as DSSE has it.
//!
//! DSSE is the Dead Simple Signing Envelope, version 1.0 of <https://github.com/secure-systems-lab/dsse>.  What is
//! signed is the payload's bytes and their type, never a parsed form.  Knows nothing of what the payload says and of whom
//! to trust: a name of a key in an envelope is a hint by which to find that key, and no more.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::{
    STANDARD, STANDARD_PAD_INDIFFERENT, URL_SAFE_PAD_INDIFFERENT,
};
use serde::{Deserialize, Serialize};
use smelt_store::Digest;

use crate::keys::{KeyError, SigningKey};

/// The type of payload that smelt signs: statements of in-toto.
pub const PAYLOAD_TYPE: &str = "application/vnd.in-toto+json";
/// Base64 of a statement of 12 MiB, which lists 32,768 files with names of 130 bytes.
pub const ENVELOPE_BYTES_MAX: usize = 16 << 20;
/// Each costs a check over the whole payload.  A delivery has three.
pub const SIGNATURES_MAX: usize = 16;

/// A payload with signatures of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// How to read the payload: [`PAYLOAD_TYPE`], or it is nothing for smelt.
    pub payload_type: String,
    /// What is signed.
    pub payload: Vec<u8>,
    /// Signatures that ed25519 may have made.
    pub signatures: Vec<Signature>,
    /// All others.
    pub strangers: Vec<Stranger>,
}

/// A signature that holds or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The name of the key that is said to have made it, as [`PublicKey::id`](crate::keys::PublicKey::id) makes names.
    pub key: Digest,
    /// Of [`pae`], by RFC 8032.
    pub signature: [u8; 64],
}

/// A signature by another kind of key, or by a key with another kind of name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stranger {
    /// The name of the key: any text, often none.
    pub id: String,
    /// Any bytes.
    pub signature: Vec<u8>,
}

/// An envelope that cannot be read or written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DsseError {
    /// See [`ENVELOPE_BYTES_MAX`].
    #[error("an envelope of {bytes} bytes, at most {ENVELOPE_BYTES_MAX} are taken")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// See [`SIGNATURES_MAX`].
    #[error("{count} signatures in one envelope, at most {SIGNATURES_MAX} are taken")]
    TooMany {
        /// How many there are.
        count: usize,
    },
    /// No JSON of this form.
    #[error("this is no DSSE envelope: {problem}")]
    NotAnEnvelope {
        /// What is wrong.
        problem: String,
    },
}

/// What is signed: the payload and its type, each behind its length, so that no other pair makes the same bytes.
pub fn pae(payload_type: &str, payload: &[u8]) -> Vec<u8> {
    let begin =
        format!("DSSEv1 {} {payload_type} {} ", payload_type.len(), payload.len()).into_bytes();
    [begin.as_slice(), payload].concat()
}

/// The JSON of an envelope.  Fields that the format gets later are passed over, as it asks for.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire<'a> {
    #[serde(borrow)]
    payload: Cow<'a, str>,
    payload_type: Cow<'a, str>,
    #[serde(borrow)]
    signatures: Vec<WireSignature<'a>>,
}

#[derive(Serialize, Deserialize)]
struct WireSignature<'a> {
    /// None is the same as an empty one.
    #[serde(borrow, default)]
    keyid: Option<Cow<'a, str>>,
    #[serde(borrow)]
    sig: Cow<'a, str>,
}

impl Envelope {
    /// Wraps a payload of [`PAYLOAD_TYPE`], signed by each of the keys.
    ///
    /// # Errors
    /// If a key's program does not sign.
    pub fn sign(payload: Vec<u8>, keys: &[&SigningKey]) -> Result<Self, KeyError> {
        let payload_type = PAYLOAD_TYPE.to_owned();
        let mut envelope =
            Self { payload_type, payload, signatures: Vec::new(), strangers: Vec::new() };
        envelope.countersign(keys)?;
        Ok(envelope)
    }

    /// Adds a signature by each of the keys.
    ///
    /// # Errors
    /// If a key's program does not sign; none is added then.
    pub fn countersign(&mut self, keys: &[&SigningKey]) -> Result<(), KeyError> {
        let signed = self.pae();
        let sign = |key: &&SigningKey| {
            Ok(Signature { key: key.public().id(), signature: key.sign(&signed)? })
        };
        self.signatures.extend(keys.iter().map(sign).collect::<Result<Vec<_>, KeyError>>()?);
        Ok(())
    }

    /// What its signatures are of.
    pub fn pae(&self) -> Vec<u8> {
        pae(&self.payload_type, &self.payload)
    }

    /// Writes it, strangers last.
    ///
    /// # Errors
    /// If it is longer, or has more signatures, than [`Self::from_json`] takes.
    pub fn to_json(&self) -> Result<Vec<u8>, DsseError> {
        let ours = self.signatures.iter().map(Signature::wire);
        let all = ours.chain(self.strangers.iter().map(Stranger::wire));
        let wire = Wire {
            payload: STANDARD.encode(&self.payload).into(),
            payload_type: self.payload_type.as_str().into(),
            signatures: all.collect(),
        };
        check_count(wire.signatures.len())?;
        let json = serde_json::to_vec(&wire).expect("texts are JSON");
        check_length(&json)?;
        Ok(json)
    }

    /// Reads one.  Whether its signatures hold is another question.
    ///
    /// # Errors
    /// If it is too long, has too many signatures, or is none.
    pub fn from_json(json: &[u8]) -> Result<Self, DsseError> {
        check_length(json)?;
        let not = |problem: String| DsseError::NotAnEnvelope { problem };
        let wire: Wire<'_> =
            serde_json::from_slice(json).map_err(|error| not(error.to_string()))?;
        check_count(wire.signatures.len())?;
        let (payload_type, payload) = (wire.payload_type.into_owned(), decoded(&wire.payload)?);
        let (mut signatures, mut strangers) = (Vec::new(), Vec::new());
        for WireSignature { keyid, sig } in wire.signatures {
            let (id, signature) = (keyid.unwrap_or_default(), decoded(&sig)?);
            match (id.parse(), signature.as_slice().try_into()) {
                (Ok(key), Ok(signature)) => signatures.push(Signature { key, signature }),
                _ => strangers.push(Stranger { id: id.into_owned(), signature }),
            }
        }
        Ok(Self { payload_type, payload, signatures, strangers })
    }
}

impl Signature {
    fn wire(&self) -> WireSignature<'_> {
        let sig = STANDARD.encode(self.signature).into();
        WireSignature { keyid: Some(self.key.to_string().into()), sig }
    }
}

impl Stranger {
    fn wire(&self) -> WireSignature<'_> {
        let sig = STANDARD.encode(&self.signature).into();
        WireSignature { keyid: Some(self.id.as_str().into()), sig }
    }
}

fn check_length(json: &[u8]) -> Result<(), DsseError> {
    let bytes = json.len();
    if bytes > ENVELOPE_BYTES_MAX { Err(DsseError::TooLong { bytes }) } else { Ok(()) }
}

fn check_count(count: usize) -> Result<(), DsseError> {
    if count > SIGNATURES_MAX { Err(DsseError::TooMany { count }) } else { Ok(()) }
}

/// Base64 of either alphabet, as the format asks for.
fn decoded(text: &str) -> Result<Vec<u8>, DsseError> {
    let is_url_safe = text.contains(['-', '_']);
    let engine = if is_url_safe { URL_SAFE_PAD_INDIFFERENT } else { STANDARD_PAD_INDIFFERENT };
    let not = |error| DsseError::NotAnEnvelope { problem: format!("its base64: {error}") };
    engine.decode(text).map_err(not)
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32])
    }

    fn json(text: &str) -> Result<Envelope, DsseError> {
        Envelope::from_json(text.as_bytes())
    }

    /// The example in protocol.md of the format.
    #[test]
    fn what_is_signed_is_what_the_format_says() {
        let signed = pae("http://example.com/HelloWorld", b"hello world");
        assert_eq!(signed, b"DSSEv1 29 http://example.com/HelloWorld 11 hello world");
        assert_eq!(pae("é", b""), "DSSEv1 2 é 0 ".as_bytes());
    }

    #[test]
    fn an_envelope_is_read_as_it_was_written() {
        let mut envelope = Envelope::sign(b"{}".to_vec(), &[&key(1), &key(2)]).unwrap();
        envelope.strangers.push(Stranger { id: "é\n".to_owned(), signature: vec![1, 2, 3] });
        let json = envelope.to_json().unwrap();
        assert_eq!(Envelope::from_json(&json).unwrap(), envelope);
        for (seed, Signature { key: id, signature }) in [1, 2].iter().zip(&envelope.signatures) {
            let public = key(*seed).public();
            assert_eq!(public.id(), *id);
            assert!(public.verify(&envelope.pae(), signature));
        }
    }

    #[test]
    fn a_signature_may_come_later() {
        let mut one = Envelope::sign(b"{}".to_vec(), &[&key(1)]).unwrap();
        one.countersign(&[&key(2)]).unwrap();
        assert_eq!(one, Envelope::sign(b"{}".to_vec(), &[&key(1), &key(2)]).unwrap());
    }

    #[test]
    fn fields_to_come_are_passed_over_and_a_key_needs_no_name() {
        let text = r#"{"new":1,"payload":"","payloadType":"","signatures":[{"sig":"AAA","new":2},
            {"keyid":null,"sig":""}]}"#;
        let envelope = json(text).unwrap();
        assert!(envelope.signatures.is_empty());
        let nameless = |signature| Stranger { id: String::new(), signature };
        assert_eq!(envelope.strangers, [nameless(vec![0, 0]), nameless(vec![])]);
    }

    #[test]
    fn either_alphabet_is_read() {
        for payload in ["-_-_", "+/+/", "+/8", "-_8", "+/8=", "\\u002b/8="] {
            let text = format!(r#"{{"payload":"{payload}","payloadType":"","signatures":[]}}"#);
            assert_eq!(json(&text).unwrap().payload[..2], [0xfb, 0xff], "{payload}");
        }
    }

    #[test]
    fn other_documents_are_refused() {
        let good = r#"{"payload":"","payloadType":"a","signatures":[{"keyid":"","sig":"AA=="}]}"#;
        json(good).unwrap();
        for (from, to) in [
            (r#""payload":"","#, ""),
            (r#""payloadType":"a","#, ""),
            (r#""sig":"AA==""#, r#""s":"AA==""#),
            ("AA==", "A"),
            ("AA==", "-/=="),
            ("AA==", "AB=="),
            (r#""payload":"""#, r#""payload":"","payload":"""#),
            ("]}", "]} 1"),
            ("[{", "["),
        ] {
            let bad = good.replace(from, to);
            assert_ne!(bad, good);
            assert!(matches!(json(&bad), Err(DsseError::NotAnEnvelope { .. })), "{bad}");
        }
    }

    #[test]
    fn signatures_are_limited() {
        let with = |count| Envelope::sign(Vec::new(), &vec![&key(1); count]).unwrap();
        let most = with(SIGNATURES_MAX);
        assert_eq!(Envelope::from_json(&most.to_json().unwrap()), Ok(most));
        let more = Err(DsseError::TooMany { count: SIGNATURES_MAX + 1 });
        assert_eq!(with(SIGNATURES_MAX + 1).to_json(), more);
        let list = [r#"{"sig":""}"#; SIGNATURES_MAX + 1].join(",");
        let text = format!(r#"{{"payload":"","payloadType":"","signatures":[{list}]}}"#);
        assert_eq!(json(&text).map(|_| Vec::new()), more);
    }

    #[test]
    fn lengths_are_limited() {
        let frame = r#"{"payload":"","payloadType":"","signatures":[]}"#;
        let filled = |bytes: usize| frame.to_owned() + &" ".repeat(bytes - frame.len());
        assert!(json(&filled(ENVELOPE_BYTES_MAX)).is_ok());
        let bytes = ENVELOPE_BYTES_MAX + 1;
        assert_eq!(json(&filled(bytes)), Err(DsseError::TooLong { bytes }));
        let long = Envelope::sign(vec![0; ENVELOPE_BYTES_MAX / 4 * 3], &[]).unwrap();
        assert!(matches!(long.to_json(), Err(DsseError::TooLong { .. })));
    }

    #[test]
    fn no_damage_makes_it_panic_or_a_signature_hold_for_something_else() {
        let good = Envelope::sign(b"a statement".to_vec(), &[&key(1), &key(2)]).unwrap();
        let json = good.to_json().unwrap();
        for length in 0..json.len() {
            assert!(Envelope::from_json(&json[..length]).is_err());
        }
        let mut random = Random::new(1);
        for _ in 0..5000 {
            let mut damaged = json.clone();
            let at = random.below(damaged.len());
            damaged[at] = random.next_u64() as u8;
            let Ok(read) = Envelope::from_json(&damaged) else { continue };
            let signed = read.pae();
            let holds = |key: &SigningKey, Signature { signature, .. }: &Signature| {
                key.public().verify(&signed, signature)
            };
            let any = read.signatures.iter().any(|one| holds(&key(1), one) || holds(&key(2), one));
            assert!(!any || signed == good.pae());
        }
    }
}
