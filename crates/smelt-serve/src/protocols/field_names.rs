//! Gives errors of a chat the names that a protocol's client wrote.

use crate::error::ApiError;

/// Fields of a chat, and what they are called where the request came from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldNames(Vec<(String, String)>);

impl FieldNames {
    /// Fields that are called otherwise whatever is asked.
    pub(crate) fn of(fields: &[(&str, &str)]) -> Self {
        let owned = |(chat, own): &(&str, &str)| ((*chat).to_owned(), (*own).to_owned());
        Self(fields.iter().map(owned).collect())
    }

    /// Takes note that the field `chat` is `own`.
    pub(crate) fn note(&mut self, chat: String, own: String) {
        self.0.push((chat, own));
    }

    /// The error, its field named as the client did.
    pub(crate) fn told(&self, error: ApiError) -> ApiError {
        let Some(param) = &error.param else { return error };
        let Some(own) = self.own(param) else { return error };
        let why = error.message.strip_prefix(&param[..]).map(|why| format!("{own}{why}"));
        ApiError { message: why.unwrap_or(error.message), param: Some(own), ..error }
    }

    /// What the closest field that is known, or that holds this one, is called.
    fn own(&self, param: &str) -> Option<String> {
        let known = self.0.iter().filter_map(|(chat, own)| {
            let rest = param.strip_prefix(&chat[..])?;
            let is_inside = rest.is_empty() || rest.starts_with(['.', '[']);
            is_inside.then(|| (chat.len(), format!("{own}{rest}")))
        });
        known.max_by_key(|(length, _)| *length).map(|(_, own)| own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_what_the_client_wrote() {
        let mut places = FieldNames::of(&[("max_tokens", "max_output_tokens")]);
        places.note("messages[1]".to_owned(), "input[4]".to_owned());
        places.note("messages[1].content[0]".to_owned(), "input[3].output[0]".to_owned());
        for (chat, own) in [
            ("max_tokens", "max_output_tokens"),
            ("max_tokens_more", "max_tokens_more"),
            ("messages[1].role", "input[4].role"),
            ("messages[1].content[0].text", "input[3].output[0].text"),
            ("messages[10].role", "messages[10].role"),
        ] {
            let told = places.told(ApiError::field(chat, "is wrong"));
            assert_eq!(told.param.as_deref(), Some(own));
            assert_eq!(told.message, format!("{own}: is wrong"));
        }
        let nameless = ApiError::bad("no JSON");
        assert_eq!(places.told(nameless.clone()), nameless);
    }
}
