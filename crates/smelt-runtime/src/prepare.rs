//! Turns a question into what the engines take: tokens, and views of its pictures.
//!
//! Needs no engine, so that whoever asks does this work beside the engines.  Knows nothing of slots.

use smelt_backend::position_ids::{PositionId, rope_index};

use crate::deployment::Text;
use crate::fit::{self, Item, Space};
use crate::identity::Identity;
use crate::image::{ImageProcessor, MediaItem, View};
use crate::markup;
use crate::media_plan::{Look, MediaPlan, Way};
use crate::prefix::Piece;
pub use crate::prepare_error::PrepareError;
use crate::prompt::{self, ImageTokenRun, PromptError, Turn};
use crate::similarity::Asked;
use crate::template::{Context, Ending, Value};
use crate::tokenizer::TokenizerError;

/// How many times the bytes of the longest prompt all texts of a conversation may have: templates leave out what was
/// thought in earlier turns.
const LEFT_OUT_FACTOR: usize = 4;

/// A conversation to be continued.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The turns so far.
    pub turns: &'a [Turn],
    /// The pictures and clips the turns show, in order.
    pub shown: &'a [MediaItem],
    /// What the chat template is told beside the turns.
    pub context: &'a Context,
    /// Most tokens of the answer, if there is such a limit: so much room is kept for it.
    pub answer_max: Option<usize>,
    /// The date templates may show, in seconds since 1970.
    pub now_s: u64,
    /// What a router sees and reads is of use to those who say the same alone.
    pub reuse: Option<Identity>,
}

/// How closely all is looked at, image tokens apart: `looks` where that is not as it is `wished`.
fn seen(wished: &[MediaPlan<'_>], looks: &[Option<Look>]) -> ImageUsage {
    ImageUsage {
        shown: wished.len(),
        smaller: looks.iter().flatten().count(),
        tokens: 0,
        wished: wished.iter().map(MediaPlan::tokens).sum(),
    }
}

/// A prompt whose pictures are still to be encoded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prepared {
    /// The tokens, image tokens included.
    pub tokens: Vec<u32>,
    /// The pictures, in the order of their tokens.
    pub views: Vec<View>,
    /// The place of each token in time, height and width, where the decoder takes three of a token and
    /// there are pictures; without them tokens count on.
    pub position_ids: Option<Vec<PositionId>>,
    /// How closely the pictures are looked at.
    pub seen: ImageUsage,
}

/// How closely pictures and clips are looked at, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageUsage {
    /// Pictures and clips.
    pub shown: usize,
    /// Those of them that are looked at less closely than was wished, so that all fits.
    pub smaller: usize,
    /// Image tokens.
    pub tokens: usize,
    /// Image tokens that there would be as it was wished.
    pub wished: usize,
}

impl ImageUsage {
    /// What a person is told where something is looked at less closely than was wished.
    pub fn notice(&self, context: usize) -> Option<String> {
        let Self { shown, smaller, tokens, wished } = self;
        let what = if *shown == 1 {
            "the picture is".to_owned()
        } else {
            format!("{smaller} of {shown} pictures are")
        };
        (*smaller > 0).then(|| {
            format!(
                "{what} shown smaller to fit the context of {context} tokens: {tokens} image tokens, not {wished}"
            )
        })
    }
}

impl Prepared {
    /// What stands at each position of `tokens`; a picture's tokens stand for its contents.
    pub(crate) fn pieces(tokens: &[u32], views: &[View], image_token: Option<u32>) -> Vec<Piece> {
        let pictures =
            |view: &View| std::iter::repeat_n(Piece::Picture(view.identity), view.tokens);
        let mut pictures = views.iter().flat_map(pictures);
        let piece = |token: &u32| {
            let picture = if Some(*token) == image_token { pictures.next() } else { None };
            picture.unwrap_or(Piece::Token(*token))
        };
        tokens.iter().map(piece).collect()
    }
}

