//! Copies what a checkpoint has beside its weights.
//!
//! Bytes go over as they are.  Of the code beside a checkpoint those files go along that its
//! configurations name (`auto_map`), and what these import of each other, so that other programs open
//! the result.  Code is never run.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use serde_json::Value;

use super::{QuantizeError, failed};
use crate::checkpoint::{CONFIG_FILE, Checkpoint, CheckpointError, JSON_BYTES_MAX};

/// The side files copied if they are there.
const SIDE_FILES: [&str; 14] = [
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Configurations that may name code.
const NAMING: [&str; 5] = [
    CONFIG_FILE,
    "tokenizer_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
];

/// Files of code copied at most; InternVL has five, the most that were seen are a dozen.
const CODE_FILES_MAX: usize = 64;

/// The longest file of code that is read or copied; real ones are some hundred KiB.
const CODE_BYTES_MAX: u64 = 4 << 20;

/// Copies the side files of `from` that are there, its configuration left out, into `to`.
pub(crate) fn copy_side_files(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    let code = code_of(from);
    for name in SIDE_FILES.into_iter().chain(code.iter().map(String::as_str)) {
        let source = from.join(name);
        if source.exists() {
            copy_file(&source, &to.join(name))?;
        }
    }
    Ok(())
}

/// Writes what a GGUF file holds of such files.
pub(crate) fn write_made_files(from: &Checkpoint, to: &Path) -> Result<(), QuantizeError> {
    for file in from.made_files()? {
        let path = to.join(file.name);
        fs::write(&path, file.text).map_err(failed(&path))?;
    }
    Ok(())
}

/// Copies the bytes alone: a sealed file's read-only mode must not come along.
fn copy_file(from: &Path, to: &Path) -> Result<(), QuantizeError> {
    let mut source =
        fs::File::open(from).map_err(|source| CheckpointError::Io { path: from.into(), source })?;
    let mut target = fs::File::create(to).map_err(failed(to))?;
    io::copy(&mut source, &mut target).map_err(failed(to))?;
    Ok(())
}

/// The files of code in `dir` that its configurations name, and those that they import.
fn code_of(dir: &Path) -> BTreeSet<String> {
    let texts = NAMING.iter().filter_map(|name| text_of(&dir.join(name), JSON_BYTES_MAX));
    let configs = texts.filter_map(|text| serde_json::from_str::<Value>(&text).ok());
    let mut open: Vec<String> = configs.flat_map(|config| named(&config)).collect();
    let mut found = BTreeSet::new();
    while let Some(module) = open.pop() {
        let file = format!("{module}.py");
        if found.len() == CODE_FILES_MAX || found.contains(&file) {
            continue;
        }
        let Some(text) = text_of(&dir.join(&file), CODE_BYTES_MAX) else { continue };
        open.extend(text.lines().filter_map(imported));
        found.insert(file);
    }
    found
}

/// The text of a file that is no longer than `bytes_max`.
fn text_of(path: &Path, bytes_max: u64) -> Option<String> {
    let mut text = String::new();
    let file = fs::File::open(path).ok()?;
    file.take(bytes_max + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= bytes_max).then_some(text)
}

/// The modules that the `auto_map` of a configuration names: the values of `{"AutoModel":
/// "modeling_x.Model"}`, of which tokenizers' are lists.  Those of another repository
/// (`ORG/NAME--modeling_x.Model`) are not here.
fn named(config: &Value) -> Vec<String> {
    let entries = config["auto_map"].as_object().into_iter().flat_map(|map| map.values());
    let classes = entries.flat_map(|entry| match entry {
        Value::Array(classes) => classes.iter().collect(),
        class => vec![class],
    });
    let modules = classes.filter_map(|class| Some(class.as_str()?.split_once('.')?.0));
    modules.filter(|module| is_module(module)).map(str::to_owned).collect()
}

/// The module beside it that a line of code imports, as transformers finds it
/// (`get_relative_imports` of its `dynamic_module_utils.py`).
fn imported(line: &str) -> Option<String> {
    let line = line.trim();
    let module = match line.strip_prefix("from") {
        Some(rest) => rest.trim_start().strip_prefix('.')?.split_once(" import")?.0,
        None => line.strip_prefix("import")?.trim_start().strip_prefix('.')?,
    };
    let module = module.trim();
    is_module(module).then(|| module.to_owned())
}

/// Whether this is the name of a file of code at the same place, without its ending.
fn is_module(name: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-');
    !name.is_empty() && !name.contains("--") && name.bytes().all(legal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in all {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    #[test]
    fn code_that_configurations_name_goes_along_with_what_it_imports() {
        let config = r#"{"auto_map": {"AutoConfig": "configuration_chat.Config",
            "AutoModel": "modeling_chat.Model", "AutoOther": "org/name--modeling_far.Model",
            "AutoBad": "../outside.Model", "AutoGone": "gone.Model"}}"#;
        let from = files(&[
            ("config.json", config),
            (
                "tokenizer_config.json",
                r#"{"auto_map": {"AutoTokenizer": ["words.Tokenizer", null]}}"#,
            ),
            ("processor_config.json", r#"{"processor_class": "P"}"#),
            ("video_preprocessor_config.json", "{}"),
            ("configuration_chat.py", "import torch\n"),
            ("modeling_chat.py", "from .conversation import get\n    from .vit import (Vit,\n"),
            ("conversation.py", "from . import modeling_chat\nimport .configuration_chat\n"),
            ("vit.py", "from .vit import Vit\nfrom torch import nn\n"),
            ("words.py", ""),
            ("train.py", "from .modeling_chat import Model\n"),
            ("modeling_far.py", ""),
        ]);
        let to = tempfile::tempdir().unwrap();
        copy_side_files(from.path(), to.path()).unwrap();
        let names = |dir: &Path| -> BTreeSet<String> {
            let entries = fs::read_dir(dir).unwrap();
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
        };
        let mut expect = names(from.path());
        for left in ["config.json", "train.py", "modeling_far.py"] {
            expect.remove(left);
        }
        assert_eq!(names(to.path()), expect);
    }

    #[test]
    fn only_imports_of_neighbours_count() {
        assert_eq!(imported("from .a_b import C, D").as_deref(), Some("a_b"));
        assert_eq!(imported("  import .a").as_deref(), Some("a"));
        for line in ["from a import b", "from ..a import b", "from . import a", "import torch", ""]
        {
            assert_eq!(imported(line), None, "{line}");
        }
    }
}
