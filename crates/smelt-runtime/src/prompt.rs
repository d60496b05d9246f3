//! Puts pictures and clips into conversations and prompts.
//!
//! A turn is words, pictures and whatever else a message has; the chat template is given it as one
//! text with a mark for each picture, or as a list of parts, whichever it takes.  In its text each
//! mark becomes the image tokens that the picture needs.  Knows nothing of pixels.

use serde::{Deserialize, Serialize};
use smelt_family::{ImageMarks, ModelFamily};

use crate::dialect::{Dialect, THINK_TAGS};
use crate::markup::{GUARD, Marks};
use crate::template::{ContentFormat, Value};

/// Stands for a picture between the conversation and the prompt.  A Unicode noncharacter, which no
/// text may hold and no template touches.
const MARK: char = '\u{FDD0}';

/// Stands behind the last turn's words where the model goes on with them.  A noncharacter, too.
const HERE: char = '\u{FDD2}';

/// What InternVL's users write where a picture goes.
pub const PICTURE_WORD: &str = "<image>";

/// Why a prompt could not be written.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PromptError {
    /// The text holds what only a picture may put there.
    #[error("the text holds {0:?}, which is reserved for pictures; take it out")]
    Reserved(String),
    /// Turns and pictures differ in number.
    #[error("the conversation shows {marked} pictures, but {given} are given")]
    Pictures {
        /// Pictures the turns show.
        marked: usize,
        /// Pictures given.
        given: usize,
    },
    /// The template lost or repeated a turn.
    #[error("the chat template wrote {written} of {marked} pictures")]
    Template {
        /// Marks in the template's text.
        written: usize,
        /// Marks in the conversation.
        marked: usize,
    },
    /// The last turn cannot be gone on with.
    #[error("the last message must be an assistant's text without calls to be gone on with")]
    NotLast,
    /// The template does not let it.
    #[error(
        "this model's chat template does not write the last message as it is, so it cannot be gone on with"
    )]
    NotContinued,
    /// A message cannot have such a field.
    #[error("a message's {0:?} is not a field beside role and content; leave it out")]
    Field(String),
}

/// The special tokens that surround and stand for a picture, as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageTokens {
    /// Before a picture: `<img>`.
    pub start: String,
    /// For each embedding of a picture: `<IMG_CONTEXT>`.
    pub image: String,
    /// After a picture: `</img>`.
    pub end: String,
    /// What the template writes for a clip, where that is another token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<String>,
}

impl ImageTokens {
    /// Those of a family, if its models see.
    pub fn of(family: ModelFamily) -> Option<Self> {
        let ImageMarks { start, image, end, video } = family.images()?.marks;
        Some(Self {
            start: start.to_owned(),
            image: image.to_owned(),
            end: end.to_owned(),
            video: video.map(str::to_owned),
        })
    }

    /// The words that only pictures and clips may put into a prompt.
    fn reserved(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.image).chain(&self.video)
    }
}

/// A piece of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptPart<'a> {
    /// Words.
    Text(&'a str),
    /// The next picture, on a line of its own.
    Image,
    /// The next clip, on a line of its own.
    Clip,
}

/// A piece of a turn, as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    /// A picture, or a clip; where a template takes one text, a line may end behind it.
    Shown {
        is_clip: bool,
        is_line: bool,
    },
}

/// One turn of a conversation, with its pictures in place.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    role: String,
    pieces: Vec<Piece>,
    /// What the message has beside role and content, in order.
    fields: Vec<(String, Value)>,
}

impl Turn {
    /// A turn of words, pictures and clips in order; a line ends after each of those.
    ///
    /// # Errors
    /// [`PromptError::Reserved`] if the words hold the picture mark.
    pub fn from_parts(role: &str, parts: &[PromptPart<'_>]) -> Result<Self, PromptError> {
        let piece = |part: &PromptPart<'_>| match part {
            PromptPart::Text(text) => Ok(Piece::Text(unmarked(text)?.to_owned())),
            PromptPart::Image => Ok(Piece::Shown { is_clip: false, is_line: true }),
            PromptPart::Clip => Ok(Piece::Shown { is_clip: true, is_line: true }),
        };
        let pieces = parts.iter().map(piece).collect::<Result<_, _>>()?;
        Ok(Self { role: role.to_owned(), pieces, fields: Vec::new() })
    }

