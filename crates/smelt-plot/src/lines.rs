//! Draws values along steps, as throughput and latency against the number of clients.
//!
//! Two panels with a scale each; a line has one colour in both, and its name below.

use crate::panel::{BOTTOM, Panel, SIDES, WIDTH};
use crate::scale::Scale;
use crate::svg::{Place, Svg};

/// Where the names of lines begin, and how far they are from each other.
const LEGEND: f64 = BOTTOM + 70.0;
const LEGEND_STEP: f64 = 18.0;
/// Told apart also by those who see few colours (Okabe and Ito, then Tol).
const COLOURS: [&str; 11] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#882255",
    "#999933", "#332288", "#aa4499",
];
const RADIUS: f64 = 4.0;

/// What is drawn.
#[derive(Clone, Debug)]
pub struct Lines<'a> {
    /// What stands above each panel.
    pub titles: [&'a str; 2],
    /// What the steps are.
    pub steps: &'a str,
    /// The lines.
    pub lines: Vec<Line>,
}

/// A line, of one colour.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is called.
    pub name: String,
    /// Its curves in each panel.
    pub curves: [Vec<Curve>; 2],
}

/// Values by step.
#[derive(Clone, Debug)]
pub struct Curve {
    /// Steps and values, in the order of the steps.
    pub points: Vec<(usize, f64)>,
    /// Drawn as dashes.
    pub is_dashed: bool,
}

impl Lines<'_> {
    /// The whole file.
    pub fn svg(&self) -> String {
        let height = LEGEND + LEGEND_STEP * self.lines.len() as f64 + 10.0;
        let mut svg = Svg::new(WIDTH, height);
        let steps = self.all_steps();
        let scales = [0, 1].map(|panel| self.scale(panel));
        let panels = [0, 1].map(|at| Panel { sides: SIDES[at], values: &scales[at] });
        panels.iter().zip(self.titles).for_each(|(panel, title)| panel.title(&mut svg, title));
        panels.iter().for_each(|panel| self.frame(&mut svg, panel, &steps));
        for (index, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            for (panel, curves) in panels.iter().zip(&line.curves) {
                curves.iter().for_each(|curve| curve.draw(&mut svg, panel, &steps, colour));
            }
            let (left, y) = (SIDES[0].0, LEGEND + LEGEND_STEP * index as f64);
            svg.key((left, y - 6.0), colour);
            svg.text((left + 26.0, y), "start", &line.name);
        }
        svg.end()
    }

    /// The values of one panel.
    fn scale(&self, panel: usize) -> Scale {
        let curves = self.lines.iter().flat_map(|line| &line.curves[panel]);
        Scale::from_zero(curves.flat_map(|curve| &curve.points).map(|point| point.1))
    }

    /// Every step that some curve has, in order.
    fn all_steps(&self) -> Vec<usize> {
        let curves = self.lines.iter().flat_map(|line| line.curves.iter().flatten());
        let mut steps: Vec<usize> =
            curves.flat_map(|curve| &curve.points).map(|point| point.0).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    }

    fn frame(&self, svg: &mut Svg, panel: &Panel<'_>, steps: &[usize]) {
        panel.frame(svg);
        for step in steps {
            panel.below(svg, panel.x(along(steps, *step)), &step.to_string());
        }
        panel.caption(svg, 38.0, self.steps);
    }
}

/// How far along the bottom a step is, from 0 to 1: steps lie side by side.
fn along(steps: &[usize], step: usize) -> f64 {
    let at = steps.iter().position(|other| *other == step).unwrap_or(0);
    (at as f64 + 0.5) / steps.len() as f64
}

impl Curve {
    fn draw(&self, svg: &mut Svg, panel: &Panel<'_>, steps: &[usize], colour: &str) {
        let place = |&(step, value): &(usize, f64)| panel.place(along(steps, step), value);
        let places: Vec<Place> = self.points.iter().map(place).collect();
        svg.polyline(&places, colour, self.is_dashed);
        let fill = if self.is_dashed { "white" } else { colour };
        places.into_iter().for_each(|place| svg.circle(place, RADIUS, fill, colour));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, points: &[(usize, f64)]) -> Line {
        let curve = |is_dashed| Curve { points: points.to_vec(), is_dashed };
        Line { name: name.to_owned(), curves: [vec![curve(false)], vec![curve(true)]] }
    }

    /// A small plot, every byte of it.
    #[test]
    fn a_plot_is_these_bytes() {
        let lines = vec![line("a<b", &[(1, 30.0), (4, 45.0)]), line("c", &[(2, 12.5)])];
        let plot = Lines { titles: ["Speed", "Delay"], steps: "streams", lines }.svg();
        assert_eq!(plot, include_str!("lines.svg"));
    }

    #[test]
    fn no_lines_are_an_empty_plot() {
        let plot = Lines { titles: ["a", "b"], steps: "c", lines: Vec::new() }.svg();
        assert!(plot.contains(">0.005</text>") && !plot.contains("NaN"), "{plot}");
    }
}
