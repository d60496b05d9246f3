//! Makes one share of the shares that parts of a stage's work tell of, one after another.
//!
//! Costs are guesses; only how evenly the share grows depends on them.

use crate::headway::Headway;

/// What a whole stage's share is told in: a hundredth of a percent.
const WHOLE: f64 = 10_000.0;

/// Parts of some work, each with what it costs beside the others, in any unit.
#[derive(Debug)]
pub struct Phases {
    costs: Vec<f64>,
    at: usize,
}

impl Phases {
    /// Of parts that begin with the first.
    #[must_use]
    pub fn new(costs: Vec<f64>) -> Self {
        Self { costs, at: 0 }
    }

    /// Goes on to the next part and says what it is.
    pub fn next(&mut self, what: &str) -> String {
        self.at += 1;
        self.begin(what)
    }

    /// Says what this part is.
    #[must_use]
    pub fn begin(&self, what: &str) -> String {
        self.line(&format!("[0/1] {what}"))
    }

    /// `line`, with the share of the whole in the place of this part's.
    #[must_use]
    pub fn line(&self, line: &str) -> String {
        let Some(Headway { done, what, .. }) = Headway::parse(line) else {
            return line.to_owned();
        };
        let own = self.costs.get(self.at).copied().unwrap_or(0.0);
        let before: f64 = self.costs.iter().take(self.at).sum();
        let all: f64 = self.costs.iter().sum();
        let share = if all > 0.0 { (before + own * done) / all } else { 0.0 };
        format!("[{:.0}/{WHOLE:.0}] {what}", (share * WHOLE).clamp(0.0, WHOLE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_a_whole() {
        let mut phases = Phases::new(vec![1.0, 3.0]);
        assert_eq!(phases.begin("weights"), "[0/10000] weights");
        assert_eq!(phases.line("[1/2] a"), "[1250/10000] a");
        assert_eq!(phases.next("reference"), "[2500/10000] reference");
        assert_eq!(phases.line("[2/3] layer"), "[7500/10000] layer");
        assert_eq!(phases.line("a word"), "a word");
        // More parts than were thought of are at the end.
        assert_eq!(phases.next("more"), "[10000/10000] more");
        assert_eq!(Phases::new(vec![]).begin("nothing"), "[0/10000] nothing");
    }
}
