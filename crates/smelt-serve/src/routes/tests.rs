use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, ORIGIN, RETRY_AFTER};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use super::page::{FILES, OPENAPI, PAGE};
use super::*;
use crate::ask::pixels::DECODING_BYTES;
use crate::collect::{OfMemory, OfModels};
use crate::films::Films;

/// A server whose model is never ready.
fn router(keys: &[&str], origins: &[&'static str]) -> Router {
    let models = Arc::new(Models::new(vec!["m".to_owned()]).0);
    let shared = Shared {
        metrics: Arc::new(Metrics::new(vec![
            Box::new(OfModels(Arc::clone(&models))),
            Box::new(OfMemory),
        ])),
        models,
        bodies: Bodies::new(1 << 20, 4 << 20),
        kept: Arc::new(Kept::new(1 << 20)),
        remote: None,
        is_cache_shared: false,
        limits: Limits { images_max: 4, frames_max: 8 },
        preparing: Work::preparing(DECODING_BYTES),
        fetching: Work::fetching(),
        films: Films::new(Vec::new()),
        filming: Work::fetching(),
        slots: Slots { are_listed: false, files: None, moving: Work::moving() },
    };
    let doors = Doors {
        keys: Current::new(Arc::new(Keys::new(keys).unwrap())),
        hosts: Hosts {
            is_guarded: keys.is_empty(),
            allowed: Vec::new(),
            origins: origins.iter().copied().map(HeaderValue::from_static).collect(),
        },
        slow: Duration::from_secs(30),
        tracer: None,
    };
    super::router(Arc::new(shared), doors)
}

/// The response, and its body as JSON where it is some.
fn ask(router: &Router, request: axum::http::Request<Body>) -> (Response, Value) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let response = router.clone().oneshot(request).await.unwrap();
        let (head, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        let json = serde_json::from_slice(&bytes).unwrap_or_default();
        (Response::from_parts(head, Body::from(bytes)), json)
    })
}

fn request(method: &str, path: &str, headers: &[(&str, &str)]) -> axum::http::Request<Body> {
    let mut request = axum::http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Body::from("{}")).unwrap()
}

const JSON: (&str, &str) = ("content-type", "application/json");

/// Methods and paths of the description, with something in place of what varies.
fn described() -> Vec<(String, String)> {
    let document: Value = serde_json::from_str(OPENAPI).unwrap();
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
            all.push((
                method.to_uppercase(),
                path.replace("{model}", "m")
                    .replace("{digest}", "d")
                    .replace("{id}", "d")
                    .replace("{file}", "main.js"),
            ));
        }
    }
    all
}

/// Whether an error has the shape of its route's protocol.
#[track_caller]
fn is_shaped(path: &str, json: &Value, code: &str) {
    match Protocol::of(path) {
        Protocol::Ollama => assert!(json["error"].is_string(), "{path} {json}"),
        Protocol::Anthropic => {
            assert_eq!(json["type"], "error", "{path} {json}");
            assert!(json["error"]["type"].is_string() && json["error"]["message"].is_string());
        }
        Protocol::OpenAi => assert_eq!(json["error"]["code"], code, "{path} {json}"),
    }
}

#[test]
fn nothing_but_health_is_answered_without_a_key() {
    let is_open = |path: &str| ["/health", "/livez", "/readyz"].contains(&path);
    let router = router(&["right"], &[]);
    for (method, path) in described() {
        let (response, json) = ask(&router, request(&method, &path, &[JSON]));
        assert_eq!(response.status() == 401, !is_open(&path), "{method} {path}");
        if !is_open(&path) {
            is_shaped(&path, &json, "invalid_api_key");
        }
        let wrong = ("authorization", "Bearer wrong");
        let (response, _) = ask(&router, request(&method, &path, &[JSON, wrong]));
        assert_eq!(response.status() == 401, !is_open(&path), "{method} {path}");
        let right = ("authorization", "Bearer right");
        let (response, _) = ask(&router, request(&method, &path, &[JSON, right]));
        assert_ne!(response.status(), 401, "{method} {path}");
    }
    for path in ["/nothing", "/health/", "//health", "/livez/x", "/v1"] {
        let (response, _) = ask(&router, request("GET", path, &[]));
        assert_eq!(response.status(), 401, "{path}");
    }
}

