//! Anthropic's Messages API: what Claude's clients and coding tools speak.
//!
//! Turns are lists of blocks, of which a tool's result is one of a user's; the system stands beside them, and a stream is
//! events that have names.

pub(crate) mod answer;
pub(crate) mod ask;

use axum::http::StatusCode;
use serde::Serialize;

use crate::answer::json;

/// Why a request has no answer.
#[derive(Serialize)]
pub(crate) struct Error<'a> {
    pub(crate) r#type: &'static str,
    pub(crate) error: Why<'a>,
}

/// The class and words of an error.
#[derive(Serialize)]
pub(crate) struct Why<'a> {
    pub(crate) r#type: &'static str,
    pub(crate) message: &'a str,
}

impl<'a> Why<'a> {
    pub(crate) fn new(status: StatusCode, message: &'a str) -> Self {
        Self { r#type: class(status), message }
    }
}

/// What is said of an error of this status.
pub(crate) fn error(status: StatusCode, message: &str) -> String {
    json(&Error { r#type: "error", error: Why::new(status, message) })
}

/// The classes of errors that clients tell apart.
fn class(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        StatusCode::GATEWAY_TIMEOUT => "timeout_error",
        status if status.is_server_error() => "api_error",
        _ => "invalid_request_error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_shape_of_anthropic() {
        assert_eq!(
            error(StatusCode::TOO_MANY_REQUESTS, "a"),
            "{\"type\":\"error\",\"error\":{\"type\":\"rate_limit_error\",\"message\":\"a\"}}"
        );
        for (status, class) in [
            (405, "invalid_request_error"),
            (404, "not_found_error"),
            (500, "api_error"),
            (503, "overloaded_error"),
        ] {
            assert_eq!(super::class(StatusCode::from_u16(status).unwrap()), class);
        }
    }
}
