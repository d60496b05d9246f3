//! Says whether a tokenizer file keeps to what tokenizers do, before it is used.
//!
//! The library does what a file says: a dozen replacements that each double a text fill any memory, and so does a padding to a
//! billion tokens.  Knows nothing of texts or of tokens.

use serde::Deserialize;
use serde_json::Value;

/// The most steps of each part of a tokenizer, and fields of them.  Real ones have some ten, with special tokens some fifty.
const STEPS_MAX: usize = 256;

/// How many times longer all replacements together may make a text.  SentencePiece's make three bytes of a space.
const GROWTH_MAX: usize = 16;

/// The most bytes that are put before a text.
const PREFIX_BYTES_MAX: usize = 1024;

/// The longest that a short text may be padded to, in tokens.
const PADDED_MAX: u64 = 1 << 20;

/// The most words beside the vocabulary, each of which is looked for in every text.  Real tokenizers have some thousand.
const ADDED_MAX: usize = 1 << 16;

/// The longest of these words, in bytes.  Real ones have some twenty; the library's time grows with the square.
const ADDED_BYTES_MAX: usize = 512;

/// Words up to which the library looks for them by a table of up to a KiB for each of their bytes.
const FEW_ADDED: usize = 100;

/// The most bytes of so few words, as long as the normalizer makes them.
const FEW_ADDED_BYTES_MAX: usize = 32 << 10;

/// The most bytes of more words, each of which takes some 70.  Real ones have some 800 KiB at most.
const MANY_ADDED_BYTES_MAX: usize = 2 << 20;

/// The parts of a file that are looked at.
#[derive(Deserialize)]
struct Parts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    padding: Value,
    #[serde(default)]
    added_tokens: Option<Vec<Added>>,
}

/// A word beside the vocabulary.
#[derive(Deserialize)]
struct Added {
    content: String,
}

/// Whether the library may read `file`.
///
/// # Errors
/// What no tokenizer does, in words.
pub(super) fn check(file: &[u8]) -> Result<(), String> {
    let parts = match serde_json::from_slice::<Parts>(file) {
        Ok(parts) => parts,
        // The library takes the last of two fields, which nobody has looked at.
        Err(error) if error.to_string().starts_with("duplicate field") => {
            return Err(error.to_string());
        }
        // What is no such file the library says better.
        Err(_) => return Ok(()),
    };
    let Parts { normalizer, pre_tokenizer, post_processor, decoder, padding, added_tokens } =
        &parts;
    let named = [
        ("normalizer", normalizer),
        ("pre_tokenizer", pre_tokenizer),
        ("post_processor", post_processor),
        ("decoder", decoder),
    ];
    for (name, part) in named {
        if steps(part) > STEPS_MAX {
            return Err(format!("its {name} has more than {STEPS_MAX} steps"));
        }
        if growth(part) > GROWTH_MAX {
            return Err(format!("its {name} makes texts more than {GROWTH_MAX} times longer"));
        }
        if prefix(part) > PREFIX_BYTES_MAX {
            return Err(format!(
                "its {name} puts more than {PREFIX_BYTES_MAX} bytes before a text"
            ));
        }
        if copies(part) > 1 {
            return Err(format!("its {name} writes a text more than once"));
        }
    }
    let padded = [&padding["strategy"]["Fixed"], &padding["pad_to_multiple_of"]];
    if padded.iter().any(|tokens| tokens.as_u64().is_some_and(|tokens| tokens > PADDED_MAX)) {
        return Err(format!("it pads texts to more than {PADDED_MAX} tokens"));
    }
    check_added(added_tokens.as_deref().unwrap_or_default(), growth(normalizer))
}

/// Whether so many `words` may be looked for, of which a normalizer makes words up to so many times longer.
///
/// # Errors
/// The limit that they break, in words.
fn check_added(words: &[Added], growth: usize) -> Result<(), String> {
    if words.len() > ADDED_MAX {
        return Err(format!("it adds more than {ADDED_MAX} words to its vocabulary"));
    }
    let longest = words.iter().map(|word| word.content.len()).max().unwrap_or_default();
    if longest > ADDED_BYTES_MAX {
        return Err(format!(
            "it adds a word of {longest} bytes to its vocabulary, more than the {ADDED_BYTES_MAX} allowed"
        ));
    }
    let bytes: usize = words.iter().map(|word| word.content.len()).sum();
    let most = if words.len() > FEW_ADDED { MANY_ADDED_BYTES_MAX } else { FEW_ADDED_BYTES_MAX };
    match bytes.saturating_mul(growth) > most {
        true => Err(format!(
            "the {} words that it adds to its vocabulary have more than {most} bytes together",
            words.len()
        )),
        false => Ok(()),
    }
}

/// What stands in lists and fields of a part.
fn inner(part: &Value) -> impl Iterator<Item = &Value> {
    let items = part.as_array().into_iter().flatten();
    items.chain(part.as_object().into_iter().flat_map(|fields| fields.values()))
}

/// How many steps a part has, with those of its sequences, and special tokens that are steps of a template.
fn steps(part: &Value) -> usize {
    usize::from(part.is_object()) + inner(part).map(steps).sum::<usize>()
}

