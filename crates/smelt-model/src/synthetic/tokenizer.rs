//! Makes the tokenizer of a synthetic model: byte-level BPE in which every id is some text.
//!
//! The first 256 ids are the bytes, the last are the special tokens under their published names,
//! and what lies between are made-up words, so that any id a model picks can be shown.  There are
//! no merges: text becomes one token per byte.  Knows nothing of weights.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::json;

/// Starts a document and fills padding.
pub(crate) const END_OF_TEXT: &str = "<|endoftext|>";

/// Ends a turn of a conversation.
pub(crate) const TURN_END: &str = "<|im_end|>";

/// The special tokens of Qwen2.5 and then of InternVL3, by id: at true size 151643 to 151673.
/// The flag says whether decoding for people leaves the token out.
const SPECIAL: [(&str, bool); 31] = [
    (END_OF_TEXT, true),
    ("<|im_start|>", true),
    (TURN_END, true),
    ("<|object_ref_start|>", true),
    ("<|object_ref_end|>", true),
    ("<|box_start|>", true),
    ("<|box_end|>", true),
    ("<|quad_start|>", true),
    ("<|quad_end|>", true),
    ("<|vision_start|>", true),
    ("<|vision_end|>", true),
    ("<|vision_pad|>", true),
    ("<|image_pad|>", true),
    ("<|video_pad|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<|fim_prefix|>", false),
    ("<|fim_middle|>", false),
    ("<|fim_suffix|>", false),
    ("<|fim_pad|>", false),
    ("<|repo_name|>", false),
    ("<|file_sep|>", false),
    ("<img>", true),
    ("</img>", true),
    ("<IMG_CONTEXT>", true),
    ("<quad>", true),
    ("</quad>", true),
    ("<ref>", true),
    ("</ref>", true),
    ("<box>", true),
    ("</box>", true),
];

/// How many of these are Qwen2.5's, and so Qwen-VL's.
const QWEN_SPECIAL: usize = 22;

/// How Qwen2 cuts text before BPE.
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// ChatML.  Content is a string, or a list of parts where a picture becomes `<image>` on a line of
/// its own; who serves the model puts the image tokens there.
const INTERNVL_TEMPLATE: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}
{{- part['text'] -}}
{%- else -%}
{{- '<image>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// ChatML again; a picture or a clip is its token between the marks of vision, as Qwen-VL's templates write it.
const QWEN_VL_TEMPLATE: &str = "\
{%- for message in messages -%}
{{- '<|im_start|>' + message['role'] + '\\n' -}}
{%- if message['content'] is string -%}
{{- message['content'] -}}
{%- else -%}
{%- for part in message['content'] -%}
{%- if part['type'] == 'text' -%}
{{- part['text'] -}}
{%- elif part['type'] == 'video' -%}
{{- '<|vision_start|><|video_pad|><|vision_end|>' -}}
{%- else -%}
{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}
{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
";

/// The words of one model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Words {
    /// Entries of the vocabulary.
    pub(crate) vocab: usize,
    /// The last of them; the flag says whether decoding for people leaves the token out.
    special: &'static [(&'static str, bool)],
    /// How a conversation is written.
    template: &'static str,
}

impl Words {
    /// Those of an InternVL model.
    pub(crate) const fn internvl(vocab: usize) -> Self {
        Self::of(vocab, &SPECIAL, INTERNVL_TEMPLATE)
    }

    /// Those of a Qwen-VL model.
    pub(crate) const fn qwen_vl(vocab: usize) -> Self {
        let (special, _) = SPECIAL.split_at(QWEN_SPECIAL);
        Self::of(vocab, special, QWEN_VL_TEMPLATE)
    }

    /// Those of a model with special tokens and a template of its own.
    pub(crate) const fn of(
        vocab: usize,
        special: &'static [(&'static str, bool)],
        template: &'static str,
    ) -> Self {
        Self { vocab, special, template }
    }

    /// The id of a special token.
    pub(crate) fn id(self, token: &str) -> usize {
        let at = self.special.iter().position(|(name, _)| *name == token);
        self.vocab - self.special.len() + at.expect("only tokens of the table are asked for")
    }
}

