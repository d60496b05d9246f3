//! What `/v1/chat/completions` is asked.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use smelt_runtime::image::{Detail, ImageOptions};
use smelt_runtime::sampling::TOP_LOGPROBS_MAX;
use smelt_runtime::template::Ending;

use super::clip::{Clip, Pace};
use super::fields::fields;
use super::foreign::Known;
use super::several::{TextOr, TextOrObject};
use crate::error::ApiError;

/// The fields that chats alone have.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ChatFields {
    pub(crate) messages: Vec<Message>,
    #[serde(default)]
    logprobs: Option<bool>,
    #[serde(default)]
    top_logprobs: Option<usize>,
    #[serde(default)]
    max_tokens: Option<usize>,
    #[serde(default)]
    max_completion_tokens: Option<usize>,
    /// As in vLLM: how closely pictures are looked at that say nothing of it.
    #[serde(default)]
    mm_processor_kwargs: Option<Sizes>,
    /// As in vLLM: which frames are looked at of films that say nothing of it.
    #[serde(default)]
    media_io_kwargs: Option<MediaIo>,
    /// What an answer is made of.
    #[serde(default)]
    modalities: Option<Vec<String>>,
    /// Whether marks of the model that texts hold are what they say, as in llama.cpp.
    #[serde(default)]
    parse_special: Option<bool>,
    /// Whether the answer's beginning is written behind the last turn, as in vLLM.
    #[serde(default)]
    add_generation_prompt: Option<bool>,
    /// Whether the last turn, an assistant's, is gone on with, as in vLLM.
    #[serde(default)]
    continue_final_message: Option<bool>,
    #[serde(default)]
    audio: Option<Value>,
    #[serde(default)]
    web_search_options: Option<Value>,
}

/// How large pictures are seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Sizes {
    min_pixels: Option<usize>,
    max_pixels: Option<usize>,
    /// Most tiles, of models that see such.
    max_dynamic_patch: Option<usize>,
    /// Frames of a second, and of all, of films.
    fps: Option<f64>,
    num_frames: Option<usize>,
}

/// How media are read.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct MediaIo {
    video: Option<VideoIo>,
}

/// How films are read.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct VideoIo {
    fps: Option<f64>,
    num_frames: Option<usize>,
}

/// One turn of the conversation.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Message {
    role: String,
    #[serde(default)]
    content: Option<TextOr<ContentPart>>,
    #[serde(default)]
    tool_calls: Option<Vec<ToolCall>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
}

/// What an assistant called before.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct ToolCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "type", default)]
    kind: ToolKind,
    function: CalledFunction,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum ToolKind {
    #[default]
    Function,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
struct CalledFunction {
    name: String,
    /// A text of JSON, as OpenAI's API has it, or the object that templates want.
    #[serde(deserialize_with = "arguments")]
    arguments: Value,
}

fn arguments<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Value, D::Error> {
    deserializer.deserialize_any(TextOrObject(Value::String))
}

/// A piece of a turn.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct ContentPart {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    /// What an assistant said instead of an answer, in a conversation that goes on.
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    image_url: Option<ImageUrl>,
    #[serde(default)]
    video_url: Option<ImageUrl>,
    /// As Qwen's clients have it: the address of a file, or of each frame.
    #[serde(default)]
    video: Option<TextOr<String>>,
    #[serde(default)]
    fps: Option<f64>,
    #[serde(default)]
    nframes: Option<usize>,
    #[serde(default)]
    min_pixels: Option<usize>,
    #[serde(default)]
    max_pixels: Option<usize>,
}

/// Where a picture is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageUrl {
    url: String,
    detail: Option<String>,
}

impl<'de> Deserialize<'de> for ImageUrl {
    /// OpenAI's API has an object; many clients send the address alone.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Fields {
            url: String,
            #[serde(default)]
            detail: Option<String>,
        }
        let of_text = TextOrObject(|url| Fields { url, detail: None });
        let Fields { url, detail } = deserializer.deserialize_any(of_text)?;
        Ok(Self { url, detail })
    }
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The word that chat templates know.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    /// `developer` is what OpenAI's newer models call the system.
    fn parse(word: &str) -> Option<Self> {
        match word {
            "system" | "developer" => Some(Self::System),
            "user" => Some(Self::User),
            "assistant" => Some(Self::Assistant),
            "tool" | "function" => Some(Self::Tool),
            _ => None,
        }
    }
}

