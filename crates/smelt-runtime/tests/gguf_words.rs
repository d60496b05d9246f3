//! Tokenizers out of GGUF files, held against what llama.cpp makes of the same texts.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_runtime::deployment::eos_tokens;
use smelt_runtime::template::{Context, Template, Value};
use smelt_runtime::tokenizer::Tokenizer;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/gguf-words")
}

/// The files that the GGUF file `name` of `folder` stands for, in a directory.
fn files(folder: &Path, name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = Checkpoint::open(&folder.join(format!("{name}.gguf"))).unwrap();
    for file in checkpoint.made_files().unwrap() {
        fs::write(dir.path().join(file.name), file.text).unwrap();
    }
    dir
}

fn lines(folder: &Path) -> Vec<String> {
    serde_json::from_str(&fs::read_to_string(folder.join("lines.json")).unwrap()).unwrap()
}

/// White space beyond ASCII's, which llama.cpp's cuts of DeepSeek's first models take for a space, and those
/// of their own tokenizer.json do not.
fn is_wide_space(c: char) -> bool {
    c.is_whitespace() && !c.is_ascii()
}

/// Holds the tokenizers of the GGUF files in `folder` to `tokens.json`, which has nothing for a line that is not to
/// be compared; how many there are.
fn check_tokens(folder: &Path) -> usize {
    let tokens = fs::read_to_string(folder.join("tokens.json")).unwrap();
    let expected: BTreeMap<String, Vec<Option<Vec<u32>>>> = serde_json::from_str(&tokens).unwrap();
    let lines = lines(folder);
    for (name, expected) in &expected {
        let dir = files(folder, name);
        let tokenizer = Tokenizer::open(&dir.path().join("tokenizer.json")).unwrap();
        assert_eq!(expected.len(), lines.len());
        let mut compared = 0;
        for (line, expected) in lines.iter().zip(expected) {
            let is_known = name.starts_with("deepseek-") && !name.ends_with("qwen");
            if is_known && line.contains(is_wide_space) {
                continue;
            }
            let Some(expected) = expected else { continue };
            compared += 1;
            assert_eq!(tokenizer.encode(line).unwrap(), *expected, "{name}: {line:?}");
        }
        assert!(compared * 4 > lines.len() * 3, "{name}: {compared} lines");
    }
    expected.len()
}

#[test]
fn texts_become_the_tokens_of_llama_cpp() {
    assert_eq!(check_tokens(&golden()), 8);
}

/// The folder that `xtask/llama/words.py` made.
const WORDS: &str = "SMELT_WORDS";

/// `cargo xtask soak` makes the folder and asks.
#[test]
#[ignore = "takes llama.cpp and vocabularies of its own"]
fn ten_thousand_lines_become_the_tokens_of_llama_cpp() {
    let folder = std::env::var_os(WORDS).expect("SMELT_WORDS names the folder");
    assert_eq!(check_tokens(Path::new(&folder)), 6);
}

#[test]
fn tokens_become_the_texts_again() {
    for name in ["gpt-2", "llama-bpe", "deepseek-coder", "characters"] {
        let tokenizer =
            Tokenizer::open(&files(&golden(), name).path().join("tokenizer.json")).unwrap();
        // Where a text begins with a special token, SentencePiece's first space is one of the text's.
        for line in lines(&golden())
            .iter()
            .filter(|line| name != "characters" || !line.contains(['<', '▁']))
        {
            let tokens = tokenizer.encode(line).unwrap();
            assert_eq!(tokenizer.decode(&tokens, false).unwrap(), *line, "{name}");
        }
    }
}

#[test]
fn what_goes_around_texts_and_ends_answers_comes_out_of_the_file() {
    let check = |name: &str, around: usize, first: &str, ends: &[&str]| {
        let dir = files(&golden(), name);
        let tokenizer = Tokenizer::open(&dir.path().join("tokenizer.json")).unwrap();
        let whole = tokenizer.encode_whole("Hi").unwrap();
        assert_eq!(whole.len(), tokenizer.encode("Hi").unwrap().len() + around, "{name}");
        let is_first = whole.first().copied() == tokenizer.token(first);
        assert_eq!(is_first, around > 0, "{name}");
        let ends: Vec<u32> = ends.iter().map(|word| tokenizer.token(word).unwrap()).collect();
        assert_eq!(eos_tokens(dir.path(), &tokenizer).unwrap(), ends, "{name}");
        let template = Template::open(dir.path()).unwrap();
        let message = Value::from_pairs([("role", "user"), ("content", "Hi")]);
        let text = template.render(&[message], true, 0, &Context::default()).unwrap();
        assert_eq!(text, "Hi");
    };
    let ends = ["<|endoftext|>", "<|im_end|>"];
    check("smollm", 0, "<|endoftext|>", &ends);
    check("qwen2", 0, "<|endoftext|>", &ends);
    // Llama's texts begin with a token of their own, whatever the file says or leaves out.
    check("llama-bpe", 1, "<|endoftext|>", &ends);
    check("characters", 1, "<s>", &["</s>"]);
}

#[test]
fn a_cut_that_nobody_knows_is_refused_by_name_and_a_tokenizer_beside_the_file_counts() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(golden().join("smollm.gguf")).unwrap();
    let at = bytes.windows(6).position(|word| word == b"smollm").unwrap();
    bytes[at..at + 6].copy_from_slice(b"smolly");
    let path = dir.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    let refused = Checkpoint::open(&path).unwrap().made_files().unwrap_err().to_string();
    let words = "tokenizer.ggml.pre is \"smolly\", but must be one of gpt-2, smollm, llama-bpe";
    assert!(refused.contains(words) && !refused.contains('\n'), "{refused}");
    fs::write(dir.path().join("tokenizer.json"), "{}").unwrap();
    let made = Checkpoint::open(dir.path()).unwrap().made_files().unwrap();
    let names: Vec<&str> = made.iter().map(|file| file.name).collect();
    assert_eq!(names, ["tokenizer_config.json", "generation_config.json"]);
}
