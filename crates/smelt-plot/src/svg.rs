//! Writes the elements of an SVG file.

use std::fmt::Write as _;

/// A place: from the left, and from the top.
pub(crate) type Place = (f64, f64);

/// A file that grows.
pub(crate) struct Svg(String);

impl Svg {
    /// A white ground.
    pub(crate) fn new(width: f64, height: f64) -> Self {
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
        ))
    }

    /// Words that stand on `y` and begin, end or have their middle at `x`, as `anchor` says.
    pub(crate) fn text(&mut self, (x, y): Place, anchor: &str, words: &str) {
        let words = escape(words);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>"
        ));
    }

    /// A name in letters of one width of `size`, white around them.
    pub(crate) fn name(&mut self, (x, y): Place, anchor: &str, size: f64, name: &str) {
        let name = escape(name);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-family=\"monospace\" font-size=\"{size}\" stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">{name}</text>"
        ));
    }

    pub(crate) fn line(&mut self, [(x1, y1), (x2, y2)]: [Place; 2], colour: &str) {
        self.put(format_args!(
            "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" stroke=\"{colour}\"/>"
        ));
    }

    pub(crate) fn polyline(&mut self, places: &[Place], colour: &str, is_dashed: bool) {
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let (path, dash) =
            (path.join(" "), if is_dashed { " stroke-dasharray=\"5 4\"" } else { "" });
        self.put(format_args!(
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/>"
        ));
    }

    pub(crate) fn circle(&mut self, (x, y): Place, radius: f64, fill: &str, stroke: &str) {
        self.put(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"1.5\"/>"
        ));
    }

    /// A short thick line in a legend.
    pub(crate) fn key(&mut self, (x, y): Place, colour: &str) {
        self.put(format_args!(
            "<rect x=\"{x}\" y=\"{y:.1}\" width=\"18\" height=\"4\" fill=\"{colour}\"/>"
        ));
    }

    /// The whole file.
    pub(crate) fn end(self) -> String {
        self.0 + "</svg>\n"
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        // A text takes all that is written to it.
        let _ = writeln!(self.0, "{element}");
    }
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_these_bytes() {
        let mut svg = Svg::new(10.0, 5.5);
        svg.text((1.0, 2.26), "middle", "a<b & c");
        svg.name((1.0, 2.0), "end", 11.0, "x<y");
        svg.line([(0.0, 1.0), (2.0, 3.0)], "#ddd");
        svg.polyline(&[(0.0, 1.0), (2.0, 3.0)], "red", false);
        svg.polyline(&[(4.0, 5.0)], "red", true);
        svg.circle((1.0, 1.0), 4.0, "white", "red");
        svg.circle((1.0, 1.0), 4.5, "red", "red");
        svg.key((80.0, 7.0), "red");
        let expected = "\
<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 10 5.5\" font-family=\"sans-serif\" font-size=\"12\">
<rect width=\"10\" height=\"5.5\" fill=\"white\"/>
<text x=\"1.0\" y=\"2.3\" text-anchor=\"middle\">a&lt;b &amp; c</text>
<text x=\"1.0\" y=\"2.0\" text-anchor=\"end\" font-family=\"monospace\" font-size=\"11\" stroke=\"white\" stroke-width=\"3\" paint-order=\"stroke\">x&lt;y</text>
<line x1=\"0.0\" y1=\"1.0\" x2=\"2.0\" y2=\"3.0\" stroke=\"#ddd\"/>
<polyline points=\"0.0,1.0 2.0,3.0\" fill=\"none\" stroke=\"red\" stroke-width=\"2\"/>
<polyline points=\"4.0,5.0\" fill=\"none\" stroke=\"red\" stroke-width=\"2\" stroke-dasharray=\"5 4\"/>
<circle cx=\"1.0\" cy=\"1.0\" r=\"4\" fill=\"white\" stroke=\"red\" stroke-width=\"1.5\"/>
<circle cx=\"1.0\" cy=\"1.0\" r=\"4.5\" fill=\"red\" stroke=\"red\" stroke-width=\"1.5\"/>
<rect x=\"80\" y=\"7.0\" width=\"18\" height=\"4\" fill=\"red\"/>
</svg>
";
        assert_eq!(svg.end(), expected);
    }
}
