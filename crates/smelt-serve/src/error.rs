//! Says what went wrong as OpenAI's API does: a status and one JSON object.
//!
//! `{"error": {"message", "type", "param", "code"}}`, and `Retry-After` where trying again helps.
//! Knows nothing of what was tried.

use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// When to come again while the server ends: another one has taken its place by then.
const DRAINING_RETRY: Duration = Duration::from_secs(5);

/// A message quotes what was sent, which may be as long as a body; more than this nobody reads.
const MESSAGE_BYTES_MAX: usize = 2000;

/// Why a request has no answer, in the shape of OpenAI's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiError {
    /// The HTTP status.
    pub(crate) status: StatusCode,
    /// What went wrong, on which field, and what to do.
    pub(crate) message: String,
    /// The field of the request, as in `messages[0].content`.
    pub(crate) param: Option<String>,
    /// A word for programs.
    pub(crate) code: Option<&'static str>,
    /// When trying again may help.
    pub(crate) retry_after: Option<Duration>,
}

/// The message of an error, kept with its response for the log.
#[derive(Clone, Debug)]
pub(crate) struct ErrorMessage(pub(crate) String);

#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl ApiError {
    /// An error of this status that no field and no word goes with.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        let message = without_middle(message.into());
        Self { status, message, param: None, code: None, retry_after: None }
    }

    /// The request is wrong.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// This field of the request is wrong.
    pub(crate) fn field(param: impl Into<String>, why: impl std::fmt::Display) -> Self {
        let param = without_middle(param.into());
        let message = format!("{param}: {why}");
        Self { param: Some(param), ..Self::bad(message) }
    }

    /// Smelt failed.
    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// There is no room just now.
    pub(crate) fn busy(message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, message).code("server_busy");
        Self { retry_after: Some(retry_after), ..error }
    }

    /// Nothing is answered just now.
    pub(crate) fn unavailable(
        message: impl Into<String>,
        code: &'static str,
        after: Duration,
    ) -> Self {
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code(code);
        Self { retry_after: Some(after), ..error }
    }

    /// The server ends; another one will have taken its place.
    pub(crate) fn draining(message: impl Into<String>) -> Self {
        Self::unavailable(message, "draining", DRAINING_RETRY)
    }

    /// The same with a word for programs.
    pub(crate) fn code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// The class of error that clients of OpenAI's API tell apart.
    fn class(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::NOT_IMPLEMENTED => "not_supported_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON object.
    pub(crate) fn json(&self) -> String {
        let error = Inner {
            message: &self.message,
            r#type: self.class(),
            param: self.param.as_deref(),
            code: self.code,
        };
        serde_json::to_string(&Body { error }).expect("strings are JSON")
    }
}

/// The text, or its two ends where it is too long: the field is named first, and what to do last.
fn without_middle(text: String) -> String {
    if text.len() <= MESSAGE_BYTES_MAX {
        return text;
    }
    let half = MESSAGE_BYTES_MAX / 2;
    let boundary = |most: usize| (0..=most).rev().find(|at| text.is_char_boundary(*at));
    let (first, last) = (boundary(half).unwrap_or(0), boundary(text.len() - half).unwrap_or(0));
    format!("{} … {}", &text[..first], &text[last..])
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let json = HeaderValue::from_static("application/json");
        let mut response = (self.status, [(CONTENT_TYPE, json)], self.json()).into_response();
        if let Some(after) = self.retry_after {
            // Whole seconds, at least one: zero would ask to come back at once.
            let seconds = (after.as_millis().div_ceil(1000) as u64).max(1);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(ErrorMessage(self.message));
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_shape_of_openai() {
        let error = ApiError::field("messages[0].role", "\"bot\" is no role");
        assert_eq!(
            error.json(),
            "{\"error\":{\"message\":\"messages[0].role: \\\"bot\\\" is no role\",\
             \"type\":\"invalid_request_error\",\"param\":\"messages[0].role\",\"code\":null}}"
        );
    }

    #[test]
    fn what_was_sent_is_not_sent_back_whole() {
        let role = "ä".repeat(1 << 20);
        let error = ApiError::field("messages[0].role", format!("\"{role}\" is no role"));
        let ends = error.message.starts_with("messages[0].role: \"ä")
            && error.message.ends_with("ä\" is no role");
        assert!(ends && error.message.len() < MESSAGE_BYTES_MAX + 10, "{}", error.message);
        let short = "ä".repeat(MESSAGE_BYTES_MAX / 2);
        assert_eq!(ApiError::bad(short.clone()).message, short);
    }

    #[test]
    fn busy_says_when_to_come_back() {
        let response = ApiError::busy("full", Duration::from_millis(1200)).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        let response = ApiError::busy("full", Duration::ZERO).into_response();
        assert_eq!(response.headers()[RETRY_AFTER], "1");
    }
}
