//! Serves what lies in the program: the page for people and the description for programs.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};

/// The page: one file, nothing fetched from elsewhere.
pub(crate) const PAGE: &str = include_str!("../page.html");

/// The description of all routes, OpenAPI 3.1.
pub(crate) const OPENAPI: &str = include_str!("../openapi.json");

/// What the page may do: run its own script and style, show pictures that were picked, and ask this server.
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What Ollama says at `/`, by which its clients know it.
const OLLAMA_RUNS: &str = "Ollama is running";

/// The page to who looks at it; to programs what they know.
pub(super) async fn page(headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("text/html");
    if !["text/html", "text/*"].iter().any(|kind| accept.contains(kind)) {
        return OLLAMA_RUNS.into_response();
    }
    let headers = [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
    (headers, PAGE).into_response()
}

pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
