//! Asks a server: one request, one answer, over HTTP.
//!
//! Takes the time of what is heard.  Decides nothing.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ureq::http::Response;
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Agent, Body};

use crate::error::LoadError;
use crate::receive::{self, Ear, HearError, ReceivedAnswer};

/// The longest document read that is no stream, in bytes.
const DOCUMENT_BYTES_MAX: u64 = 16 << 20;

/// Bytes read at once.
const CHUNK_BYTES: usize = 16 << 10;

/// A server, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Its address up to and without `/v1`.
    pub url: String,
    /// The model asked for; nothing for the first that the server names.
    pub model: Option<String>,
    /// What is sent as a bearer token.
    pub key: Option<String>,
    /// Certificates to trust instead of the public authorities', as PEM.
    pub authorities: Option<PathBuf>,
    /// Whether only what OpenAI's API has is sent; without, `ignore_eos` asks for answers of full length.
    pub is_strict: bool,
    /// After so long without an end a request has failed.
    pub timeout: Duration,
}

/// What one request asks.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) text: String,
    /// `data:` addresses of pictures.
    pub(crate) pictures: Vec<String>,
    pub(crate) answer_tokens: usize,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The server could not be reached, or broke off.
    #[error("{0}")]
    Http(String),
    /// The server refused.
    #[error("the server answered {status}: {said}")]
    Refused { status: u16, said: String },
    /// The answer is none.
    #[error(transparent)]
    Hear(#[from] HearError),
}

/// Asks one server for one model.
pub(crate) struct Caller {
    agent: Agent,
    trusted: RootCerts,
    endpoint: Endpoint,
    model: String,
}

impl Caller {
    /// Finds out which model is asked for.
    pub(crate) fn new(endpoint: &Endpoint) -> Result<Self, LoadError> {
        let trusted = match &endpoint.authorities {
            None => RootCerts::WebPki,
            Some(path) => certificates(path).map_err(LoadError::Authorities)?,
        };
        let caller = Self::to(endpoint, endpoint.model.clone().unwrap_or_default(), trusted);
        if endpoint.model.is_some() {
            return Ok(caller);
        }
        let models = caller.models().map_err(|error| LoadError::Server {
            url: endpoint.url.clone(),
            why: error.to_string(),
        })?;
        let first = models["data"][0]["id"].as_str();
        let model = first.ok_or_else(|| LoadError::NoModel(endpoint.url.clone()))?;
        Ok(Self::to(endpoint, model.to_owned(), caller.trusted))
    }

    /// One more of the same, for another thread.
    pub(crate) fn again(&self) -> Self {
        Self::to(&self.endpoint, self.model.clone(), self.trusted.clone())
    }

    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    fn to(endpoint: &Endpoint, model: String, trusted: RootCerts) -> Self {
        let tls = TlsConfig::builder().root_certs(trusted.clone()).build();
        let config = Agent::config_builder()
            .timeout_global(Some(endpoint.timeout))
            .http_status_as_error(false)
            .proxy(None)
            .tls_config(tls)
            // Some servers end a connection behind a stream without a word: each request has its own.
            .max_idle_connections(0)
            .build();
        Self { agent: config.new_agent(), trusted, endpoint: endpoint.clone(), model }
    }

    /// The server's row of the model; nothing where it lists none.
    pub(crate) fn listed(&self) -> Value {
        let models = self.models().unwrap_or_default();
        let mut all = models["data"].as_array().into_iter().flatten();
        all.find(|model| model["id"] == *self.model).cloned().unwrap_or_default()
    }

    /// The server's version, as vLLM says it.
    pub(crate) fn version(&self) -> Option<String> {
        let told = self.get("/version").ok()?;
        told["version"].as_str().map(str::to_owned)
    }

    fn models(&self) -> Result<Value, AskError> {
        self.get("/v1/models")
    }

