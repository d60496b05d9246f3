//! Finds places for names beside points, where they lie over nothing else.

use crate::panel::{BOTTOM, TOP};
use crate::svg::{Place, Svg};

/// Room for a point's name beside it, and for lines of text above each other.  Names are written in letters
/// of one width, 0.6 of their size, so that what is free here is free in any renderer's font.
const NAME_SIZE: f64 = 11.0;
const CHARACTER: f64 = NAME_SIZE * 0.61;
const LINE: f64 = 15.0;
/// How finely a line is looked at where it could cross a name: less than the height of a letter.
const LEADER_PARTS: u32 = 64;
/// How far letters reach above the line they stand on, and below.
const ASCENT: f64 = 10.0;
const DESCENT: f64 = 3.0;
/// A circle with its stroke, from its middle.
const CIRCLE: f64 = 5.5;

/// Where a point's name is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Label {
    x: f64,
    /// The line the letters stand on.
    y: f64,
    /// Whether it ends at `x` instead of beginning there.
    is_left: bool,
    width: f64,
}

impl Label {
    /// From its beginning to its end.
    fn span(&self) -> (f64, f64) {
        let start = if self.is_left { self.x - self.width } else { self.x };
        (start, start + self.width)
    }

    fn overlaps(&self, other: &Self) -> bool {
        let ((a, a_end), (b, b_end)) = (self.span(), other.span());
        // A character apart, so that two names are two.
        a < b_end + CHARACTER && b < a_end + CHARACTER && (self.y - other.y).abs() < LINE
    }

    /// The line from its point, which is at `place`, to it: to its end, or to the edge that is towards a point
    /// right above or below.
    pub(crate) fn leader(&self, place: Place) -> [Place; 2] {
        let (start, end) = self.span();
        let is_over = start < place.0 && place.0 < end;
        let to = match is_over {
            true if place.1 < self.y => (place.0, self.y - ASCENT),
            true => (place.0, self.y + DESCENT),
            false => (self.x, self.y - 4.0),
        };
        [place, to]
    }

    /// The same moved along its line, so that all of it lies between `left` and `right`, if it is that short.
    fn within(self, (left, right): (f64, f64)) -> Self {
        let (start, end) = self.span();
        let moved = if end > right { right - end } else { 0.0 };
        let moved = if start + moved < left { left - start } else { moved };
        Self { x: self.x + moved, ..self }
    }

    /// Whether a line runs through the letters.
    fn is_crossed(&self, [from, to]: [Place; 2]) -> bool {
        let (start, end) = self.span();
        let is_inside = |part: u32| {
            let part = f64::from(part) / f64::from(LEADER_PARTS);
            let (x, y) = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            start < x && x < end && self.y - ASCENT < y && y < self.y + DESCENT
        };
        (0..=LEADER_PARTS).any(is_inside)
    }

    /// The name itself.
    pub(crate) fn draw(&self, svg: &mut Svg, name: &str) {
        let anchor = if self.is_left { "end" } else { "start" };
        svg.name((self.x, self.y), anchor, NAME_SIZE, name);
    }

    /// Whether letters run into the circle at a point.
    fn touches(&self, (x, y): Place) -> bool {
        let (start, end) = self.span();
        let (above, below) = (self.y - ASCENT, self.y + DESCENT);
        start - CIRCLE < x && x < end + CIRCLE && above - CIRCLE < y && y < below + CIRCLE
    }
}

/// Places for the names beside their `places`, none over another or over a circle: from the top down,
/// each as near to its point as what lies there already allows.
pub(crate) fn labels(places: &[Place], names: &[&str], panel: (f64, f64)) -> Vec<Label> {
    let mut order: Vec<usize> = (0..places.len()).collect();
    order.sort_by(|&a, &b| places[a].1.total_cmp(&places[b].1));
    let mut placed: Vec<(usize, Label)> = Vec::with_capacity(places.len());
    for index in order {
        let width = names[index].chars().count() as f64 * CHARACTER;
        let is_off_circles = |label: &Label| {
            label.y - ASCENT >= TOP - LINE && !places.iter().any(|&place| label.touches(place))
        };
        let is_free = |label: &Label| {
            is_off_circles(label) && !placed.iter().any(|(_, other)| label.overlaps(other))
        };
        let is_clear = |label: &Label| {
            let own = label.leader(places[index]);
            is_free(label)
                && !placed.iter().any(|(other, placed)| {
                    placed.is_crossed(own) || label.is_crossed(placed.leader(places[*other]))
                })
        };
        // Beside its point, or else moved to where it is inside.
        let beside_it = nearest(places[index], width).filter(|label| label.within(panel) == *label);
        let moved = nearest(places[index], width).map(|label| label.within(panel));
        let near: Vec<Label> = beside_it.chain(moved).collect();
        let first = |is: &dyn Fn(&Label) -> bool| near.iter().copied().find(|label| is(label));
        // Where every place is crossed by a line, one that is free must do; where there is none, it lies over
        // another name, but over no circle.
        let label = first(&is_clear).or_else(|| first(&is_free));
        let label = label.or_else(|| first(&is_off_circles));
        let label = label.unwrap_or_else(|| beside(places[index], width, 0.0, false).within(panel));
        placed.push((index, label));
    }
    placed.sort_by_key(|&(index, _)| index);
    placed.into_iter().map(|(_, label)| label).collect()
}

