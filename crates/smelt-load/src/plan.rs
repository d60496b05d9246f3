//! Says what is asked of a server: lengths, streams, pictures, runs.
//!
//! Plain data that is checked once.  Knows nothing of HTTP.

use std::str::FromStr;
use std::time::Duration;

/// Most streams at once: a thread each.
pub const STREAMS_MAX: usize = 512;

/// Most requests of a run.
pub const REQUESTS_MAX: usize = 100_000;

/// Most tokens of a prompt or an answer.
pub const TOKENS_MAX: usize = 1 << 20;

/// Most pictures of a request.
pub const PICTURES_MAX: usize = 256;

/// Requests a second that may come: one in a quarter of an hour, and as many as threads can send.
const PER_S_MIN: f64 = 0.001;
const PER_S_MAX: f64 = 10_000.0;

/// A plan that cannot be carried out.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Not two lengths.
    #[error("{0:?} is no length: PROMPT:ANSWER in tokens, each 1 to {TOKENS_MAX}, as 512:128")]
    Lengths(String),
    /// Not a mixture.
    #[error("{0:?} is no mixture: TEXT:IMAGE, how many requests of each, as 3:1")]
    Mix(String),
    /// A number out of its range.
    #[error("{name} must be {range}, not {value}")]
    Range {
        /// What is counted.
        name: &'static str,
        /// What it may be.
        range: String,
        /// What it is.
        value: usize,
    },
    /// Requests that come too rarely or too often.
    #[error("the rate must be {PER_S_MIN} to {PER_S_MAX} requests a second, not {0}")]
    PerS(f64),
    /// A mixture without pictures.
    #[error("a mixture of text and images needs --images of at least 1")]
    NoPictures,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Of the text of its prompt.
    pub prompt: usize,
    /// Of its answer.
    pub answer: usize,
}

impl FromStr for Lengths {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let wrong = || PlanError::Lengths(text.to_owned());
        let (prompt, answer) = text.split_once(':').ok_or_else(wrong)?;
        let count = |text: &str| text.parse().ok().filter(|n| (1..=TOKENS_MAX).contains(n));
        Ok(Self {
            prompt: count(prompt).ok_or_else(wrong)?,
            answer: count(answer).ok_or_else(wrong)?,
        })
    }
}

/// How many requests of each kind follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mix {
    /// Without pictures.
    pub text: usize,
    /// With pictures.
    pub image: usize,
}

impl FromStr for Mix {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let wrong = || PlanError::Mix(text.to_owned());
        let (text_count, image_count) = text.split_once(':').ok_or_else(wrong)?;
        let count = |text: &str| text.parse().ok().filter(|n| *n <= REQUESTS_MAX);
        let mix = Self {
            text: count(text_count).ok_or_else(wrong)?,
            image: count(image_count).ok_or_else(wrong)?,
        };
        if mix.text + mix.image == 0 { Err(wrong()) } else { Ok(mix) }
    }
}

impl Mix {
    /// Whether request `number` of a run has pictures: kinds are spread evenly (Bresenham's line).
    pub fn has_pictures(self, number: usize) -> bool {
        let all = self.text + self.image;
        let before = |count: usize| count * self.image / all;
        before(number % all + 1) > before(number % all)
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Tokens of each request.
    pub lengths: Lengths,
    /// Requests that are under way at any moment.
    pub streams: usize,
    /// Pictures of a request that has any.
    pub pictures: usize,
}

/// What is asked, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadPlan {
    /// Every row of the table, in order.
    pub cases: Vec<Case>,
    /// Requests of a run; four for each stream if it is not said.
    pub requests: Option<usize>,
    /// Runs that count.
    pub runs: usize,
    /// Runs before them that do not.
    pub warm_ups: usize,
    /// Over how long the streams of a run begin; what they ask before the last has begun does not count.
    pub ramp: Duration,
    /// How many requests come a second, whenever they like; as many streams as the case has are the most
    /// that are under way, and who finds none free waits.  If it is not said, each stream asks as soon as
    /// it was answered.
    pub per_s: Option<f64>,
    /// Which requests have pictures; all of them if nothing is said and there are any.
    pub mix: Option<Mix>,
    /// Decides what is asked: with a seed that a server has met before, it may have kept the answers.
    pub seed: u64,
}