    /// A turn whose words say `<image>` where its pictures go.
    ///
    /// Pictures without a word go in front, a line each; words without a picture stay words.
    ///
    /// # Errors
    /// [`PromptError::Reserved`] if the words hold the picture mark.
    pub fn from_marked(role: &str, text: &str, pictures: usize) -> Result<Self, PromptError> {
        let text = unmarked(text)?;
        let in_front = pictures - pictures.min(text.matches(PICTURE_WORD).count());
        let shown = |is_line| Piece::Shown { is_clip: false, is_line };
        let mut pieces = vec![shown(true); in_front];
        for (index, words) in text.splitn(pictures - in_front + 1, PICTURE_WORD).enumerate() {
            if index > 0 {
                pieces.push(shown(false));
            }
            if !words.is_empty() {
                pieces.push(Piece::Text(words.to_owned()));
            }
        }
        Ok(Self { role: role.to_owned(), pieces, fields: Vec::new() })
    }

    /// The same turn with so many clips in front, a line each.
    #[must_use]
    pub fn behind_clips(mut self, clips: usize) -> Self {
        let clip = Piece::Shown { is_clip: true, is_line: true };
        self.pieces.splice(..0, std::iter::repeat_n(clip, clips));
        self
    }

    /// The same turn with one more field of its message: `tool_calls`, `tool_call_id`, `name`,
    /// `reasoning_content` and whatever else the template knows.
    ///
    /// The `arguments` of tool calls are objects to templates; texts of JSON, as OpenAI's API has them,
    /// become such.
    ///
    /// # Errors
    /// [`PromptError`] if the field is the role or content, or a text in it holds the picture mark.
    pub fn with(mut self, field: &str, value: Value) -> Result<Self, PromptError> {
        if ["role", "content"].contains(&field) {
            return Err(PromptError::Field(field.to_owned()));
        }
        unmarked(&words(&value))?;
        let value = if field == "tool_calls" { with_objects(&value) } else { value };
        self.fields.push((field.to_owned(), value));
        Ok(self)
    }

    /// The turn with guards in all that is said, so that none of it is a mark of the model or its template.
    ///
    /// What the assistant thought, where a client left it in front of what it said, is told apart before: of models
    /// whose templates look for `</think>` there.
    #[must_use]
    pub fn guarded(&self, marks: &Marks, dialect: Dialect) -> Self {
        let Self { role, pieces, fields } = match dialect.thinks {
            true => self.clone().with_thoughts_apart(),
            false => self.clone(),
        };
        let texts: Vec<&str> = pieces.iter().map(Piece::words).collect();
        let piece = |(piece, text): (&Piece, &str)| match piece {
            Piece::Text(_) => Piece::Text(marks.guarded(text).into_owned()),
            shown => shown.clone(),
        };
        let pieces = pieces.iter().zip(texts).map(piece).collect();
        let field = |(name, value): (String, Value)| (name, marks.guarded_value(&value));
        Self { role, pieces, fields: fields.into_iter().map(field).collect() }
    }

    /// The same with a field of its own for what stands between [`THINK_TAGS`], as templates read it.
    fn with_thoughts_apart(mut self) -> Self {
        const FIELD: &str = "reasoning_content";
        let [opening, closing] = THINK_TAGS;
        let is_told = self.fields.iter().any(|(name, _)| name == FIELD);
        let [Piece::Text(text)] = &self.pieces[..] else { return self };
        if self.role != "assistant" || is_told {
            return self;
        }
        let Some((thought, _)) = text.split_once(closing) else { return self };
        let thought = thought.rsplit(opening).next().unwrap_or_default().trim_matches('\n');
        let said = text.rsplit(closing).next().unwrap_or_default().trim_start_matches('\n');
        let (thought, said) = (Value::from(thought), said.to_owned());
        self.fields.push((FIELD.to_owned(), thought));
        self.pieces = vec![Piece::Text(said)];
        self
    }

    /// What the chat template is given.
    pub fn message(&self, content_format: ContentFormat) -> Value {
        let is_shown = |piece: &Piece| matches!(piece, Piece::Shown { .. });
        let as_parts = match content_format {
            ContentFormat::Text => false,
            ContentFormat::Parts => true,
            ContentFormat::Either => self.pieces.iter().any(is_shown),
        };
        let content = if as_parts { self.parts() } else { Value::from(self.text()) };
        let role = ("role".to_owned(), Value::from(self.role.clone()));
        let fields = [role, ("content".to_owned(), content)];
        Value::from_pairs(fields.into_iter().chain(self.fields.iter().cloned()))
    }