impl Text {
    /// Writes the prompt of `question` and cuts its pictures.
    ///
    /// # Errors
    /// [`PrepareError`]; a prompt too long for the engine is refused before any picture is cut, and a text far
    /// too long before it is encoded.
    pub fn prepare(&self, question: &Question<'_>) -> Result<Prepared, PrepareError> {
        let (turns, tokens) = (question.turns, self.spec.image_tokens.as_ref());
        if !question.shown.is_empty() {
            self.seeing()?;
        }
        prompt::check(turns, question.shown.len(), tokens)?;
        let context = &self.guarded(question.context);
        let guarded = |turn: &Turn| match context.is_markup {
            true => turn.clone(),
            false => turn.guarded(&self.marks, self.dialect),
        };
        let mut guarded: Vec<Turn> = turns.iter().map(guarded).collect();
        if context.ending == Ending::Continued {
            prompt::go_on_with_last(&mut guarded)?;
        }
        // Each turn is dropped as its message is made.
        let messages: Vec<Value> =
            guarded.into_iter().map(|turn| turn.message(self.content_format)).collect();
        let reply = context.ending == Ending::Reply;
        let mut rendered = self.template.render(&messages, reply, question.now_s, context)?;
        if context.ending == Ending::Continued {
            rendered = prompt::until_last(rendered)?;
        }
        self.fits(&markup::bare(&rendered))?;
        let asked = Asked { words: &prompt::asked(turns), reuse: question.reuse };
        let media_plans = question.shown.iter().map(|shown| MediaPlan::new(self, shown, asked));
        let wished = media_plans.collect::<Result<Vec<MediaPlan<'_>>, PrepareError>>()?;
        let looks = self.looks(question, &rendered, &wished)?;
        let seen = seen(&wished, &looks);
        let mut media_plans = Vec::with_capacity(wished.len());
        for ((wished, look), shown) in wished.into_iter().zip(looks).zip(question.shown) {
            media_plans.push(match look {
                Some(look) => MediaPlan::looked(self, shown, look, asked)?,
                None => wished,
            });
        }
        let runs: Vec<_> = media_plans.iter().map(|media_plan| media_plan.runs.clone()).collect();
        let text = tokens.map(|tokens| prompt::expand(&rendered, tokens, &runs)).transpose()?;
        let tokens = self.encode_guarded(&text.unwrap_or(rendered))?;
        let mut prepared = self.prepare_tokens(tokens, !media_plans.is_empty())?;
        let lattices: Vec<_> =
            media_plans.iter().flat_map(|media_plan| &media_plan.lattices).copied().collect();
        if let Some(image_token) = self.image_token.filter(|_| !lattices.is_empty()) {
            let position_ids = rope_index(&prepared.tokens, image_token, &lattices)?;
            prepared.position_ids = Some(position_ids.tokens);
        }
        if let Some(image_processor) = &self.image_processor {
            let cut = || media_plans.iter().flat_map(|plan| plan.views(image_processor)).collect();
            prepared.views = self.timed("pixels", cut);
        }
        let tokens = media_plans.iter().map(MediaPlan::tokens).sum();
        prepared.seen = ImageUsage { tokens, ..seen };
        Ok(prepared)
    }

    fn encode_guarded(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.tokenizer.encode_guarded(text, &self.marks)
    }

    /// What the template is told, with guards in all that a client says of it.
    fn guarded(&self, context: &Context) -> Context {
        if context.is_markup {
            return context.clone();
        }
        let guarded = |value: &Value| self.marks.guarded_value(value);
        let variable = |(name, value): (&String, &Value)| (name.clone(), guarded(value));
        Context {
            tools: context.tools.as_ref().map(guarded),
            documents: context.documents.as_ref().map(guarded),
            variables: context.variables.iter().map(variable).collect(),
            is_markup: false,
            ending: context.ending,
        }
    }