/// `tokenizer.json`.
pub(crate) fn tokenizer_json(words: Words) -> String {
    let byte_level = ByteLevel {
        kind: "ByteLevel",
        add_prefix_space: false,
        trim_offsets: false,
        use_regex: false,
    };
    let split = Split {
        kind: "Split",
        pattern: Pattern { regex: SPLIT },
        behavior: "Isolated",
        invert: false,
    };
    let added = added_tokens(words).map(|(id, token)| AddedToken { id: Some(id), ..token });
    json(&Tokenizer {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: added.collect(),
        normalizer: Kind { kind: "NFC" },
        pre_tokenizer: Sequence { kind: "Sequence", pretokenizers: (split, byte_level) },
        post_processor: byte_level,
        decoder: byte_level,
        model: Bpe {
            kind: "BPE",
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: "",
            end_of_word_suffix: "",
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: Ordered(vocabulary(words).into_iter().zip(0..).collect()),
            merges: [],
        },
    })
}

/// `tokenizer_config.json`, which carries the chat template.
pub(crate) fn config_json(words: Words, max_positions: usize) -> String {
    let decoder = added_tokens(words).map(|(id, token)| (id.to_string(), token));
    json(&TokenizerConfig {
        add_bos_token: false,
        add_prefix_space: false,
        added_tokens_decoder: Ordered(decoder.collect()),
        additional_special_tokens: additional(words),
        bos_token: None,
        chat_template: words.template,
        clean_up_tokenization_spaces: false,
        eos_token: TURN_END,
        errors: "replace",
        model_max_length: max_positions,
        pad_token: END_OF_TEXT,
        split_special_tokens: false,
        tokenizer_class: "Qwen2Tokenizer",
        unk_token: None,
    })
}

/// `special_tokens_map.json`.
pub(crate) fn special_tokens_json(words: Words) -> String {
    json(&SpecialTokens {
        additional_special_tokens: additional(words),
        eos_token: TURN_END,
        pad_token: END_OF_TEXT,
    })
}

/// The text of every id, in the byte-level alphabet.
fn vocabulary(words: Words) -> Vec<String> {
    let made_up = words.vocab - words.special.len() - 256;
    let bytes = byte_alphabet().into_iter().map(String::from);
    let special = words.special.iter().map(|(name, _)| (*name).to_owned());
    bytes.chain((0..made_up).map(word)).chain(special).collect()
}

/// The characters that stand for bytes, in GPT-2's order: printable ones stand for themselves, the
/// others for characters from U+0100 on.
fn byte_alphabet() -> Vec<char> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let plain = (0..=u8::MAX).filter(printable).map(char::from);
    let others = (0..=u8::MAX).filter(|byte| !printable(byte)).count();
    let shifted = ('\u{100}'..).take(others);
    plain.chain(shifted).collect()
}

/// The `n`th made-up word: a space and at least two syllables, no two words alike.
pub(crate) fn word(n: usize) -> String {
    let mut syllables = Vec::new();
    let mut rest = n + SYLLABLES + 1;
    while rest > 0 {
        rest -= 1;
        syllables.push(syllable(rest % SYLLABLES));
        rest /= SYLLABLES;
    }
    let spoken = syllables.into_iter().rev().flatten();
    std::iter::once(SPACE).chain(spoken).collect()
}

/// The space, in the byte-level alphabet.
const SPACE: char = '\u{120}';

const CONSONANTS: [char; 14] =
    ['b', 'd', 'f', 'g', 'k', 'l', 'm', 'n', 'p', 'r', 's', 't', 'v', 'z'];
const VOWELS: [char; 5] = ['a', 'e', 'i', 'o', 'u'];
const SYLLABLES: usize = CONSONANTS.len() * VOWELS.len();

fn syllable(n: usize) -> [char; 2] {
    [CONSONANTS[n / VOWELS.len()], VOWELS[n % VOWELS.len()]]
}

/// The special tokens by id.
fn added_tokens(words: Words) -> impl Iterator<Item = (usize, AddedToken)> {
    (words.vocab - words.special.len()..).zip(words.special.iter().map(|&(content, special)| {
        AddedToken {
            id: None,
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: false,
            special,
        }
    }))
}

