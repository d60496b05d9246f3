//! Tells what a key's slots hold, and has them written to files and put back, as clients of llama-server ask.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, HttpBody as _};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use serde_json::{Value, json};
use smelt_runtime::service;
use smelt_runtime::service::kept::{Moved, Named};

use super::Shared;
use super::call::Call;
use super::query::Query;
use crate::api::read;
use crate::ask::work::{Watched, Work};
use crate::error::ApiError;
use crate::models::Model;
use crate::slot_files::{FileName, SlotFiles, told};

/// When to come again where all slots are in use.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// What may be done with slots.
#[derive(Debug)]
pub(crate) struct Slots {
    /// Whether they are listed.
    pub(crate) are_listed: bool,
    /// Where they are written to, if anywhere.
    pub(crate) files: Option<Arc<SlotFiles>>,
    pub(crate) moving: Work,
}

/// What a request to write a slot or put one back says.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Action {
    filename: Option<String>,
    model: Option<String>,
}

/// What is done with a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Verb {
    Save,
    Restore,
    Erase,
}

impl Verb {
    fn parse(word: Option<&str>) -> Result<Self, ApiError> {
        match word {
            Some("save") => Ok(Self::Save),
            Some("restore") => Ok(Self::Restore),
            Some("erase") => Ok(Self::Erase),
            _ => Err(ApiError::field("action", "must be save, restore or erase")),
        }
    }
}

/// The slots of the key that asks: nothing of what others ask is in them.
pub(super) async fn list(call: Call, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    if !call.shared.slots.are_listed {
        return Err(not_here("slots are not listed here; start smelt with --slots"));
    }
    let query = Query::read(query.as_deref(), &["model", "fail_on_no_slot"])?;
    let model = call.shared.models.ask(query.get("model"))?;
    let client = call.client.of_service(None);
    let asked = model.clone();
    let named = call.shared.slots.moving.run(move |_| asked.speaks()?.named(&client).map_err(told));
    let slots = listed(&model, &named.await?)?;
    let is_busy = |slot: &Value| slot["is_processing"] == true;
    let fails = query.get("fail_on_no_slot").is_some_and(|value| !value.is_empty());
    if fails && slots.iter().all(is_busy) {
        let why = "no slot is free; try again";
        return Err(ApiError::unavailable(why, "no_slot_available", BUSY_RETRY));
    }
    Ok(axum::Json(slots).into_response())
}

fn listed(model: &Model, named: &[Named]) -> Result<Vec<Value>, ApiError> {
    let (slots, context) = (model.speaks()?.running_max() as u32, model.running.tokens_max());
    let slot = |id: u32| {
        let own = named.iter().find(|named| named.name == id);
        json!({
            "id": id,
            "n_ctx": context,
            "speculative": false,
            "is_processing": own.is_some_and(|own| own.is_busy),
            "n_past": own.map_or(0, |own| own.tokens),
        })
    };
    Ok((0..slots).map(slot).collect())
}

/// Writes what a slot holds to a file, puts it back, or forgets it.
pub(super) async fn act(
    call: Call,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
    body: Body,
) -> Result<Response, ApiError> {
    let Some(files) = call.shared.slots.files.clone() else {
        return Err(not_here("slots are not saved here; start smelt with --slot-save-path DIR"));
    };
    let Path(id) = id.map_err(|error| ApiError::bad(error.body_text()))?;
    let query = Query::read(query.as_deref(), &["action", "model"])?;
    let verb = Verb::parse(query.get("action"))?;
    let asked = asked(&call, body).await?;
    let file = asked.filename.as_deref().map(FileName::parse).transpose()?;
    let name = asked.model.as_deref().or(query.get("model"));
    call.shared.models.wake(name).await?;
    let model = call.shared.models.ask(name)?;
    call.facts.model(&model.name);
    let slots = model.speaks()?.running_max();
    let slot = id.parse().ok().filter(|slot| (*slot as usize) < slots).ok_or_else(|| {
        ApiError::field("id_slot", format!("must be 0 to {}, not {id:?}", slots - 1))
    })?;
    let client = service::Client { slot, ..call.client.of_service(None) };
    let key = call.client.identity().map(str::to_owned);
    let done = call.shared.slots.moving.run(move |asker| {
        let service = model.speaks()?;
        if verb == Verb::Erase {
            let tokens = service.erase(&client).map_err(told)?;
            return Ok(json!({ "id_slot": slot, "n_erased": tokens }));
        }
        let name = file.ok_or_else(|| ApiError::field("filename", "is missing"))?;
        let (key, begun) = (key.as_deref(), Instant::now());
        let Moved { tokens, bytes } = match verb {
            Verb::Save => files.save(key, &name, |room, out| {
                service.save(&client, room, &mut Watched { asker, file: out })
            })?,
            _ => files.restore(key, &name, |file| {
                service.restore(&client, &mut Watched { asker, file })
            })?,
        };
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        Ok(match verb {
            Verb::Save => json!({
                "id_slot": slot, "filename": asked.filename, "n_saved": tokens, "n_written": bytes,
                "timings": { "save_ms": ms },
            }),
            _ => json!({
                "id_slot": slot, "filename": asked.filename, "n_restored": tokens, "n_read": bytes,
                "timings": { "restore_ms": ms },
            }),
        })
    });
    Ok(axum::Json(done.await?).into_response())
}