/// A piece of a turn that is what it says.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Piece<'a> {
    Text(&'a str),
    Picture {
        /// The field, for errors.
        at: String,
        url: &'a str,
        image_options: ImageOptions,
    },
    Clip {
        clip: Clip<'a>,
        image_options: ImageOptions,
    },
}

impl Message {
    /// Who speaks; `at` is the message's own name.
    ///
    /// # Errors
    /// If it is none of the roles.
    pub(crate) fn role(&self, at: &str) -> Result<Role, ApiError> {
        Role::parse(&self.role).ok_or_else(|| {
            let why = format!(
                "{:?} is no role, but system, developer, user, assistant and tool are",
                self.role
            );
            ApiError::field(format!("{at}.role"), why)
        })
    }

    /// What the message has beside role and content, for the chat template.
    pub(crate) fn fields(&self) -> Vec<(&'static str, Value)> {
        let text = |text: &Option<String>| text.clone().map(Value::from);
        let fields = [
            ("tool_calls", self.tool_calls.as_ref().map(|calls| json!(calls))),
            ("tool_call_id", text(&self.tool_call_id)),
            ("name", text(&self.name)),
            ("reasoning_content", text(&self.reasoning_content)),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The texts that it has beside what is said.
    pub(crate) fn texts(&self) -> impl Iterator<Item = &str> {
        let texts = [&self.tool_call_id, &self.name, &self.reasoning_content];
        texts.into_iter().filter_map(Option::as_deref)
    }

    /// What was called, with what.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &Value> {
        self.tool_calls.iter().flatten().map(|call| &call.function.arguments)
    }

    /// What is said, in order; `at` is the message's own name.
    ///
    /// # Errors
    /// Naming the part that is none.
    pub(crate) fn pieces(&self, at: &str) -> Result<Vec<Piece<'_>>, ApiError> {
        let is_empty = match &self.content {
            None => true,
            Some(TextOr::Text(_)) => false,
            Some(TextOr::List(parts)) => parts.is_empty(),
        };
        match &self.content {
            _ if is_empty && self.role == "user" => Err(ApiError::field(
                format!("{at}.content"),
                "is missing, and a user says something",
            )),
            None => Ok(Vec::new()),
            Some(TextOr::Text(text)) => Ok(vec![Piece::Text(text)]),
            Some(TextOr::List(parts)) => {
                let parts = parts.iter().enumerate();
                parts.map(|(i, part)| part.piece(format!("{at}.content[{i}]"))).collect()
            }
        }
    }
}

impl ContentPart {
    fn piece(&self, at: String) -> Result<Piece<'_>, ApiError> {
        let missing = |field| ApiError::field(format!("{at}.{field}"), "is missing");
        match self.kind.as_str() {
            "text" => Ok(Piece::Text(self.text.as_deref().ok_or_else(|| missing("text"))?)),
            "refusal" => {
                Ok(Piece::Text(self.refusal.as_deref().ok_or_else(|| missing("refusal"))?))
            }
            "image_url" => {
                let image = self.image_url.as_ref().ok_or_else(|| missing("image_url"))?;
                let image_options =
                    self.image_options(image.detail(&format!("{at}.image_url.url"))?);
                Ok(Piece::Picture {
                    at: format!("{at}.image_url.url"),
                    url: &image.url,
                    image_options,
                })
            }
            "video_url" => {
                let video = self.video_url.as_ref().ok_or_else(|| missing("video_url"))?;
                let image_options =
                    self.image_options(video.detail(&format!("{at}.video_url.url"))?);
                let clip = self.pace().of_url(&video.url, format!("{at}.video_url.url"))?;
                Ok(Piece::Clip { clip, image_options })
            }
            "video" => {
                let video = self.video.as_ref().ok_or_else(|| missing("video"))?;
                let at = format!("{at}.video");
                let clip = match video {
                    TextOr::Text(url) => self.pace().of_url(url, at)?,
                    TextOr::List(urls) => self.pace().of_list(urls, at)?,
                };
                Ok(Piece::Clip { clip, image_options: self.image_options(Detail::Auto) })
            }
            kind => {
                let why = format!(
                    "{kind:?} is not understood, but text, image_url, video_url and video are"
                );
                Err(ApiError::field(format!("{at}.type"), why))
            }
        }
    }
}

