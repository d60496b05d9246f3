//! Chooses, of the files of a commit, those that a checkpoint is read from.
//!
//! Repositories hold the same weights several times over, as pickles, as ONNX, for other tools, and
//! pictures besides.  Works on names alone; what the files hold is not known before they are here.

use super::name::FileName;

/// Longer than any shard's name; the system's limit is 255.
const FILE_BYTES_MAX: usize = 200;
/// More shards than the largest models have.
const FILES_MAX: usize = 4096;

/// Why no checkpoint can be read from a commit.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// No weights, or no configuration.
    NoWeights,
    /// All weights are pickles, such as this one.
    Pickled(String),
    /// Several GGUF files, each of which is a whole model.
    ManyModels(Vec<String>),
    /// More files than any model has.
    TooMany,
    /// A file that was named, or a part of it, is not there.
    NoFile(String),
}

/// Those of `names` that a checkpoint is read from, in their order; of several GGUF files `file` with all
/// of its parts.
pub(super) fn select<'a>(
    names: &[&'a str],
    file: Option<&FileName>,
) -> Result<Vec<&'a str>, Unfit> {
    if let Some(file) = file {
        return of_file(names, &file.parts());
    }
    let wanted: Vec<&str> = names.iter().copied().filter(|name| is_wanted(name)).collect();
    if wanted.len() > FILES_MAX {
        return Err(Unfit::TooMany);
    }
    let of = |is: fn(&str) -> bool| wanted.iter().copied().filter(|name| is(name)).collect();
    let (tensors, models): (Vec<&str>, Vec<&str>) = (of(is_safetensors), of(is_gguf));
    if wanted.contains(&"config.json") && !tensors.is_empty() {
        // The same weights once more, under the names of their maker's own program.
        let is_twin = |name: &str| name.starts_with("consolidated");
        let has_twin = tensors.iter().any(|name| !is_twin(name));
        let is_spare = |name: &str| is_gguf(name) || (has_twin && is_twin(name));
        return Ok(wanted.into_iter().filter(|name| !is_spare(name)).collect());
    }
    match models.as_slice() {
        [_] => Ok(wanted.into_iter().filter(|name| !is_safetensors(name)).collect()),
        [] => Err(names.iter().find(|name| is_pickle(name)).map_or(Unfit::NoWeights, |name| {
            if tensors.is_empty() { Unfit::Pickled((*name).to_owned()) } else { Unfit::NoWeights }
        })),
        several if is_one(several) => {
            Ok(wanted.into_iter().filter(|name| !is_safetensors(name)).collect())
        }
        several => Err(Unfit::ManyModels(several.iter().map(|&name| name.to_owned()).collect())),
    }
}

/// Whether these are all parts of one GGUF file.
fn is_one(models: &[&str]) -> bool {
    let parts = models.first().and_then(|first| first.parse::<FileName>().ok());
    parts.is_some_and(|file| {
        let parts = file.parts();
        parts.len() == models.len() && parts.iter().all(|part| models.contains(&part.as_str()))
    })
}

/// The parts of one GGUF file, and the small files at the top.
fn of_file<'a>(names: &[&'a str], parts: &[String]) -> Result<Vec<&'a str>, Unfit> {
    if let Some(missing) = parts.iter().find(|part| !names.contains(&part.as_str())) {
        return Err(Unfit::NoFile(missing.clone()));
    }
    let is_small = |name: &str| {
        is_wanted(name) && !is_weights(name) && !name.ends_with(".safetensors.index.json")
    };
    let is_part = |name: &str| parts.iter().any(|part| part == name);
    Ok(names.iter().copied().filter(|name| is_part(name) || is_small(name)).collect())
}

/// Whether a checkpoint is read from files of this name: those at the top of a repository that
/// hold the configuration, the weights, the tokenizer and the preprocessing, and the code that
/// configurations name for others (`auto_map`), who cannot open what is made of the checkpoint
/// without it.
fn is_wanted(file: &str) -> bool {
    const NAMES: [&str; 13] = [
        "config.json",
        "generation_config.json",
        "merges.txt",
        "preprocessor_config.json",
        "processor_config.json",
        "quant_config.json",
        "quantize_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "tokenizer.model",
        "vocab.txt",
        "video_preprocessor_config.json",
        "vocab.json",
    ];
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+');
    let is_plain =
        file.len() <= FILE_BYTES_MAX && !file.starts_with('.') && file.bytes().all(legal);
    is_plain
        && (NAMES.contains(&file)
            || is_weights(file)
            || is_code(file)
            || file.ends_with(".safetensors.index.json")
            || (file.starts_with("tokenizer") && file.ends_with(".json"))
            || file.starts_with("chat_template"))
}

