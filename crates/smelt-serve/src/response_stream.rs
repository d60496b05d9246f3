//! Hears the answers to all prompts of a request as one.
//!
//! Choices are counted over all prompts, tokens are added up.  Knows nothing of how answers are
//! written.

use std::future::poll_fn;
use std::task::{Context, Poll};

use smelt_runtime::prepare::ImageUsage;
use smelt_runtime::service::{Event, EventReceiver, Failure};

use crate::account::Facts;
use crate::answer::Usage;
use crate::body::Compiled;

/// The answer to one prompt.
struct PromptStream {
    events: EventReceiver,
    seen: ImageUsage,
    /// Its choices that have not ended.
    open: usize,
}

/// The answers to a request; dropping it cancels them.
pub(crate) struct ResponseStream {
    parts: Vec<PromptStream>,
    answers: usize,
    /// Tokens of each choice.
    emitted: Vec<usize>,
    prompts: Usage,
    facts: Facts,
    has_failed: bool,
    /// What the grammar takes that they are held to.
    _compiled: Option<Compiled>,
}

impl ResponseStream {
    /// Hears prompts of `answers` choices each, given with how closely their pictures are looked at, which may be held to a
    /// large grammar.
    pub(crate) fn new(
        event_streams: Vec<(EventReceiver, ImageUsage)>,
        answers: usize,
        facts: Facts,
        compiled: Option<Compiled>,
    ) -> Self {
        let part = |(events, seen)| PromptStream { events, seen, open: answers };
        let emitted = vec![0; answers * event_streams.len()];
        facts.marked(event_streams.iter().map(|(events, _)| events.marks()).collect());
        let parts: Vec<PromptStream> = event_streams.into_iter().map(part).collect();
        let prompts = Usage::default();
        Self { parts, answers, emitted, prompts, facts, has_failed: false, _compiled: compiled }
    }

    /// How many choices there are.
    pub(crate) fn choices(&self) -> usize {
        self.emitted.len()
    }

    /// How many tokens there are so far.
    pub(crate) fn usage(&self) -> Usage {
        self.prompts.said(self.emitted.iter().sum())
    }

    /// The next event, its choice counted over all prompts; nothing when all is said.
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        if self.has_failed {
            return Poll::Ready(None);
        }
        for at in 0..self.parts.len() {
            if self.parts[at].open == 0 {
                continue;
            }
            if let Poll::Ready(event) = self.parts[at].events.poll_next(context) {
                // Senders that are gone before the end have broken off.
                let event = event.unwrap_or(Event::Failed(Failure::Stopped));
                return Poll::Ready(Some(self.hear(at, event)));
            }
        }
        match self.parts.iter().all(|part| part.open == 0) {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    /// The next event.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Counts what happened to prompt `at`.
    fn hear(&mut self, at: usize, mut event: Event) -> Event {
        let first = at * self.answers;
        match &mut event {
            Event::Read { prompt_tokens, cached_tokens } => {
                let seen = self.parts[at].seen;
                let prompt = Usage::of_prompt(*prompt_tokens, *cached_tokens, seen);
                self.prompts = self.prompts.and(prompt);
            }
            Event::Looking { .. } => {}
            Event::Scored { choice, .. } => *choice += first,
            Event::Emitted { choice, tokens, .. } => {
                *choice += first;
                self.emitted[*choice] += tokens.len();
                self.facts.said();
            }
            Event::Ended { choice, tokens, finish } => {
                self.facts.finished(finish.reason());
                *choice += first;
                self.emitted[*choice] = *tokens;
                self.parts[at].open -= 1;
            }
            Event::Failed(failure) => {
                self.has_failed = true;
                self.facts.broken(failure);
            }
        }
        self.facts.usage(self.usage());
        event
    }
}