impl LoadPlan {
    /// Whether it can be carried out.
    ///
    /// # Errors
    /// [`PlanError`] naming what cannot.
    pub fn check(&self) -> Result<(), PlanError> {
        for case in &self.cases {
            within("the number of streams", case.streams, 1, STREAMS_MAX)?;
            within("the number of images", case.pictures, 0, PICTURES_MAX)?;
            if case.pictures == 0 && self.mix.is_some_and(|mix| mix.image > 0) {
                return Err(PlanError::NoPictures);
            }
        }
        if let Some(per_s) = self.per_s.filter(|per_s| !(PER_S_MIN..=PER_S_MAX).contains(per_s)) {
            return Err(PlanError::PerS(per_s));
        }
        within("the number of requests", self.requests.unwrap_or(1), 1, REQUESTS_MAX)?;
        within("the number of runs", self.runs, 1, 1000)?;
        within("the number of warm-ups", self.warm_ups, 0, 1000)
    }

    /// Requests of one run of `case`.
    pub fn requests(&self, case: &Case) -> usize {
        self.requests.unwrap_or(case.streams * 4)
    }

    /// Pictures of request `number` of a run of `case`.
    pub fn pictures(&self, case: &Case, number: usize) -> usize {
        let has = self.mix.is_none_or(|mix| mix.has_pictures(number));
        if has { case.pictures } else { 0 }
    }
}

fn within(name: &'static str, value: usize, min: usize, max: usize) -> Result<(), PlanError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(PlanError::Range { name, range: format!("{min} to {max}"), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_and_mixtures_are_read() {
        assert_eq!("128:64".parse(), Ok(Lengths { prompt: 128, answer: 64 }));
        for wrong in ["", "128", "0:1", "1:0", "a:b", "1:2:3", "99999999:1"] {
            assert_eq!(wrong.parse::<Lengths>(), Err(PlanError::Lengths(wrong.to_owned())));
        }
        assert_eq!("3:1".parse(), Ok(Mix { text: 3, image: 1 }));
        for wrong in ["", "3", "0:0", "-1:1"] {
            assert_eq!(wrong.parse::<Mix>(), Err(PlanError::Mix(wrong.to_owned())));
        }
    }

    #[test]
    fn kinds_are_spread_evenly() {
        let kinds = |text, image| -> String {
            let mix = Mix { text, image };
            (0..8).map(|n| if mix.has_pictures(n) { 'i' } else { 't' }).collect()
        };
        assert_eq!(kinds(3, 1), "tttittti");
        assert_eq!(kinds(1, 1), "titititi");
        assert_eq!((kinds(1, 0), kinds(0, 1)), ("tttttttt".to_owned(), "iiiiiiii".to_owned()));
        assert_eq!(kinds(5, 3).matches('i').count(), 3);
    }

    #[test]
    fn plans_out_of_range_are_refused() {
        let case = Case { lengths: Lengths { prompt: 1, answer: 1 }, streams: 1, pictures: 0 };
        let plan = LoadPlan {
            cases: vec![case],
            requests: None,
            runs: 1,
            warm_ups: 0,
            ramp: Duration::ZERO,
            per_s: None,
            mix: None,
            seed: 0,
        };
        assert_eq!(plan.check(), Ok(()));
        let per_s = |per_s| LoadPlan { per_s: Some(per_s), ..plan.clone() };
        assert_eq!(per_s(0.5).check(), Ok(()));
        for wrong in [0.0, -1.0, f64::NAN, 1e9] {
            assert!(per_s(wrong).check().unwrap_err().to_string().contains("requests a second"));
        }
        let refused = |plan: LoadPlan| plan.check().unwrap_err().to_string();
        assert!(
            refused(LoadPlan { runs: 0, ..plan.clone() }).contains("runs must be 1 to 1000, not 0")
        );
        assert!(refused(LoadPlan { requests: Some(0), ..plan.clone() }).contains("requests"));
        assert!(
            refused(LoadPlan { cases: vec![Case { streams: 600, ..case }], ..plan.clone() })
                .contains("1 to 512")
        );
        assert!(
            refused(LoadPlan { mix: Some(Mix { text: 1, image: 1 }), ..plan }).contains("--images")
        );
    }
}
