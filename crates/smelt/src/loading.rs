//! Says how far the load of a deployment is, in the lines that stages speak: its engines are opened, compared with
//! their digests, and run for the first time.
//!
//! Whoever loads says what it does; who shows it is another's part.  A build's last stage, a conversation and a server
//! load in the same way, and so tell of it in the same words.

use smelt_watch::phases::Phases;

/// What the parts of a load cost beside each other.  Engines are mapped: comparing reads them from the disk, and what
/// runs first makes buffers for every size of work, which takes most of the time.
const COSTS: [f64; 3] = [1.0, 3.0, 6.0];
/// Parts of the engines after which somebody hears of it again: they are read in thousands of pieces.
const TOLD_PARTS: u64 = 100;

/// What is said while engines run for the first time.
pub(crate) const WARMING_UP: &str = "running every size of work once";

/// The part of a load that is under way, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
enum Part {
    Opens,
    Compares,
    Runs,
}

/// A load that goes on.
pub(crate) struct Loading<'a> {
    phases: Phases,
    part: Part,
    /// Bytes of the engines, and how many of them were compared.
    all_bytes: u64,
    read_bytes: u64,
    say: &'a mut dyn FnMut(&str),
}

impl<'a> Loading<'a> {
    /// Of engines of so many bytes; `say` hears the lines.
    pub(crate) fn new(all_bytes: u64, say: &'a mut dyn FnMut(&str)) -> Self {
        let phases = Phases::new(COSTS.to_vec());
        Self { phases, part: Part::Opens, all_bytes, read_bytes: 0, say }
    }

    /// The engines are opened.
    pub(crate) fn opens(&mut self) {
        self.tell(0.0, "opening the engines");
    }

    /// The engines are compared with their digests.
    pub(crate) fn compares(&mut self) {
        self.goes_on_to(Part::Compares);
        self.tell(0.0, &self.comparing());
    }

    /// So many bytes more were compared.
    pub(crate) fn has_read(&mut self, bytes: u64) {
        let step = (self.all_bytes / TOLD_PARTS).max(1);
        let before = self.read_bytes / step;
        self.read_bytes = self.read_bytes.saturating_add(bytes).min(self.all_bytes);
        if self.read_bytes / step > before {
            self.tell(self.read_bytes as f64 / self.all_bytes as f64, &self.comparing());
        }
    }

    /// The engines run for the first time: `done` of what they do then, which is `what`.
    pub(crate) fn runs(&mut self, done: f64, what: &str) {
        self.goes_on_to(Part::Runs);
        self.tell(done, what);
    }

    /// What is compared since the boot is not compared again, so a part may be left out.
    fn goes_on_to(&mut self, part: Part) {
        while self.part < part {
            self.part = if self.part == Part::Opens { Part::Compares } else { Part::Runs };
            self.phases.next("");
        }
    }

    fn tell(&mut self, done: f64, what: &str) {
        let percent = (done.clamp(0.0, 1.0) * 100.0).round();
        let line = self.phases.line(&format!("[{percent}/100] {what}"));
        (self.say)(&line);
    }

    fn comparing(&self) -> String {
        format!("comparing {:.1} GB with their digests", self.all_bytes as f64 / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a load of 2 GB that compares its engines, or did since the boot.
    fn lines(compares: bool) -> Vec<String> {
        let mut lines = Vec::new();
        let mut say = |line: &str| lines.push(line.to_owned());
        let mut loading = Loading::new(2_000_000_000, &mut say);
        loading.opens();
        if compares {
            loading.compares();
            // Pieces of a thousandth, of which a hundred are told.
            (0..1000).for_each(|_| loading.has_read(2_000_000));
        }
        loading.runs(0.0, "looking at a picture");
        loading.runs(0.5, "saying a word");
        lines
    }

    #[test]
    fn a_load_is_one_whole_of_its_parts() {
        let all = lines(true);
        assert_eq!(all[0], "[0/10000] opening the engines");
        assert_eq!(all[1], "[1000/10000] comparing 2.0 GB with their digests");
        assert!(all.contains(&"[2500/10000] comparing 2.0 GB with their digests".to_owned()));
        assert_eq!(all[102], "[4000/10000] looking at a picture", "a hundred of them are told");
        assert_eq!(all[103], "[7000/10000] saying a word");
    }

    #[test]
    fn what_was_compared_since_the_boot_is_left_out() {
        let expect = [
            "[0/10000] opening the engines",
            "[4000/10000] looking at a picture",
            "[7000/10000] saying a word",
        ];
        assert_eq!(lines(false), expect);
    }

    #[test]
    fn engines_without_bytes_are_no_fault() {
        let mut count = 0;
        let mut say = |_: &str| count += 1;
        let mut loading = Loading::new(0, &mut say);
        loading.compares();
        loading.has_read(9);
        loading.runs(2.0, "more than all");
        assert_eq!(count, 2);
    }
}