#[test]
fn what_is_described_is_there_and_nothing_else() {
    let router = router(&[], &[]);
    for (method, path) in described() {
        let (response, json) = ask(&router, request(&method, &path, &[JSON]));
        // What is kept may be gone where its route is there.
        let is_gone = json["error"]["code"] == "response_not_found";
        let is_there = is_gone || ![404, 405].contains(&response.status().as_u16());
        assert!(is_there, "{method} {path}: {}", response.status());
        let (response, json) = ask(&router, request("PUT", &path, &[JSON]));
        assert_eq!(response.status(), 405, "PUT {path}");
        is_shaped(&path, &json, "method_not_allowed");
    }
    let (response, json) = ask(&router, request("GET", "/v2", &[]));
    assert_eq!((response.status().as_u16(), &json["error"]["code"]), (404, &"not_found".into()));
}

#[test]
fn who_comes_too_early_is_told_to_come_again() {
    let router = router(&[], &[]);
    let (response, json) = ask(&router, request("GET", "/health", &[]));
    assert_eq!(response.status(), 503);
    assert_eq!(json["progress"], "starting");
    let (response, same) = ask(&router, request("GET", "/readyz", &[]));
    assert_eq!((response.status().as_u16(), same), (503, json));
    let (response, _) = ask(&router, request("GET", "/livez", &[]));
    assert_eq!(response.status(), 200, "a probe does not kill what loads");
    let mut asked = 0;
    for (_, path) in described().into_iter().filter(|(method, _)| method == "POST") {
        let (response, json) = ask(&router, request("POST", &path, &[JSON]));
        // What nobody may do, or was not asked for at the start, is told at once.
        if [403, 501].contains(&response.status().as_u16()) {
            continue;
        }
        asked += 1;
        assert_eq!(response.status(), 503, "{path}");
        is_shaped(&path, &json, "model_loading");
        assert!(response.headers().contains_key(RETRY_AFTER), "{path}");
    }
    assert_eq!(asked, 23, "all but saving a slot");
    let (response, json) = ask(&router, request("GET", "/v1/models", &[]));
    assert_eq!((response.status().as_u16(), json["data"].as_array().unwrap().len()), (200, 1));
}

#[test]
fn requests_have_names() {
    let router = router(&["right"], &[]);
    let (response, _) = ask(&router, request("GET", "/v2", &[("x-request-id", "mine")]));
    assert_eq!(response.headers()[REQUEST_ID], "mine");
    let (response, _) = ask(&router, request("GET", "/v2", &[("x-request-id", "not mine")]));
    assert_ne!(response.headers()[REQUEST_ID], "not mine");
}