fn additional(words: Words) -> Vec<&'static str> {
    words.special.iter().filter(|(_, special)| *special).map(|&(name, _)| name).collect()
}

/// A JSON object whose keys keep their order.
pub(crate) struct Ordered<K, V>(pub(crate) Vec<(K, V)>);

impl<K: Serialize, V: Serialize> Serialize for Ordered<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Tokenizer {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: Vec<AddedToken>,
    normalizer: Kind,
    pre_tokenizer: Sequence,
    post_processor: ByteLevel,
    decoder: ByteLevel,
    model: Bpe,
}

#[derive(Serialize)]
struct AddedToken {
    /// Left out where the token is a value whose key is the id.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<usize>,
    content: &'static str,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    normalized: bool,
    special: bool,
}

#[derive(Serialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: &'static str,
}

#[derive(Serialize)]
struct Sequence {
    #[serde(rename = "type")]
    kind: &'static str,
    pretokenizers: (Split, ByteLevel),
}

#[derive(Serialize)]
struct Split {
    #[serde(rename = "type")]
    kind: &'static str,
    pattern: Pattern,
    behavior: &'static str,
    invert: bool,
}

#[derive(Serialize)]
struct Pattern {
    #[serde(rename = "Regex")]
    regex: &'static str,
}

#[derive(Clone, Copy, Serialize)]
struct ByteLevel {
    #[serde(rename = "type")]
    kind: &'static str,
    add_prefix_space: bool,
    trim_offsets: bool,
    use_regex: bool,
}

#[derive(Serialize)]
struct Bpe {
    #[serde(rename = "type")]
    kind: &'static str,
    dropout: Option<f32>,
    unk_token: Option<&'static str>,
    continuing_subword_prefix: &'static str,
    end_of_word_suffix: &'static str,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Ordered<String, usize>,
    merges: [(); 0],
}

#[derive(Serialize)]
struct TokenizerConfig {
    add_bos_token: bool,
    add_prefix_space: bool,
    added_tokens_decoder: Ordered<String, AddedToken>,
    additional_special_tokens: Vec<&'static str>,
    bos_token: Option<&'static str>,
    chat_template: &'static str,
    clean_up_tokenization_spaces: bool,
    eos_token: &'static str,
    errors: &'static str,
    model_max_length: usize,
    pad_token: &'static str,
    split_special_tokens: bool,
    tokenizer_class: &'static str,
    unk_token: Option<&'static str>,
}

#[derive(Serialize)]
struct SpecialTokens {
    additional_special_tokens: Vec<&'static str>,
    eos_token: &'static str,
    pad_token: &'static str,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn special_tokens_have_their_published_ids() {
        for (token, expect) in [
            (END_OF_TEXT, 151_643),
            ("<|im_start|>", 151_644),
            (TURN_END, 151_645),
            ("<img>", 151_665),
            ("</img>", 151_666),
            ("<IMG_CONTEXT>", 151_667),
            ("</box>", 151_673),
        ] {
            assert_eq!(Words::internvl(151_674).id(token), expect, "{token}");
        }
    }

    #[test]
    fn every_id_is_some_text_of_its_own() {
        for words in [Words::internvl(512), Words::internvl(151_674), Words::qwen_vl(512)] {
            let texts = vocabulary(words);
            assert_eq!(texts.len(), words.vocab);
            assert!(texts.iter().all(|text| !text.is_empty()));
            assert_eq!(texts.iter().collect::<BTreeSet<_>>().len(), words.vocab);
        }
    }

    #[test]
    fn bytes_come_first_in_gpt2_order() {
        let alphabet = byte_alphabet();
        assert_eq!(alphabet.len(), 256);
        assert_eq!((alphabet[0], alphabet[93], alphabet[94]), ('!', '~', '¡'));
        // The 33rd byte that does not print is the space.
        assert_eq!((alphabet[188], alphabet[188 + 32]), ('\u{100}', SPACE));
    }

    #[test]
    fn words_are_a_space_and_syllables() {
        assert_eq!(word(0), "\u{120}baba");
        assert_eq!(word(70), "\u{120}beba");
        assert_eq!(word(4899), "\u{120}zuzu");
        assert_eq!(word(4900), "\u{120}bababa");
    }
}
