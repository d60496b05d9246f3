//! What `/predict` is asked, as text-embeddings-inference has it.

use std::sync::LazyLock;

use serde::Deserialize;

use super::fields::fields;
use super::foreign::Known;
use super::score::{Cut, ScoreOptions};
use super::several::TextOr;
use crate::error::ApiError;

/// Most texts of one request: what embeddings take.
const TEXTS_MAX: usize = 2048;

/// Most numbers that are told at once, some 40 bytes each: as many labels for each text as a model has.
const SCORES_MAX: usize = 1 << 18;

/// The fields of `/predict`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PredictFields {
    /// Ours: that server has one model.
    #[serde(default)]
    pub(crate) model: Option<String>,
    pub(crate) inputs: Inputs,
    #[serde(default)]
    truncate: Option<bool>,
    #[serde(default)]
    truncation_direction: Option<String>,
    #[serde(default)]
    raw_scores: Option<bool>,
}

/// The fields of `/predict` that are read.
pub(crate) static PREDICT_KNOWN: LazyLock<Known> =
    LazyLock::new(|| Known::new(fields::<PredictFields>()));

impl PredictFields {
    /// How texts are classified.
    ///
    /// # Errors
    /// Naming the field that is wrong.
    pub(crate) fn score_options(&self) -> Result<ScoreOptions, ApiError> {
        let is_right = |direction: &String| direction.eq_ignore_ascii_case("right");
        if !self.truncation_direction.as_ref().is_none_or(is_right) {
            let why = "texts are cut on the right alone; send \"right\", or cut them";
            return Err(ApiError::field("truncation_direction", why));
        }
        let cut = (self.truncate == Some(true)).then_some(Cut::Own);
        let is_raw = self.raw_scores == Some(true);
        Ok(ScoreOptions { is_raw, cut, cut_by: "truncate: true" })
    }
}

/// A text, a list of one text or of two (a pair), or a list of such lists: a batch.
#[derive(Clone, Debug, Deserialize)]
#[serde(transparent)]
pub(crate) struct Inputs(TextOr<TextOr<String>>);

impl Inputs {
    /// Whether the answer is a list for each.
    pub(crate) fn is_batch(&self) -> bool {
        match &self.0 {
            TextOr::Text(_) => false,
            TextOr::List(list) => list.iter().any(|one| matches!(one, TextOr::List(_))),
        }
    }

    /// Texts, one or two together, of which a model of so many labels tells.
    ///
    /// # Errors
    /// Naming the list that has too many or too few.
    pub(crate) fn texts(&self, labels: usize) -> Result<Vec<Vec<&str>>, ApiError> {
        let list = match &self.0 {
            TextOr::Text(text) => return Ok(vec![vec![text]]),
            TextOr::List(list) => list,
        };
        if !self.is_batch() {
            return Ok(vec![together("inputs", list.iter().flat_map(of).collect())?]);
        }
        let most = TEXTS_MAX.min(SCORES_MAX / labels);
        if list.len() > most {
            let why = format!("{} texts are more than {most}, of {labels} labels each", list.len());
            return Err(ApiError::field("inputs", why));
        }
        let each = list.iter().enumerate();
        each.map(|(at, one)| together(&format!("inputs[{at}]"), of(one))).collect()
    }

    /// What text `text` of the one at `at` is called.
    pub(crate) fn name(&self, at: usize, text: usize) -> String {
        match &self.0 {
            TextOr::Text(_) => "inputs".to_owned(),
            TextOr::List(_) if !self.is_batch() => format!("inputs[{text}]"),
            TextOr::List(list) => match &list[at] {
                TextOr::Text(_) => format!("inputs[{at}]"),
                TextOr::List(_) => format!("inputs[{at}][{text}]"),
            },
        }
    }
}

fn of(one: &TextOr<String>) -> Vec<&str> {
    match one {
        TextOr::Text(text) => vec![text],
        TextOr::List(texts) => texts.iter().map(String::as_str).collect(),
    }
}

fn together<'a>(name: &str, texts: Vec<&'a str>) -> Result<Vec<&'a str>, ApiError> {
    match texts.len() {
        1 | 2 => Ok(texts),
        count => {
            let why = format!(
                "has {count} texts; a text is one, a pair two, and several are a list of lists: [[\"…\"], [\"…\"]]"
            );
            Err(ApiError::field(name, why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(inputs: &str) -> Result<(Vec<Vec<String>>, bool), Option<String>> {
        let fields: PredictFields =
            serde_json::from_str(&format!("{{\"inputs\": {inputs}}}")).unwrap();
        let texts = fields.inputs.texts(1 << 17).map_err(|error| error.param)?;
        let own = |texts: &Vec<&str>| texts.iter().map(|text| (*text).to_owned()).collect();
        Ok((texts.iter().map(own).collect(), fields.inputs.is_batch()))
    }

    #[test]
    fn a_text_a_pair_and_a_batch_are_told_apart() {
        let texts = |all: &[&[&str]]| -> Vec<Vec<String>> {
            all.iter().map(|one| one.iter().map(|text| (*text).to_owned()).collect()).collect()
        };
        for (inputs, expect, is_batch) in [
            (r#""a""#, texts(&[&["a"]]), false),
            (r#"["a"]"#, texts(&[&["a"]]), false),
            (r#"["a", "b"]"#, texts(&[&["a", "b"]]), false),
            (r#"[["a"]]"#, texts(&[&["a"]]), true),
            (r#"[["a", "b"], ["c"]]"#, texts(&[&["a", "b"], &["c"]]), true),
            (r#"["a", ["b", "c"]]"#, texts(&[&["a"], &["b", "c"]]), true),
        ] {
            assert_eq!(read(inputs), Ok((expect, is_batch)), "{inputs}");
        }
        for (inputs, field) in [
            ("[]", "inputs"),
            (r#"["a", "b", "c"]"#, "inputs"),
            (r#"[["a"], []]"#, "inputs[1]"),
            // Of so many labels two texts are told at once.
            (r#"[["a"], ["b"], ["c"]]"#, "inputs"),
        ] {
            assert_eq!(read(inputs), Err(Some(field.to_owned())), "{inputs}");
        }
    }

    #[test]
    fn texts_are_cut_on_the_right_alone() {
        let score_options = |more: &str| {
            let fields: PredictFields =
                serde_json::from_str(&format!("{{\"inputs\": \"a\"{more}}}")).unwrap();
            fields
                .score_options()
                .map(|score_options| (score_options.cut, score_options.is_raw))
                .map_err(|error| error.param)
        };
        assert_eq!(score_options(""), Ok((None, false)));
        let all = r#", "truncate": true, "truncation_direction": "Right", "raw_scores": true"#;
        assert_eq!(score_options(all), Ok((Some(Cut::Own), true)));
        let left = score_options(r#", "truncation_direction": "left""#);
        assert_eq!(left, Err(Some("truncation_direction".to_owned())));
    }
}
