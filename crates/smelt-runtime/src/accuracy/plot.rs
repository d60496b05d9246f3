//! Draws exact answers against what they cost as SVG: what is worth its price lies on a line.
//!
//! The cost is the engines' size and the time of a token; where deployments look at pictures more or less
//! closely, it is the image tokens and the time to the first one.

use smelt_plot::scatter::{Costs, Point, Scatter};

use super::report::Row;

/// The plot of `rows`.
pub fn svg(rows: &[Row]) -> String {
    let exact = |row: &Row| row.score.overall().share() * 100.0;
    let costs = if see_alike(rows) { SIZE_AND_SPEED } else { LOOKS };
    let costs = costs.map(|(label, cost)| {
        let known = rows.iter().filter_map(|row| Some((row, cost(row)?)));
        let points = known.map(|(row, x)| Point { name: &row.target, x, y: exact(row) });
        Costs { label, points: points.collect() }
    });
    let title = "Exact answers, % (filled: no other is better in both)";
    let worths = rows.iter().map(exact).collect();
    Scatter { title, worths, most: Some(100.0), costs }.svg()
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

#[cfg(test)]
mod tests {
    use super::super::report::tests::row;
    use super::*;

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
