//! Makes the text of a `config.json` from the metadata of a GGUF file.
//!
//! The families read that text as they read any other, so what they check is checked here too.
//! Source of the keys: `docs/gguf.md` of ggml, "LLM".  Knows nothing of tensors but the
//! embedding's shape, which gives the vocabulary.

use serde_json::{Value, json};

use super::header::{Entry, GgufLie, Header};

/// The tensor of rotary factors, which stands for Llama 3's scaling.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// llama.cpp's architectures that are read, and their classes in transformers.
const ARCHITECTURES: [(&str, &str); 3] =
    [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM"), ("llama", "LlamaForCausalLM")];

/// The rotary base where the metadata has none: `docs/gguf.md` names no default, llama.cpp has it.
const ROPE_BASE_DEFAULT: f64 = 10000.0;

/// The configuration that `header` stands for.
///
/// # Errors
/// [`GgufLie::BadEntry`] naming the entry that is missing, wrong or not supported.
pub(crate) fn of(header: &Header) -> Result<String, GgufLie> {
    let Some(arch) = header.text("general.architecture") else {
        let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
        return Err(bad(header, "general.architecture", &known));
    };
    let Some((_, class)) = ARCHITECTURES.iter().find(|(name, _)| *name == arch) else {
        let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
        return Err(bad(header, "general.architecture", &known));
    };
    let keys = Keys { header, arch };
    keys.check_rope()?;
    let heads = keys.integer("attention.head_count")?;
    let hidden = keys.integer("embedding_length")?;
    let config = json!({
        "architectures": [class],
        "model_type": arch,
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.optional("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": keys.optional("attention.key_length")?.unwrap_or(hidden / heads.max(1)),
        "intermediate_size": keys.integer("feed_forward_length")?,
        "vocab_size": keys.vocab()?,
        "rms_norm_eps": keys.float("attention.layer_norm_rms_epsilon")?,
        "rope_theta": keys.float("rope.freq_base").unwrap_or(ROPE_BASE_DEFAULT),
        "max_position_embeddings": keys.integer("context_length")?,
        "hidden_act": "silu",
        "attention_bias": false,
        "tie_word_embeddings": !header.kinds.contains_key("output.weight"),
    });
    Ok(format!("{config:#}\n"))
}

/// The entries of one architecture.
struct Keys<'a> {
    header: &'a Header,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, rest: &str) -> String {
        format!("{}.{rest}", self.arch)
    }

    fn optional(&self, rest: &str) -> Result<Option<u64>, GgufLie> {
        let key = self.key(rest);
        match self.header.entries.get(&key) {
            None => Ok(None),
            Some(Entry::Integer(found)) if u32::try_from(*found).is_ok() => Ok(Some(*found as u64)),
            Some(_) => Err(bad(self.header, &key, "a 32-bit number, the same for every layer")),
        }
    }

    fn integer(&self, rest: &str) -> Result<u64, GgufLie> {
        let found = self.optional(rest)?;
        found.ok_or_else(|| bad(self.header, &self.key(rest), "a number"))
    }

    fn float(&self, rest: &str) -> Result<f64, GgufLie> {
        let key = self.key(rest);
        match self.header.entries.get(&key) {
            Some(Entry::Float(found)) => Ok(*found),
            _ => Err(bad(self.header, &key, "a float")),
        }
    }

    /// Rows of the embedding: the metadata's own count of tokens may be smaller.
    fn vocab(&self) -> Result<usize, GgufLie> {
        let embedding = self.header.tensors.iter().find(|t| t.name == "token_embd.weight");
        let rows = embedding.and_then(|tensor| tensor.shape.first().copied());
        rows.ok_or_else(|| bad(self.header, "token_embd.weight", "a tensor of the file"))
    }

    /// Refuses rotary scaling, which the metadata describes in ways that are not read.
    fn check_rope(&self) -> Result<(), GgufLie> {
        let key = self.key("rope.scaling.type");
        if !matches!(self.header.text(&key), None | Some("none")) {
            return Err(bad(self.header, &key, "\"none\""));
        }
        if self.header.kinds.contains_key(ROPE_FACTORS) {
            return Err(GgufLie::BadEntry {
                key: ROPE_FACTORS.to_owned(),
                found: "a tensor".to_owned(),
                expected: "absent: rotary factors (Llama 3.1 and later) are not read from GGUF; \
                    use the checkpoint they were made of"
                    .to_owned(),
            });
        }
        Ok(())
    }
}

fn bad(header: &Header, key: &str, expected: &str) -> GgufLie {
    let found = match header.entries.get(key) {
        None => "missing".to_owned(),
        Some(Entry::Text(text)) => Value::from(text.as_str()).to_string(),
        Some(Entry::Integer(number)) => number.to_string(),
        Some(Entry::Float(number)) => number.to_string(),
        Some(Entry::Bool(value)) => value.to_string(),
        Some(Entry::Array(length)) => format!("an array of {length}"),
    };
    GgufLie::BadEntry { key: key.to_owned(), found, expected: expected.to_owned() }
}
