//! The flags that say how an answer's tokens are chosen and where it ends.

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct SamplingFlags {
    /// Draw tokens, less likely ones too the higher this is, up to 2 (default: 0, the likeliest)
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Draw from the K likeliest tokens; 0 for all
    #[arg(long, value_name = "K", requires = "temperature")]
    pub(crate) top_k: Option<usize>,
    /// Draw from the fewest tokens that together have this probability; 1 for all
    #[arg(long, value_name = "P", requires = "temperature", allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Draw from tokens at least this part as likely as the likeliest; 0 for all
    #[arg(long, value_name = "P", requires = "temperature", allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Equal seeds draw equal answers (default: another one each time, told at the end)
    #[arg(long, value_name = "N", requires = "temperature")]
    pub(crate) seed: Option<u64>,
    /// Make tokens of prompt and answer less likely, by a factor on their logits; 1 for none
    #[arg(long, value_name = "F", default_value_t = 1.0, allow_negative_numbers = true)]
    pub(crate) repetition_penalty: f32,
    /// Make tokens of the answer less likely, once; -2 to 2
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) presence_penalty: f32,
    /// Make tokens of the answer less likely, each time; -2 to 2
    #[arg(long, value_name = "F", default_value_t = 0.0, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: f32,
    /// Add to the logit of a token, -100 to 100 (may be given several times)
    #[arg(long, value_name = "TOKEN=BIAS", value_parser = bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// End the answer before this text (may be given several times)
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
}

/// A token and what is added to its logit.
fn bias(text: &str) -> Result<(u32, f32), String> {
    let parts = text.split_once('=').and_then(|(token, bias)| {
        let token = token.parse().ok()?;
        Some((token, bias.parse().ok()?))
    });
    parts.ok_or_else(|| "a bias is a token's number, \"=\" and a number, as in 42=-5".to_owned())
}
