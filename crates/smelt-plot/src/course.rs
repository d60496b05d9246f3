//! Draws what became of something over time: curves for a page, which gives their classes colours.

use std::fmt::Write as _;

/// The user space of a chart; a page stretches it to its place.
const WIDTH: f64 = 300.0;
const HEIGHT: f64 = 60.0;

/// One curve.
#[derive(Clone, Copy, Debug)]
pub struct Curve<'a> {
    /// Its class in the page.
    pub class: &'a str,
    /// What it is, as HTML.
    pub what: &'a str,
    /// A value for each time.
    pub values: &'a [f64],
    /// Whether what lies below it is filled.
    pub is_filled: bool,
}

/// The chart: its height is `top`, its width the last of the times.
pub fn svg(at_ms: &[u64], curves: &[Curve<'_>], top: f64) -> String {
    let mut text =
        format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\" role=\"img\">");
    for Curve { class, what, values, is_filled } in curves {
        let points = points(at_ms, values, top);
        let _ = write!(text, "<title>{what}</title>");
        if *is_filled {
            let _ = write!(
                text,
                "<path class=\"area {class}\" d=\"M0 {HEIGHT}L{points}L{WIDTH} {HEIGHT}Z\"/>"
            );
        }
        let _ = write!(text, "<path class=\"{class}\" d=\"M{points}\"/>");
    }
    text + "</svg>"
}

/// The points of a path, from the left edge on.
fn points(at_ms: &[u64], values: &[f64], top: f64) -> String {
    let end = at_ms.last().copied().unwrap_or(0).max(1) as f64;
    let y = |value: f64| HEIGHT - value / top * HEIGHT;
    let first = values.first().map(|&value| format!("0 {:.1}", y(value)));
    let rest = at_ms
        .iter()
        .zip(values)
        .map(|(&at, &value)| format!("{:.1} {:.1}", at as f64 / end * WIDTH, y(value)));
    first.into_iter().chain(rest).collect::<Vec<_>>().join("L")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_spans_the_chart() {
        assert_eq!(points(&[500, 1000], &[0.0, 2.0], 2.0), "0 60.0L150.0 60.0L300.0 0.0");
        assert_eq!(points(&[0], &[1.0], 2.0), "0 30.0L0.0 30.0");
    }

    #[test]
    fn a_chart_is_these_bytes() {
        let curve = |class, is_filled| Curve { class, what: "w", values: &[1.0, 2.0], is_filled };
        assert_eq!(
            svg(&[0, 10], &[curve("rss", true), curve("swap", false)], 2.0),
            "<svg viewBox=\"0 0 300 60\" preserveAspectRatio=\"none\" role=\"img\"><title>w</title><path class=\"area rss\" d=\"M0 60L0 30.0L0.0 30.0L300.0 0.0L300 60Z\"/><path class=\"rss\" d=\"M0 30.0L0.0 30.0L300.0 0.0\"/><title>w</title><path class=\"swap\" d=\"M0 30.0L0.0 30.0L300.0 0.0\"/></svg>"
        );
    }
}
