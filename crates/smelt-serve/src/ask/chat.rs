//! Turns a chat into a prompt with pictures.

use std::sync::{LazyLock, Weak};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use smelt_runtime::deployment::Text;
use smelt_runtime::dialect::{Demand, Dialect, THINK_TAGS, Thinking, demanded};
use smelt_runtime::generation::Constraint;
use smelt_runtime::identity::Identity;
use smelt_runtime::prepare::{Prepared, Question};
use smelt_runtime::prompt::{PromptPart, Turn};
use smelt_runtime::template::{Context, Ending, Serde, Value};

use super::resolved_message::{self, Limits, ResolvedMessage, ResolvedPart};
use super::unprepared;
use super::work::Asker;
use crate::api::chat::{ChatFields, Message, Piece};
use crate::api::common::Common;
use crate::api::fields::fields;
use crate::api::foreign::Known;
use crate::api::structured_output::StructuredOutputFields;
use crate::api::tools::ToolFields;
use crate::api::{foreign, read, weigh::weigh};
use crate::error::ApiError;
use crate::films::Films;
use crate::images::{self, Errand, Remote};
use crate::models::Model;

/// Most turns of a conversation: what a context of a million tokens could hold.
const MESSAGES_MAX: usize = 4096;

/// Most files of a request that are fetched at once, each by a thread: a host is rarely asked for more.
const FETCHED_AT_ONCE_MAX: usize = 4;

/// A chat as it was read.
pub(crate) struct Chat {
    pub(crate) common: Common,
    pub(crate) fields: ChatFields,
    pub(crate) tools: ToolFields,
    pub(crate) held: StructuredOutputFields,
    /// Fields that nobody knows.
    pub(crate) passed_over: Vec<String>,
    /// A text that is gone on with as it is, in the place of a conversation.
    pub(crate) raw: Option<String>,
}

/// What is made of a chat's texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Weight {
    /// Guards, each of which is copied as often as the text in which it stands.
    pub(crate) guards: usize,
    /// Bytes that are turned into tokens at most.
    pub(crate) encoded: usize,
}

/// What a chat shows that it does not hold itself.
#[derive(Debug)]
pub(crate) struct Brought {
    /// The files that other hosts have, in order.
    pub(crate) fetched: Vec<Vec<u8>>,
    /// Who reads films.
    pub(crate) films: Films,
}

/// The fields that a chat reads.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let all = [fields::<Common>(), fields::<ChatFields>(), fields::<ToolFields>()];
    let known = Known::new(all.into_iter().chain([fields::<StructuredOutputFields>()]).flatten());
    // The template writes what stands around a text.
    let known = known.doing("add_special_tokens", false.into());
    StructuredOutputFields::within(ChatFields::within(Common::within(known)))
});