    fn get(&self, path: &str) -> Result<Value, AskError> {
        let mut request = self.agent.get(format!("{}{path}", self.endpoint.url));
        if let Some(key) = &self.endpoint.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = refused(request.call().map_err(|error| AskError::Http(error.to_string()))?)?;
        let text = document(response)?;
        let document: Value =
            serde_json::from_str(&text).map_err(|error| HearError::NotJson(error.to_string()))?;
        match receive::error(&document) {
            Some(said) => Err(HearError::Said(said).into()),
            None => Ok(document),
        }
    }

    /// Asks, and hears the whole answer.
    pub(crate) fn ask(&self, asked: &Asked) -> Result<ReceivedAnswer, AskError> {
        let body = body(&self.model, asked, self.endpoint.is_strict).to_string();
        let start = Instant::now();
        let url = format!("{}/v1/chat/completions", self.endpoint.url);
        let mut request = self.agent.post(url).header("Content-Type", "application/json");
        if let Some(key) = &self.endpoint.key {
            request = request.header("Authorization", format!("Bearer {key}"));
        }
        let response = request.send(body).map_err(|error| AskError::Http(error.to_string()))?;
        received(refused(response)?, start)
    }
}

fn certificates(path: &Path) -> Result<RootCerts, String> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let certificates = parse_pem(&text).filter_map(|item| match item {
        Ok(PemItem::Certificate(certificate)) => Some(certificate),
        _ => None,
    });
    let certificates: Vec<_> = certificates.collect();
    if certificates.is_empty() {
        return Err(format!("{} holds no certificate in PEM", path.display()));
    }
    Ok(RootCerts::from(certificates))
}

fn received(response: Response<Body>, start: Instant) -> Result<ReceivedAnswer, AskError> {
    let mut reader = response.into_body().into_reader();
    let (mut ear, mut chunk) = (Ear::default(), vec![0; CHUNK_BYTES]);
    loop {
        let read = reader.read(&mut chunk).map_err(|error| AskError::Http(error.to_string()))?;
        let at = start.elapsed();
        ear.push(&chunk[..read], at)?;
        if read == 0 {
            return Ok(ear.finish(at)?);
        }
    }
}

/// The response, unless it is an error.
fn refused(response: Response<Body>) -> Result<Response<Body>, AskError> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let text = document(response)?;
    let said = serde_json::from_str(&text).ok().and_then(|document| receive::error(&document));
    let said = said.unwrap_or_else(|| text.trim().chars().take(200).collect());
    Err(AskError::Refused { status, said })
}

fn document(response: Response<Body>) -> Result<String, AskError> {
    let body = response.into_body();
    let text = body.into_with_config().limit(DOCUMENT_BYTES_MAX).read_to_string();
    text.map_err(|error| AskError::Http(error.to_string()))
}

/// A chat completion's request.
fn body(model: &str, asked: &Asked, is_strict: bool) -> Value {
    let text = json!({ "type": "text", "text": asked.text });
    let content = if asked.pictures.is_empty() {
        Value::from(&asked.text[..])
    } else {
        let picture = |url: &String| json!({ "type": "image_url", "image_url": { "url": url } });
        asked.pictures.iter().map(picture).chain([text]).collect()
    };
    let mut body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": content }],
        "max_tokens": asked.answer_tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if !is_strict {
        body["ignore_eos"] = true.into();
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_those_of_the_api() {
        let mut asked = Asked { text: "hi".to_owned(), pictures: Vec::new(), answer_tokens: 9 };
        let strict = body("m", &asked, true);
        assert_eq!(strict["messages"][0]["content"], "hi");
        assert_eq!((&strict["max_tokens"], strict.get("ignore_eos")), (&json!(9), None));
        asked.pictures.push("data:image/png;base64,AA".to_owned());
        let loose = body("m", &asked, false);
        assert_eq!(loose["ignore_eos"], true);
        let content = &loose["messages"][0]["content"];
        assert_eq!(content[0]["image_url"]["url"], "data:image/png;base64,AA");
        assert_eq!(content[1], json!({ "type": "text", "text": "hi" }));
    }
}
