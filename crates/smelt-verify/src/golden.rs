//! Asks golden prompts, and says of a wrong answer whether the engines or the model are to blame.
//!
//! The prompts are `questions.jsonl` of a directory, its pictures beside it, in the form that `smelt
//! bench accuracy` reads.  Of the first wrong answer the f32 reference scores every token.

use std::path::Path;

use serde::Serialize;
use smelt_deploy::DeployError;
use smelt_deploy::spec::{self, ChatEngines, engine_dirs};
use smelt_model::checkpoint::Checkpoint;
use smelt_model::grid::Grid;
use smelt_model::position_ids::with_text;
use smelt_model::reference::{self, ImageFeatures, PromptEmbeds, ReferenceError};
use smelt_runtime::accuracy::golden::{self, GoldenResult};
use smelt_runtime::accuracy::question::{self, Question};
use smelt_runtime::deployment::Deployment;
use smelt_runtime::image::Size;

use crate::course::Course;
use crate::parties::Parties;
use crate::probe::argmax;
use crate::verification::Verification;

/// A golden prompt as the artifact records it.
#[derive(Debug, Serialize)]
pub(crate) struct Prompted {
    number: usize,
    prompt: String,
    expected: String,
    given: String,
    is_right: bool,
}

/// Asks the prompts of `folder` by the tokenizer and template in `texts`, tells which, and records what was said; gives what a person reads of the wrong
/// answers.
pub(crate) fn ask(
    asked: &Verification<'_>,
    parties: Parties,
    texts: &Path,
    (folder, course): (&Path, &Course<'_>),
    record: &mut Vec<Prompted>,
) -> Result<Vec<String>, DeployError> {
    let Parties { vision, llm, against, .. } = parties;
    let questions =
        question::read(&folder.join(golden::PROMPTS_FILE), None).map_err(DeployError::given)?;
    let vision_dirs = asked.vision.map(|dir| engine_dirs(&[dir])).transpose()?;
    let engines = ChatEngines { vision: vision_dirs, llm: engine_dirs(&[asked.llm])? };
    let said = spec::chat(&against, texts, "verified", engines)?;
    let deployment = Deployment::of_engines(texts, said, vision, llm.into_decoder()?);
    let mut deployment = deployment.map_err(DeployError::engine)?;
    let mut complaints = Vec::new();
    for (index, question) in questions.iter().enumerate() {
        let number = index + 1;
        course.hears(&format!("[{index}/{}] golden prompt {number}", questions.len()));
        let given = golden::ask(&mut deployment, question, folder);
        let given =
            given.map_err(|why| DeployError::engine(format!("golden prompt {number}: {why}")))?;
        if !given.is_right {
            let mut complaint = wrong(number, question, &given);
            if complaints.is_empty() {
                complaint += &blame(&against, &deployment, (question, folder), (&given, course))?;
            }
            complaints.push(complaint);
        }
        record.push(Prompted {
            number,
            prompt: question.prompt(),
            expected: question.answer.clone(),
            given: given.text,
            is_right: given.is_right,
        });
    }
    course.say(&format!(
        "golden prompts: {} of {} right",
        questions.len() - complaints.len(),
        questions.len()
    ));
    Ok(complaints)
}

fn wrong(number: usize, question: &Question, given: &GoldenResult) -> String {
    let pictures: Vec<String> =
        question.images.iter().map(|image| image.display().to_string()).collect();
    let on =
        if pictures.is_empty() { String::new() } else { format!(" on {}", pictures.join(", ")) };
    let (prompt, answer) = (question.prompt(), &question.answer);
    format!(
        "golden prompt {number}, {prompt:?}{on}, is answered {:?} and not {answer:?}",
        given.text
    )
}

/// Where the f32 reference, seeing the same pictures with its own eyes, would have said another token.
fn blame(
    against: &Checkpoint,
    deployment: &Deployment,
    (question, folder): (&Question, &Path),
    (given, course): (&GoldenResult, &Course<'_>),
) -> Result<String, DeployError> {
    let parts = golden::parts(deployment, question, folder).map_err(DeployError::model)?;
    let preferred = match preferred(against, &parts, deployment.text.image_token, (given, course)) {
        Ok(preferred) => preferred,
        // Tiles of other sizes than the model's own, for one.
        Err(why) => return Ok(format!("; the f32 reference has no word on it: {why}")),
    };
    Ok(verdict(&given.tokens, &preferred, |tokens| {
        deployment.text.tokenizer.decode(tokens, false).unwrap_or_default()
    }))
}

/// The tokens that the reference prefers at each place of the answer, and behind it.
fn preferred(
    against: &Checkpoint,
    parts: &[(Vec<f32>, Size)],
    image_token: Option<u32>,
    (given, course): (&GoldenResult, &Course<'_>),
) -> Result<Vec<u32>, ReferenceError> {
    let told = &mut |line: &str| course.say(line);
    let mut seen = ImageFeatures::default();
    for (numbers, Size { height, width }) in parts {
        let grid = Grid { height: *height, width: *width };
        seen.append(reference::see(against, numbers, grid, told)?);
    }
    let prompt = &given.encoded.tokens;
    let tokens = [prompt.as_slice(), &given.tokens].concat();
    let image_token = image_token.filter(|_| !parts.is_empty());
    let image = image_token.map(|token| PromptEmbeds { token, embeds: &seen.embeds });
    let position_ids = given
        .encoded
        .position_ids
        .as_ref()
        .map(|position_ids| with_text(position_ids, given.tokens.len()));
    let all = reference::Prompt {
        tokens: &tokens,
        image,
        position_ids: position_ids.as_deref(),
        deepstack: &seen.deepstack,
    };
    // The token behind the answer is its end.
    let positions = prompt.len() - 1..tokens.len();
    let logits = reference::logits_after(against, &all, positions, told)?;
    let vocab = against.decoder()?.vocab;
    Ok(logits.chunks_exact(vocab).map(|row| argmax(row, None)).collect())
}

/// Compares an answer with the tokens that the reference prefers at each of its places and behind it.
fn verdict(given: &[u32], preferred: &[u32], text: impl Fn(&[u32]) -> String) -> String {
    match given.iter().zip(preferred).position(|(given, preferred)| given != preferred) {
        Some(at) => {
            let said = text(&[given[at]]);
            let other = text(&[preferred[at]]);
            format!("; the f32 reference says {other:?} in place of {said:?} at token {}", at + 1)
        }
        None => "; the f32 reference says the same, so it is the prompt or the model that is wrong, not the engine".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_verdict_names_the_first_other_token() {
        let text = |tokens: &[u32]| tokens.iter().map(|token| format!("t{token}")).collect();
        let other = verdict(&[1, 2, 3], &[1, 5, 6, 0], text);
        assert_eq!(other, "; the f32 reference says \"t5\" in place of \"t2\" at token 2");
        assert!(verdict(&[1, 2], &[1, 2, 0], text).contains("says the same"));
    }
}
