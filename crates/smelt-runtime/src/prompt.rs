//! Puts pictures into conversations and prompts.
//!
//! A turn's content holds a mark for each picture; the chat template carries the marks through as
//! ordinary text; then each becomes the image tokens its tiles need.  Knows nothing of pixels.

use serde::{Deserialize, Serialize};

use crate::template::Message;

/// Stands for a picture between the conversation and the prompt.  A Unicode noncharacter, which no
/// text may hold and no template touches.
const MARK: char = '\u{FDD0}';

/// What InternVL's users write where a picture goes.
const PICTURE_WORD: &str = "<image>";

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
}

/// A piece of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Words.
    Text(&'a str),
    /// The next picture, on a line of its own.
    Picture,
}

/// One turn of a conversation, with its pictures in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    message: Message,
}

impl Turn {
    /// A turn of words and pictures in order; a line ends after each picture.
    ///
    /// # Errors
    /// [`PromptError::Reserved`] if the words hold the picture mark.
    pub fn from_parts(role: &str, parts: &[Part<'_>]) -> Result<Self, PromptError> {
        let mut content = String::new();
        for part in parts {
            match part {
                Part::Text(text) => content += unmarked(text)?,
                Part::Picture => content.extend([MARK, '\n']),
            }
        }
        Ok(Self { message: Message { role: role.to_owned(), content } })
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
        let marked = text.replacen(PICTURE_WORD, &MARK.to_string(), pictures - in_front);
        let content = format!("{MARK}\n").repeat(in_front) + &marked;
        Ok(Self { message: Message { role: role.to_owned(), content } })
    }

    /// What the chat template is given.
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// How many pictures the turn shows.
    pub fn pictures(&self) -> usize {
        self.message.content.matches(MARK).count()
    }
}

fn unmarked(text: &str) -> Result<&str, PromptError> {
    if text.contains(MARK) {
        return Err(PromptError::Reserved(MARK.to_string()));
    }
    Ok(text)
}

/// Whether `turns` show as many pictures as are given, and say no image token by themselves.
///
/// # Errors
/// [`PromptError`] naming the counts or the word.
pub fn check(turns: &[Turn], given: usize, tokens: &ImageTokens) -> Result<(), PromptError> {
    let marked = turns.iter().map(Turn::pictures).sum();
    if marked != given {
        return Err(PromptError::Pictures { marked, given });
    }
    if turns.iter().any(|turn| turn.message.content.contains(&tokens.image)) {
        return Err(PromptError::Reserved(tokens.image.clone()));
    }
    Ok(())
}

/// The template's text with each picture's tokens in place of its mark: `counts[i]` image tokens
/// for the i-th, between start and end.
///
/// # Errors
/// [`PromptError::Template`] if the marks are not as many as the counts.
pub fn expand(
    rendered: &str,
    tokens: &ImageTokens,
    counts: &[usize],
) -> Result<String, PromptError> {
    let written = rendered.matches(MARK).count();
    if written != counts.len() {
        return Err(PromptError::Template { written, marked: counts.len() });
    }
    let mut pieces = rendered.split(MARK);
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for (piece, count) in pieces.zip(counts) {
        text += &tokens.start;
        text += &tokens.image.repeat(*count);
        text += &tokens.end;
        text += piece;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> ImageTokens {
        ImageTokens { start: "<img>".into(), image: "<C>".into(), end: "</img>".into() }
    }

    /// The content of a turn, expanded with one token more for each picture.
    #[track_caller]
    fn check_turn(turn: Result<Turn, PromptError>, expect: &str) {
        let turn = turn.unwrap();
        let counts: Vec<usize> = (1..=turn.pictures()).collect();
        assert_eq!(expand(&turn.message().content, &tokens(), &counts).unwrap(), expect);
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
        check_turn(Turn::from_parts("user", &[Part::Text("<image>")]), "<image>");
    }

    #[test]
    fn parts_keep_their_order() {
        let parts = [Part::Text("a "), Part::Picture, Part::Picture, Part::Text("b")];
        check_turn(Turn::from_parts("user", &parts), "a <img><C></img>\n<img><C><C></img>\nb");
    }

    #[test]
    fn reserved_words_are_refused() {
        assert!(Turn::from_marked("user", "a\u{FDD0}", 0).is_err());
        assert!(Turn::from_parts("user", &[Part::Text("\u{FDD0}")]).is_err());
        let turn = Turn::from_marked("user", "a <C> b", 0).unwrap();
        assert_eq!(check(&[turn], 0, &tokens()), Err(PromptError::Reserved("<C>".into())));
    }

    #[test]
    fn every_picture_needs_its_place() {
        let turn = Turn::from_marked("user", "x", 1).unwrap();
        assert_eq!(check(std::slice::from_ref(&turn), 1, &tokens()), Ok(()));
        let differ = PromptError::Pictures { marked: 1, given: 2 };
        assert_eq!(check(&[turn], 2, &tokens()), Err(differ));
        let lost = PromptError::Template { written: 0, marked: 1 };
        assert_eq!(expand("text", &tokens(), &[1]), Err(lost));
    }
}
