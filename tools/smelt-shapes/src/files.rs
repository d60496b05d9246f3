//! Writes the files of a model without weights: configuration, tokenizer, chat template.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use smelt_shapes::{Sample, SampleLayout, Split};
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split as Cut, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

/// Rows of the embedding: the tokenizer's words, and a few that are never used.
const VOCAB: usize = 512;

/// Longest prompt with its answer.
const POSITIONS: usize = 1024;

/// Samples whose text the tokenizer's merges come from.
const CORPUS: u64 = 20_000;

/// How Qwen2 cuts text before BPE.
const SPLIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The tokens that are no text, the last ones of the vocabulary.
const SPECIAL: [&str; 6] =
    ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<img>", "</img>", "<IMG_CONTEXT>"];

/// ChatML of one question: the model was trained on single ones, and answers a second one wrong where it
/// reads the first.  So of earlier turns it sees the pictures alone.
const CHAT_TEMPLATE: &str = "{%- macro shown(content) -%}{%- if content is not string and content -%}{%- for part in content -%}{%- if part['type'] != 'text' -%}{{- '<IMG_CONTEXT>\\n' -}}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}\
    {%- macro said(content) -%}{%- if content is string -%}{{- content -}}{%- elif content -%}{%- for part in content -%}{%- if part['type'] == 'text' -%}{{- part['text'] -}}{%- else -%}{{- '<IMG_CONTEXT>\\n' -}}{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}\
    {%- set ns = namespace(last=-1) -%}\
    {%- for message in messages -%}{%- if message['role'] == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}\
    {%- for message in messages -%}{%- if message['role'] == 'system' or loop.index0 >= ns.last -%}{{- '<|im_start|>' + message['role'] + '\\n' -}}\
    {%- if loop.index0 == ns.last -%}{%- for earlier in messages[:ns.last] -%}{{- shown(earlier['content']) -}}{%- endfor -%}{%- endif -%}\
    {{- said(message['content']) + '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}\
    {%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}";

pub(crate) fn write(decoder: &str, out: &Path) -> Result<()> {
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    let tokenizer = tokenizer()?;
    let id = |token: &str| tokenizer.token_to_id(token).context("a special token is missing");
    let end = id("<|im_end|>")?;
    let pad = id("<|endoftext|>")?;
    let text = tokenizer.to_string(true).map_err(|error| anyhow!("{error}"))?;
    save(out, "tokenizer.json", &(text + "\n"))?;
    save_json(out, "tokenizer_config.json", &tokenizer_config())?;
    save_json(out, "generation_config.json", &json!({ "eos_token_id": [end, pad] }))?;
    save_json(out, "config.json", &config(decoder, pad))
}

fn save_json(dir: &Path, name: &str, value: &Value) -> Result<()> {
    save(dir, name, &(serde_json::to_string_pretty(value)? + "\n"))
}

fn save(dir: &Path, name: &str, text: &str) -> Result<()> {
    let path = dir.join(name);
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Byte-level BPE of what samples ask and answer.
fn tokenizer() -> Result<Tokenizer> {
    let broken = |error: tokenizers::Error| anyhow!("cannot make the tokenizer: {error}");
    let bytes = ByteLevel::new(false, true, false);
    let cut =
        Cut::new(SplitPattern::Regex(SPLIT.to_owned()), SplitDelimiterBehavior::Isolated, false);
    let mut tokenizer = Tokenizer::new(BPE::default());
    tokenizer.with_normalizer(Some(NFC));
    let parts = vec![cut.map_err(broken)?.into(), bytes.into()];
    tokenizer.with_pre_tokenizer(Some(Sequence::new(parts)));
    tokenizer.with_decoder(Some(bytes));
    let trainer = BpeTrainer::builder()
        .vocab_size(VOCAB - SPECIAL.len())
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .show_progress(false)
        .build();
    let mut trainer = TrainerWrapper::BpeTrainer(trainer);
    tokenizer.train(&mut trainer, corpus()).map_err(broken)?;
    let special = SPECIAL.map(|token| AddedToken::from(token, true).normalized(false));
    tokenizer.add_special_tokens(&special);
    Ok(tokenizer)
}

fn corpus() -> impl Iterator<Item = String> + Send {
    (0..CORPUS).flat_map(|index| {
        let shown =
            if index % 8 == 0 { SampleLayout::Several(3, 96) } else { SampleLayout::One(96, 96) };
        let ask = Sample::new(Split::Train, index, shown).questions.into_iter().take(6);
        ask.map(|question| format!("user\n{}\nassistant\n{}\n", question.text, question.answer))
    })
}

fn tokenizer_config() -> Value {
    json!({
        "add_bos_token": false,
        "chat_template": CHAT_TEMPLATE,
        "eos_token": "<|im_end|>",
        "model_max_length": POSITIONS,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "Qwen2Tokenizer",
    })
}

/// `config.json` in the layout of InternVL3 or, with the decoder of Qwen3, InternVL3.5.
fn config(decoder: &str, pad: u32) -> Value {
    let mut llm = json!({
        "architectures": [if decoder == "qwen3" { "Qwen3ForCausalLM" } else { "Qwen2ForCausalLM" }],
        "attention_dropout": 0.0,
        "bos_token_id": pad,
        "eos_token_id": pad,
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 640,
        "max_position_embeddings": POSITIONS,
        "model_type": decoder,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "use_sliding_window": false,
        "vocab_size": VOCAB,
    });
    if decoder == "qwen3" {
        llm["attention_bias"] = json!(false);
        llm["head_dim"] = json!(64);
    }
    json!({
        "architectures": ["InternVLChatModel"],
        "downsample_ratio": 0.5,
        "dynamic_image_size": true,
        "force_image_size": 96,
        "llm_config": llm,
        "max_dynamic_patch": 4,
        "min_dynamic_patch": 1,
        "model_type": "internvl_chat",
        "ps_version": "v2",
        "select_layer": -1,
        "template": "internvl2_5",
        "tie_word_embeddings": false,
        "torch_dtype": "bfloat16",
        "use_thumbnail": true,
        "vision_config": {
            "architectures": ["InternVisionModel"],
            "attention_dropout": 0.0,
            "hidden_act": "gelu",
            "hidden_size": 192,
            "image_size": 96,
            "intermediate_size": 768,
            "layer_norm_eps": 1e-6,
            "model_type": "intern_vit_6b",
            "norm_type": "layer_norm",
            "num_attention_heads": 6,
            "num_channels": 3,
            "num_hidden_layers": 5,
            "patch_size": 8,
            "qk_normalization": false,
            "qkv_bias": true,
            "torch_dtype": "bfloat16",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The models in the repository are spoken to as new ones are.
    #[test]
    fn the_models_here_have_these_files() {
        for name in ["shapes-vl", "shapes-vl-3_5"] {
            let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data").join(name);
            let text = fs::read_to_string(dir.join("tokenizer_config.json")).unwrap();
            assert_eq!(text, serde_json::to_string_pretty(&tokenizer_config()).unwrap() + "\n");
        }
    }
}