    /// The content as one text with marks.
    fn text(&self) -> String {
        let mut text = String::new();
        for piece in &self.pieces {
            match piece {
                Piece::Text(words) => text += words,
                Piece::Shown { is_line: true, .. } => text.extend([MARK, '\n']),
                Piece::Shown { .. } => text.push(MARK),
            }
        }
        text
    }

    /// The content as a list of parts.
    fn parts(&self) -> Value {
        let kind = |word: &'static str| ("type", Value::from(word));
        let part = |piece: &Piece| -> Value {
            match piece {
                Piece::Text(text) => {
                    Value::from_pairs([kind("text"), ("text", Value::from(text.clone()))])
                }
                Piece::Shown { is_clip, .. } => {
                    let word = if *is_clip { "video" } else { "image" };
                    Value::from_pairs([kind(word)])
                }
            }
        };
        Value::from(self.pieces.iter().map(part).collect::<Vec<Value>>())
    }

    /// Whether each picture or clip of the turn is a clip, in order.
    pub fn clips(&self) -> impl Iterator<Item = bool> {
        self.pieces.iter().filter_map(|piece| match piece {
            Piece::Shown { is_clip, .. } => Some(*is_clip),
            Piece::Text(_) => None,
        })
    }

    /// How many pictures and clips the turn shows.
    pub fn pictures(&self) -> usize {
        self.clips().count()
    }

    /// The words that only pictures may say, if the turn says one.
    fn reserved(&self, tokens: &ImageTokens) -> Option<String> {
        let fields = || self.fields.iter().map(|(_, value)| words(value));
        // Of the whole text, since two pieces may say a word together.
        let text = self.text();
        let is_said =
            |word: &&String| text.contains(*word) || fields().any(|text| text.contains(*word));
        tokens.reserved().find(is_said).cloned()
    }
}

impl Piece {
    fn words(&self) -> &str {
        match self {
            Self::Text(words) => words,
            Self::Shown { .. } => "",
        }
    }
}

fn unmarked(text: &str) -> Result<&str, PromptError> {
    match [MARK, GUARD, HERE].into_iter().find(|mark| text.contains(*mark)) {
        Some(mark) => Err(PromptError::Reserved(mark.to_string())),
        None => Ok(text),
    }
}

/// Every text in a value, keys included.
fn words(value: &Value) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Tool calls whose arguments are objects where they were texts of such.
fn with_objects(calls: &Value) -> Value {
    let Ok(calls) = calls.try_iter() else { return calls.clone() };
    calls
        .map(|call| changed(&call, "function", |function| changed(&function, "arguments", object)))
        .collect::<Vec<Value>>()
        .into()
}

/// `map` with another value for `key`, where it has one.
fn changed(map: &Value, key: &str, change: impl Fn(Value) -> Value) -> Value {
    let Some(keys) = map.as_object().and_then(|object| object.try_iter_pairs()) else {
        return map.clone();
    };
    let pair = |(name, value): (Value, Value)| {
        let value = if name.as_str() == Some(key) { change(value) } else { value };
        (name.as_str().unwrap_or_default().to_owned(), value)
    };
    Value::from_pairs(keys.map(pair))
}

/// The object that a text of JSON holds; anything else as it is.
fn object(value: Value) -> Value {
    let parsed = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    parsed.filter(|parsed| parsed.as_object().is_some()).unwrap_or(value)
}

/// Marks the end of the last turn's words, behind which the model goes on.
///
/// # Errors
/// [`PromptError::NotLast`] if it is no text of an assistant's.
pub fn go_on_with_last(turns: &mut [Turn]) -> Result<(), PromptError> {
    let last = turns.last_mut().filter(|turn| turn.role == "assistant");
    let last = last.filter(|turn| turn.fields.iter().all(|(name, _)| name != "tool_calls"));
    match last.and_then(|turn| turn.pieces.last_mut()) {
        Some(Piece::Text(words)) => {
            words.push(HERE);
            Ok(())
        }
        _ => Err(PromptError::NotLast),
    }
}

