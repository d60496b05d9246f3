//! Draws exact answers against what they cost as SVG: what is worth its price lies on a line.
//!
//! The cost is the engines' size and the time of a token; where deployments look at pictures more or less
//! closely, it is the image tokens and the time to the first one.  Two panels over one scale; a deployment that no other beats in both is filled and joined to its
//! neighbours.  Plain shapes and text, the same bytes for the same figures.

use std::fmt::Write;

use super::report::Row;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 460.0;
/// The top and bottom of both panels.
const TOP: f64 = 60.0;
const BOTTOM: f64 = 390.0;
/// The left and right of each panel.
const PANELS: [(f64, f64); 2] = [(80.0, 490.0), (570.0, 980.0)];
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

/// A deployment in one panel.
#[derive(Clone, Debug, PartialEq)]
struct Point<'a> {
    name: &'a str,
    /// What it costs.
    x: f64,
    /// Exact answers in percent.
    y: f64,
}

/// The plot of `rows`.
pub fn svg(rows: &[Row]) -> String {
    let exact = |row: &Row| row.score.overall().share() * 100.0;
    let points = |cost: fn(&Row) -> Option<f64>| -> Vec<Point<'_>> {
        let costs = rows.iter().filter_map(|row| Some((row, cost(row)?)));
        costs.map(|(row, x)| Point { name: &row.target, x, y: exact(row) }).collect()
    };
    let scale = Scale::around(rows.iter().map(exact), Some(100.0));
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
    );
    text(
        &mut out,
        PANELS[0].0,
        28.0,
        "start",
        "Exact answers, % (filled: no other is better in both)",
    );
    let costs = if see_alike(rows) { SIZE_AND_SPEED } else { LOOKS };
    for (place, (label, cost)) in PANELS.into_iter().zip(costs) {
        panel(&mut out, place, label, &scale, &points(cost));
    }
    out + "</svg>\n"
}