/// Whether files of this name are code, which is carried along and never run.
pub(super) fn is_code(file: &str) -> bool {
    file.ends_with(".py")
}

/// Whether files of this name hold weights, which are far larger than all else.
pub(super) fn is_weights(file: &str) -> bool {
    is_safetensors(file) || is_gguf(file)
}

fn is_safetensors(file: &str) -> bool {
    file.ends_with(".safetensors")
}

/// Configuration, tokenizer and weights in one file.
pub(super) fn is_gguf(file: &str) -> bool {
    file.ends_with(".gguf")
}

fn is_pickle(file: &str) -> bool {
    [".bin", ".pt", ".pth", ".ckpt", ".pkl"].iter().any(|end| file.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for file in ["config.json", "model-00001-of-00002.safetensors", "tokenizer_config.json"] {
            assert!(is_wanted(file), "{file}");
        }
        for file in ["model.safetensors.index.json", "chat_template.jinja", "merges.txt"] {
            assert!(is_wanted(file), "{file}");
        }
        for file in ["modeling_internvl_chat.py", "conversation.py", "tokenizer.model"] {
            assert!(is_wanted(file), "{file}");
        }
        for file in ["README.md", "pytorch_model.bin", "onnx/model.safetensors", "eval/run.py"] {
            assert!(!is_wanted(file), "{file}");
        }
    }

    #[test]
    fn one_model_of_several_forms() {
        let check = |names: &[&str], chosen: &[&str]| {
            assert_eq!(select(names, None).as_deref(), Ok(chosen), "{names:?}");
        };
        let plain = ["config.json", "model.safetensors"];
        check(&["README.md", "config.json", "model.safetensors", "a.bin", "onnx/m.onnx"], &plain);
        check(&["config.json", "m.Q4_0.gguf", "m.Q8_0.gguf", "model.safetensors"], &plain);
        check(&["config.json", "consolidated.safetensors", "model.safetensors"], &plain);
        let alone = ["config.json", "consolidated.safetensors"];
        check(&alone, &alone);
        check(&["README.md", "m.Q8_0.gguf", "tokenizer.json"], &["m.Q8_0.gguf", "tokenizer.json"]);
        let split = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
        check(&split, &split);
    }

    #[test]
    fn one_file_of_several_with_its_parts() {
        let names = [
            "README.md",
            "config.json",
            "m-Q8_0.gguf",
            "big/m-00001-of-00002.gguf",
            "big/m-00002-of-00002.gguf",
            "model.safetensors",
            "model.safetensors.index.json",
            "tokenizer.json",
        ];
        let of = |file: &str| select(&names, Some(&file.parse().unwrap()));
        let one = ["config.json", "m-Q8_0.gguf", "tokenizer.json"];
        assert_eq!(of("m-Q8_0.gguf").as_deref(), Ok(&one[..]));
        let two = ["config.json", names[3], names[4], "tokenizer.json"];
        assert_eq!(of("big/m-00001-of-00002.gguf").as_deref(), Ok(&two[..]));
        assert_eq!(of("n.gguf"), Err(Unfit::NoFile("n.gguf".to_owned())));
        let lacking = "m-00001-of-00001.gguf".to_owned();
        assert_eq!(of(&lacking), Err(Unfit::NoFile(lacking)));
    }

    #[test]
    fn what_is_no_model_is_named() {
        let check =
            |names: &[&str], unfit: Unfit| assert_eq!(select(names, None), Err(unfit), "{names:?}");
        check(&[], Unfit::NoWeights);
        check(&["config.json"], Unfit::NoWeights);
        check(&["model.safetensors", "a.bin"], Unfit::NoWeights);
        check(
            &["config.json", "pytorch_model.bin"],
            Unfit::Pickled("pytorch_model.bin".to_owned()),
        );
        let both = ["a.gguf", "b.gguf"];
        check(&both, Unfit::ManyModels(both.map(str::to_owned).into()));
        let shards: Vec<String> = (0..=FILES_MAX).map(|n| format!("{n}.safetensors")).collect();
        check(&shards.iter().map(String::as_str).collect::<Vec<_>>(), Unfit::TooMany);
    }
}
