//! Turns a chat into a prompt with pictures.

use std::time::{SystemTime, UNIX_EPOCH};

use smelt_runtime::deployment::Text;
use smelt_runtime::image::{PIXELS_MAX, Picture, Shown, Wish};
use smelt_runtime::prepare::{Prepared, Question};
use smelt_runtime::prompt::{Part, Turn};
use smelt_runtime::template::Context;

use super::unprepared;
use crate::api::chat::{ChatFields, Piece, Role};
use crate::api::common::Common;
use crate::api::read;
use crate::error::ApiError;
use crate::pictures::{self, Remote};

/// Most turns of a conversation: what a context of a million tokens could hold.
const MESSAGES_MAX: usize = 4096;

/// A chat as it was read.
pub(crate) struct Chat {
    pub(crate) common: Common,
    pub(crate) fields: ChatFields,
}

/// What one turn says.
struct Said<'a> {
    role: Role,
    pieces: Vec<Piece<'a>>,
}

impl Chat {
    /// Reads a request's body.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let chat = Self { common: read::json(body)?, fields: read::json(body)? };
        match chat.fields.messages.len() {
            0 => Err(ApiError::field("messages", "must have at least one")),
            1..=MESSAGES_MAX => Ok(chat),
            count => {
                let why = format!("{count} messages are more than {MESSAGES_MAX}");
                Err(ApiError::field("messages", why))
            }
        }
    }

    /// What all turns say.
    fn said(&self) -> Result<Vec<Said<'_>>, ApiError> {
        let messages = self.fields.messages.iter().enumerate();
        let said = messages.map(|(at, message)| {
            let at = format!("messages[{at}]");
            Ok(Said { role: message.role(&at)?, pieces: message.pieces(&at)? })
        });
        said.collect()
    }

    /// Where the pictures are that other hosts have, with the fields that name them.
    ///
    /// # Errors
    /// If a turn is wrong, or there are more than `images_max` pictures of any kind.
    pub(crate) fn elsewhere(&self, images_max: usize) -> Result<Vec<(String, String)>, ApiError> {
        let said = self.said()?;
        let pieces = said.iter().flat_map(|said| &said.pieces);
        let (mut elsewhere, mut images) = (Vec::new(), 0);
        for piece in pieces {
            let Piece::Picture { at, url, .. } = piece else { continue };
            images += 1;
            if images > images_max {
                let why = format!("more than {images_max} pictures; the server allows no more");
                return Err(ApiError::field(at.as_str(), why));
            }
            if pictures::is_elsewhere(url) {
                elsewhere.push((at.clone(), (*url).to_owned()));
            }
        }
        Ok(elsewhere)
    }

    /// The prompt; `fetched` are the files of the pictures that other hosts have, in order.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn prepare(&self, text: &Text, fetched: Vec<Vec<u8>>) -> Result<Prepared, ApiError> {
        let said = self.said()?;
        let shown = decode(&said, fetched)?;
        let mut turns = Vec::new();
        for (at, said) in said.iter().enumerate() {
            let parts = said.pieces.iter().map(|piece| match piece {
                Piece::Text(text) => Part::Text(text),
                Piece::Picture { .. } => Part::Picture,
            });
            let turn = Turn::from_parts(said.role.word(), &parts.collect::<Vec<_>>());
            let at = format!("messages[{at}].content");
            turns.push(turn.map_err(|error| ApiError::field(at, error))?);
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let context = &Context::default();
        let question = Question { turns: &turns, shown: &shown, context, now_s };
        text.prepare(&question).map_err(|error| unprepared("messages", error))
    }
}

/// Fetches pictures that other hosts have.
///
/// # Errors
/// 400, naming the field whose picture is not to be had.
pub(crate) fn fetch(
    elsewhere: &[(String, String)],
    remote: Option<&Remote>,
) -> Result<Vec<Vec<u8>>, ApiError> {
    elsewhere.iter().map(|(at, url)| pictures::fetch(url, at, remote)).collect()
}

/// All pictures of a conversation, together no larger than one may be.
fn decode(said: &[Said<'_>], fetched: Vec<Vec<u8>>) -> Result<Vec<Shown>, ApiError> {
    let (mut fetched, mut decoded, mut pixels) = (fetched.into_iter(), Vec::new(), 0);
    for piece in said.iter().flat_map(|said| &said.pieces) {
        let Piece::Picture { at, url, detail } = piece else { continue };
        let bytes = match pictures::is_elsewhere(url) {
            true => fetched.next().unwrap_or_default(),
            false => pictures::inside(url, at)?,
        };
        let picture = Picture::decode(&bytes).map_err(|error| ApiError::field(at, error))?;
        pixels += (picture.width() * picture.height()) as u64;
        if pixels > PIXELS_MAX {
            let why = format!("all pictures together have more than {PIXELS_MAX} pixels");
            return Err(ApiError::field(at, why));
        }
        let wish = Wish { detail: *detail, ..Wish::default() };
        decoded.push(Shown::from(picture).with(wish));
    }
    Ok(decoded)
}
