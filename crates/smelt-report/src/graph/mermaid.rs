//! Writes a picture in Mermaid's language, which GitHub and others draw inside Markdown.

use std::fmt::Write;

use super::{Drawing, StageMark};

/// The whole graph.  Boxes have ids of their own, since names such as `end` are words of the
/// language.
pub fn mermaid(picture: &Drawing) -> String {
    let mut text = "flowchart LR\n".to_owned();
    for (at, stage) in picture.boxes.iter().enumerate() {
        let class = stage.mark.map_or_else(String::new, |mark| format!(":::{}", mark.name()));
        let _ = writeln!(text, "  s{at}[\"{}<br/>{}\"]{class}", stage.name, stage.kind);
    }
    for (at, stage) in picture.boxes.iter().enumerate() {
        for need in &stage.needs {
            let _ = writeln!(text, "  s{need} --> s{at}");
        }
    }
    for mark in StageMark::ALL
        .into_iter()
        .filter(|&mark| picture.boxes.iter().any(|b| b.mark == Some(mark)))
    {
        let _ = writeln!(text, "  classDef {} fill:{},color:#1b1f24", mark.name(), mark.fill());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::testing::picture;
    use super::*;

    #[test]
    fn boxes_and_arrows() {
        let mut picture = picture(&[&[], &[0]]);
        picture.boxes[0].mark = Some(StageMark::Hit);
        assert_eq!(
            mermaid(&picture),
            "flowchart LR\n  s0[\"s0<br/>command\"]:::hit\n  s1[\"s1<br/>command\"]\n  s0 --> s1\n  classDef hit fill:#cde7d6,color:#1b1f24\n"
        );
    }
}
