//! `accuracy`: `smelt bench accuracy` as a gate: questions with known answers, and how wrong engines may be.
//!
//! Figures have the names that `smelt bench accuracy --json` gives them, bounds those names with `min-` or `max-`.

use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::definition::{Absent, Definition, Field, Takes, Values, field};
use super::{CHECKPOINT, ENGINE, Kind, LLM_ENGINE, PROOF, SEQ_LEN_MAX};

/// Questions are read whole; published sets have some ten thousand.
const QUESTIONS_MAX: u64 = 1_000_000;
const DEPLOYMENT: Takes = Takes::Stage(&[Kind::Deployment]);

const MIN_EXACT: &str = "min-exact";
const MAX_PERPLEXITY: &str = "max-perplexity";
const MAX_KL_NATS: &str = "max-kl-nats";

/// A bound: its field, the least and the largest number that it can be, and that in words.
type Bound = (&'static str, [f64; 2], &'static str);

const BOUNDS: [Bound; 3] = [
    (MIN_EXACT, [0.0, 1.0], "a share from \"0\" to \"1\""),
    (MAX_PERPLEXITY, [1.0, f64::MAX], "a number from \"1\""),
    (MAX_KL_NATS, [0.0, f64::MAX], "a number from \"0\""),
];

/// Bounds are texts, as all fractions of a pipeline.
const FIELDS: &[Field] = &[
    field("vision", ENGINE, Absent::Nothing),
    field("llm", LLM_ENGINE, Absent::Nothing),
    field("checkpoint", CHECKPOINT, Absent::Nothing),
    field("deployment", DEPLOYMENT, Absent::Nothing),
    field("against", DEPLOYMENT, Absent::Nothing),
    field("verified", PROOF, Absent::Nothing),
    field("questions", Takes::Path, Absent::Refused),
    field("limit", Takes::Count(1, QUESTIONS_MAX), Absent::Nothing),
    field("max-seq-len", Takes::Count(2, SEQ_LEN_MAX), Absent::Nothing),
    field(MIN_EXACT, Takes::Text, Absent::Nothing),
    field(MAX_PERPLEXITY, Takes::Text, Absent::Nothing),
    field(MAX_KL_NATS, Takes::Text, Absent::Nothing),
];

/// The report has times, so it is never the same.
pub(super) const KIND: Definition = Definition {
    is_reproducible: Some(false),
    smaller: "fewer questions (limit), engines of a smaller scheme",
    fault,
    conflict,
    ..Definition::new("accuracy", 1, FIELDS)
};

fn fault(is_given: &dyn Fn(&str) -> bool) -> Option<&'static str> {
    if !BOUNDS.iter().any(|&(name, ..)| is_given(name)) {
        return Some("needs a bound: \"min-exact\", \"max-perplexity\" or \"max-kl-nats\"");
    }
    if is_given(MAX_KL_NATS) && !is_given("against") {
        return Some(
            "\"max-kl-nats\" is how far from another deployment; name that as \"against\"",
        );
    }
    if is_given("deployment") {
        return ["vision", "llm", "checkpoint"].into_iter().any(is_given).then_some(
            "\"deployment\" has its engines; leave out \"vision\", \"llm\" and \"checkpoint\"",
        );
    }
    (!is_given("llm") || !is_given("checkpoint")).then_some(
        "needs the keys \"llm\" and \"checkpoint\", with \"vision\" where it sees, or \"deployment\" alone",
    )
}

fn conflict(params: &Values) -> Option<(String, String)> {
    BOUNDS.iter().find_map(|&(name, [least, largest], words)| {
        let text = params.get(name).and_then(Value::as_str)?;
        let is_bound = text.parse::<f64>().is_ok_and(|bound| (least..=largest).contains(&bound));
        (!is_bound)
            .then(|| (name.to_owned(), format!("\"{name}\" must be {words}, not \"{text}\"")))
    })
}

/// The params of a stage.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Accuracy {
    /// So many questions, the first ones; all without it.
    pub limit: Option<usize>,
    /// Tokens of a question with its answer; else what is said where it is served.
    pub max_seq_len: Option<usize>,
    /// The least share of right answers, 0 to 1.
    #[serde(deserialize_with = "number")]
    pub min_exact: Option<f64>,
    /// The largest perplexity of the right answers.
    #[serde(deserialize_with = "number")]
    pub max_perplexity: Option<f64>,
    /// The largest mean divergence from the other deployment, in nats.
    #[serde(deserialize_with = "number")]
    pub max_kl_nats: Option<f64>,
}

/// The number in a text that `conflict` has seen.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<f64>, D::Error> {
    let text = String::deserialize(from)?;
    text.parse::<f64>().map(Some).map_err(de::Error::custom)
}

