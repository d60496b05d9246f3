//! Draws an ordered and laid out picture as SVG: boxes with a name, a kind and a colour, and curves
//! from each stage to those that need it.

use std::fmt::Write;

use super::layout::{BOX_HEIGHT, Layout, layout};
use super::order::{Layering, Node, order};
use super::{Drawing, StageBox, StageMark};

/// The line under the picture that says what colours mean.
const LEGEND_HEIGHT: f64 = 28.0;

/// Colours stand where they are used: renderers other than browsers know no variables, and draw a stroke
/// of one not at all.
const STYLE: &str = "\
svg{color-scheme:light dark}\
text{font:13px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1b1f24}\
.kind{font-size:11px;fill:#4c5560}\
rect{fill:#ffffff;stroke:#6b7480}\
path{fill:none;stroke:#6b7480;stroke-width:1.3}\
.ground{fill:#ffffff;stroke:none}\
.hit{fill:#cde7d6}.miss{fill:#f6d9c4}.unknown{fill:#e4e6ea}\
@media(prefers-color-scheme:dark){\
text{fill:#e6e9ed}.kind{fill:#b3bcc7}rect{fill:#1d2126;stroke:#7d8793}path{stroke:#7d8793}\
.ground{fill:#14171b}.hit{fill:#1f4a34}.miss{fill:#5c3a20}.unknown{fill:#3a414a}}";

/// The whole file.
pub fn svg(picture: &Drawing) -> String {
    let order = order(picture);
    let layout = layout(picture, &order);
    let marks: Vec<StageMark> = StageMark::ALL
        .into_iter()
        .filter(|&mark| picture.boxes.iter().any(|stage| stage.mark == Some(mark)))
        .collect();
    let legend = if marks.is_empty() { 0.0 } else { LEGEND_HEIGHT };
    // Narrow pictures still hold their legend.
    let width = layout.width.max(marks.len() as f64 * LEGEND_STEP + LEGEND_LEFT);
    let height = layout.height + legend;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\">\n<title>{}</title>\n<style>{STYLE}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n",
        escape(&picture.name)
    );
    text.push_str(&edges(&order, &layout));
    for (node, &(x, y)) in order.nodes.iter().zip(&layout.at) {
        if let Node::Stage(at) = node {
            text.push_str(&stage(
                &picture.boxes[*at],
                x,
                y - BOX_HEIGHT / 2.0,
                width_of(&layout, &order, *at),
            ));
        }
    }
    for (at, mark) in marks.into_iter().enumerate() {
        text.push_str(&legend_entry(mark, LEGEND_LEFT + at as f64 * LEGEND_STEP, layout.height));
    }
    text + "</svg>\n"
}

const LEGEND_LEFT: f64 = 12.0;
const LEGEND_STEP: f64 = 100.0;

/// Stages are the first nodes, in their order.
fn width_of(layout: &Layout, order: &Layering, stage: usize) -> f64 {
    debug_assert_eq!(order.nodes[stage], Node::Stage(stage));
    layout.widths[stage]
}

fn edges(order: &Layering, layout: &Layout) -> String {
    let mut text = String::new();
    for (from, after) in order.after.iter().enumerate() {
        let ((left, y), width) = (layout.at[from], layout.widths[from]);
        let right = left + width;
        if let Node::Joint { .. } = order.nodes[from] {
            let _ = writeln!(text, "<path d=\"M{left:.1} {y:.1}H{right:.1}\"/>");
        }
        for &to in after {
            let (x, end) = layout.at[to];
            let middle = (right + x) / 2.0;
            let _ = writeln!(
                text,
                "<path d=\"M{right:.1} {y:.1}C{middle:.1} {y:.1} {middle:.1} {end:.1} {x:.1} {end:.1}\"/>"
            );
        }
    }
    text
}

fn stage(stage: &StageBox, x: f64, top: f64, width: f64) -> String {
    let StageBox { name, kind, mark, .. } = stage;
    let (class, said) = mark.map_or((String::new(), String::new()), |mark| {
        (format!(" class=\"{}\"", mark.name()), format!(": {}", mark.name()))
    });
    let middle = x + width / 2.0;
    format!(
        "<g><title>{name} ({kind}){said}</title><rect{class} x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{BOX_HEIGHT}\" rx=\"6\"/>\
         <text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{name}</text>\
         <text class=\"kind\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{kind}</text></g>\n",
        top + 17.0,
        top + 32.0,
    )
}

fn legend_entry(mark: StageMark, x: f64, top: f64) -> String {
    let name = mark.name();
    format!(
        "<rect class=\"{name}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"14\" height=\"14\" rx=\"3\"/>\
         <text class=\"kind\" x=\"{:.1}\" y=\"{:.1}\">{name}</text>\n",
        top + 4.0,
        x + 20.0,
        top + 15.0,
    )
}

/// A pipeline's name is any text; names of stages are letters, digits and dashes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace(char::is_control, "\u{FFFD}")
}

#[cfg(test)]
mod tests {
    use super::super::testing::picture;
    use super::*;

    #[test]
    fn every_stage_has_a_box_and_every_need_a_curve() {
        let mut picture = picture(&[&[], &[0], &[0, 1]]);
        picture.name = "a<b & c".to_owned();
        picture.boxes[1].mark = Some(StageMark::Miss);
        let text = svg(&picture);
        assert!(text.contains("<title>a&lt;b &amp; c</title>"), "{text}");
        assert_eq!(text.matches("rx=\"6\"").count(), 3);
        assert!(text.contains("s1 (command): miss"));
        // 0-1, 1-2, and 0-2 through a joint: two curves and a line.
        assert_eq!(text.matches("<path").count(), 5);
        assert!(!text.contains("var(") && !text.contains("--"), "librsvg knows no variables");
    }
}
