//! Draws throughput and latency against the number of streams as SVG.
//!
//! Two panels; a line for each server, pair of lengths and number of pictures.

use smelt_plot::lines::{Curve, Line, Lines};

use crate::plan::Case;
use crate::run::{Measured, Measurement};

/// What stands above the panels.
const TITLES: [&str; 2] = [
    "Tokens a second of all streams",
    "Time to the first text, ms: median, and dashed the 99th percentile",
];

/// The plot of `measurement`.
pub fn svg(measurement: &Measurement) -> String {
    let lines = series(measurement).into_iter().map(Series::line).collect();
    Lines { titles: TITLES, steps: "streams", lines }.svg()
}

/// The figures of one line.
struct Series {
    name: String,
    points: Vec<Point>,
}

/// The figures of one case.
struct Point {
    streams: usize,
    tokens_per_s: f64,
    /// Milliseconds to the first text.
    median: f64,
    p99: f64,
}

impl Series {
    fn line(mut self) -> Line {
        self.points.sort_by_key(|point| point.streams);
        let curve = |of: fn(&Point) -> f64, is_dashed| Curve {
            points: self.points.iter().map(|point| (point.streams, of(point))).collect(),
            is_dashed,
        };
        let speed = vec![curve(|point| point.tokens_per_s, false)];
        let late = vec![curve(|point| point.median, false), curve(|point| point.p99, true)];
        Line { name: self.name, curves: [speed, late] }
    }
}

/// Cases that differ in nothing but their streams are one line.
fn series(measurement: &Measurement) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for measured in &measurement.cases {
        let Measured { case, figures, .. } = measured;
        let times = figures.ttft_ms[1].or(figures.ttft_ms[0]);
        let (Some(speed), Some(late)) = (figures.tokens_per_s, times) else { continue };
        let point = Point {
            streams: case.streams,
            tokens_per_s: speed.median,
            median: late.median,
            p99: late.p99,
        };
        let name = format!("{}: {}", measurement.name(measured), name(case));
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series { name, points: vec![point] }),
        }
    }
    all
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
}
