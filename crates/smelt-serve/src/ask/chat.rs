//! Turns a chat into a prompt with pictures.

use std::time::{SystemTime, UNIX_EPOCH};

use smelt_runtime::deployment::Text;
use smelt_runtime::dialect::{Demand, Dialect, THINK_TAGS, Thinking, demanded};
use smelt_runtime::image::{PIXELS_MAX, Picture, Shown, Wish};
use smelt_runtime::prepare::{Prepared, Question};
use smelt_runtime::prompt::{Part, Turn};
use smelt_runtime::speaker::Form;
use smelt_runtime::template::{Context, Serde, Value};

use super::unprepared;
use crate::api::chat::{ChatFields, Piece, Role};
use crate::api::common::Common;
use crate::api::read;
use crate::api::tools::ToolFields;
use crate::error::ApiError;
use crate::models::Model;
use crate::pictures::{self, Remote};

/// Most turns of a conversation: what a context of a million tokens could hold.
const MESSAGES_MAX: usize = 4096;

/// A chat as it was read.
pub(crate) struct Chat {
    pub(crate) common: Common,
    pub(crate) fields: ChatFields,
    pub(crate) tools: ToolFields,
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
        let chat =
            Self { common: read::json(body)?, fields: read::json(body)?, tools: read::json(body)? };
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
            let mut turn =
                turn.map_err(|error| ApiError::field(format!("messages[{at}].content"), error))?;
            for (field, value) in self.fields.messages[at].fields() {
                let turned = turn.with(field, Value::from(Serde(value)));
                turn = turned
                    .map_err(|error| ApiError::field(format!("messages[{at}].{field}"), error))?;
            }
            turns.push(turn);
        }
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let context = &self.context()?;
        let question = Question { turns: &turns, shown: &shown, context, now_s };
        text.prepare(&question).map_err(|error| unprepared("messages", error))
    }
}

impl Chat {
    /// What the chat template is told besides the turns.
    fn context(&self) -> Result<Context, ApiError> {
        let offered = self.tools.tools.as_ref().filter(|tools| !tools.is_empty());
        let is_offered = self.tools.demand()? != Demand::None;
        let tools = offered.filter(|_| is_offered).map(|tools| Value::from(Serde(tools)));
        let variables = self.tools.variables().into_iter();
        let variables = variables.map(|(name, value)| (name, Value::from(Serde(value)))).collect();
        Ok(Context { tools, variables, ..Context::default() })
    }

    /// What each answer must be, and how it is marked: after `prompt`, by a model of this dialect.
    ///
    /// # Errors
    /// 400, naming the field that cannot be held to.
    pub(crate) fn form(&self, model: &Model, prompt: &Prepared) -> Result<Formed, ApiError> {
        let tools = self.tools.tools()?;
        let demand = self.tools.demand()?;
        let text = model.service.text();
        let own = text.template.dialect();
        let is_calling = !tools.is_empty() && demand != Demand::None;
        let dialect = Dialect { calls: own.calls.filter(|_| is_calling), ..own };
        let is_thinking = dialect.is_thinking(&end_of(text, prompt));
        let of_format = self.common.grammar()?.map(|grammar| (grammar, "response_format"));
        let demanded = match own.calls {
            Some(calls) => demanded(calls, &tools, &demand, self.tools.is_parallel())
                .map_err(|error| ApiError::field("tools", error))?,
            None if is_calling || demand == Demand::Required => {
                let why = "this model's chat template does not say how it calls tools";
                return Err(ApiError::field("tools", why));
            }
            None => None,
        };
        let grammar = match (of_format, demanded) {
            (Some(_), Some(_)) => {
                let why = "is not supported together with tools; set tool_choice to none";
                return Err(ApiError::field("response_format", why));
            }
            (of_format, demanded) => of_format.or(demanded.map(|grammar| (grammar, "tools"))),
        };
        let compile = |(grammar, param)| model.constraint(&grammar, param);
        let constraint = grammar.map(compile).transpose()?;
        let thinking = self.thinking(text, dialect, is_thinking, constraint.is_some())?;
        Ok(Formed { form: Form { constraint, thinking }, dialect, is_thinking })
    }

    /// How long the model may think, where that matters: what an answer is held to begins behind it.
    fn thinking(
        &self,
        text: &Text,
        dialect: Dialect,
        is_thinking: bool,
        is_held: bool,
    ) -> Result<Option<Thinking>, ApiError> {
        let budget = self.tools.thinking_budget;
        if !dialect.thinks || (budget.is_none() && !is_held) {
            return Ok(None);
        }
        let failed = |error| ApiError::field("thinking_budget", error);
        let [opening, closing] = THINK_TAGS.map(|tag| text.tokenizer.encode(tag));
        let (opening, closing) = (opening.map_err(failed)?, closing.map_err(failed)?);
        Ok(Some(Thinking::new(opening, closing, budget.unwrap_or(usize::MAX), is_thinking)))
    }
}

/// What an answer must be, and how its parts are told apart.
pub(crate) struct Formed {
    pub(crate) form: Form,
    pub(crate) dialect: Dialect,
    /// Whether the prompt ends inside of the model's thinking.
    pub(crate) is_thinking: bool,
}

/// The last words of a prompt, in which a template may have begun the answer.
fn end_of(text: &Text, prompt: &Prepared) -> String {
    /// As many tokens as a tag may take, and white space behind it.
    const TOKENS: usize = 16;
    let from = prompt.tokens.len().saturating_sub(TOKENS);
    text.tokenizer.decode(&prompt.tokens[from..], false).unwrap_or_default()
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