/// How many times longer a part makes a text, at most.
fn growth(part: &Value) -> usize {
    let content = part["content"].as_str().filter(|_| part["type"] == "Replace");
    let Some(content) = content else {
        return inner(part).map(growth).fold(1, usize::saturating_mul);
    };
    match part["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => content.len().div_ceil(pattern.len()).max(1),
        // An expression may be found at every character, and between them.
        _ => content.len() + 1,
    }
}

/// How many bytes a part puts before a text.
fn prefix(part: &Value) -> usize {
    let own = ["prepend", "replacement"].map(|field| part[field].as_str().map_or(0, str::len));
    own.iter().sum::<usize>() + inner(part).map(prefix).sum::<usize>()
}

/// How often a template of special tokens writes the text itself.
fn copies(part: &Value) -> usize {
    let of = |pieces: &Value| {
        let is_text = |piece: &&Value| piece["Sequence"]["id"] == "A";
        pieces.as_array().map_or(0, |pieces| pieces.iter().filter(is_text).count())
    };
    let own = [&part["single"], &part["pair"]].map(of).into_iter().max().unwrap_or_default();
    let held = inner(part).map(|part| copies(part).max(1)).fold(1, usize::saturating_mul);
    own.max(1).saturating_mul(held)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(file: Value) -> Option<String> {
        check(file.to_string().as_bytes()).err()
    }

    fn replace(pattern: Value, content: &str) -> Value {
        json!({"type": "Replace", "pattern": pattern, "content": content})
    }

    #[test]
    fn usual_steps_are_read() {
        let spaces = json!({"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "NFKC"}, replace(json!({"String": " "}), "▁")]});
        let runs = json!({"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, replace(json!({"Regex": " {2,}"}), "▁")]});
        for normalizer in [spaces, runs, Value::Null] {
            assert_eq!(refused(json!({"normalizer": normalizer})), None);
        }
        let template = json!({"type": "TemplateProcessing", "special_tokens": {},
            "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]});
        assert_eq!(refused(json!({"post_processor": template, "padding": null})), None);
        assert_eq!(
            refused(json!({"padding": {"strategy": {"Fixed": 512}, "pad_to_multiple_of": 8}})),
            None
        );
        assert_eq!(check(b"no JSON"), Ok(()));
    }

    #[test]
    fn a_part_that_is_there_twice_is_refused() {
        let error = check(br#"{"normalizer": null, "normalizer": {"type": "NFC"}}"#).unwrap_err();
        assert!(error.contains("duplicate field `normalizer`"), "{error}");
        let error = check(br#"{"added_tokens": [], "added_tokens": []}"#).unwrap_err();
        assert!(error.contains("duplicate field `added_tokens`"), "{error}");
    }

    #[test]
    fn what_grows_without_end_is_refused() {
        let said = |file: Value, words: &str| {
            let error = refused(file).unwrap();
            assert!(error.contains(words), "{error}");
        };
        let doubling = replace(json!({"String": "a"}), "aa");
        let many =
            |count| json!({"type": "Sequence", "normalizers": vec![doubling.clone(); count]});
        assert_eq!(refused(json!({"normalizer": many(4)})), None);
        said(json!({"normalizer": many(12)}), "normalizer makes texts");
        said(json!({"normalizer": many(300)}), "steps");
        said(
            json!({"decoder": {"type": "Sequence", "decoders": many(12)["normalizers"]}}),
            "decoder makes texts",
        );
        said(json!({"normalizer": replace(json!({"Regex": ""}), &"a".repeat(99))}), "makes texts");
        said(json!({"normalizer": replace(json!({"String": ""}), &"a".repeat(99))}), "makes texts");
        said(
            json!({"normalizer": {"type": "Prepend", "prepend": "a".repeat(9999)}}),
            "before a text",
        );
        let text = json!({"Sequence": {"id": "A", "type_id": 0}});
        let single = |count| json!({"type": "TemplateProcessing", "single": vec![text.clone(); count], "pair": []});
        said(json!({"post_processor": single(9)}), "more than once");
        said(
            json!({"post_processor": {"type": "Sequence", "processors": vec![single(2); 9]}}),
            "more than once",
        );
        said(json!({"padding": {"strategy": {"Fixed": 4_000_000_000_u64}}}), "pads texts");
        said(
            json!({"padding": {"strategy": "BatchLongest", "pad_to_multiple_of": 4_000_000_000_u64}}),
            "pads texts",
        );
    }

    #[test]
    fn words_beside_the_vocabulary_have_limits() {
        let words = |count: usize, bytes: usize| {
            let words = (0..count).map(|at| json!({ "id": at, "content": "x".repeat(bytes) }));
            json!({ "added_tokens": words.collect::<Value>() })
        };
        for (count, bytes) in [(0, 0), (1, 512), (100, 100), (1000, 20), (1 << 15, 26)] {
            assert_eq!(refused(words(count, bytes)), None, "{count} of {bytes}");
        }
        let said = |file: Value, words: &str| {
            let error = refused(file).unwrap();
            assert!(error.contains(words), "{error}");
        };
        said(words(ADDED_MAX + 1, 0), "more than 65536 words");
        said(words(1, 513), "a word of 513 bytes");
        said(words(100, 400), "100 words that it adds");
        said(words(5000, 500), "5000 words that it adds");
        let mut grown = words(100, 100);
        grown["normalizer"] = replace(json!({"String": "x"}), "xxxxxxxx");
        said(grown, "100 words that it adds");
    }
}
