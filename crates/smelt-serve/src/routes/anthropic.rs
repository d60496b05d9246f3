//! Answers the routes of Anthropic's Messages API.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use serde_json::json;
use smelt_runtime::dialect::Reader;

use super::answers::{deliver, telling};
use super::call::{Call, Spoken, of_service};
use super::tokens::counted;
use crate::api::weigh::weigh;
use crate::ask::chat::Chat;
use crate::body::Held;
use crate::error::ApiError;
use crate::protocols::anthropic::answer::Answer;
use crate::protocols::anthropic::ask::{Ask, Asking};

/// Goes on with a conversation.
pub(super) async fn messages(call: Call, body: Body) -> Result<Response, ApiError> {
    let begun = Instant::now();
    let Held { bytes, budget } = call.held(body).await?;
    let read = call.shared.preparing.run(move |_| {
        let (ask, over) = Ask::read(weigh(&bytes)?)?;
        ask.check_length()?;
        let Asking { chat, places } = ask.asking()?;
        Ok((chat.to_string(), places, over, ask.is_stream(), ask.stops()))
    });
    let (chat, places, over, is_stream, stops) = read.await?;
    let read = move || Ok((Chat::read(chat.as_bytes())?, ()));
    let spoken = call.spoken(begun, budget, read).await.map_err(|error| places.told(error))?;
    let Spoken { model, dialect, is_thinking, hearing, .. } = spoken;
    call.facts.passed_over(&over);
    let (id, reader) = (format!("msg_{}", call.id.0), Reader::new(dialect, is_thinking));
    let wire = Answer::new(id, model.name, stops, reader);
    let answer = deliver(Box::new(wire), hearing, is_stream).await?;
    Ok(telling(answer, &over))
}

/// How many tokens a conversation's prompt has, pictures included.
pub(super) async fn count_tokens(call: Call, body: Body) -> Result<Response, ApiError> {
    let Held { bytes, mut budget } = call.held(body).await?;
    let (models, limits) = (Arc::clone(&call.shared.models), call.shared.limits);
    let read = call.shared.preparing.run(move |_| {
        let (ask, over) = Ask::read(weigh(&bytes)?)?;
        let Asking { chat, places } = ask.asking()?;
        let chat = Chat::read(chat.to_string().as_bytes());
        let mut chat = chat.map_err(|error| places.told(error))?;
        // What an answer would be refused for is no question to be counted either.
        chat.common.settings(None).map_err(|error| places.told(error))?;
        let name = models.known(chat.common.model.take());
        Ok((chat, places, name, over))
    });
    let (chat, places, name, over) = read.await?;
    call.facts.passed_over(&over);
    call.shared.models.wake(name.as_deref()).await?;
    let model = call.shared.models.ask(name.as_deref())?;
    let weighed = call.shared.weighed(chat, &model, &mut budget).await;
    let chat = weighed.map_err(|error| places.told(error))?;
    let reuse = of_service(&call.client, &chat.common, call.shared.is_cache_shared)?.reuse;
    let shown = (limits, call.shared.films.clone());
    let tokens = call.shared.preparing.run(move |asker| {
        let tokens = counted(&chat, model.speaks()?.text(), shown, (asker, reuse));
        drop(budget);
        Ok(tokens.map_err(|error| places.told(error))?.len())
    });
    let told = axum::Json(json!({ "input_tokens": tokens.await? })).into_response();
    Ok(telling(told, &over))
}