impl ContentPart {
    fn image_options(&self, detail: Detail) -> ImageOptions {
        let (pixels_min, pixels_max) = (self.min_pixels, self.max_pixels);
        ImageOptions { detail, pixels_min, pixels_max, ..ImageOptions::default() }
    }

    fn pace(&self) -> Pace {
        Pace { fps: self.fps, nframes: self.nframes }
    }
}

impl Sizes {
    fn image_options(self) -> ImageOptions {
        let Self { min_pixels, max_pixels, max_dynamic_patch, .. } = self;
        let (pixels_min, pixels_max, tiles_max) = (min_pixels, max_pixels, max_dynamic_patch);
        ImageOptions { pixels_min, pixels_max, tiles_max, ..ImageOptions::default() }
    }
}

impl ImageUrl {
    fn detail(&self, at: &str) -> Result<Detail, ApiError> {
        match self.detail.as_deref() {
            None | Some("auto") => Ok(Detail::Auto),
            Some("low") => Ok(Detail::Low),
            Some("high") => Ok(Detail::High),
            Some(word) => {
                let at = at.replace(".url", ".detail");
                Err(ApiError::field(at, format!("must be low, high or auto, not {word:?}")))
            }
        }
    }
}

impl ChatFields {
    /// Reads also these fields of fields.
    pub(crate) fn within(known: Known) -> Known {
        known
            .within("messages", fields::<Message>())
            .within("messages.content", fields::<ContentPart>())
            .within("mm_processor_kwargs", fields::<Sizes>())
            .within("media_io_kwargs", fields::<MediaIo>())
            .within("media_io_kwargs.video", fields::<VideoIo>())
    }