/// What was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AccuracyFigures {
    /// The share of right answers, 0 to 1.
    pub exact: f64,
    /// The perplexity of the right answers.
    pub perplexity: f64,
    /// The mean divergence from the other deployment in nats; none if that cuts answers into other tokens.
    pub kl_nats: Option<f64>,
}

impl Accuracy {
    /// What is out of bounds, in words; nothing where all is well.
    pub fn complaint(&self, figures: AccuracyFigures) -> Option<String> {
        let AccuracyFigures { exact, perplexity, kl_nats } = figures;
        let least = self.min_exact.filter(|&bound| exact.is_nan() || exact < bound);
        let least = least.map(|bound| format!("exact is {exact}, less than min-exact = {bound}"));
        let most = |name: &str, figure: f64, bound: Option<f64>| {
            let bound = bound.filter(|&bound| figure.is_nan() || figure > bound)?;
            Some(format!("{name} is {figure}, more than max-{} = {bound}", name.replace('_', "-")))
        };
        let perplexity = most("perplexity", perplexity, self.max_perplexity);
        let kl_nats = match kl_nats {
            Some(kl_nats) => most("kl_nats", kl_nats, self.max_kl_nats),
            None => self.max_kl_nats.map(|_| {
                "kl_nats is not known, since \"against\" cuts answers into other tokens".to_owned()
            }),
        };
        let all: Vec<String> = [least, perplexity, kl_nats].into_iter().flatten().collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::typed;

    fn params(pairs: &[(&str, &str)]) -> Values {
        pairs.iter().map(|&(name, text)| (name.to_owned(), Value::from(text))).collect()
    }

    #[test]
    fn fields_that_go_together() {
        let check = |given: &str, words: Option<&str>| {
            let given: Vec<&str> = given.split(' ').collect();
            let found = fault(&|name| given.contains(&name));
            assert_eq!(found.is_some(), words.is_some(), "{given:?}: {found:?}");
            assert!(words.is_none_or(|words| found.unwrap().contains(words)), "{found:?}");
        };
        check("llm checkpoint", Some("needs a bound"));
        check("llm checkpoint min-exact", None);
        check("deployment against vision max-kl-nats", Some("leave out \"vision\""));
        check("deployment max-perplexity", None);
        check("deployment max-kl-nats", Some("name that as \"against\""));
        check("llm against max-kl-nats", Some("\"llm\" and \"checkpoint\""));
    }

    #[test]
    fn bounds_are_numbers_that_figures_can_reach() {
        let refused = |name: &str, text: &str| conflict(&params(&[(name, text)])).is_some();
        for (name, text) in
            [("min-exact", "0.95"), ("max-perplexity", "1"), ("max-kl-nats", "1e-3")]
        {
            assert!(!refused(name, text), "{name} {text}");
        }
        let bad = [
            ("min-exact", "1.01"),
            ("min-exact", "95 %"),
            ("max-perplexity", "0.9"),
            ("max-kl-nats", "-1"),
            ("max-kl-nats", "NaN"),
            ("max-kl-nats", "inf"),
        ];
        for (name, text) in bad {
            assert!(refused(name, text), "{name} {text}");
        }
        let (field, why) = conflict(&params(&[("min-exact", "95")])).unwrap();
        assert_eq!(
            (field.as_str(), why.as_str()),
            ("min-exact", "\"min-exact\" must be a share from \"0\" to \"1\", not \"95\"")
        );
    }

    #[test]
    fn all_that_is_out_of_bounds_is_told() {
        let bounds = params(&[("min-exact", "0.5"), ("max-perplexity", "2"), ("max-kl-nats", "0")]);
        let bounds: Accuracy = typed(&bounds).unwrap();
        let figures = |exact, perplexity, kl_nats| AccuracyFigures { exact, perplexity, kl_nats };
        assert_eq!(bounds.complaint(figures(0.5, 2.0, Some(0.0))), None);
        let all = bounds.complaint(figures(0.25, 2.5, Some(0.125))).unwrap();
        let words = [
            "exact is 0.25, less than min-exact = 0.5",
            "perplexity is 2.5, more than max-perplexity = 2",
            "kl_nats is 0.125, more than max-kl-nats = 0",
        ];
        assert_eq!(all, words.join("; "));
        assert!(bounds.complaint(figures(1.0, 1.0, None)).unwrap().contains("not known"));
        assert!(bounds.complaint(figures(f64::NAN, f64::NAN, Some(0.0))).is_some());
        assert_eq!(Accuracy::default().complaint(figures(0.0, 9.0, None)), None);
    }
}
