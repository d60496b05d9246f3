//! Serves what lies in the program: the page for people and the description for programs.

use axum::extract::Path;
use axum::extract::rejection::PathRejection;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};

use super::nothing_at;
use crate::error::ApiError;

/// The page; it names the files of [`FILES`] and nothing else.
pub(crate) const PAGE: &str = include_str!("../page/index.html");

/// The description of all routes, OpenAPI 3.1.
pub(crate) const OPENAPI: &str = include_str!("../openapi.json");

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// What the page consists of besides: name, type and text.
pub(crate) const FILES: [(&str, &str, &str); 20] = [
    ("style.css", CSS, include_str!("../page/style.css")),
    ("api.js", JS, include_str!("../page/api.js")),
    ("camera.js", JS, include_str!("../page/camera.js")),
    ("composer.js", JS, include_str!("../page/composer.js")),
    ("conversation.js", JS, include_str!("../page/conversation.js")),
    ("copy.js", JS, include_str!("../page/copy.js")),
    ("events.js", JS, include_str!("../page/events.js")),
    ("form.js", JS, include_str!("../page/form.js")),
    ("history.js", JS, include_str!("../page/history.js")),
    ("labels.js", JS, include_str!("../page/labels.js")),
    ("main.js", JS, include_str!("../page/main.js")),
    ("markdown.js", JS, include_str!("../page/markdown.js")),
    ("metrics.js", JS, include_str!("../page/metrics.js")),
    ("pictures.js", JS, include_str!("../page/pictures.js")),
    ("ranks.js", JS, include_str!("../page/ranks.js")),
    ("render.js", JS, include_str!("../page/render.js")),
    ("server.js", JS, include_str!("../page/server.js")),
    ("shelf.js", JS, include_str!("../page/shelf.js")),
    ("turns.js", JS, include_str!("../page/turns.js")),
    ("vectors.js", JS, include_str!("../page/vectors.js")),
];

/// What the page may do: run its own scripts and style, show pictures that were picked, and ask this server.  No text
/// becomes HTML or script.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Browsers ask again, so that a newer smelt is not shown by an older one's scripts.
const FRESH: &str = "no-cache";

/// What Ollama says at `/`, by which its clients know it.
const OLLAMA_RUNS: &str = "Ollama is running";

/// The page to who looks at it; to programs what they know.
pub(super) async fn page(headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or("text/html");
    if !["text/html", "text/*"].iter().any(|kind| accept.contains(kind)) {
        return OLLAMA_RUNS.into_response();
    }
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CACHE_CONTROL, FRESH),
        (CONTENT_SECURITY_POLICY, POLICY),
    ];
    (headers, PAGE).into_response()
}

/// One of the page's files.
///
/// # Errors
/// 404 if there is none of that name.
pub(super) async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::bad(error.body_text()))?;
    let found = FILES.iter().find(|(file, ..)| *file == name);
    let (_, kind, text) = found.ok_or_else(|| nothing_at(&format!("/page/{name}")))?;
    Ok(([(CONTENT_TYPE, *kind), (CACHE_CONTROL, FRESH)], *text).into_response())
}

pub(super) async fn openapi() -> Response {
    ([(CONTENT_TYPE, "application/json")], OPENAPI).into_response()
}
