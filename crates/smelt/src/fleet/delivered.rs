//! Says of an output that it came by a delivery: from where, and what was signed of that.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use smelt_fleet::dsse::Envelope;
use smelt_fleet::oci::delivery::{self, Taken, Vouched};
use smelt_fleet::trust::Trust;
use smelt_store::{Digest, Store, Text};

use crate::exit::{Exit, Failed};

/// Under which name a record says by which delivery an output came.
const DELIVERY: &str = "delivery";

/// From where an output came, as its record says it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Delivered {
    /// Where it was fetched.
    pub(crate) place: String,
    /// Who vouched for it when it came.
    pub(crate) by: Vec<String>,
    /// By which time that was judged, in seconds of the Unix era.
    pub(crate) at: u64,
    /// What they signed, as DSSE has it.
    pub(crate) statement: Value,
}

impl Delivered {
    pub(crate) fn new(place: &str, vouched: &Vouched, at: u64) -> Result<Self, Failed> {
        let json = vouched.envelope.to_json();
        let json = json.map_err(|error| Failed::new(Exit::StageFailed, error))?;
        let statement = serde_json::from_slice(&json).expect("it is JSON");
        Ok(Self { place: place.to_owned(), by: vouched.by.clone(), at, statement })
    }

    /// Of an output's record; nothing of one that came otherwise.
    pub(crate) fn of(record: &Value) -> Option<Result<Self, String>> {
        let delivered = Self::deserialize(record.get(DELIVERY)?);
        Some(delivered.map_err(|_| "its record does not say what was signed of it".to_owned()))
    }

    /// Writes it into a record.
    pub(crate) fn put(&self, record: &mut Value) {
        if let Some(fields) = record.as_object_mut() {
            let delivered = serde_json::to_value(self).expect("it is plain data");
            fields.insert(DELIVERY.to_owned(), delivered);
        }
    }

    /// Takes it out of a record: whoever delivers the output now vouches for it.
    pub(crate) fn take_from(record: &mut Value) {
        record.as_object_mut().map(|fields| fields.remove(DELIVERY));
    }

    pub(crate) fn is_in(record: &Value) -> bool {
        record.get(DELIVERY).is_some()
    }

    /// Who vouches by what is believed now for the delivery, and for this output as a part of it.  A key whose time has run
    /// out since is no reason against what came before: boards would stop on that day.
    pub(crate) fn judge(&self, tree: &Digest, trust: &Trust) -> Result<Vec<String>, String> {
        let envelope = Envelope::from_json(self.statement.to_string().as_bytes());
        let envelope = envelope.map_err(|error| error.to_string())?;
        // How many had to vouch was asked when it came.
        let vouched = delivery::judge(trust, &envelope, 1, self.at);
        let vouched = vouched.map_err(|refusal| refusal.to_string())?;
        match vouched.delivery.outputs.contains(tree) {
            true => Ok(vouched.by),
            false => Err("what was signed of its delivery does not name it".to_owned()),
        }
    }
}

/// The deliveries that this store has taken.
pub(crate) fn taken(store: &Store) -> Result<Vec<Taken>, Failed> {
    read(store, &store.text(Text::Deliveries)?)
}

/// Changes what is remembered of them.
pub(crate) fn change(store: &Store, change: impl FnOnce(&mut Vec<Taken>)) -> Result<(), Failed> {
    store.change_text(Text::Deliveries, |text| {
        let mut taken = read(store, &text)?;
        change(&mut taken);
        let lines = taken.iter().map(|it| serde_json::to_string(it).expect("it is plain data"));
        Ok(lines.flat_map(|line| (line + "\n").into_bytes()).collect())
    })
}

/// One that cannot be read says that something was taken, and not what: nothing follows it.
fn read(store: &Store, text: &[u8]) -> Result<Vec<Taken>, Failed> {
    let lines = text.split(|&byte| byte == b'\n').filter(|line| !line.is_empty());
    let read = lines.map(serde_json::from_slice).collect::<Result<_, _>>();
    read.map_err(|error| {
        let file = store.root().join("deliveries");
        let why = format!(
            "{}, which says what was delivered here, is damaged: {error}; remove it, and the next delivery counts as the first",
            file.display()
        );
        Failed::new(Exit::StageFailed, why)
    })
}