/// A cost and its name.
type Cost = (&'static str, fn(&Row) -> Option<f64>);

const SIZE_AND_SPEED: [Cost; 2] = [("engines, MiB", mebibytes), ("time per token, ms", token_ms)];
const LOOKS: [Cost; 2] = [
    ("image tokens of a question", |row| Some(row.score.image_tokens)),
    ("time to the first token, ms", |row| Some(row.score.first_token_s * 1e3)),
];

/// Whether all give pictures equally many tokens.
fn see_alike(rows: &[Row]) -> bool {
    rows.windows(2).all(|pair| pair[0].score.image_tokens == pair[1].score.image_tokens)
}

/// What the engines take on disk.
fn mebibytes(row: &Row) -> Option<f64> {
    Some(row.score.engine_bytes() as f64 / f64::from(1 << 20))
}

/// What a token takes, if that was measured.
fn token_ms(row: &Row) -> Option<f64> {
    row.score.tokens_per_second.map(|rate| 1e3 / rate)
}

/// One panel with axes, the front and every point with its name.
fn panel(
    out: &mut String,
    (left, right): (f64, f64),
    label: &str,
    y: &Scale,
    points: &[Point<'_>],
) {
    let x = Scale::around(points.iter().map(|point| point.x), None);
    let at_x = |value| left + x.part(value) * (right - left);
    let at_y = |value| BOTTOM - y.part(value) * (BOTTOM - TOP);
    for (tick, name) in y.ticks() {
        line(out, [(left, at_y(tick)), (right, at_y(tick))], "#ddd");
        text(out, left - 8.0, at_y(tick) + 4.0, "end", &name);
    }
    for (tick, name) in x.ticks() {
        line(out, [(at_x(tick), TOP), (at_x(tick), BOTTOM)], "#eee");
        text(out, at_x(tick), BOTTOM + 18.0, "middle", &name);
    }
    text(out, f64::midpoint(left, right), BOTTOM + 42.0, "middle", label);
    let front = front(points);
    let corners: Vec<(f64, f64)> =
        front.iter().map(|&index| (at_x(points[index].x), at_y(points[index].y))).collect();
    corners.windows(2).for_each(|pair| line(out, [pair[0], pair[1]], "#2a6fb0"));
    let places: Vec<(f64, f64)> =
        points.iter().map(|point| (at_x(point.x), at_y(point.y))).collect();
    let names: Vec<&str> = points.iter().map(|point| point.name).collect();
    let labels = labels(&places, &names, (left, right));
    // Names come last, so that a line which must run through one runs behind it.
    labels.iter().zip(&places).for_each(|(label, &place)| line(out, label.leader(place), "#999"));
    for (index, (cx, cy)) in places.into_iter().enumerate() {
        let fill = if front.contains(&index) { "#2a6fb0" } else { "white" };
        let _ = writeln!(
            out,
            "<circle cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4.5\" fill=\"{fill}\" stroke=\"#2a6fb0\" stroke-width=\"1.5\"/>"
        );
    }
    labels.iter().zip(names).for_each(|(label, name)| named(out, label, name));
}

/// The points that no other beats: none is as cheap and better, or cheaper and as good.  From cheap
/// to dear.
fn front(points: &[Point<'_>]) -> Vec<usize> {
    let beats = |a: &Point<'_>, b: &Point<'_>| a.x <= b.x && a.y >= b.y && (a.x < b.x || a.y > b.y);
    let mut front: Vec<usize> = (0..points.len())
        .filter(|&index| !points.iter().any(|other| beats(other, &points[index])))
        .collect();
    front.sort_by(|&a, &b| points[a].x.total_cmp(&points[b].x));
    front
}

/// Where a point's name is written.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Label {
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
    fn leader(&self, place: (f64, f64)) -> [(f64, f64); 2] {
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
    fn is_crossed(&self, [from, to]: [(f64, f64); 2]) -> bool {
        let (start, end) = self.span();
        let is_inside = |part: u32| {
            let part = f64::from(part) / f64::from(LEADER_PARTS);
            let (x, y) = (from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part);
            start < x && x < end && self.y - ASCENT < y && y < self.y + DESCENT
        };
        (0..=LEADER_PARTS).any(is_inside)
    }

    /// Whether letters run into the circle at a point.
    fn touches(&self, (x, y): (f64, f64)) -> bool {
        let (start, end) = self.span();
        let (above, below) = (self.y - ASCENT, self.y + DESCENT);
        start - CIRCLE < x && x < end + CIRCLE && above - CIRCLE < y && y < below + CIRCLE
    }
}

/// Places for the names beside their `places`, none over another or over a circle: from the top down,
/// each as near to its point as what lies there already allows.
fn labels(places: &[(f64, f64)], names: &[&str], panel: (f64, f64)) -> Vec<Label> {
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
fn nearest(place: (f64, f64), width: f64) -> impl Iterator<Item = Label> {
    let steps = (0..).map(|step| f64::from(step) * LINE / 2.0);
    let steps = steps.take_while(|step| *step <= BOTTOM - TOP);
    let offsets = steps.flat_map(|step| [step, -step]);
    offsets.flat_map(move |down| [false, true].map(|is_left| beside(place, width, down, is_left)))
}

fn beside((x, y): (f64, f64), width: f64, down: f64, is_left: bool) -> Label {
    let x = if is_left { x - 12.0 } else { x + 12.0 };
    Label { x, y: y + 4.0 + down, is_left, width }
}

/// The values along an axis.
struct Scale {
    low: f64,
    high: f64,
    step: f64,
}

impl Scale {
    /// A scale of round steps that holds `values` with some room, but nothing below 0 or beyond
    /// `most`.
    fn around(values: impl Iterator<Item = f64>, most: Option<f64>) -> Self {
        let (low, high) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), value| {
            (low.min(value), high.max(value))
        });
        let (low, high) = if low <= high { (low, high) } else { (0.0, 1.0) };
        let room = ((high - low) * 0.15).max(high.abs() * 0.005).max(1e-3);
        let (low, high) = ((low - room).max(0.0), (high + room).min(most.unwrap_or(f64::INFINITY)));
        let step = round_step((high - low) / 5.0);
        let low = (low / step).floor() * step;
        let high = (high / step).ceil() * step;
        Self { low, high: most.map_or(high, |most| high.min(most.max(low + step))), step }
    }

    /// How far along the axis a value lies, 0 to 1.
    fn part(&self, value: f64) -> f64 {
        (value - self.low) / (self.high - self.low)
    }

    /// Where lines are drawn, and their names.
    fn ticks(&self) -> Vec<(f64, String)> {
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        let count = ((self.high - self.low) / self.step).round() as usize;
        let tick = |index| {
            let value = self.low + index as f64 * self.step;
            (value, format!("{value:.digits$}"))
        };
        (0..=count).map(tick).collect()
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0]
        .into_iter()
        .map(|n| n * power)
        .find(|&step| step >= least)
        .unwrap_or(10.0 * power)
}

fn line(out: &mut String, [(x1, y1), (x2, y2)]: [(f64, f64); 2], colour: &str) {
    let _ = writeln!(
        out,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
    );
}

/// A point's name, white around its letters.
fn named(out: &mut String, label: &Label, name: &str) {
    let anchor = if label.is_left { "end" } else { "start" };
    let name = name.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-family=\"monospace\" font-size=\"{NAME_SIZE}\" stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">{name}</text>",
        label.x, label.y
    );
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

    fn points(values: &[(f64, f64)]) -> Vec<Point<'static>> {
        values.iter().map(|&(x, y)| Point { name: "p", x, y }).collect()
    }

    #[test]
    fn the_front_is_what_nothing_beats() {
        assert_eq!(
            front(&points(&[(9.0, 99.0), (4.0, 97.0), (5.0, 96.0), (2.0, 50.0)])),
            [3, 1, 0]
        );
        assert_eq!(front(&points(&[(3.0, 90.0), (2.0, 90.0), (2.0, 80.0)])), [1]);
        assert_eq!(front(&points(&[(2.0, 90.0), (2.0, 90.0)])), [0, 1], "equals stand together");
    }

    #[test]
    fn steps_are_round() {
        for (least, step) in [(0.9, 1.0), (1.2, 2.0), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
    }

    #[test]
    fn a_scale_holds_its_values() {
        let close = |values: [f64; 2], most, names: &[&str]| {
            let scale = Scale::around(values.into_iter(), most);
            assert!(values.iter().all(|&value| (0.0..=1.0).contains(&scale.part(value))));
            let found: Vec<String> = scale.ticks().into_iter().map(|(_, name)| name).collect();
            assert_eq!(found, names);
        };
        close([90.0, 100.0], Some(100.0), &["85", "90", "95", "100"]);
        close([100.0, 100.0], Some(100.0), &["99.5", "99.6", "99.7", "99.8", "99.9", "100.0"]);
        close(
            [0.0, 0.0],
            Some(100.0),
            &["0.0000", "0.0002", "0.0004", "0.0006", "0.0008", "0.0010"],
        );
        close([4.0, 11.0], None, &["2", "4", "6", "8", "10", "12", "14"]);
    }

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

    #[test]
    fn the_plot_names_every_target() {
        let plot = svg(&[row("none", 99, 9, 10.0), row("int4 <x>", 80, 2, 30.0)]);
        assert_eq!(plot.matches("<circle").count(), 4);
        assert_eq!(plot.matches(">int4 &lt;x></text>").count(), 2);
        let (_, names) = plot.rsplit_once("<line").unwrap();
        assert_eq!(names.matches("monospace").count(), 2, "no line lies over a name");
        let mut still = row("none", 99, 9, 10.0);
        still.score.tokens_per_second = None;
        assert_eq!(svg(&[still]).matches("<circle").count(), 1, "no time, no point");
    }

    #[test]
    fn those_who_look_less_closely_are_drawn_by_their_looks() {
        let mut low = row("low", 99, 9, 10.0);
        low.score.image_tokens = 9.0;
        let plot = svg(&[row("high", 99, 9, 10.0), low]);
        assert!(plot.contains(">image tokens of a question</text>") && !plot.contains("MiB"));
    }
}