impl Chat {
    /// Reads the chat that a request of another API became.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub(crate) fn read(body: &[u8]) -> Result<Self, ApiError> {
        Self::of(weigh(body)?)
    }

    /// Reads a request's body.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn of(body: read::Body<'_>) -> Result<Self, ApiError> {
        let chat = Self {
            common: read::json(body)?,
            fields: read::json(body)?,
            tools: read::json(body)?,
            held: read::json(body)?,
            passed_over: foreign::passed_over(body, &KNOWN)?,
            raw: None,
        };
        chat.fields.check()?;
        chat.tools.check()?;
        match chat.fields.messages.len() {
            0 => Err(ApiError::field("messages", "must have at least one")),
            1..=MESSAGES_MAX => Ok(chat),
            count => {
                let why = format!("{count} messages are more than {MESSAGES_MAX}");
                Err(ApiError::field("messages", why))
            }
        }
    }

    /// What all turns say; of clips that are lists, the frames that are looked at.
    fn said(&self, limits: Limits) -> Result<Vec<ResolvedMessage<'_>>, ApiError> {
        let pace = self.fields.pace()?;
        let messages = self.fields.messages.iter().enumerate();
        let said = messages.map(|(at, message)| {
            let at = format!("messages[{at}]");
            let pieces = message.pieces(&at)?.into_iter();
            let pieces = pieces.map(|piece| match piece {
                Piece::Text(text) => ResolvedPart::Text(text),
                Piece::Picture { at, url, image_options } => ResolvedPart::Image {
                    at,
                    url,
                    image_options: self.fields.image_options(image_options),
                },
                Piece::Clip { clip, image_options } => {
                    let clip = clip.or(pace);
                    let (clip, fps) = clip.sampled(limits.frames_max);
                    ResolvedPart::Clip {
                        clip,
                        fps,
                        image_options: self.fields.image_options(image_options),
                    }
                }
            });
            Ok(ResolvedMessage { role: message.role(&at)?, pieces: pieces.collect() })
        });
        said.collect()
    }

    /// Where the files are that other hosts have, with the fields that name them.
    ///
    /// # Errors
    /// If a turn is wrong, or there are more than `limits` allow of pictures and clips.
    pub(crate) fn elsewhere(&self, limits: Limits) -> Result<Vec<(String, String)>, ApiError> {
        let (mut elsewhere, mut shown) = (Vec::new(), 0);
        for seen in self.said(limits)?.iter().flat_map(|said| &said.pieces) {
            let files = seen.files();
            shown += usize::from(!files.is_empty());
            if let Some((at, _)) = files.first().filter(|_| shown > limits.images_max) {
                let most = limits.images_max;
                let why = format!("more than {most} pictures and clips; the server allows no more");
                return Err(ApiError::field(*at, why));
            }
            let is_still = |(_, url): &&(&str, &str)| images::is_camera(url) && !seen.may_be_film();
            if let Some((at, _)) = files.iter().find(is_still) {
                let why = "a camera shows a film, not a picture; send its address as a video_url";
                return Err(ApiError::field(*at, why));
            }
            let files = files.into_iter().filter(|(_, url)| images::is_elsewhere(url));
            elsewhere.extend(files.map(|(at, url)| (at.to_owned(), url.to_owned())));
            // They are fetched a few at a time.
            let most = limits.images_max + limits.frames_max;
            if let Some((at, _)) = elsewhere.get(most) {
                let why =
                    format!("more than {most} files of other hosts; send them in the request");
                return Err(ApiError::field(at, why));
            }
        }
        Ok(elsewhere)
    }

    /// Whether it shows what may be a film, which takes its time to be read.
    ///
    /// # Errors
    /// If a turn is wrong.
    pub(crate) fn may_show_films(&self, limits: Limits) -> Result<bool, ApiError> {
        Ok(self.said(limits)?.iter().flat_map(|said| &said.pieces).any(ResolvedPart::may_be_film))
    }

    /// Refuses what is shown to a model that reads text alone, before anything is fetched or decoded.
    ///
    /// # Errors
    /// 400, naming the field of the first picture or clip.
    pub(crate) fn seen_by(&self, text: &Text, limits: Limits) -> Result<(), ApiError> {
        let Err(blind) = text.seeing() else { return Ok(()) };
        let said = self.said(limits)?;
        let shown = said.iter().flat_map(|said| &said.pieces).flat_map(ResolvedPart::files);
        match shown.map(|(at, _)| at).next() {
            Some(at) => Err(unprepared(at, blind)),
            None => Ok(()),
        }
    }

    /// How much preparing makes of this beside what bodies of its length may take.
    ///
    /// # Errors
    /// 400, where there is more text than any prompt has room for: before anything is made of it.
    pub(crate) fn weight(&self, text: &Text, limits: Limits) -> Result<Weight, ApiError> {
        let said = self.said(limits)?;
        let pieces = said.iter().flat_map(|said| &said.pieces).filter_map(ResolvedPart::text);
        let fields = self.fields.messages.iter().flat_map(Message::texts);
        let texts: Vec<&str> = match &self.raw {
            Some(raw) => vec![raw],
            None => pieces.chain(fields).collect(),
        };
        let param = if self.raw.is_some() { "prompt" } else { "messages" };
        text.could_hold(texts.iter().copied()).map_err(|error| unprepared(param, error))?;
        let longest = text.tokenizer.bytes_max(text.max_seq_len);
        let encoded = texts.iter().map(|text| text.len()).sum::<usize>().min(longest);
        if self.raw.is_some() || self.fields.is_markup() {
            return Ok(Weight { guards: 0, encoded });
        }
        let marks = &text.marks;
        let calls = self.fields.messages.iter().flat_map(Message::arguments);
        let free = self.tools.free().chain(calls).map(|value| marks.guards_of(value));
        let guards = texts.iter().map(|text| marks.guards(text)).chain(free).sum();
        Ok(Weight { guards, encoded })
    }

    /// About how many bytes the grammar takes that answers are held to, at most.
    pub(crate) fn compiled_bytes(&self) -> usize {
        self.held.compiled_bytes() + self.tools.compiled_bytes()
    }

    /// The prompt; who says the same `reuse` shares what was seen.
    ///
    /// # Errors
    /// 400, naming the field that is wrong.
    pub(crate) fn prepare(
        &self,
        text: &Text,
        brought: Brought,
        limits: Limits,
        (asker, reuse): (&Asker, Option<Identity>),
    ) -> Result<Prepared, ApiError> {
        if let Some(raw) = &self.raw {
            return text.prepare_text(raw).map_err(|error| unprepared("prompt", error));
        }
        self.seen_by(text, limits)?;
        let answer_max = self.new_tokens_max()?;
        let said = self.said(limits)?;
        let files = resolved_message::files(&said, brought.fetched)?;
        let is_shown = !files.is_empty();
        // Held until the pictures are cut.
        let _room = asker.room(resolved_message::pixels(&files))?;
        let decode = || resolved_message::decode(files, (text, limits), &brought.films, asker);
        let shown = if is_shown { text.timed("pixels", decode) } else { decode() }?;
        let mut turns = Vec::new();
        for (at, said) in said.iter().enumerate() {
            let parts = said.pieces.iter().map(|piece| match piece {
                ResolvedPart::Text(text) => PromptPart::Text(text),
                ResolvedPart::Image { .. } => PromptPart::Image,
                ResolvedPart::Clip { .. } => PromptPart::Clip,
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
        asker.check()?;
        let question = Question { turns: &turns, shown: &shown, context, answer_max, now_s, reuse };
        text.prepare(&question).map_err(|error| unprepared("messages", error))
    }
}

impl Chat {
    /// The most tokens of an answer, if there is a limit.
    ///
    /// # Errors
    /// If it is zero.
    pub(crate) fn new_tokens_max(&self) -> Result<Option<usize>, ApiError> {
        Ok(self.fields.new_tokens_max()?.or(self.common.n_predict()?))
    }

    /// What the chat template is told besides the turns.
    fn context(&self) -> Result<Context, ApiError> {
        let offered = self.tools.tools.as_ref().filter(|tools| !tools.is_empty());
        let is_offered = self.tools.demand()? != Demand::None;
        let tools = offered.filter(|_| is_offered).map(|tools| Value::from(Serde(tools)));
        let variables = self.tools.variables().into_iter();
        let variables = variables.map(|(name, value)| (name, Value::from(Serde(value)))).collect();
        let (is_markup, ending) = (self.fields.is_markup(), self.fields.ending()?);
        Ok(Context { tools, variables, is_markup, ending, ..Context::default() })
    }

    /// What each answer must be, and how it is marked: after `prompt`, by a model of this dialect.
    ///
    /// # Errors
    /// 400, naming the field that cannot be held to.
    pub(crate) fn constraint(&self, model: &Model, prompt: &Prepared) -> Result<Formed, ApiError> {
        let tools = self.tools.tools()?;
        let demand = self.tools.demand()?;
        let text = model.speaks()?.text();
        let own = text.template.dialect();
        let is_calling = !tools.is_empty() && demand != Demand::None;
        let dialect = Dialect { calls: own.calls.filter(|_| is_calling), ..own };
        // A message that is gone on with is text, whatever tags its words have.
        let is_text = self.fields.ending()? == Ending::Continued && !self.fields.is_markup();
        let is_thinking = !is_text && dialect.is_thinking(&end_of(text, prompt));
        let held = self.held.grammar()?;
        let (format, of_format) = held.map_or((None, ""), |(grammar, name)| (Some(grammar), name));
        let demanded = match own.calls {
            Some(calls) => {
                demanded(calls, &tools, &demand, self.tools.is_parallel(), format.as_ref())
                    .map_err(|error| ApiError::field("tools", error))?
            }
            None if is_calling || demand == Demand::Required => {
                let why = "this model's chat template does not say how it calls tools";
                return Err(ApiError::field("tools", why));
            }
            None => None,
        };
        // What is demanded of tools has the format in it.
        let demanded = demanded.map(|grammar| (grammar, "tools"));
        let grammar = demanded.or(format.map(|grammar| (grammar, of_format)));
        let compile = |(grammar, param)| model.constraint(&grammar, param);
        let matcher = grammar.map(compile).transpose()?;
        let thinking = self.thinking(text, dialect, is_thinking, matcher.is_some())?;
        Ok(Formed { constraint: Constraint { matcher, thinking }, dialect, is_thinking })
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
    pub(crate) constraint: Constraint,
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

/// Fetches files that other hosts have, some at once, in bounds that hold for all of them together, and no longer
/// than `asker` lives.
///
/// # Errors
/// 400, naming the field whose file is not to be had.
pub(crate) fn fetch(
    elsewhere: &[(String, String)],
    remote: Option<&Remote>,
    asker: Weak<()>,
) -> Result<Vec<Vec<u8>>, ApiError> {
    let errand = &Errand::new(asker);
    let mut files = Vec::new();
    for some in elsewhere.chunks(FETCHED_AT_ONCE_MAX) {
        let fetched: Result<Vec<_>, _> = thread::scope(|scope| {
            let one = |(at, url): &'_ (String, String)| images::fetch(url, at, remote, errand);
            let threads: Vec<_> = some.iter().map(|file| scope.spawn(move || one(file))).collect();
            let ended = threads.into_iter().map(thread::ScopedJoinHandle::join);
            let failed = || ApiError::failed("smelt failed to fetch a picture");
            ended.map(|file| file.unwrap_or_else(|_| Err(failed()))).collect()
        });
        files.extend(fetched?);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(part: &serde_json::Value, count: usize, expect: Result<usize, &str>) {
        let limits = Limits { images_max: 4, frames_max: 8 };
        let message = json!({ "role": "user", "content": vec![part; count] });
        let body = json!({ "messages": [message] }).to_string();
        let elsewhere = Chat::read(body.as_bytes()).unwrap().elsewhere(limits);
        match (elsewhere.map(|files| files.len()), expect) {
            (Err(error), Err(says)) => assert!(error.message.contains(says), "{error:?}"),
            (found, expect) => assert_eq!(found.ok(), expect.ok()),
        }
    }

    #[test]
    fn what_is_shown_and_fetched_has_limits() {
        let picture = json!({ "type": "image_url", "image_url": "http://x/1.png" });
        check(&picture, 4, Ok(4));
        check(&picture, 5, Err("more than 4 pictures and clips"));
        let frames: Vec<String> = (0..9).map(|at| format!("http://x/{at}.jpg")).collect();
        let clip = json!({ "type": "video", "video": frames });
        check(&clip, 1, Ok(8));
        check(&clip, 2, Err("more than 12 files of other hosts"));
    }
}
