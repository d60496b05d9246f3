//! Answers the routes of the Responses API.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use serde_json::{Value, json};
use smelt_runtime::dialect::Reader;

use super::WeighedBody;
use super::answers::{deliver, telling};
use super::call::{Call, Spoken};
use super::query::Query;
use crate::account::new_id;
use crate::ask::chat::Chat;
use crate::error::ApiError;
use crate::protocols::responses::answer::{Answer, Keeping};
use crate::protocols::responses::ask::{Ask, Asking};
use crate::protocols::responses::asked::{Page, asked_items};
use crate::protocols::responses::items::Item;
use crate::protocols::responses::kept::{Answered, Kept, Piece};
use crate::protocols::responses::response_object::response_of;

/// Goes on with a conversation.
pub(super) async fn create(call: Call, body: Body) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let WeighedBody { bytes, mut budget } = call.held(body).await?;
    let shelf = Shelf::of(&call);
    let read = call.shared.preparing.run(move |_| {
        let (ask, over) = Ask::read(bytes.body())?;
        let before = shelf.before(&ask)?;
        Ok((ask, over, before))
    });
    let (ask, over, before) = read.await?;
    // What was said before is prepared as if it had come with the request.
    let earlier = before.iter().map(|piece| piece.text.len()).sum();
    call.shared.bodies.more(&mut budget, earlier).await?;
    let shelf = Shelf::of(&call);
    let turned = call.shared.preparing.run(move |_| {
        let asking = ask.asking(turns_of(&before)?, &|id| shelf.item(id))?;
        let Asking { chat, places, turns } = asking;
        let keeping = turns.and_then(|turns| shelf.keeping(before, turns));
        let told = (ask.is_stream(), ask.is_likely(), ask.repeated());
        Ok((chat.to_string(), places, keeping, told))
    });
    let (chat, places, keeping, (is_stream, is_likely, repeated)) = turned.await?;
    let read = move || Ok((Chat::read(chat.as_bytes())?, ()));
    let spoken = call.spoken(begun, budget, read).await.map_err(|error| places.told(error))?;
    let Spoken { model, dialect, is_thinking, words, response_stream, .. } = spoken;
    call.facts.passed_over(&over);
    let reader = Reader::new(dialect, is_thinking);
    let wire = Answer::new(new_id(), model.name, repeated, (reader, words, is_likely), keeping);
    let answer = deliver(Box::new(wire), response_stream, is_stream).await?;
    Ok(telling(answer, &over))
}

/// An answer that is kept.
pub(super) async fn retrieve(
    call: Call,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::bad(error.body_text()))?;
    let asks_stream = |pair: &str| pair == "stream=true" || pair == "stream=1";
    if query.iter().flat_map(|query| query.split('&')).any(asks_stream) {
        let why = "is not understood here; leave it out, the answer is whole";
        return Err(ApiError::field("stream", why));
    }
    let answered = Shelf::of(&call).find(&id).ok_or_else(|| unknown(&id))?;
    Ok(([(CONTENT_TYPE, "application/json")], answered.told.text.clone()).into_response())
}

/// What an answer was asked, a page of it.
pub(super) async fn input_items(
    call: Call,
    id: Result<Path<String>, PathRejection>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::bad(error.body_text()))?;
    let query = Query::read(query.as_deref(), &["limit", "order", "after"])?;
    let page = Page::read(|name| query.get(name))?;
    let answered = Shelf::of(&call).find(&id).ok_or_else(|| unknown(&id))?;
    let listed = call.shared.preparing.run(move |_| {
        // The last of them is the answer itself.
        let asked = &answered.turns[..answered.turns.len().saturating_sub(1)];
        page.of(asked_items(&turns_of(asked)?, &id))
    });
    Ok(axum::Json(listed.await?).into_response())
}

/// Forgets an answer.
pub(super) async fn forget(
    call: Call,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id.map_err(|error| ApiError::bad(error.body_text()))?;
    let Shelf { kept, owner } = Shelf::of(&call);
    match kept.forget(owner.as_deref(), &id, Instant::now()) {
        true => {
            let told = json!({ "id": id, "object": "response", "deleted": true });
            Ok(axum::Json(told).into_response())
        }
        false => Err(unknown(&id)),
    }
}

/// 404: it never was, or is not kept any more.
fn unknown(id: &str) -> ApiError {
    let why = format!("there is no response {id:?}, or it is not kept any more");
    ApiError::new(StatusCode::NOT_FOUND, why).code("response_not_found")
}

/// What is kept for one key.
struct Shelf {
    kept: Arc<Kept>,
    owner: Option<String>,
}

impl Shelf {
    fn of(call: &Call) -> Self {
        let owner = call.client.identity().map(str::to_owned);
        Self { kept: Arc::clone(&call.shared.kept), owner }
    }

    fn find(&self, id: &str) -> Option<Answered> {
        self.kept.find(self.owner.as_deref(), id, Instant::now())
    }

    /// The conversation that a request goes on from.
    fn before(&self, ask: &Ask) -> Result<Vec<Arc<Piece>>, ApiError> {
        let Some(id) = &ask.previous_response_id else { return Ok(Vec::new()) };
        let answered = self.find(id).ok_or_else(|| {
            let why = format!("there is no response {id:?}, or it is not kept any more; send the whole conversation");
            ApiError::field("previous_response_id", why).code("previous_response_not_found")
        })?;
        Ok(answered.turns)
    }

    /// An item of an answer that is kept.
    fn item(&self, id: &str) -> Option<Item> {
        let answered = self.find(&response_of(id)?)?;
        let mut told: Value = serde_json::from_str(&answered.told.text).ok()?;
        let items = told["output"].as_array_mut()?;
        let item = items.iter_mut().find(|item| item["id"] == id)?;
        serde_json::from_value(item.take()).ok()
    }

    /// Keeps room for the turns of a request; none if there is not enough.
    fn keeping(&self, mut turns: Vec<Arc<Piece>>, new: String) -> Option<Keeping> {
        turns.push(self.kept.piece(new, Instant::now())?);
        Some(Keeping { kept: Arc::clone(&self.kept), owner: self.owner.clone(), turns })
    }
}

/// The turns of a conversation that is kept.
fn turns_of(pieces: &[Arc<Piece>]) -> Result<Vec<Value>, ApiError> {
    let mut all = Vec::new();
    for piece in pieces {
        let turns: Result<Vec<Value>, _> = serde_json::from_str(&piece.text);
        all.extend(turns.map_err(|_| ApiError::failed("smelt failed to read what it kept"))?);
    }
    Ok(all)
}
