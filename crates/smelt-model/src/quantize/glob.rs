//! Matches tensor names against patterns.
//!
//! `*` is any run of characters, `?` any one; everything else is itself.  Knows nothing of tensors.

/// Whether all of `name` matches `pattern`.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name) = (pattern.as_bytes(), name.as_bytes());
    let (mut at, mut seen) = (0, 0);
    // Where the last star is, and how much of the name it has taken.
    let mut star: Option<(usize, usize)> = None;
    while seen < name.len() {
        match pattern.get(at) {
            Some(b'*') => {
                star = Some((at, seen));
                at += 1;
            }
            Some(&wanted) if wanted == b'?' || wanted == name[seen] => {
                (at, seen) = (at + 1, seen + 1)
            }
            _ => {
                let Some((from, taken)) = star else { return false };
                star = Some((from, taken + 1));
                (at, seen) = (from + 1, taken + 1);
            }
        }
    }
    pattern[at..].iter().all(|wanted| *wanted == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks_match() {
        let name = "language_model.model.layers.10.mlp.down_proj.weight";
        for (pattern, expect) in [
            ("*", true),
            (name, true),
            ("*.down_proj.weight", true),
            ("*.layers.1?.*", true),
            ("*.layers.1.*", false),
            ("*layers*down*", true),
            ("down_proj", false),
            ("*down_proj", false),
            ("", false),
            ("**weight**", true),
            ("*weight?", false),
        ] {
            assert_eq!(matches(pattern, name), expect, "{pattern}");
        }
        assert!(matches("", "") && matches("*", ""));
    }

    #[test]
    fn many_stars_stay_quick() {
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)));
    }
}
