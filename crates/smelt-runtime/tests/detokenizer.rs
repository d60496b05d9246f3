//! Detokenises random tokens of each kind of vocabulary as they come, and wants the text of all at
//! once.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use smelt_random::Random;
use smelt_runtime::tokenizer::{Detokenizer, TOKENIZER_FILE, Tokenizer};

/// Sequences a vocabulary is tried with.
const SEQUENCES: u64 = 250;

fn shipped(name: &str) -> Tokenizer {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
    Tokenizer::open(&data.join(name).join(TOKENIZER_FILE)).unwrap()
}

/// A tokenizer with this model and decoder, and `<s>` as token 0, special.
fn written(model: &Value, decoder: &Value) -> Tokenizer {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(TOKENIZER_FILE);
    let special = json!({
        "id": 0, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    });
    let file = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [special],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "decoder": decoder, "model": model,
    });
    fs::write(&path, file.to_string()).unwrap();
    Tokenizer::open(&path).unwrap()
}

fn vocab<'a>(words: impl Iterator<Item = &'a str>) -> Value {
    words.enumerate().map(|(id, word)| (word.to_owned(), json!(id))).collect()
}

/// As BERT's: `##` continues a word, other pieces begin one.
fn word_piece() -> Tokenizer {
    let words = [
        "<s>", "[UNK]", "un", "##aff", "##able", "do", "n't", "'", "s", ".", ",", "日", "##本", "é",
    ];
    let model = json!({
        "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": vocab(words.into_iter()),
    });
    written(&model, &json!({"type": "WordPiece", "prefix": "##", "cleanup": true}))
}

/// First token of a byte in [`sentence_piece`].
const BYTES: u32 = 10;

/// As Llama 2's: `▁` is a space, code points outside of the vocabulary are byte tokens.
fn sentence_piece() -> Tokenizer {
    let words = ["<s>", "<unk>", "▁", "▁a", "a", "▁▁", "日", "▁é", "x▁", "."].map(String::from);
    assert_eq!(words.len(), BYTES as usize);
    let words: Vec<String> =
        words.into_iter().chain((0..=255).map(|byte| format!("<0x{byte:02X}>"))).collect();
    let model = json!({
        "type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true,
        "vocab": vocab(words.iter().map(String::as_str)), "merges": [],
    });
    let decoders = json!([
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]);
    written(&model, &json!({"type": "Sequence", "decoders": decoders}))
}

/// The pieces of `tokens` joined, and how many there were.
fn joined(tokenizer: &Tokenizer, tokens: &[u32]) -> (String, usize) {
    let mut pieces = Detokenizer::new(tokenizer);
    let mut text = String::new();
    let mut count = 0;
    for &token in tokens {
        let piece = pieces.push(token).unwrap();
        count += usize::from(!piece.is_empty());
        text += &piece;
    }
    text += &pieces.finish().unwrap();
    (text, count)
}

#[track_caller]
fn check(tokenizer: &Tokenizer, tokens: &[u32]) {
    let (text, _) = joined(tokenizer, tokens);
    assert_eq!(text, tokenizer.decode(tokens, true).unwrap(), "{tokens:?}");
}

/// Random tokens, unknown and special ones among them.
#[track_caller]
fn check_random(tokenizer: &Tokenizer) {
    for seed in 0..SEQUENCES {
        let mut random = Random::new(seed);
        let count = random.below(80);
        let tokens: Vec<u32> =
            (0..count).map(|_| random.below(tokenizer.vocab() + 2) as u32).collect();
        check(tokenizer, &tokens);
    }
}

#[test]
fn byte_level_pieces_join_to_the_text_of_all_tokens() {
    for name in ["golden/internvl3-tiny/checkpoint", "shapes-vl"] {
        check_random(&shipped(name));
    }
}

#[test]
fn bytes_of_code_points_whole_cut_and_stray_join_to_the_text_of_all() {
    let tokenizer = shipped("golden/internvl3-tiny/checkpoint");
    let parts: Vec<u32> = tokenizer.encode("é日😀aé").unwrap();
    assert!(parts.len() > 8, "code points are of several tokens here");
    for seed in 0..SEQUENCES {
        let mut random = Random::new(seed);
        let count = random.below(120);
        let tokens: Vec<u32> = (0..count).map(|_| random.pick(&parts)).collect();
        check(&tokenizer, &tokens);
    }
}

#[test]
fn text_goes_on_after_bytes_that_never_became_a_code_point() {
    let tokenizer = shipped("golden/internvl3-tiny/checkpoint");
    let [first, second] = tokenizer.encode("é").unwrap()[..] else { panic!("é has two tokens") };
    let words = tokenizer.encode("then words").unwrap();
    for stray in [1, 9, 40, 400] {
        let tokens = [vec![first; stray], vec![second], words.clone()].concat();
        check(&tokenizer, &tokens);
        let (_, pieces) = joined(&tokenizer, &tokens);
        assert!(pieces > stray / 2, "stray bytes are not held back without end");
    }
}

#[test]
fn word_pieces_join_to_the_text_of_all_tokens() {
    check_random(&word_piece());
}

/// Pieces of words, and bytes that are the beginning of no, one or several code points; a run that
/// has begun well goes wrong at most in its last code point, and then another piece follows.
#[test]
fn sentence_pieces_join_to_the_text_of_all_tokens() {
    let tokenizer = sentence_piece();
    for seed in 0..SEQUENCES {
        let mut random = Random::new(seed);
        let mut tokens = Vec::new();
        for _ in 0..random.below(30) {
            let text = random.pick(&["é", "日本", "😀", "a😀é"]);
            let mut bytes = text.as_bytes();
            if random.below(4) == 0 {
                bytes =
                    random.pick(&[&[0xff][..], &[0x80; 40], &[0xf0, 0x9f, 0x98], &[0xe2, 0x82]]);
            }
            tokens.extend(bytes.iter().map(|byte| BYTES + u32::from(*byte)));
            tokens
                .extend((0..=random.below(3)).map(|_| 2 + random.below(BYTES as usize - 2) as u32));
        }
        check(&tokenizer, &tokens);
    }
}

#[test]
fn what_was_told_of_a_run_of_bytes_stays_when_it_goes_wrong() {
    let tokenizer = sentence_piece();
    let tokens = |bytes: &[u8]| bytes.iter().map(|b| BYTES + u32::from(*b)).collect::<Vec<u32>>();
    let text = |bytes: &[u8]| joined(&tokenizer, &[tokens(bytes), vec![4]].concat()).0;
    assert_eq!(text(b"\xe2\x82\xac\xff"), "€\u{FFFD}a");
    assert_eq!(
        text(b"\xe2\x82\xac\xff\xff\xff\xff\xff"),
        "€\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}\u{FFFD}a"
    );
    assert_eq!(text("😀€😀".as_bytes()), "😀€😀a");
}
