//! Writes a picture in Graphviz' language.

use std::fmt::Write;

use super::Drawing;

/// The whole graph.
pub fn dot(picture: &Drawing) -> String {
    let mut text = format!("digraph {} {{\n", quoted(&picture.name));
    text.push_str("  rankdir=LR;\n  node [shape=box, style=\"rounded,filled\", fillcolor=white, fontname=\"sans-serif\"];\n");
    for stage in &picture.boxes {
        let fill = stage.mark.map_or_else(String::new, |mark| {
            format!(", fillcolor=\"{}\", tooltip=\"{}\"", mark.fill(), mark.name())
        });
        // `\n` is Graphviz' own.
        let _ = writeln!(
            text,
            "  {} [label=\"{}\\n{}\"{fill}];",
            quoted(&stage.name),
            stage.name,
            stage.kind
        );
    }
    for stage in &picture.boxes {
        for &need in &stage.needs {
            let from = quoted(&picture.boxes[need].name);
            let _ = writeln!(text, "  {from} -> {};", quoted(&stage.name));
        }
    }
    text + "}\n"
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::super::testing::picture;
    use super::*;

    #[test]
    fn names_are_quoted_and_edges_point_at_what_needs() {
        let mut picture = picture(&[&[], &[0]]);
        picture.name = "a \"b\"".to_owned();
        let text = dot(&picture);
        assert!(text.starts_with("digraph \"a \\\"b\\\"\" {\n"), "{text}");
        assert!(text.contains("  \"s0\" -> \"s1\";\n"), "{text}");
    }
}
