//! Reads a request's body into its shape; an error names the field.

use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// A request's body that is within bounds, so that what is made of it is, too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    /// [`weigh`](super::weigh) alone says so.
    pub(super) fn weighed(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn bytes(self) -> &'a [u8] {
        self.0
    }
}

/// Reads `body` as JSON.
///
/// # Errors
/// 400, naming the place where the text is no JSON or the field that has the wrong type.
pub(crate) fn json<T: DeserializeOwned>(Body(body): Body<'_>) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let is_syntax = error.inner().is_syntax() || error.inner().is_eof();
        let why = error.into_inner().to_string();
        match path.as_str() {
            _ if is_syntax => ApiError::bad(format!("the body is not JSON: {why}")),
            "." => ApiError::bad(format!("the body is not such a request: {why}")),
            _ => ApiError::field(path, why),
        }
    })?;
    let rest = reader.end();
    rest.map_err(|error| ApiError::bad(format!("the body is not JSON: {error}")))?;
    // A list would do for fields without their names.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(ApiError::bad("the body is not such a request: it is a list and no object"));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::chat::ChatFields;

    #[track_caller]
    fn check(body: &[u8], param: Option<&str>, says: &str) {
        let error = json::<ChatFields>(Body(body)).unwrap_err();
        assert_eq!(error.param.as_deref(), param, "{error:?}");
        assert!(error.message.contains(says), "{error:?}");
        assert_eq!(error.status, 400);
    }

    #[test]
    fn an_error_names_its_field() {
        check(br#"{"messages": 1}"#, Some("messages"), "expected a sequence");
        let body = br#"{"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]}"#;
        check(body, Some("messages[0].content[0].text"), "expected a string");
        let body = br#"{"messages": [{"role": "user", "content": 3}]}"#;
        check(body, Some("messages[0].content"), "a string or a list");
    }

    #[test]
    fn what_is_no_json_says_where() {
        check(b"{\"messages\": [", None, "line 1 column 14");
        check(b"", None, "not JSON");
        check(b"[]", None, "not such a request");
        check(b"{\"messages\": []} x", None, "trailing characters");
        check(b"{\"messages\": [{\"role\": \"\xff\"}]}", None, "not JSON");
        check(b"{}", None, "missing field `messages`");
    }

    #[test]
    fn deep_nesting_is_no_deep_recursion() {
        let (open, close) = ("[".repeat(1_000_000), "]".repeat(1_000_000));
        let body = format!("{{\"messages\": [], \"x\": {open}{close}}}");
        assert!(json::<ChatFields>(Body(body.as_bytes())).is_ok());
    }
}
