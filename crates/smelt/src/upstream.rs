//! Starts the servers of other programs, for whoever serves a deployment of one or makes it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smelt_runtime::accuracy::golden::PROMPTS_FILE;
use smelt_runtime::accuracy::question::{self, Question};
use smelt_runtime::prompt::PICTURE_WORD;
use smelt_runtime::upstream::Spec;
use smelt_serve::{Launch, Upstream};

use crate::exit::{Exit, Failed};

/// What leads such a server: itself, as it is now, whatever is installed meanwhile.
const LEADER: [&str; 4] = ["/proc/self/exe", "stage", "lead", "--"];

/// How the server of `spec` is started on what is in `engine`; so many requests may wait for it.
pub(crate) fn launch(spec: Spec, engine: PathBuf, queue_max: usize) -> Launch {
    // Programs that are given a path by another's words take it for their own.
    let engine = fs::canonicalize(&engine).unwrap_or(engine);
    Launch { spec, engine, leader: LEADER.map(OsString::from).into(), queue_max }
}

/// Whether the server answers the golden prompts in `folder` as they expect; `told` hears how far that is.
pub(crate) fn all_right(
    server: &Upstream,
    folder: &Path,
    told: &dyn Fn(&str),
) -> Result<(), Failed> {
    let questions = question::read(&folder.join(PROMPTS_FILE), None).map_err(Failed::usage)?;
    let count = questions.len();
    for (index, question) in questions.iter().enumerate() {
        let number = index + 1;
        told(&format!("[{index}/{count}] golden prompt {number}"));
        let content = content(question, folder)?;
        let answer = server.ask(&content, question.new_tokens_max());
        let answer =
            answer.map_err(|why| Failed::invalid(format!("golden prompt {number}: {why}")))?;
        if !question.is_right(&answer) {
            return Err(Failed::invalid(question.complaint(number, &answer)));
        }
    }
    told(&format!("golden prompts: all {count} right"));
    Ok(())
}

/// A question as a user's turn: its pictures where it marks them, the others in front.
fn content(question: &Question, folder: &Path) -> Result<Value, Failed> {
    let prompt = question.prompt();
    let mut pictures = question.images.iter().map(|image| picture(&folder.join(image)));
    let marks = prompt.matches(PICTURE_WORD).count();
    let in_front = question.images.len().saturating_sub(marks);
    let mut parts = pictures.by_ref().take(in_front).collect::<Result<Vec<_>, _>>()?;
    for (at, words) in prompt.split(PICTURE_WORD).enumerate() {
        if at > 0 {
            parts.extend(pictures.next().transpose()?);
        }
        if !words.is_empty() {
            parts.push(json!({ "type": "text", "text": words }));
        }
    }
    // Some servers take nothing but a text where there is nothing else.
    Ok(if question.images.is_empty() { prompt.into() } else { parts.into() })
}

fn picture(path: &Path) -> Result<Value, Failed> {
    let url = smelt_load::picture::of_file(path).map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot read {}: {error}", path.display()))
    })?;
    Ok(json!({ "type": "image_url", "image_url": { "url": url } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_stand_where_the_question_marks_them() {
        let folder = tempfile::tempdir().unwrap();
        ["a.png", "b.jpg"]
            .iter()
            .for_each(|name| fs::write(folder.path().join(name), name).unwrap());
        let shown = |line: &str| {
            let content = content(&Question::parse(line).unwrap(), folder.path()).unwrap();
            let Value::Array(parts) = content else { return content.to_string() };
            let part = |part: &Value| match part["text"].as_str() {
                Some(text) => text.to_owned(),
                None => part["image_url"]["url"].as_str().unwrap()[..16].to_owned(),
            };
            parts.iter().map(part).collect::<Vec<_>>().join("|")
        };
        let line =
            r#"{"images": ["a.png", "b.jpg"], "question": "Is <image> it?", "answer": "no"}"#;
        assert_eq!(shown(line), "data:image/png;b|Is |data:image/jpeg;| it?");
        assert_eq!(shown(r#"{"question": "2 + 2?", "answer": "4"}"#), "\"2 + 2?\"");
        let lost = r#"{"images": ["c.png"], "question": "?", "answer": "no"}"#;
        content(&Question::parse(lost).unwrap(), folder.path()).unwrap_err();
    }
}
