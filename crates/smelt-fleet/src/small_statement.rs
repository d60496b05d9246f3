//! Statements of in-toto about one thing, each with a predicate of its own: what boards and those that want work sign.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::dsse::Envelope;
use crate::keys::{KeyError, SigningKey};
use crate::statement::{Named, TYPE};

/// The JSON of one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Wire<P> {
    #[serde(rename = "_type")]
    form: String,
    subject: [Named; 1],
    predicate_type: String,
    predicate: P,
}

/// The JSON of an envelope of it, signed by a key.
///
/// # Errors
/// If the key's program does not sign.
pub(crate) fn sign<P: Serialize>(
    subject: Named,
    predicate_type: &str,
    predicate: P,
    key: &SigningKey,
) -> Result<Vec<u8>, KeyError> {
    let (form, predicate_type) = (TYPE.to_owned(), predicate_type.to_owned());
    let wire = Wire { form, subject: [subject], predicate_type, predicate };
    let payload = serde_json::to_vec(&wire).expect("texts and numbers are JSON");
    let envelope = Envelope::sign(payload, &[key])?;
    Ok(envelope.to_json().expect("it is small and has one signature"))
}

/// Reads what was signed: what it is about, and what it says.
///
/// # Errors
/// In words, where it is none of that type.
pub(crate) fn read<P: DeserializeOwned>(
    json: &[u8],
    predicate_type: &str,
) -> Result<(Named, P), String> {
    let wire: Wire<P> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    if (wire.form.as_str(), wire.predicate_type.as_str()) != (TYPE, predicate_type) {
        return Err("it is a statement of another form".to_owned());
    }
    let [subject] = wire.subject;
    Ok((subject, wire.predicate))
}
