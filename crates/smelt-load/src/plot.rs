//! Draws throughput and latency against the number of streams as SVG.
//!
//! Two panels; a line for each server, pair of lengths and number of pictures.  Plain shapes and text, the same bytes for the
//! same figures.

use std::fmt::Write as _;

use crate::plan::Case;
use crate::run::{Measured, Measurement};

const WIDTH: f64 = 1000.0;
/// The top and bottom of both panels.
const TOP: f64 = 60.0;
const BOTTOM: f64 = 390.0;
/// The left and right of each panel.
const PANELS: [(f64, f64); 2] = [(80.0, 490.0), (570.0, 980.0)];
/// Where the names of lines begin, and how far they are from each other.
const LEGEND: f64 = 460.0;
const LINE: f64 = 18.0;
/// Told apart also by those who see few colours (Okabe and Ito, then Tol).
const COLOURS: [&str; 11] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444", "#882255",
    "#999933", "#332288", "#aa4499",
];

/// A line of a panel: points by their number of streams.
struct Line {
    name: String,
    /// Streams, tokens a second, median and 99th percentile of the time to the first text.
    points: Vec<(usize, f64, f64, f64)>,
}

/// The plot of `measurement`.
pub fn svg(measurement: &Measurement) -> String {
    let lines = lines(measurement);
    let height = LEGEND + LINE * lines.len() as f64 + 10.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    let mut streams: Vec<usize> =
        lines.iter().flat_map(|line| line.points.iter().map(|point| point.0)).collect();
    streams.sort_unstable();
    streams.dedup();
    text(&mut out, PANELS[0].0, 28.0, "start", "Tokens a second of all streams");
    text(
        &mut out,
        PANELS[1].0,
        28.0,
        "start",
        "Time to the first text, ms: median, and dashed the 99th percentile",
    );
    let most = |of: fn(&(usize, f64, f64, f64)) -> f64| {
        lines.iter().flat_map(|line| line.points.iter().map(of)).fold(0.0, f64::max)
    };
    let panels = [
        Panel { sides: PANELS[0], streams: &streams, step: round_step(most(|p| p.1) / 5.0) },
        Panel { sides: PANELS[1], streams: &streams, step: round_step(most(|p| p.3) / 5.0) },
    ];
    panels.iter().for_each(|panel| panel.frame(&mut out));
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let along = |of: fn(&(usize, f64, f64, f64)) -> f64| -> Vec<(usize, f64)> {
            line.points.iter().map(|point| (point.0, of(point))).collect()
        };
        panels[0].line(&mut out, &along(|p| p.1), colour, false);
        panels[1].line(&mut out, &along(|p| p.2), colour, false);
        panels[1].line(&mut out, &along(|p| p.3), colour, true);
        let y = LEGEND + LINE * index as f64;
        let _ = writeln!(
            out,
            "<rect x=\"{}\" y=\"{:.1}\" width=\"18\" height=\"4\" fill=\"{colour}\"/>",
            PANELS[0].0,
            y - 6.0
        );
        text(&mut out, PANELS[0].0 + 26.0, y, "start", &line.name);
    }
    out + "</svg>\n"
}

/// Cases that differ in nothing but their streams are one line.
fn lines(measurement: &Measurement) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for measured in &measurement.cases {
        let Measured { case, figures, .. } = measured;
        let times = figures.ttft_ms[1].or(figures.ttft_ms[0]);
        let (Some(speed), Some(late)) = (figures.tokens_per_s, times) else { continue };
        let point = (case.streams, speed.median, late.median, late.p99);
        let name = format!("{}: {}", measurement.name(measured), name(case));
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(point),
            None => lines.push(Line { name, points: vec![point] }),
        }
    }
    lines.iter_mut().for_each(|line| line.points.sort_by_key(|point| point.0));
    lines
}

fn name(case: &Case) -> String {
    let pictures = match case.pictures {
        0 => String::new(),
        1 => ", 1 image".to_owned(),
        count => format!(", {count} images"),
    };
    format!(
        "{} prompt tokens, {} of the answer{pictures}",
        case.lengths.prompt, case.lengths.answer
    )
}

/// One panel: streams side by side, values from 0.
struct Panel<'a> {
    sides: (f64, f64),
    streams: &'a [usize],
    /// A fifth of the values.
    step: f64,
}

