//! Writes the answers of `/v1/completions`.

use serde::Serialize;

use smelt_runtime::service::TokenInfo;

use super::{ChoiceDelta, Heading, Shape, Usage, Words, accumulator, json, logprobs};

/// The shape of completions.
pub(crate) struct Completion {
    pub(crate) heading: Heading,
    /// Whether parts of a stream say that the usage is to come.
    pub(crate) usage: bool,
    pub(crate) words: Words,
    /// What each choice begins with: its prompt, where that is wanted.
    pub(crate) echo: Vec<String>,
    /// How many characters of each choice are told.
    pub(crate) offsets: Vec<usize>,
}

#[derive(Serialize)]
struct CompletionChunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: &'a [Choice<'a>],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
}

#[derive(Serialize)]
struct Choice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<logprobs::OfCompletion>,
    finish_reason: Option<&'static str>,
}

impl Completion {
    fn part(&self, choices: &[Choice<'_>], usage: Option<Option<Usage>>) -> String {
        let Heading { id, created, model } = &self.heading;
        let object = "text_completion";
        json(&CompletionChunk { id, object, created: *created, model, choices, usage })
    }

    /// Of a scored prompt and what follows.
    fn logprobs(&self, choice: &accumulator::Choice) -> Option<logprobs::OfCompletion> {
        let tokens = choice.prompt.iter().chain(&choice.tokens);
        logprobs::of_completion(tokens, &self.words, &mut 0)
    }

    /// What a part says of the usage, which is to come.
    fn to_come(&self) -> Option<Option<Usage>> {
        self.usage.then_some(None)
    }
}

impl Shape for Completion {
    fn begin(&mut self, choice: usize) -> Option<String> {
        let text = self.echo.get(choice)?;
        let part = Choice { text, index: choice, logprobs: None, finish_reason: None };
        Some(self.part(&[part], self.to_come()))
    }

    fn scored(&mut self, choice: usize, tokens: &[TokenInfo]) -> Option<String> {
        let logprobs = Some(logprobs::of_asked(tokens, &self.words, &mut 0));
        let part = Choice { text: "", index: choice, logprobs, finish_reason: None };
        Some(self.part(&[part], self.to_come()))
    }

    fn said(&mut self, said: &ChoiceDelta<'_>) -> Option<String> {
        let offset = &mut self.offsets[said.choice];
        let logprobs = logprobs::of_completion(said.tokens, &self.words, offset);
        let index = said.choice;
        let is_silent = said.text.is_empty() && logprobs.is_none();
        let part = Choice { text: said.text, index, logprobs, finish_reason: None };
        (!is_silent).then(|| self.part(&[part], self.to_come()))
    }

    fn ended(&mut self, choice: usize, reason: &'static str) -> String {
        let finish_reason = Some(reason);
        let part = Choice { text: "", index: choice, logprobs: None, finish_reason };
        self.part(&[part], self.to_come())
    }

    fn usage(&self, usage: Usage) -> String {
        self.part(&[], Some(Some(usage)))
    }

    fn whole(&self, choices: &[accumulator::Choice], usage: Usage) -> String {
        let echo = |index: usize| self.echo.get(index).map_or("", String::as_str);
        let texts: Vec<String> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| format!("{}{}", echo(index), choice.text))
            .collect();
        let parts: Vec<Choice<'_>> = choices
            .iter()
            .enumerate()
            .map(|(index, choice)| Choice {
                text: &texts[index],
                index,
                logprobs: self.logprobs(choice),
                finish_reason: Some(choice.reason),
            })
            .collect();
        self.part(&parts, Some(Some(usage)))
    }
}