#[test]
fn pages_of_other_origins_are_refused_unless_they_are_named() {
    let preflight = |router: &Router, origin: &str| {
        let asked = [
            (ORIGIN.as_str(), origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization,x-stainless-os"),
        ];
        let (response, _) = ask(router, request("OPTIONS", "/v1/chat/completions", &asked));
        let headers = response.headers().get("access-control-allow-headers");
        assert!(headers.is_none_or(|headers| headers == "authorization,x-stainless-os"));
        let allowed = response.headers().get("access-control-allow-origin");
        allowed.map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(preflight(&router(&[], &[]), "https://a.example"), None);
    let named = router(&["right"], &["https://a.example"]);
    assert_eq!(preflight(&named, "https://a.example").as_deref(), Some("https://a.example"));
    assert_eq!(preflight(&named, "https://b.example"), None);
    assert_eq!(preflight(&router(&[], &["*"]), "null").as_deref(), Some("*"));
}

#[test]
fn foreign_names_and_pages_are_refused_on_every_route() {
    let router = router(&[], &[]);
    for (method, path) in described() {
        // What nobody may do here (pulling a model) is 403 as well, for another reason.
        let own = [JSON, ("host", "localhost:1"), ("origin", "http://localhost:1")];
        let (_, let_in) = ask(&router, request(&method, &path, &own));
        for (name, value) in [("host", "evil.example"), ("origin", "https://evil.example")] {
            let (response, json) = ask(&router, request(&method, &path, &[JSON, (name, value)]));
            assert_eq!(response.status(), 403, "{method} {path} {name}");
            is_shaped(&path, &json, "host_not_allowed");
            assert_ne!(json, let_in, "{method} {path} {name}");
        }
    }
}

#[test]
fn a_model_that_is_not_loaded_is_told_as_in_the_list() {
    let router = router(&[], &[]);
    let (_, list) = ask(&router, request("GET", "/v1/models", &[]));
    let (response, model) = ask(&router, request("GET", "/v1/models/m", &[]));
    assert_eq!((response.status(), &model), (StatusCode::OK, &list["data"][0]));
    let (response, error) = ask(&router, request("GET", "/v1/models/n", &[]));
    assert_eq!(response.status(), StatusCode::NOT_FOUND, "{error}");
}

#[test]
fn requests_are_counted_by_what_they_are() {
    let router = router(&[], &[]);
    ask(&router, request("GET", "/v1/models", &[]));
    ask(&router, request("GET", "/secret/1", &[]));
    ask(&router, request("GET", "/v1/models/a/b", &[(CONTENT_LENGTH.as_str(), "0")]));
    let (response, _) = ask(&router, request("GET", "/metrics", &[]));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let text = runtime.block_on(response.into_body().collect()).unwrap().to_bytes();
    let text = String::from_utf8(text.to_vec()).unwrap();
    for line in [
        "smelt_requests_total{route=\"/v1/models\",status=\"200\"} 1",
        "smelt_requests_total{route=\"other\",status=\"404\"} 1",
        "smelt_requests_total{route=\"/v1/models/{*model}\",status=\"404\"} 1",
        "smelt_open_requests 1",
        "smelt_ready 0",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
}

/// The page, and what it consists of, beside their names.
fn of_page() -> Vec<(&'static str, &'static str)> {
    let files = FILES.iter().map(|(name, _, text)| (*name, *text));
    files.chain([("index.html", PAGE)]).collect()
}

#[test]
fn the_page_needs_nothing_from_elsewhere() {
    for (name, text) in of_page() {
        for mark in ["http://", "https://", "src=\"h", "src=\"/", "@import", "url(", "innerHTML"] {
            assert!(!text.contains(mark), "{mark} in {name}");
        }
    }
}

#[test]
fn the_page_names_only_files_that_are_served() {
    let named = |text: &str, begin: &str| -> Vec<String> {
        let after = text.split(begin).skip(1);
        after.filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
    };
    let imported = of_page().into_iter().flat_map(|(_, text)| named(text, "from \"./"));
    let all: Vec<String> = imported.chain(named(PAGE, "=\"page/")).collect();
    assert!(all.len() >= FILES.len(), "{all:?}");
    let router = router(&[], &[]);
    for name in all {
        let (response, _) = ask(&router, request("GET", &format!("/page/{name}"), &[]));
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        assert_eq!(response.status(), 200, "{name}");
        assert!(kind.starts_with("text/css") || kind.starts_with("text/javascript"), "{kind}");
    }
    let (response, json) = ask(&router, request("GET", "/page/none.js", &[]));
    assert_eq!((response.status().as_u16(), &json["error"]["code"]), (404, &"not_found".into()));
}

#[test]
fn the_page_stays_small() {
    let bytes: usize = of_page().iter().map(|(_, text)| text.len()).sum();
    assert!(bytes <= 100_000, "{bytes} bytes");
}

#[test]
fn the_page_may_do_little() {
    let (response, _) = ask(&router(&[], &[]), request("GET", "/", &[("accept", "text/html")]));
    let policy = response.headers()["content-security-policy"].to_str().unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
}