impl Panel<'_> {
    fn x(&self, streams: usize) -> f64 {
        let place = self.streams.iter().position(|other| *other == streams).unwrap_or(0);
        let (left, right) = self.sides;
        left + (place as f64 + 0.5) / self.streams.len() as f64 * (right - left)
    }

    fn y(&self, value: f64) -> f64 {
        BOTTOM - value / (self.step * 5.0) * (BOTTOM - TOP)
    }

    fn frame(&self, out: &mut String) {
        let (left, right) = self.sides;
        let digits = (-self.step.log10().floor()).max(0.0) as usize;
        for tick in 0..=5 {
            let value = self.step * f64::from(tick);
            let y = self.y(value);
            let _ = writeln!(
                out,
                "<line x1=\"{left:.1}\" y1=\"{y:.1}\" x2=\"{right:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>"
            );
            text(out, left - 8.0, y + 4.0, "end", &format!("{value:.digits$}"));
        }
        for &count in self.streams {
            text(out, self.x(count), BOTTOM + 18.0, "middle", &count.to_string());
        }
        text(out, f64::midpoint(left, right), BOTTOM + 38.0, "middle", "streams");
    }

    fn line(&self, out: &mut String, points: &[(usize, f64)], colour: &str, is_dashed: bool) {
        let places: Vec<(f64, f64)> =
            points.iter().map(|&(streams, value)| (self.x(streams), self.y(value))).collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let dash = if is_dashed { " stroke-dasharray=\"5 4\"" } else { "" };
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>",
            path.join(" ")
        );
        for (x, y) in places {
            let fill = if is_dashed { "white" } else { colour };
            let _ = writeln!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"{fill}\" stroke=\"{colour}\" stroke-width=\"1.5\"/>"
            );
        }
    }
}

/// The smallest of 1, 2 or 5 times a power of ten that is not below `least`.
fn round_step(least: f64) -> f64 {
    let least = least.max(1e-3);
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].map(|n| n * power);
    steps.into_iter().find(|&step| step >= least).unwrap_or(10.0 * power)
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let words = words.replace('&', "&amp;").replace('<', "&lt;");
    let _ =
        writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::tests::{received, run};
    use crate::figures::{Figures, Request};
    use crate::plan::Lengths;
    use crate::run::Server;

    fn measured(streams: usize, prompt: usize, first: u64) -> Measured {
        let case = Case { lengths: Lengths { prompt, answer: 11 }, streams, pictures: 0 };
        let request =
            Request { has_pictures: false, received: Ok(received(first, first + 100, 11)) };
        Measured { server: 0, case, figures: Figures::of(&[run(vec![request; streams])]) }
    }

    fn measurement(cases: Vec<Measured>) -> Measurement {
        let word = || "a<b".to_owned();
        Measurement {
            servers: vec![Server {
                name: word(),
                url: word(),
                model: word(),
                context: None,
                weights: None,
                version: None,
            }],
            cases,
        }
    }

    #[test]
    fn every_pair_of_lengths_is_a_line() {
        let cases = vec![measured(2, 64, 90), measured(1, 64, 50), measured(1, 512, 400)];
        let plot = svg(&measurement(cases));
        assert_eq!(plot.matches("<polyline").count(), 6);
        assert_eq!(plot.matches("<circle").count(), 9);
        assert!(plot.contains(">a&lt;b: 64 prompt tokens"));
        assert_eq!(plot.matches("prompt tokens, 11 of the answer").count(), 2);
    }

    #[test]
    fn a_server_that_only_failed_is_an_empty_plot() {
        let case = Case { lengths: Lengths { prompt: 1, answer: 1 }, streams: 1, pictures: 0 };
        let failed = Request { has_pictures: false, received: Err("x".to_owned()) };
        let figures = Figures::of(&[run(vec![failed])]);
        let plot = svg(&measurement(vec![Measured { server: 0, case, figures }]));
        assert!(plot.contains("<svg") && !plot.contains("<polyline") && !plot.contains("NaN"));
    }

    #[test]
    fn steps_are_round() {
        for (least, step) in [(0.9, 1.0), (1.2, 2.0), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05)] {
            assert!((round_step(least) - step).abs() < 1e-9, "{least}");
        }
    }
}
