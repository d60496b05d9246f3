//! Makes the text of a `config.json` from the metadata of a GGUF file.
//!
//! The families read that text as they read any other, so what they check is checked here too.
//! Source of the keys: `docs/gguf.md` of ggml, "LLM".  Knows nothing of tensors but the
//! embedding's shape, which gives the vocabulary.

use serde_json::{Value, json};

use super::header::{Entry, GgufLie, Header};
use crate::decoder::{Llama3, Rope, Scaling};

/// The tensor of rotary factors, which stands for Llama 3's scaling.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";

/// llama.cpp's architectures that are read, and their classes in transformers.
const ARCHITECTURES: [(&str, &str); 3] =
    [("qwen2", "Qwen2ForCausalLM"), ("qwen3", "Qwen3ForCausalLM"), ("llama", "LlamaForCausalLM")];

/// What says how the frequencies were stretched.
const SCALING_TYPE: &str = "rope.scaling.type";

/// The rotary base where the metadata has none: `docs/gguf.md` names no default, llama.cpp has it.
const ROPE_BASE_DEFAULT: f64 = 10000.0;

/// The configuration that `header` stands for, with what [`ROPE_FACTORS`] holds, if it is there.
///
/// # Errors
/// [`GgufLie::BadEntry`] naming the entry that is missing, wrong or not supported.
pub(crate) fn of(header: &Header, factors: Option<&[f32]>) -> Result<String, GgufLie> {
    let Some(arch) = header.text("general.architecture") else {
        let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
        return Err(bad(header, "general.architecture", &known));
    };
    let Some((_, class)) = ARCHITECTURES.iter().find(|(name, _)| *name == arch) else {
        let known = ARCHITECTURES.map(|(name, _)| name).join(", ");
        return Err(bad(header, "general.architecture", &known));
    };
    let keys = Keys { header, arch };
    let heads = keys.integer("attention.head_count")?;
    let hidden = keys.integer("embedding_length")?;
    let head_dim = keys.optional("attention.key_length")?.unwrap_or(hidden / heads.max(1));
    let theta = keys.float("rope.freq_base").unwrap_or(ROPE_BASE_DEFAULT);
    // Factors that could not be read are refused as those that fit nothing are.
    let unread = header.kinds.contains_key(ROPE_FACTORS).then_some(&[][..]);
    let llama3 = factors.or(unread).map(|factors| llama3(factors, theta, head_dim)).transpose()?;
    let scaling = keys.scaling()?;
    if let (Some(_), Some(_)) = (&llama3, &scaling) {
        return Err(bad(header, &keys.key(SCALING_TYPE), "\"none\" beside rope_freqs.weight"));
    }
    let config = json!({
        "architectures": [class],
        "model_type": arch,
        "hidden_size": hidden,
        "num_hidden_layers": keys.integer("block_count")?,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.optional("attention.head_count_kv")?.unwrap_or(heads),
        "head_dim": head_dim,
        "intermediate_size": keys.integer("feed_forward_length")?,
        "vocab_size": keys.vocab()?,
        "rms_norm_eps": keys.float("attention.layer_norm_rms_epsilon")?,
        "rope_theta": theta,
        "rope_scaling": llama3.or(scaling),
        "max_position_embeddings": keys.integer("context_length")?,
        "hidden_act": "silu",
        // Families that have a bias on q, k and v alone have none here.
        "attention_bias": header.kinds.contains_key("blk.0.attn_output.bias"),
        "tie_word_embeddings": !header.kinds.contains_key("output.weight"),
    });
    Ok(format!("{config:#}\n"))
}

/// What every published Llama 3.1, 3.2 and 3.3 has besides the factor; GGUF keeps the result alone.
const LLAMA3: Llama3 = Llama3 {
    factor: 1.0,
    low_freq_factor: 1.0,
    high_freq_factor: 4.0,
    original_max_position_embeddings: 8192.0,
};

/// The largest part by which stored factors, f32, may differ from computed ones.
const FACTOR_ERROR_MAX: f64 = 1e-4;