/// What a template wrote up to that place.
///
/// # Errors
/// [`PromptError::NotContinued`] if the template lost the place, or wrote it twice.
pub fn until_last(mut rendered: String) -> Result<String, PromptError> {
    let Some((begin, rest)) = rendered.split_once(HERE) else {
        return Err(PromptError::NotContinued);
    };
    if rest.contains(HERE) {
        return Err(PromptError::NotContinued);
    }
    rendered.truncate(begin.len());
    Ok(rendered)
}

/// What the user wants to know: the words of their last turn, pictures left out.
pub fn asked(turns: &[Turn]) -> String {
    let is_text = |piece: &Piece| match piece {
        Piece::Text(words) => Some(words.clone()),
        Piece::Shown { .. } => None,
    };
    let last = turns.iter().rfind(|turn| turn.role == "user");
    let words: Vec<String> =
        last.into_iter().flat_map(|turn| &turn.pieces).filter_map(is_text).collect();
    words.join(" ").trim().to_owned()
}

/// Whether `turns` show as many pictures and clips as are given, and say no image token by themselves, of
/// models that have some.
///
/// # Errors
/// [`PromptError`] naming the counts or the word.
pub fn check(
    turns: &[Turn],
    given: usize,
    tokens: Option<&ImageTokens>,
) -> Result<(), PromptError> {
    let marked = turns.iter().map(Turn::pictures).sum();
    if marked != given {
        return Err(PromptError::Pictures { marked, given });
    }
    match tokens.and_then(|tokens| turns.iter().find_map(|turn| turn.reserved(tokens))) {
        Some(word) => Err(PromptError::Reserved(word)),
        None => Ok(()),
    }
}

/// Image tokens that follow one another, between the tokens before and after a picture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageTokenRun {
    /// The text before all of it.
    pub lead: String,
    /// The word between the token before a picture and its image tokens.
    pub label: String,
    /// How many they are.
    pub tokens: usize,
    /// Whether no token after a picture ends it: more of the same picture follows.
    pub is_open: bool,
    /// The text behind all of it.
    pub tail: String,
}

impl ImageTokenRun {
    /// Image tokens with nothing before them.
    pub fn bare(tokens: usize) -> Self {
        Self { tokens, ..Self::default() }
    }
}

