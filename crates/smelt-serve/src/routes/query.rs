//! Reads what stands behind the question mark of an address.

use std::collections::BTreeMap;

use crate::error::ApiError;

/// The fields of a query.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    /// Reads fields, of which all must be `known`.
    ///
    /// # Errors
    /// 400, naming a field that nobody knows, that is there twice or that is no text.
    pub(super) fn read(query: Option<&str>, known: &[&str]) -> Result<Self, ApiError> {
        let mut fields = BTreeMap::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let no_text = || ApiError::bad(format!("the query's {pair:?} is no text"));
            let (name, value) =
                (decoded(name).ok_or_else(no_text)?, decoded(value).ok_or_else(no_text)?);
            if !known.contains(&&name[..]) {
                let why = format!("is not understood here; there are {}", known.join(", "));
                return Err(ApiError::field(name, why));
            }
            if fields.insert(name.clone(), value).is_some() {
                return Err(ApiError::field(name, "is there twice"));
            }
        }
        Ok(Self(fields))
    }

    /// What a field says, if it is there: a field without a value says the empty text.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// A text whose `%` and `+` are read.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits =
                    [rest.next()?, rest.next()?].map(|digit| char::from(digit).to_digit(16));
                let [Some(high), Some(low)] = digits else { return None };
                (high * 16 + low) as u8
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_is_read_whole_or_refused() {
        let read = |query| Query::read(query, &["action", "model"]);
        let query = read(Some("model=a%2Fb+%C3%A4&action=")).unwrap();
        assert_eq!((query.get("model"), query.get("action")), (Some("a/b ä"), Some("")));
        assert_eq!(query.get("stream"), None);
        assert_eq!(read(None), read(Some("")));
        for query in ["stream=1", "model=a&model=b", "model=%", "model=%zz", "model=%ff"] {
            assert!(read(Some(query)).is_err(), "{query}");
        }
    }
}
