//! Answers for the decoder by the contract of engines.
//!
//! A step is done when it is submitted, since its processors are those of who asks: single tokens of several slots at once,
//! prompts one after another.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smelt_backend::sampling::Chooser;
use smelt_backend::{
    Answer, Decoder, DecoderFacts, FeatureSpan, HostFeatures, KvBlock, KvUsage, OpenError,
    Processors, RowWant, RunError, SlotInput, Witness,
};

use super::{ImageEmbeds, LlmEngine, Prompt, SHOWN_ROWS};

impl Decoder for LlmEngine {
    fn facts(&self) -> &DecoderFacts {
        &self.facts
    }

    fn kv_usage(&self) -> KvUsage {
        self.kv_usage()
    }

    fn set_kv_bytes_max(&mut self, bytes: u64) {
        self.set_kv_bytes_max(bytes);
    }

    fn held(&self, slot: usize) -> usize {
        self.held(slot)
    }

    fn submit(&mut self, runs: &[SlotInput<'_>]) -> Result<(), RunError> {
        if self.answers.is_some() {
            return Err(RunError::OutOfTurn);
        }
        let start = Instant::now();
        self.answers = Some(self.answer_all(runs)?);
        self.took = start.elapsed();
        Ok(())
    }

    fn wait(&mut self) -> Result<Vec<Answer>, RunError> {
        self.answers.take().ok_or(RunError::OutOfTurn)
    }

    fn truncate(&mut self, slot: usize, len: usize) {
        self.truncate(slot, len);
    }

    fn fork(&mut self, from: usize, to: usize, len: usize) -> Result<(), RunError> {
        self.fork(from, to, len)
    }

    fn block(&self, slot: usize, index: usize) -> Result<Option<KvBlock<'_>>, RunError> {
        let block = self.block(slot, index);
        Ok(block.map(|(ends, bytes)| KvBlock {
            ends: Cow::Borrowed(ends),
            bytes: Cow::Borrowed(bytes),
        }))
    }

    fn put_block(&mut self, slot: usize, block: &KvBlock<'_>) -> Result<(), RunError> {
        self.put_block(slot, &block.ends, &block.bytes)
    }

    fn processors(&self) -> Processors {
        Processors::new(Arc::clone(&self.shared) as _)
    }

    fn rest(&self, reads_next: bool) -> Duration {
        self.shared.rest(self.took, reads_next)
    }

    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.verify_digest(told)
    }

    fn untuned(&self) -> Option<&str> {
        self.untuned()
    }
}

/// Single tokens go through the layers together.
fn is_single(engine: &LlmEngine, run: &SlotInput<'_>) -> bool {
    run.tokens.len() == 1
        && run.image.is_none()
        && run.position_ids.is_none()
        && engine.held(run.slot) > 0
}