/// The template's text with the runs of each picture or clip in its place, each between start and
/// end.  A place is a mark, or what a template that takes parts writes for a picture by itself.
///
/// # Errors
/// [`PromptError::Template`] if there are not as many places as pictures.
pub fn expand(
    rendered: &str,
    tokens: &ImageTokens,
    shown: &[Vec<ImageTokenRun>],
) -> Result<String, PromptError> {
    let ImageTokens { start, end, .. } = tokens;
    let mut marked = rendered.to_owned();
    for word in tokens.reserved() {
        let mark = MARK.to_string();
        marked = marked.replace(&format!("{start}{word}{end}"), &mark).replace(word, &mark);
    }
    let written = marked.matches(MARK).count();
    if written != shown.len() {
        return Err(PromptError::Template { written, marked: shown.len() });
    }
    let mut pieces = marked.split(MARK);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for (piece, runs) in pieces.zip(shown) {
        for run in runs {
            text.extend([&run.lead, start, &run.label].map(String::as_str));
            text += &tokens.image.repeat(run.tokens);
            if !run.is_open {
                text += end;
            }
            text += &run.tail;
        }
        text += piece;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> ImageTokens {
        let video = Some("<V>".to_owned());
        ImageTokens { start: "<img>".into(), image: "<C>".into(), end: "</img>".into(), video }
    }

    fn value(json: &str) -> Value {
        serde_json::from_str(json).unwrap()
    }

    /// The content of a turn, expanded with one token more for each picture.
    #[track_caller]
    fn check_turn(turn: Result<Turn, PromptError>, expect: &str) {
        let turn = turn.unwrap();
        let runs: Vec<Vec<ImageTokenRun>> =
            (1..=turn.pictures()).map(|n| vec![ImageTokenRun::bare(n)]).collect();
        assert_eq!(expand(&turn.text(), &tokens(), &runs).unwrap(), expect);
    }

    #[test]
    fn clips_stand_in_front() {
        let turn = Turn::from_marked("user", "Is it <image>?", 1).unwrap().behind_clips(2);
        assert_eq!(turn.clips().collect::<Vec<_>>(), [true, true, false]);
        check_turn(Ok(turn), "<img><C></img>\n<img><C><C></img>\nIs it <img><C><C><C></img>?");
    }

    #[test]
    fn the_last_words_are_gone_on_with_as_they_are() {
        let turn =
            |role: &str, words: &str| Turn::from_parts(role, &[PromptPart::Text(words)]).unwrap();
        let mut turns = [turn("user", "im_end"), turn("assistant", "im_end ")];
        go_on_with_last(&mut turns).unwrap();
        let rendered: String =
            turns.iter().map(|turn| format!("<s>{}<|im_end|>", turn.text())).collect();
        assert_eq!(until_last(rendered).unwrap(), "<s>im_end<|im_end|><s>im_end ");
        for text in ["lost", "a\u{FDD2}b\u{FDD2}"] {
            assert_eq!(until_last(text.to_owned()), Err(PromptError::NotContinued));
        }
        let calling = turn("assistant", "a").with("tool_calls", value("[]")).unwrap();
        let shown = Turn::from_marked("assistant", "<image>", 1).unwrap();
        for last in [turn("user", "a"), calling, shown] {
            assert_eq!(go_on_with_last(&mut [last]), Err(PromptError::NotLast));
        }
        assert_eq!(go_on_with_last(&mut []), Err(PromptError::NotLast));
        assert!(Turn::from_parts("user", &[PromptPart::Text("\u{FDD2}")]).is_err());
    }

    #[test]
    fn pictures_stand_where_the_words_say() {
        check_turn(Turn::from_marked("user", "<image>\nWhat?", 1), "<img><C></img>\nWhat?");
        check_turn(
            Turn::from_marked("user", "Is <image> like <image>?", 2),
            "Is <img><C></img> like <img><C><C></img>?",
        );
    }

    #[test]
    fn pictures_without_a_word_go_in_front() {
        check_turn(Turn::from_marked("user", "What?", 1), "<img><C></img>\nWhat?");
        check_turn(
            Turn::from_marked("user", "And <image>?", 2),
            "<img><C></img>\nAnd <img><C><C></img>?",
        );
    }

    #[test]
    fn words_without_a_picture_stay_words() {
        check_turn(Turn::from_marked("user", "an <image> tag", 0), "an <image> tag");
        check_turn(Turn::from_marked("user", "<image><image>", 1), "<img><C></img><image>");
        check_turn(Turn::from_parts("user", &[PromptPart::Text("<image>")]), "<image>");
    }

    #[test]
    fn parts_keep_their_order() {
        let parts =
            [PromptPart::Text("a "), PromptPart::Image, PromptPart::Clip, PromptPart::Text("b")];
        check_turn(Turn::from_parts("user", &parts), "a <img><C></img>\n<img><C><C></img>\nb");
    }

    #[test]
    fn a_template_may_take_parts() {
        let parts = [PromptPart::Text("a"), PromptPart::Image, PromptPart::Clip];
        let turn = Turn::from_parts("user", &parts).unwrap();
        let expect = r#"{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "video"}]}"#;
        assert_eq!(turn.message(ContentFormat::Parts), value(expect));
        assert_eq!(turn.message(ContentFormat::Either), value(expect));
        let words =
            Turn::from_parts("user", &[PromptPart::Text("a"), PromptPart::Text("b")]).unwrap();
        assert_eq!(
            words.message(ContentFormat::Either),
            value(r#"{"role": "user", "content": "ab"}"#)
        );
    }

    #[test]
    fn what_a_template_writes_for_a_picture_is_a_place_too() {
        let runs = |lead: &str, tokens| ImageTokenRun {
            lead: lead.to_owned(),
            ..ImageTokenRun::bare(tokens)
        };
        let shown = [vec![runs("", 2)], vec![runs("<0.5 s>", 1), runs("<1.5 s>", 1)]];
        let text = expand("a<img><C></img>b<img><V></img>c", &tokens(), &shown).unwrap();
        assert_eq!(text, "a<img><C><C></img>b<0.5 s><img><C></img><1.5 s><img><C></img>c");
        let text = expand("<C>\n<V>", &tokens(), &[shown[0].clone(), shown[0].clone()]).unwrap();
        assert_eq!(text, "<img><C><C></img>\n<img><C><C></img>");
    }

    #[test]
    fn parts_of_a_picture_have_words_of_their_own() {
        let run = |lead: &str, label: &str, is_open| ImageTokenRun {
            lead: lead.to_owned(),
            label: label.to_owned(),
            is_open,
            ..ImageTokenRun::bare(2)
        };
        let all = [run("", "<1>", true), run("\n", "<2>", true), run("\n\n", "<all>", false)];
        let text = expand("a<C>b", &tokens(), &[all.to_vec()]).unwrap();
        assert_eq!(text, "a<img><1><C><C>\n<img><2><C><C>\n\n<img><all><C><C></img>b");
        let tail = ImageTokenRun { tail: "\n\n".to_owned(), ..ImageTokenRun::bare(1) };
        assert_eq!(expand("<V>b", &tokens(), &[vec![tail]]).unwrap(), "<img><C></img>\n\nb");
    }

    #[test]
    fn arguments_of_tool_calls_become_objects_in_their_order() {
        let calls = r#"[{"id": "1", "function": {"name": "f", "arguments": "{\"b\": 1, \"a\": [2.0]}"}}, {"function": {"arguments": "no JSON"}}]"#;
        let turn = Turn::from_parts("assistant", &[]).unwrap();
        let turn = turn.with("tool_calls", value(calls)).unwrap();
        let message = turn.message(ContentFormat::Text);
        let text = words(&message);
        assert!(text.contains(r#""arguments":{"b":1,"a":[2.0]}"#), "{text}");
        assert!(text.contains(r#""arguments":"no JSON""#), "{text}");
    }

    #[test]
    fn what_was_thought_is_told_apart_of_models_that_think() {
        let dialect = Dialect { thinks: true, calls: None };
        let guarded = |role: &str, text: &str, dialect| {
            let turn = Turn::from_parts(role, &[PromptPart::Text(text)]).unwrap();
            turn.guarded(&Marks::default(), dialect).message(ContentFormat::Text)
        };
        let expect = r#"{"role": "assistant", "content": "b\n", "reasoning_content": "a\nc"}"#;
        let said = "<think>\na\nc\n</think>\n\nb\n";
        assert_eq!(guarded("assistant", said, dialect), value(expect));
        let as_it_is = |role: &str, dialect| {
            let expect = serde_json::json!({ "role": role, "content": said }).to_string();
            assert_eq!(guarded(role, said, dialect), value(&expect));
        };
        as_it_is("user", dialect);
        as_it_is("assistant", Dialect::default());
    }

    #[test]
    fn reserved_words_are_refused() {
        assert!(Turn::from_marked("user", "a\u{FDD0}", 0).is_err());
        assert!(Turn::from_parts("user", &[PromptPart::Text("\u{FDD0}")]).is_err());
        let turn = || Turn::from_marked("user", "", 0).unwrap();
        assert!(turn().with("x", value("[{\"a\u{FDD0}\": 1}]")).is_err());
        assert_eq!(turn().with("role", value("1")), Err(PromptError::Field("role".to_owned())));
        let said = |turn: Turn| check(&[turn], 0, Some(&tokens())).unwrap_err().to_string();
        assert!(said(Turn::from_marked("user", "a <C> b", 0).unwrap()).contains("<C>"));
        assert!(said(Turn::from_marked("user", "a <V> b", 0).unwrap()).contains("<V>"));
        let split = [PromptPart::Text("<"), PromptPart::Text("C>")];
        assert!(said(Turn::from_parts("user", &split).unwrap()).contains("<C>"));
        assert!(said(turn().with("x", value("{\"<C>\": 1}")).unwrap()).contains("<C>"));
    }

    #[test]
    fn every_picture_needs_its_place() {
        let turn = Turn::from_marked("user", "x", 1).unwrap();
        assert_eq!(check(std::slice::from_ref(&turn), 1, Some(&tokens())), Ok(()));
        let differ = PromptError::Pictures { marked: 1, given: 2 };
        assert_eq!(check(&[turn], 2, Some(&tokens())), Err(differ));
        let lost = PromptError::Template { written: 0, marked: 1 };
        assert_eq!(expand("text", &tokens(), &[vec![ImageTokenRun::bare(1)]]), Err(lost));
    }
}