/// Llama 3's scaling whose factors `found` are: what plain frequencies are divided by, of which the
/// largest is the scaling's own.
fn llama3(found: &[f32], theta: f64, head_dim: u64) -> Result<Value, GgufLie> {
    let factor = found.iter().copied().fold(1.0, f32::max).into();
    let scaling = Llama3 { factor, ..LLAMA3 };
    let head_dim = usize::try_from(head_dim).unwrap_or_default();
    let rope = |scaling| Rope { theta, scaling, sections: None }.frequencies(head_dim);
    let (plain, scaled) = (rope(None), rope(Some(Scaling::Llama3(scaling))));
    let expect = plain.iter().zip(&scaled).map(|(p, s)| f64::from(*p) / f64::from(*s));
    let fits = |(expect, found): (f64, &f32)| {
        (expect - f64::from(*found)).abs() <= FACTOR_ERROR_MAX * expect
    };
    if found.len() == plain.len() && expect.zip(found).all(fits) {
        return Ok(json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": LLAMA3.low_freq_factor,
            "high_freq_factor": LLAMA3.high_freq_factor,
            "original_max_position_embeddings": LLAMA3.original_max_position_embeddings,
        }));
    }
    Err(GgufLie::BadEntry {
        key: ROPE_FACTORS.to_owned(),
        found: "a tensor of other factors".to_owned(),
        expected: "the factors of Llama 3; use the checkpoint it was made of".to_owned(),
    })
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

    /// A float that may be left out, and that is positive where it is there.
    fn positive(&self, rest: &str) -> Result<Option<f64>, GgufLie> {
        let key = self.key(rest);
        match self.header.entries.get(&key) {
            None => Ok(None),
            Some(Entry::Float(found)) if found.is_finite() && *found > 0.0 => Ok(Some(*found)),
            Some(_) => Err(bad(self.header, &key, "a positive float")),
        }
    }

    /// The rotary scaling of the metadata as transformers writes it.
    ///
    /// llama.cpp multiplies cosines and sines by what the paper gives for the factor and by
    /// `attn_factor`; transformers names the product.
    fn scaling(&self) -> Result<Option<Value>, GgufLie> {
        let key = self.key(SCALING_TYPE);
        let factor = || {
            let key = "rope.scaling.factor";
            self.positive(key)?.ok_or_else(|| bad(self.header, &self.key(key), "a float"))
        };
        match self.header.text(&key) {
            None | Some("none") => {
                let older = self.positive("rope.scale_linear")?.filter(|factor| *factor != 1.0);
                Ok(older.map(|factor| json!({ "rope_type": "linear", "factor": factor })))
            }
            Some("linear") => Ok(Some(json!({ "rope_type": "linear", "factor": factor()? }))),
            Some("yarn") => self.yarn(factor()?).map(Some),
            Some(_) => Err(bad(self.header, &key, "\"none\", \"linear\" or \"yarn\"")),
        }
    }

    fn yarn(&self, factor: f64) -> Result<Value, GgufLie> {
        for (rest, usual) in [("yarn_log_multiplier", 0.0), ("yarn_ext_factor", 1.0)] {
            let key = self.key(&format!("rope.scaling.{rest}"));
            match self.header.entries.get(&key) {
                None => {}
                Some(Entry::Float(found)) if *found == usual => {}
                Some(_) => return Err(bad(self.header, &key, &format!("{usual}"))),
            }
        }
        let paper = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        let own = match self.positive("rope.scaling.attn_factor")? {
            None => self.positive("rope.scaling.yarn_attn_factor")?,
            own => own,
        };
        let original = self.optional("rope.scaling.original_context_length")?;
        Ok(json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings":
                original.map_or_else(|| self.integer("context_length"), Ok)?,
            "beta_fast": self.positive("rope.scaling.yarn_beta_fast")?,
            "beta_slow": self.positive("rope.scaling.yarn_beta_slow")?,
            "attention_factor": paper * own.unwrap_or(1.0),
        }))
    }
}

pub(super) fn bad(header: &Header, key: &str, expected: &str) -> GgufLie {
    let found = match header.entries.get(key) {
        None => "missing".to_owned(),
        Some(Entry::Text(text)) => Value::from(text.as_str()).to_string(),
        Some(Entry::Integer(number)) => number.to_string(),
        Some(Entry::Float(number)) => number.to_string(),
        Some(Entry::Bool(value)) => value.to_string(),
        Some(Entry::Array(length)) => format!("an array of {length}"),
        Some(Entry::Texts(texts)) => format!("an array of {}", texts.len()),
        Some(Entry::Numbers(numbers)) => format!("an array of {}", numbers.len()),
    };
    GgufLie::BadEntry { key: key.to_owned(), found, expected: expected.to_owned() }
}