    /// How each picture and clip is to be looked at, where that is not as it is `wished`, so that all fits
    /// with the text of the conversation that the template `rendered`.
    fn looks(
        &self,
        question: &Question<'_>,
        rendered: &str,
        wished: &[MediaPlan<'_>],
    ) -> Result<Vec<Option<Look>>, PrepareError> {
        if self.surely_fits(question, rendered, wished) {
            return Ok(vec![None; wished.len()]);
        }
        // An image token each is enough to know where they are, and how much else there is.
        let one = |run: &ImageTokenRun| ImageTokenRun { tokens: 1, ..run.clone() };
        let runs: Vec<Vec<ImageTokenRun>> =
            wished.iter().map(|media_plan| media_plan.runs.iter().map(one).collect()).collect();
        // Who sees nothing is shown nothing.
        let Some(words) = &self.spec.image_tokens else { return Ok(Vec::new()) };
        let text = prompt::expand(rendered, words, &runs)?;
        let tokens = self.encode_guarded(&text)?;
        let ways = wished.iter().map(|media_plan| media_plan.ways(self));
        let ways = ways.collect::<Result<Vec<Vec<Way>>, PrepareError>>()?;
        let image_token = |place: &usize| Some(tokens[*place]) == self.image_token;
        let places: Vec<usize> = (0..tokens.len()).filter(image_token).collect();
        let turns = question.turns.iter().enumerate();
        let turns = turns.flat_map(|(at, turn)| std::iter::repeat_n(at, turn.pictures()));
        let (mut items, mut images, mut others) = (Vec::with_capacity(ways.len()), 0, 0);
        for (((media_plan, ways), runs), turn) in wished.iter().zip(&ways).zip(&runs).zip(turns) {
            let costs = ways.iter().map(|way| way.cost).collect();
            let first = places.get(images).copied().unwrap_or(tokens.len());
            items.push(Item { costs, turn, text_before: first.saturating_sub(images + others) });
            images += runs.len();
            others += ways[0].cost - media_plan.tokens();
        }
        let text = tokens.len().saturating_sub(images + others);
        let space = Space { context: self.max_seq_len, answer: question.answer_max, text };
        let chosen = fit::choose(&space, &items);
        let look = |(rung, ways): (usize, Vec<Way>)| (rung > 0).then(|| ways[rung].look);
        Ok(chosen.into_iter().zip(ways).map(look).collect())
    }

    /// Whether there is room for all of it even if every byte of text were a token: then nobody counts.
    fn surely_fits(
        &self,
        question: &Question<'_>,
        rendered: &str,
        wished: &[MediaPlan<'_>],
    ) -> bool {
        /// What a tokenizer may put around any text.
        const ENDS: usize = 8;
        let words = self.spec.image_tokens.as_ref();
        let marks = words.map_or(0, |words| words.start.len() + words.end.len());
        let texts = |run: &ImageTokenRun| run.lead.len() + run.label.len() + run.tail.len();
        let cost = |run: &ImageTokenRun| run.tokens + texts(run) + marks;
        let shown: usize = wished.iter().flat_map(|media_plan| &media_plan.runs).map(cost).sum();
        let answer = question.answer_max.unwrap_or(fit::ANSWER_USUAL);
        (rendered.len() + ENDS + shown).saturating_add(answer) <= self.max_seq_len
    }

    /// What pictures are seen with.
    ///
    /// # Errors
    /// [`PrepareError::Blind`] of a model that reads text alone.
    pub fn seeing(&self) -> Result<&ImageProcessor, PrepareError> {
        let model = || self.spec.model.clone();
        self.image_processor.as_ref().ok_or_else(|| PrepareError::Blind { model: model() })
    }

    /// The prompt that `text` is, without a template, between the special tokens that the tokenizer puts
    /// around a text (Llama's first one).  Special tokens written out in it count; an image token has no
    /// picture and is refused.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare_text(&self, text: &str) -> Result<Prepared, PrepareError> {
        self.fits(text)?;
        self.prepare_words(self.tokenizer.encode_whole(text)?)
    }

    /// The tokens of `text`, unless it is far too long: with the special ones around it if it is a whole prompt.
    ///
    /// # Errors
    /// [`PrepareError::TextTooLong`], or what the tokenizer says.
    pub fn encode(&self, text: &str, is_whole: bool) -> Result<Vec<u32>, PrepareError> {
        self.fits(text)?;
        Ok(self.tokenizer.encode_as(text, is_whole)?)
    }

    /// Refuses texts of a conversation that no prompt has room for, before anything is made of them.
    ///
    /// # Errors
    /// [`PrepareError::TextTooLong`]: of one text, or of all together where the template writes all turns.
    pub fn could_hold<'t>(
        &self,
        texts: impl IntoIterator<Item = &'t str>,
    ) -> Result<(), PrepareError> {
        let max = self.max_seq_len;
        let all_max = self.tokenizer.bytes_max(max).saturating_mul(LEFT_OUT_FACTOR);
        let mut bytes = 0;
        for text in texts {
            self.fits(text)?;
            bytes += text.len();
        }
        match bytes > all_max && !self.template.forgets() {
            true => Err(PrepareError::TextTooLong { bytes, max }),
            false => Ok(()),
        }
    }

    fn fits(&self, text: &str) -> Result<(), PrepareError> {
        let (bytes, max) = (text.len(), self.max_seq_len);
        match bytes > self.tokenizer.bytes_max(max) {
            true => Err(PrepareError::TextTooLong { bytes, max }),
            false => Ok(()),
        }
    }

    /// Whether a prompt may have so many tokens.
    ///
    /// # Errors
    /// [`PrepareError::TooLong`].
    pub fn has_room(&self, tokens: usize) -> Result<(), PrepareError> {
        let (max, shows) = (self.max_seq_len, false);
        if tokens > max { Err(PrepareError::TooLong { tokens, max, shows }) } else { Ok(()) }
    }

    /// The prompt of `tokens` without pictures.
    ///
    /// # Errors
    /// [`PrepareError`].
    pub fn prepare_words(&self, tokens: Vec<u32>) -> Result<Prepared, PrepareError> {
        if let (Some(token), Some(words)) = (self.image_token, &self.spec.image_tokens)
            && tokens.contains(&token)
        {
            return Err(PromptError::Reserved(words.image.clone()).into());
        }
        self.prepare_tokens(tokens, false)
    }

    fn prepare_tokens(&self, tokens: Vec<u32>, shows: bool) -> Result<Prepared, PrepareError> {
        let (max, vocab) = (self.max_seq_len, self.vocab);
        if tokens.is_empty() {
            return Err(PrepareError::Empty);
        }
        if tokens.len() > max {
            return Err(PrepareError::TooLong { tokens: tokens.len(), max, shows });
        }
        match tokens.iter().find(|token| **token as usize >= vocab) {
            Some(&token) => Err(PrepareError::UnknownToken { token, vocab }),
            None => Ok(Prepared { tokens, ..Prepared::default() }),
        }
    }
}