    /// Whether nothing is asked for that no model here does: an answer without it would be another one.
    ///
    /// # Errors
    /// Naming the field that is not understood.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        if self.modalities.iter().flatten().any(|kind| kind != "text") {
            return Err(ApiError::field(
                "modalities",
                "must be [\"text\"]; answers are text alone",
            ));
        }
        let foreign = [("audio", &self.audio), ("web_search_options", &self.web_search_options)];
        match foreign.iter().find(|(_, value)| value.is_some()) {
            Some((name, _)) => Err(ApiError::field(*name, "is not understood; leave it out")),
            None => Ok(()),
        }
    }

    /// How the prompt ends.
    ///
    /// # Errors
    /// If the last turn is to be gone on with and another to begin.
    pub(crate) fn ending(&self) -> Result<Ending, ApiError> {
        match (self.continue_final_message.unwrap_or(false), self.add_generation_prompt) {
            (true, Some(true)) => {
                let why = "goes together with add_generation_prompt: false alone";
                Err(ApiError::field("continue_final_message", why))
            }
            (true, _) => Ok(Ending::Continued),
            (false, Some(false)) => Ok(Ending::Bare),
            (false, _) => Ok(Ending::Reply),
        }
    }

    /// Whether texts may hold marks of the model.
    pub(crate) fn is_markup(&self) -> bool {
        self.parse_special.unwrap_or(false)
    }

    /// What a picture's sender wishes, who wishes this of it alone.
    pub(crate) fn image_options(&self, own: ImageOptions) -> ImageOptions {
        let all = self.mm_processor_kwargs.unwrap_or_default().image_options();
        ImageOptions {
            pixels_min: own.pixels_min.or(all.pixels_min),
            pixels_max: own.pixels_max.or(all.pixels_max),
            tiles_max: own.tiles_max.or(all.tiles_max),
            ..own
        }
    }

    /// Which frames are looked at of films that say nothing of it.
    ///
    /// # Errors
    /// Naming the field that is none.
    pub(crate) fn pace(&self) -> Result<Pace, ApiError> {
        let of_sizes =
            self.mm_processor_kwargs.map(|all| Pace { fps: all.fps, nframes: all.num_frames });
        let of_video = self.media_io_kwargs.and_then(|all| all.video);
        let of_video = of_video.map(|all| Pace { fps: all.fps, nframes: all.num_frames });
        let places = [("mm_processor_kwargs", of_sizes), ("media_io_kwargs.video", of_video)];
        for (at, pace) in places {
            pace.unwrap_or_default().check(at, "num_frames")?;
        }
        let said = places.into_iter().filter_map(|(_, pace)| pace);
        Ok(said.into_iter().find(|pace| *pace != Pace::default()).unwrap_or_default())
    }

    /// How many of the likeliest tokens are told with each, if any are.
    ///
    /// # Errors
    /// As OpenAI's server, if there is a number without `logprobs`, or it is too large.
    pub(crate) fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        match self.logprobs.unwrap_or(false) {
            _ if top > TOP_LOGPROBS_MAX => {
                let why = format!("must be at most {TOP_LOGPROBS_MAX}, not {top}");
                Err(ApiError::field("top_logprobs", why))
            }
            true => Ok(Some(top)),
            false if self.top_logprobs.is_none() => Ok(None),
            false => Err(ApiError::field("top_logprobs", "only allowed where logprobs is true")),
        }
    }

    /// The most tokens of an answer, if there is a limit.
    ///
    /// # Errors
    /// If it is zero.
    pub(crate) fn new_tokens_max(&self) -> Result<Option<usize>, ApiError> {
        // The newer name counts where a client sends both.
        let (name, max) = match self.max_completion_tokens {
            Some(max) => ("max_completion_tokens", Some(max)),
            None => ("max_tokens", self.max_tokens),
        };
        match max {
            Some(0) => Err(ApiError::field(name, "must be at least 1")),
            max => Ok(max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(json: &str) -> ChatFields {
        serde_json::from_str(json).unwrap()
    }

    fn message(json: &str) -> Message {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn tool_calls_of_any_turn_are_whole() {
        let turn = |role: &str, call: &str| {
            let json = format!(r#"{{"role": "{role}", "content": "", "tool_calls": [{call}]}}"#);
            serde_json::from_str::<Message>(&json)
        };
        let whole = turn("assistant", r#"{"function": {"name": "f", "arguments": "{}"}, "x": 1}"#);
        let function = json!({ "name": "f", "arguments": "{}" });
        let told = json!([{ "type": "function", "function": function }]);
        assert_eq!(whole.unwrap().fields(), [("tool_calls", told)]);
        assert!(turn("tool", r#"{"function": {"name": "f", "arguments": {"a": 1}}}"#).is_ok());
        for call in [
            "{}",
            r#"{"function": {"name": "f"}}"#,
            r#"{"function": {"name": "f", "arguments": 1}}"#,
            r#"{"type": "tool", "function": {"name": "f", "arguments": ""}}"#,
            r#"{"id": 1, "function": {"name": "f", "arguments": ""}}"#,
        ] {
            assert!(turn("tool", call).is_err(), "{call}");
        }
    }

    #[test]
    fn a_turn_is_a_text_or_parts() {
        let text = message(r#"{"role": "user", "content": "a"}"#);
        assert_eq!(text.pieces("messages[0]"), Ok(vec![Piece::Text("a")]));
        let refused =
            message(r#"{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}"#);
        assert_eq!(refused.pieces("messages[0]"), Ok(vec![Piece::Text("no")]));
        let parts = message(
            r#"{"role": "user", "content": [{"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:,", "detail": "low"}},
            {"type": "image_url", "image_url": "http://x"}]}"#,
        );
        let picture = |i: usize, url, detail| Piece::Picture {
            at: format!("messages[0].content[{i}].image_url.url"),
            url,
            image_options: ImageOptions { detail, ..ImageOptions::default() },
        };
        let expect = vec![
            Piece::Text("a"),
            picture(1, "data:,", Detail::Low),
            picture(2, "http://x", Detail::Auto),
        ];
        assert_eq!(parts.pieces("messages[0]"), Ok(expect));
        assert_eq!(message(r#"{"role": "assistant", "content": null}"#).pieces(""), Ok(vec![]));
    }

    #[test]
    fn a_user_says_something() {
        let none = [r#", "content": null"#, r#", "content": []"#, ""];
        for json in none.map(|content| format!(r#"{{"role": "user"{content}}}"#)) {
            let json = &json[..];
            let error = message(json).pieces("messages[1]").unwrap_err();
            assert_eq!(error.param.as_deref(), Some("messages[1].content"));
        }
        assert_eq!(
            message(r#"{"role": "user", "content": ""}"#).pieces(""),
            Ok(vec![Piece::Text("")])
        );
    }

    #[track_caller]
    fn check(part: &str, param: &str) {
        let message = message(&format!(r#"{{"role": "user", "content": [{part}]}}"#));
        let error = message.pieces("messages[3]").unwrap_err();
        assert_eq!(error.param.as_deref(), Some(param));
    }

    #[test]
    fn a_part_that_is_none_is_named() {
        check(r#"{"type": "audio"}"#, "messages[3].content[0].type");
        check(r#"{"type": "video"}"#, "messages[3].content[0].video");
        check(r#"{"type": "video", "video": []}"#, "messages[3].content[0].video");
        check(r#"{"type": "video_url"}"#, "messages[3].content[0].video_url");
        check(r#"{"type": "text"}"#, "messages[3].content[0].text");
        check(r#"{"type": "image_url"}"#, "messages[3].content[0].image_url");
        let detail = r#"{"type": "image_url", "image_url": {"url": "", "detail": "max"}}"#;
        check(detail, "messages[3].content[0].image_url.detail");
    }

    #[test]
    fn a_picture_is_seen_as_it_says_or_as_all_are() {
        let part = r#"{"type": "image_url", "image_url": "data:,", "max_pixels": 9}"#;
        let message = message(&format!(r#"{{"role": "user", "content": [{part}]}}"#));
        let pieces = message.pieces("m").unwrap();
        let [Piece::Picture { image_options, .. }] = pieces[..] else { panic!("{pieces:?}") };
        let all = r#"{"min_pixels": 4, "max_pixels": 5, "max_dynamic_patch": 6}"#;
        let chat = chat(&format!(r#"{{"messages": [], "mm_processor_kwargs": {all}}}"#));
        let image_options = chat.image_options(image_options);
        let found = (image_options.pixels_min, image_options.pixels_max, image_options.tiles_max);
        assert_eq!(found, (Some(4), Some(9), Some(6)));
    }

    #[test]
    fn roles_are_known() {
        let role = |word: &str| message(&format!(r#"{{"role": "{word}"}}"#)).role("m");
        assert_eq!(role("developer"), Ok(Role::System));
        assert_eq!(role("tool"), Ok(Role::Tool));
        assert_eq!(role("bot").unwrap_err().param.as_deref(), Some("m.role"));
    }

    #[test]
    fn logprobs_are_asked_for_by_two_fields() {
        let asked = |json: &str| chat(&format!(r#"{{"messages": []{json}}}"#)).logprobs();
        assert_eq!(asked(""), Ok(None));
        assert_eq!(asked(r#", "logprobs": true"#), Ok(Some(0)));
        assert_eq!(asked(r#", "logprobs": true, "top_logprobs": 5"#), Ok(Some(5)));
        assert!(asked(r#", "top_logprobs": 5"#).is_err());
        assert!(asked(r#", "logprobs": true, "top_logprobs": 21"#).is_err());
    }

    #[test]
    fn what_no_model_does_is_named() {
        let asked = |json: &str| {
            let checked = chat(&format!(r#"{{"messages": []{json}}}"#)).check();
            checked.map_err(|error| error.param.unwrap())
        };
        assert_eq!(asked(r#", "modalities": ["text"], "audio": null"#), Ok(()));
        let spoken = asked(r#", "modalities": ["text", "audio"]"#);
        assert_eq!(spoken, Err("modalities".to_owned()));
        for field in ["audio", "web_search_options"] {
            assert_eq!(asked(&format!(r#", "{field}": {{}}"#)), Err(field.to_owned()));
        }
    }

    #[test]
    fn the_newer_name_of_the_limit_counts() {
        let asked = |json: &str| chat(&format!(r#"{{"messages": []{json}}}"#)).new_tokens_max();
        assert_eq!(asked(""), Ok(None));
        assert_eq!(asked(r#", "max_tokens": 5"#), Ok(Some(5)));
        assert_eq!(asked(r#", "max_tokens": 5, "max_completion_tokens": 6"#), Ok(Some(6)));
        assert!(asked(r#", "max_tokens": 0"#).is_err());
    }
}
