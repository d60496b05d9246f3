//! Asks another program's server its first question: one that is well and answers nothing is not fit.

use std::time::Duration;

use serde_json::{Value, json};

use super::child::agent;
use super::watcher::{Upstream, UpstreamError};

/// A first answer may load what was mapped.
const FIRST_TIME_MAX: Duration = Duration::from_secs(300);
/// What is read of it.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

impl Upstream {
    /// Has the server answer something short, in whichever way it can: a chat, a completion or an embedding.  Gives where it
    /// was asked.
    ///
    /// # Errors
    /// What came instead.
    pub fn try_once(&self) -> Result<&'static str, UpstreamError> {
        let failed = |why: String| self.shared().failed(why);
        let model = &self.spec().model;
        let questions = [
            (
                "/v1/chat/completions",
                json!({ "messages": [{ "role": "user", "content": "Hello" }], "max_tokens": 1 }),
            ),
            ("/v1/completions", json!({ "prompt": "Hello", "max_tokens": 1 })),
            ("/v1/embeddings", json!({ "input": "Hello" })),
        ];
        let mut why = String::new();
        for (path, mut question) in questions {
            question["model"] = model.clone().into();
            match asked(&format!("http://{}{path}", self.addr()?), &question) {
                Ok(_) => return Ok(path),
                // It has no such route, or the model is of another kind.
                Err(First::Refused(told)) => why = format!("{path} {told}"),
                Err(First::Broken(told)) => {
                    // It may have ended of it, which says more.
                    self.addr()?;
                    return Err(failed(format!("{path} {told}")));
                }
            }
        }
        Err(failed(why))
    }

    /// What the server says to `content`, a user's turn in the shape of OpenAI's API, as the likeliest words; of so many
    /// tokens at most.
    ///
    /// # Errors
    /// What came instead.
    pub fn ask(&self, content: &Value, tokens_max: usize) -> Result<String, UpstreamError> {
        let failed = |why: String| self.shared().failed(why);
        let url = format!("http://{}/v1/chat/completions", self.addr()?);
        let question = json!({
            "model": self.spec().model, "max_tokens": tokens_max, "temperature": 0,
            "messages": [{ "role": "user", "content": content }],
        });
        let answer = asked(&url, &question)
            .map_err(|(First::Refused(why) | First::Broken(why))| failed(why))?;
        let text = answer.pointer("/choices/0/message/content").and_then(Value::as_str);
        text.map(str::to_owned).ok_or_else(|| failed("its answer says nothing".to_owned()))
    }
}

/// What came in place of an answer.
enum First {
    /// The server said no.
    Refused(String),
    /// It said nothing, or nonsense.
    Broken(String),
}

/// The object that is answered.
fn asked(url: &str, question: &Value) -> Result<Value, First> {
    let broken = |error: &dyn std::fmt::Display| First::Broken(format!("has no answer: {error}"));
    let text = serde_json::to_vec(question).expect("a question is JSON");
    let request = agent(FIRST_TIME_MAX).post(url).content_type("application/json");
    let mut answer = request.send(&text).map_err(|error| broken(&error))?;
    let status = answer.status();
    let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
    let body = body.map_err(|error| broken(&error))?;
    if !status.is_success() {
        let told = super::pass::complaint(&body);
        return Err(First::Refused(format!("answers {status}: {told}")));
    }
    match serde_json::from_slice::<Value>(&body) {
        Ok(answer @ Value::Object(_)) => Ok(answer),
        _ => Err(First::Broken("answers what is no JSON".to_owned())),
    }
}
