//! Finds the marks of a template that are plain words to its tokenizer.
//!
//! Llama 2 opens a turn with `[INST]`, Zephyr with `<|user|>`, Vicuna with `USER:`, and none of these is a token.  Knows
//! nothing of templates or of tokens.

use std::collections::BTreeSet;

/// The marks among what is written `around` texts that are none of the `added` words of a tokenizer: what stands in
/// brackets, and the label of a line whose rest is said.
pub(super) fn spelled(around: &[String], added: &[&str]) -> BTreeSet<String> {
    let mut marks = BTreeSet::new();
    for text in around {
        let own = without(text, added);
        marks.extend(bracketed(&own));
        marks.extend(label(&own));
    }
    marks
}

/// The text with a line's end for each of these words.
fn without(text: &str, added: &[&str]) -> String {
    let words = added.iter().filter(|word| !word.trim().is_empty() && text.contains(**word));
    let mut words: Vec<&str> = words.copied().collect();
    words.sort_unstable_by_key(|word| std::cmp::Reverse(word.len()));
    words.into_iter().fold(text.to_owned(), |text, word| text.replace(word, "\n"))
}

/// Words such as `<|user|>`, `[INST]` and `<</SYS>>`.
fn bracketed(text: &str) -> Vec<String> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(['<', '[']) {
        rest = &rest[at..];
        let closing = if rest.starts_with('<') { '>' } else { ']' };
        let end = rest.find(|c: char| c == closing || c.is_whitespace()).unwrap_or(rest.len());
        let behind = rest[end..].trim_start_matches(closing);
        let word = &rest[..rest.len() - behind.len()];
        let is_mark = end > 1 && word.len() > end;
        if is_mark {
            found.push(word.to_owned());
        }
        rest = if is_mark { behind } else { &rest[1..] };
    }
    found
}

/// What a text ends with, if that is a label: `USER:`, or a heading such as `### Instruction:`.
fn label(text: &str) -> Option<String> {
    let line = text.trim_end().lines().next_back().unwrap_or_default().trim();
    let word = line.split_whitespace().next_back().unwrap_or_default();
    let label = if line.starts_with('#') { line } else { word };
    let is_label =
        label.starts_with(|c: char| c == '#' || c.is_uppercase()) && label.ends_with(':');
    is_label.then(|| label.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(around: &[&str], added: &[&str], expect: &[&str]) {
        let around: Vec<String> = around.iter().map(|text| (*text).to_owned()).collect();
        assert_eq!(spelled(&around, added).iter().collect::<Vec<_>>(), expect);
    }

    #[test]
    fn marks_that_are_no_tokens_are_found() {
        let llama = ["<s>[INST] <<SYS>>\n", "\n<</SYS>>\n\n", " [/INST] ", " </s><s>[INST] "];
        check(&llama, &["<s>", "</s>"], &["<</SYS>>", "<<SYS>>", "[/INST]", "[INST]"]);
        let zephyr = ["<|system|>\n", "</s>\n<|user|>\n", "</s>\n<|assistant|>\n"];
        check(&zephyr, &["<s>", "</s>"], &["<|assistant|>", "<|system|>", "<|user|>"]);
    }

    #[test]
    fn labels_are_found() {
        let vicuna = ["A chat. It answers: well. USER: ", " ASSISTANT: ", "</s>USER: "];
        check(&vicuna, &["</s>"], &["ASSISTANT:", "USER:"]);
        let deepseek = ["<｜begin▁of▁sentence｜>User: ", "\n\nAssistant: "];
        check(&deepseek, &["<｜begin▁of▁sentence｜>"], &["Assistant:", "User:"]);
        check(
            &["### Instruction:\n", "\n### Response:\n"],
            &[],
            &["### Instruction:", "### Response:"],
        );
    }

    #[test]
    fn roles_between_tokens_are_words() {
        let chatml = [
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n",
            "<|im_end|>\n",
        ];
        check(&chatml, &["<|im_start|>", "<|im_end|>"], &[]);
        check(&["a < b, [ c ] <> [] and the following:"], &[" ", ""], &[]);
    }
}