/// Where a name may lie, the nearest first: to the right or the left of its point, and ever farther
/// below or above.
fn nearest(place: Place, width: f64) -> impl Iterator<Item = Label> {
    let steps = (0..).map(|step| f64::from(step) * LINE / 2.0);
    let steps = steps.take_while(|step| *step <= BOTTOM - TOP);
    let offsets = steps.flat_map(|step| [step, -step]);
    offsets.flat_map(move |down| [false, true].map(|is_left| beside(place, width, down, is_left)))
}

fn beside((x, y): Place, width: f64, down: f64, is_left: bool) -> Label {
    let x = if is_left { x - 12.0 } else { x + 12.0 };
    Label { x, y: y + 4.0 + down, is_left, width }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_lie_over_each_other() {
        let places = [(100.0, 70.0), (101.0, 70.0), (102.0, 71.0), (480.0, 70.0), (100.0, 300.0)];
        let labels = labels(&places, &["one", "two", "three", "four", "five"], (80.0, 490.0));
        for (index, label) in labels.iter().enumerate() {
            assert!(labels[..index].iter().all(|other| !label.overlaps(other)), "{labels:?}");
            assert!(places.iter().all(|&place| !label.touches(place)), "{labels:?}");
        }
        assert!(labels[3].is_left, "there is no room to the right");
        assert!((labels[4].y - 304.0).abs() < 1e-9, "alone, it is beside its point");
    }

    /// Many targets at one place, as where they look alike and all are right: every name is read, and no
    /// line runs through one.
    #[test]
    fn names_of_points_at_one_place_stand_apart() {
        let places: Vec<(f64, f64)> =
            (0..14).map(|n| (400.0 + f64::from(n % 3), 90.0 + f64::from(n / 12))).collect();
        let labels = labels(&places, &["deployment.int4-g128-head-none"; 14], (80.0, 490.0));
        for (index, label) in labels.iter().enumerate() {
            assert!(labels[..index].iter().all(|other| !label.overlaps(other)), "{labels:?}");
            assert!(places.iter().all(|&place| !label.touches(place)), "{labels:?}");
            let leaders = labels.iter().zip(&places).map(|(label, &place)| label.leader(place));
            assert!(
                leaders.enumerate().all(|(other, line)| other == index || !label.is_crossed(line)),
                "{labels:?}"
            );
        }
    }

    /// Targets tie at the top of a plot: circles in a row, closer to each other than names are long.
    #[test]
    fn names_do_not_run_into_circles_in_a_row() {
        let places: Vec<(f64, f64)> =
            (0..10).map(|n| (100.0 + 17.0 * f64::from(n), 62.0 + f64::from(n % 2))).collect();
        let labels = labels(&places, &["int4-g128-head-none"; 10], (80.0, 490.0));
        for (index, label) in labels.iter().enumerate() {
            assert!(labels[..index].iter().all(|other| !label.overlaps(other)), "{labels:?}");
            assert!(places.iter().all(|&place| !label.touches(place)), "{labels:?}");
        }
    }

    /// A name that is longer than the room on either side of its point, in the middle of others.
    #[test]
    fn a_long_name_stays_inside_and_off_the_circles() {
        let panel = (570.0, 980.0);
        let places: Vec<(f64, f64)> =
            (0..18).map(|n| (600.0 + 21.0 * f64::from(n), 60.0)).collect();
        let labels = labels(&places, &["deployment.int4-g128-act-order"; 18], panel);
        for (index, label) in labels.iter().enumerate() {
            let (start, end) = label.span();
            assert!(panel.0 <= start && end <= panel.1, "{label:?}");
            assert!(places.iter().all(|&place| !label.touches(place)), "{label:?}");
            assert!(labels[..index].iter().all(|other| !label.overlaps(other)), "{labels:?}");
        }
        let [from, to] = labels[8].leader(places[8]);
        assert!(from.1 < to.1 && !labels[8].is_crossed([from, to]), "{labels:?}");
    }
}