async fn asked(call: &Call, body: Body) -> Result<Action, ApiError> {
    // Who erases need not say anything.
    if body.size_hint().exact() == Some(0) {
        return Ok(Action::default());
    }
    let held = call.held(body).await?;
    read::json(held.bytes.body())
}

/// 501: the server was started without.
fn not_here(why: &str) -> ApiError {
    ApiError::new(StatusCode::NOT_IMPLEMENTED, why).code("not_supported")
}

/// What a server can do and how it answers where nobody says otherwise, as llama-server tells.
pub(super) async fn props(call: Call, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let query = Query::read(query.as_deref(), &["model"])?;
    let model = call.shared.models.ask(query.get("model"))?;
    Ok(axum::Json(told_of(&model, &call.shared)).into_response())
}

fn told_of(model: &Model, shared: &Shared) -> Value {
    let service = model.speaks().ok();
    let text = service.map(|service| service.text());
    let template = text.map(|text| &text.template);
    let special = |name| template.and_then(|template| template.special(name)).unwrap_or_default();
    let takes = |what| model.running.takes().contains(&what);
    json!({
        "default_generation_settings": {
            "id": 0,
            "id_task": -1,
            "n_ctx": model.running.tokens_max(),
            "speculative": false,
            "is_processing": false,
            "params": usual(),
            "prompt": "",
        },
        "total_slots": service.map_or(1, |service| service.running_max()),
        // Where it lies is no client's business.
        "model_path": model.name,
        "model_alias": model.name,
        "modalities": { "vision": takes("image"), "video": takes("video"), "audio": false },
        "chat_template": template.map(|template| template.text()).unwrap_or_default(),
        "chat_template_caps": {
            "supports_tools": template.is_some_and(|template| template.dialect().calls.is_some()),
        },
        "bos_token": special("bos_token"),
        "eos_token": special("eos_token"),
        "endpoint_slots": shared.slots.are_listed,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "webui": true,
        "is_sleeping": false,
        // Where its engines are verified behind it: "passed", "running", "failed" or "open".
        "check": model.check,
        "build_info": concat!("smelt-", env!("CARGO_PKG_VERSION")),
    })
}

/// How tokens are chosen where a request does not say.
fn usual() -> Value {
    json!({
        "n_predict": -1,
        "max_tokens": -1,
        // llama-server's word for one that nobody knows.
        "seed": u32::MAX,
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "ignore_eos": false,
        "stop": [],
        "stream": false,
    })
}

/// The tokenizer's configuration, as vLLM tells it.
pub(super) async fn tokenizer(call: Call, RawQuery(query): RawQuery) -> Result<Response, ApiError> {
    let query = Query::read(query.as_deref(), &["model"])?;
    let model = call.shared.models.ask(query.get("model"))?;
    let text = model.speaks().ok().map(|service| service.text());
    let template = text.map(|text| &text.template);
    let special = |name| template.and_then(|template| template.special(name));
    let mut told = json!({
        // Any tokenizer.json is one.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": model.running.tokens_max(),
        "vocab_size": model.tokenizer()?.vocab(),
        "chat_template": template.map(|template| template.text()),
        "bos_token": special("bos_token"),
        "eos_token": special("eos_token"),
        "pad_token": special("pad_token"),
        "unk_token": special("unk_token"),
    });
    if let Some(fields) = told.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    Ok(axum::Json(told).into_response())
}