impl LlmEngine {
    /// Does all runs, or none.
    fn answer_all(&mut self, runs: &[SlotInput<'_>]) -> Result<Vec<Answer>, RunError> {
        SlotInput::check_all(runs, |run| self.check_run(run))?;
        let room: Vec<(usize, usize)> =
            runs.iter().map(|run| (run.slot, run.tokens.len())).collect();
        self.cache.reserve(&room)?;
        let held: Vec<usize> = runs.iter().map(|run| self.held(run.slot)).collect();
        let answers = self.answer_each(runs);
        if answers.is_err() {
            for (run, held) in runs.iter().zip(held) {
                self.truncate(run.slot, held);
            }
        }
        answers
    }

    /// Whether a run can be done as far as that is known without doing it.
    fn check_run(&self, run: &SlotInput<'_>) -> Result<(), RunError> {
        run.check_alone()?;
        self.check(run.slot, run.tokens)?;
        self.facts.check_words(run)?;
        self.facts.check_image(run)
    }

    fn answer_each(&mut self, runs: &[SlotInput<'_>]) -> Result<Vec<Answer>, RunError> {
        let mut answers: Vec<Answer> = runs.iter().map(|_| Answer::default()).collect();
        let (singles, prompts): (Vec<usize>, Vec<usize>) =
            (0..runs.len()).partition(|index| is_single(self, &runs[*index]));
        if !singles.is_empty() {
            let tokens: Vec<(usize, u32)> =
                singles.iter().map(|index| (runs[*index].slot, runs[*index].tokens[0])).collect();
            let mut logits = std::mem::take(&mut self.logits);
            self.decode_into(&tokens, &mut logits)?;
            let rows = logits.chunks_exact(self.vocab());
            for (index, row) in singles.iter().zip(rows) {
                take_row(&runs[*index], 0, row, &mut self.chooser, &mut answers[*index]);
            }
            self.logits = logits;
        }
        let shared = Arc::clone(&self.shared);
        let _reading = (!prompts.is_empty()).then(|| shared.reading());
        for index in prompts {
            self.answer_prompt(&runs[index], &mut answers[index])?;
        }
        Ok(answers)
    }

    fn answer_prompt(&mut self, run: &SlotInput<'_>, answer: &mut Answer) -> Result<(), RunError> {
        let features = run.image.map(|image| self.gather(image.features)).transpose()?;
        let features = features.unwrap_or_default();
        let image =
            run.image.map(|image| ImageEmbeds { token: image.token, embeds: &features.embeds });
        let prompt = Prompt {
            tokens: run.tokens,
            image,
            position_ids: run.position_ids,
            deepstack: &features.deepstack,
        };
        let (mut at, mut chooser) = (0, std::mem::take(&mut self.chooser));
        let (hidden, vocab) = (self.hidden(), self.vocab());
        let done = self.append(run.slot, &prompt, |engine, x| {
            for piece in x.chunks(SHOWN_ROWS * hidden) {
                let rows: Vec<usize> = (at..at + piece.len() / hidden)
                    .filter(|row| run.want.behind(*row, run.tokens.len()).is_any())
                    .collect();
                let wanted = rows
                    .iter()
                    .flat_map(|row| &piece[(row - at) * hidden..(row - at + 1) * hidden]);
                let wanted: Vec<f32> = wanted.copied().collect();
                at += piece.len() / hidden;
                if rows.is_empty() {
                    continue;
                }
                let logits = engine.logits(&wanted);
                for (row, logits) in rows.into_iter().zip(logits.chunks_exact(vocab)) {
                    take_row(run, row, logits, &mut chooser, answer);
                }
            }
        });
        self.chooser = chooser;
        done
    }

    /// The numbers of these features, one behind another.
    fn gather(&self, spans: &[FeatureSpan<'_>]) -> Result<HostFeatures, RunError> {
        let (hidden, layers) = (self.hidden(), self.deepstack());
        let mut all = HostFeatures { embeds: Vec::new(), deepstack: vec![Vec::new(); layers] };
        for FeatureSpan { features, tokens } in spans {
            let outs = [&mut all.embeds].into_iter().chain(&mut all.deepstack);
            for (out, value) in outs.zip(features.values()) {
                let host = value.to_host().map_err(|error| RunError::Device(error.to_string()))?;
                let no_floats = || RunError::Device("features are no floats".to_owned());
                let numbers = host.floats().ok_or_else(no_floats)?;
                let found = vec![numbers.len()];
                let own = numbers.get(tokens.start * hidden..tokens.end * hidden);
                let short = || RunError::FeatureCount { layers, numbers: hidden, found };
                out.extend_from_slice(own.ok_or_else(short)?);
            }
        }
        Ok(all)
    }
}

/// Takes of a row what is wanted of it; rows come in order.
fn take_row(
    run: &SlotInput<'_>,
    row: usize,
    logits: &[f32],
    chooser: &mut Chooser,
    answer: &mut Answer,
) {
    let RowWant { draw, score, is_shown } = run.want.behind(row, run.tokens.len());
    if let Some(draw) = draw {
        answer.chosen.push(chooser.choose(logits, draw));
    }
    if let Some((token, top)) = score {
        answer.scores.push(chooser.score(logits, token, top).ok());
    }
    if is_shown {
        answer.logits.extend_from_slice(logits);
    }
}
