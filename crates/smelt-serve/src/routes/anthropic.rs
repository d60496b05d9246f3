//! Answers the routes of Anthropic's Messages API.

use std::time::Instant;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;
use smelt_runtime::dialect::Reader;

use super::WeighedBody;
use super::answers::{deliver, telling};
use super::call::{Call, Spoken};
use super::tokens::prompted;
use crate::ask::chat::Chat;
use crate::error::ApiError;
use crate::protocols::anthropic::answer::Answer;
use crate::protocols::anthropic::ask::{Ask, Asking};

/// Goes on with a conversation.
pub(super) async fn messages(call: Call, body: Body) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let WeighedBody { bytes, budget } = call.held(body).await?;
    let read = call.shared.preparing.run(move |_| {
        let (ask, over) = Ask::read(bytes.body())?;
        ask.check_length()?;
        let Asking { chat, places } = ask.asking()?;
        Ok((chat.to_string(), places, over, ask.is_stream(), ask.stops()))
    });
    let (chat, places, over, is_stream, stops) = read.await?;
    let read = move || Ok((Chat::read(chat.as_bytes())?, ()));
    let spoken = call.spoken(begun, budget, read).await.map_err(|error| places.told(error))?;
    let Spoken { model, dialect, is_thinking, response_stream, .. } = spoken;
    call.facts.passed_over(&over);
    let (id, reader) = (format!("msg_{}", call.id.0), Reader::new(dialect, is_thinking));
    let wire = Answer::new(id, model.name, stops, reader);
    let answer = deliver(Box::new(wire), response_stream, is_stream).await?;
    Ok(telling(answer, &over))
}

/// How many tokens a conversation's prompt has, pictures included.
pub(super) async fn count_tokens(call: Call, body: Body) -> Result<Response, ApiError> {
    let WeighedBody { bytes, budget } = call.held(body).await?;
    let read = call.shared.preparing.run(move |_| {
        let (ask, over) = Ask::read(bytes.body())?;
        let Asking { chat, places } = ask.asking()?;
        let chat = Chat::read(chat.to_string().as_bytes());
        let chat = chat.map_err(|error| places.told(error))?;
        // What an answer would be refused for is no question to be counted either.
        chat.common.settings(None).map_err(|error| places.told(error))?;
        Ok((chat, places, over))
    });
    let (chat, places, over) = read.await?;
    call.facts.passed_over(&over);
    let prompted = prompted(&call, chat, budget).await;
    let (_, tokens) = prompted.map_err(|error| places.told(error))?;
    let told = axum::Json(json!({ "input_tokens": tokens.len() })).into_response();
    Ok(telling(told, &over))
}
