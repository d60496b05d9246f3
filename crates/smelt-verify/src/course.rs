//! Tells how far a verification has come.

use smelt_watch::phases::Phases;

/// The parts of a verification, and who hears of them.
pub(crate) struct Course<'a> {
    phases: Phases,
    say: &'a dyn Fn(&str),
}

impl<'a> Course<'a> {
    /// Of parts that cost so much beside each other.
    pub(crate) fn new(costs: Vec<f64>, say: &'a dyn Fn(&str)) -> Self {
        Self { phases: Phases::new(costs), say }
    }

    /// The first part begins.
    pub(crate) fn begins(&self, what: &str) {
        self.say(&self.phases.begin(what));
    }

    /// The next part begins.
    pub(crate) fn goes_on(&mut self, what: &str) {
        let line = self.phases.next(what);
        self.say(&line);
    }

    /// The next part is left out.
    pub(crate) fn passes_over(&mut self) {
        self.phases.next("");
    }

    /// A part says how far it is.
    pub(crate) fn hears(&self, line: &str) {
        self.say(&self.phases.line(line));
    }

    /// Something was found.
    pub(crate) fn say(&self, line: &str) {
        (self.say)(line);
    }
}
