//! Describes rotary positions: the frequencies of a head, their scaling, who turns which.
//!
//! A configuration's `rope_theta`, `rope_scaling` and `rope_parameters` come in; a checked [`Rope`]
//! comes out, which gives the frequencies.  Knows nothing of sines, heads or tensors.

use serde::Deserialize;
use serde_json::Value;
use smelt_tensor::decoder::Sections;

use crate::config::{ConfigProblem, Scope};

/// Rotary positions, of the rotate-half form.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// How the frequencies were stretched for longer texts, if they were.
    pub scaling: Option<Scaling>,
    /// Which of the three positions of a token (time, height, width) turns which frequency; nothing
    /// where a token has one position.
    pub sections: Option<Sections>,
}

/// The sections that a scaling object names, of heads with `half` frequencies; nothing if it
/// names none.
fn read_sections(
    scaling: Option<&Value>,
    half: usize,
    scope: Scope,
) -> Result<Option<Sections>, ConfigProblem> {
    let Some(list) = scaling.and_then(|scaling| scaling.get("mrope_section")) else {
        return Ok(None);
    };
    let size = |value: &Value| value.as_u64().and_then(|size| usize::try_from(size).ok());
    let sizes: Option<Vec<usize>> = list.as_array().and_then(|l| l.iter().map(size).collect());
    let sizes = sizes.and_then(|sizes| <[usize; 3]>::try_from(sizes).ok());
    let fits = |sizes: &[usize; 3]| {
        sizes.iter().try_fold(0, |sum: usize, size| sum.checked_add(*size)) == Some(half)
    };
    let Some(sizes) = sizes.filter(fits) else {
        let rule = "it must be three numbers whose sum is half of head_dim";
        return scope.bad("mrope_section", list, rule);
    };
    let turns = scaling.and_then(|scaling| scaling.get("mrope_interleaved"));
    let is_interleaved = turns.and_then(Value::as_bool).unwrap_or(false);
    Ok(Some(Sections { sizes, is_interleaved }))
}

/// How frequencies were stretched, by the word of `rope_type`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scaling {
    /// `linear`: every frequency is divided by this factor.
    Linear(f64),
    /// `llama3`.
    Llama3(Llama3),
    /// `yarn`.
    Yarn(Yarn),
}

/// YaRN (Peng et al., 2023): slow frequencies are divided, fast ones stay, those between are blended by
/// their place; attention is sharpened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Yarn {
    /// What slow frequencies are divided by.
    pub factor: f64,
    /// Positions the model was first trained for.
    pub original_max_position_embeddings: f64,
    /// Turns in the original positions above which a frequency is fast.
    pub beta_fast: f64,
    /// Turns in the original positions below which a frequency is slow.
    pub beta_slow: f64,
    /// What cosines and sines are multiplied by, so that scores grow by its square.
    pub attention_factor: f64,
    /// Whether the borders of the blend are moved apart to whole pairs.
    pub truncate: bool,
}

impl Yarn {
    /// Frequency `pair` of a head, which is `frequency` before: `_compute_yarn_parameters` of
    /// transformers' `modeling_rope_utils.py`.
    fn scaled(&self, frequency: f64, pair: usize, head_dim: usize, theta: f64) -> f64 {
        let [low, high] = self.borders(head_dim as f64, theta);
        let high = if low == high { high + 0.001 } else { high };
        let slow = ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        frequency / self.factor * slow + frequency * (1.0 - slow)
    }

    /// The pairs between which frequencies are blended.
    fn borders(&self, head_dim: f64, theta: f64) -> [f64; 2] {
        let turns =
            |beta: f64| self.original_max_position_embeddings / (beta * std::f64::consts::TAU);
        let pair = |beta| head_dim * turns(beta).ln() / (2.0 * theta.ln());
        let (low, high) = (pair(self.beta_fast), pair(self.beta_slow));
        let (low, high) = if self.truncate { (low.floor(), high.ceil()) } else { (low, high) };
        [low.max(0.0), high.min(head_dim - 1.0)]
    }

    /// Reads the scaling object of `field`; `positions` are the model's.
    fn read(
        field: &str,
        value: &Value,
        positions: usize,
        scope: Scope,
    ) -> Result<Self, ConfigProblem> {
        let unreadable = |e| ConfigProblem::Unreadable(format!("{field} of type yarn: {e}"));
        let fields = YarnFields::deserialize(value).map_err(unreadable)?;
        // As in transformers a null is the ratio of positions, and a factor that is not there a mistake.
        if value.get("factor").is_none() {
            let missing = format!("{field} of type yarn: missing field `factor`");
            return Err(ConfigProblem::Unreadable(missing));
        }
        let original = fields.original_max_position_embeddings.unwrap_or(positions as f64);
        let factor = fields.factor.unwrap_or(positions as f64 / original);
        // Zero means the default, as it does to Python's `or`.
        let given = |value: Option<f64>, default| value.filter(|v| *v != 0.0).unwrap_or(default);
        let yarn = Self {
            factor,
            original_max_position_embeddings: original,
            beta_fast: given(fields.beta_fast, 32.0),
            beta_slow: given(fields.beta_slow, 1.0),
            attention_factor: fields.attention_factor.unwrap_or_else(|| fields.sharpness(factor)),
            truncate: fields.truncate.unwrap_or(true),
        };
        yarn.check(scope)?;
        Ok(yarn)
    }

    fn check(&self, scope: Scope) -> Result<(), ConfigProblem> {
        let all = [
            self.factor,
            self.original_max_position_embeddings,
            self.beta_fast,
            self.beta_slow,
            self.attention_factor,
        ];
        if !all.into_iter().all(is_positive) {
            let rule = "factor, original_max_position_embeddings, beta_fast, beta_slow and \
                        attention_factor must be positive";
            return scope.bad("rope_scaling", format!("{all:?}"), rule);
        }
        if self.beta_fast < self.beta_slow {
            let rule = "it must not be less than beta_slow";
            return scope.bad("rope_scaling.beta_fast", self.beta_fast, rule);
        }
        Ok(())
    }
}

/// The fields of a `yarn` object.
#[derive(Deserialize)]
struct YarnFields {
    factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    attention_factor: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
}

impl YarnFields {
    /// The attention factor where none is given.
    fn sharpness(&self, factor: f64) -> f64 {
        let by = |scale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 };
        let given = |scale: Option<f64>| scale.filter(|scale| *scale != 0.0);
        match (given(self.mscale), given(self.mscale_all_dim)) {
            (Some(one), Some(all)) => by(one) / by(all),
            _ => by(1.0),
        }
    }
}

fn is_positive(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// The scaling of Llama 3.1 and later (`rope_type` `llama3`): slow frequencies are divided, fast
/// ones stay, those between are blended.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
pub struct Llama3 {
    /// What slow frequencies are divided by.
    pub factor: f64,
    /// Turns in the original positions below which a frequency is slow.
    pub low_freq_factor: f64,
    /// Turns in the original positions above which a frequency is fast.
    pub high_freq_factor: f64,
    /// Positions the model was first trained for.
    pub original_max_position_embeddings: f64,
}

impl Llama3 {
    /// `_compute_llama3_parameters` of transformers' `modeling_rope_utils.py`.
    fn scaled(&self, frequency: f64) -> f64 {
        let turns = self.original_max_position_embeddings * frequency / std::f64::consts::TAU;
        if turns > self.high_freq_factor {
            return frequency;
        }
        if turns < self.low_freq_factor {
            return frequency / self.factor;
        }
        let span = self.high_freq_factor - self.low_freq_factor;
        let fast = (turns - self.low_freq_factor) / span;
        (1.0 - fast) * frequency / self.factor + fast * frequency
    }

    fn check(&self, scope: Scope) -> Result<(), ConfigProblem> {
        let all = [self.factor, self.low_freq_factor, self.original_max_position_embeddings];
        if !all.into_iter().all(is_positive) {
            let rule =
                "factor, low_freq_factor and original_max_position_embeddings must be positive";
            return scope.bad("rope_scaling", format!("{all:?}"), rule);
        }
        let high = self.high_freq_factor;
        if !(is_positive(high) && high > self.low_freq_factor) {
            let rule = "it must be more than low_freq_factor";
            return scope.bad("rope_scaling.high_freq_factor", high, rule);
        }
        Ok(())
    }
}

impl Rope {
    /// The angle per position of each pair of a head, `theta^(-2i / head_dim)` scaled, in f32 as
    /// models were trained: `[head_dim / 2]`.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        let plain = |pair: usize| self.theta.powf(-2.0 * pair as f64 / head_dim as f64);
        let scaled = |pair| match self.scaling {
            None => plain(pair),
            Some(Scaling::Linear(factor)) => plain(pair) / factor,
            Some(Scaling::Llama3(by)) => by.scaled(plain(pair)),
            Some(Scaling::Yarn(by)) => by.scaled(plain(pair), pair, head_dim, self.theta),
        };
        (0..head_dim / 2).map(|pair| scaled(pair) as f32).collect()
    }

    /// What cosines and sines are multiplied by.
    pub fn attention_factor(&self) -> f32 {
        match self.scaling {
            Some(Scaling::Yarn(yarn)) => yarn.attention_factor as f32,
            Some(Scaling::Linear(_) | Scaling::Llama3(_)) | None => 1.0,
        }
    }

    /// The positions that the frequencies serve, of a model whose configuration says `positions`:
    /// published configurations with YaRN often leave there what the model was first trained for.
    pub(super) fn positions(&self, positions: usize) -> usize {
        match self.scaling {
            Some(Scaling::Yarn(Yarn { factor, original_max_position_embeddings, .. })) => {
                positions.max((original_max_position_embeddings * factor) as usize)
            }
            Some(Scaling::Linear(_) | Scaling::Llama3(_)) | None => positions,
        }
    }
}

/// The fields of a configuration that say how positions turn.
pub(super) struct RopeFields<'a> {
    pub(super) theta: Option<f64>,
    pub(super) theta_default: Option<f64>,
    /// `rope_scaling`.
    pub(super) scaling: Option<&'a Value>,
    /// `rope_parameters`, what transformers 5 writes in the place of both others.
    pub(super) parameters: Option<&'a Value>,
    /// `max_position_embeddings`.
    pub(super) positions: usize,
}

impl RopeFields<'_> {
    pub(super) fn rope(&self, head_dim: usize, scope: Scope) -> Result<Rope, ConfigProblem> {
        let older = self.stretch("rope_scaling", self.scaling, scope)?;
        let newer = self.stretch("rope_parameters", self.parameters, scope)?;
        let theta = self.theta(scope)?;
        let older_sections = read_sections(self.scaling, head_dim / 2, scope)?;
        let newer_sections = read_sections(self.parameters, head_dim / 2, scope)?;
        let sections = older_sections.or(newer_sections);
        Ok(Rope { theta, scaling: older.or(newer), sections })
    }

    fn theta(&self, scope: Scope) -> Result<f64, ConfigProblem> {
        // As in transformers, the objects' own comes before the configuration's.
        let own = |rope: Option<&Value>| rope?.get("rope_theta")?.as_f64();
        let own = own(self.parameters).or_else(|| own(self.scaling));
        let missing = || ConfigProblem::Unreadable("missing field `rope_theta`".to_owned());
        let theta = own.or(self.theta).or(self.theta_default).ok_or_else(missing)?;
        if !(theta.is_finite() && theta > 0.0) {
            return scope.bad("rope_theta", theta, "it must be positive");
        }
        Ok(theta)
    }
}

impl RopeFields<'_> {
    /// The scaling that the object in `field` describes.
    ///
    /// Dynamic scaling leaves a text of up to `max_position_embeddings` tokens as it is, so it needs no
    /// arithmetic of its own: of a longer one it would turn earlier tokens anew, and such are refused.
    fn stretch(
        &self,
        field: &'static str,
        value: Option<&Value>,
        scope: Scope,
    ) -> Result<Option<Scaling>, ConfigProblem> {
        const SUPPORTED: &str =
            "null, \"mrope\", \"default\", \"dynamic\", \"linear\", \"llama3\" or \"yarn\"";
        let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
        let part = value.get("partial_rotary_factor").and_then(Value::as_f64).unwrap_or(1.0);
        scope.only("partial_rotary_factor", part, "1", part == 1.0)?;
        let kind = value.get("rope_type").or_else(|| value.get("type"));
        let is_newer = field == "rope_parameters";
        match kind.and_then(Value::as_str) {
            Some("default" | "dynamic" | "mrope") => Ok(None),
            None if kind.is_none() && is_newer => Ok(None),
            Some("linear") => Ok(Some(Scaling::Linear(linear(field, value, scope)?))),
            Some("yarn") => {
                Ok(Some(Scaling::Yarn(Yarn::read(field, value, self.positions, scope)?)))
            }
            Some("llama3") => {
                let unreadable =
                    |e| ConfigProblem::Unreadable(format!("{field} of type llama3: {e}"));
                let scaling = Llama3::deserialize(value).map_err(unreadable)?;
                scaling.check(scope)?;
                Ok(Some(Scaling::Llama3(scaling)))
            }
            _ => {
                scope.only(field, value, SUPPORTED, false)?;
                Ok(None)
            }
        }
    }
}

/// The factor of a `linear` object.
fn linear(field: &str, value: &Value, scope: Scope) -> Result<f64, ConfigProblem> {
    let missing =
        || ConfigProblem::Unreadable(format!("{field} of type linear: missing field `factor`"));
    let factor = value.get("factor").and_then(Value::as_f64).ok_or_else(missing)?;
    if !is_positive(factor) {
        return scope.bad("rope_scaling.factor", factor, "it must be positive");
    }
    Ok(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALING: Llama3 = Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 64.0,
    };

    #[test]
    fn plain_frequencies_fall_from_one() {
        let rope = Rope { theta: 1e4, scaling: None, sections: None };
        assert_eq!(rope.frequencies(8), [1.0, 0.1, 0.01, 0.001]);
    }

    /// Values of transformers' `ROPE_INIT_FUNCTIONS["llama3"]` for the same numbers.
    #[test]
    fn llama3_keeps_fast_frequencies_and_divides_slow_ones() {
        let rope = Rope { theta: 5e5, scaling: Some(Scaling::Llama3(SCALING)), sections: None };
        let expect = [1.0, 0.079_403_01, 0.004_700_754, 0.000_911_583_1];
        for (found, expect) in rope.frequencies(16).into_iter().zip(expect) {
            assert!((found - expect).abs() < 1e-6 * expect, "{found} {expect}");
        }
    }

    #[test]
    fn sections_that_do_not_fill_a_head_are_refused() {
        let read = |json: &str| {
            let scaling: Value = serde_json::from_str(json).unwrap();
            read_sections(Some(&scaling), 8, Scope("text_config"))
        };
        assert_eq!(read("{}").unwrap(), None);
        let plain = Sections { sizes: [2, 3, 3], is_interleaved: false };
        assert_eq!(read(r#"{"mrope_section": [2, 3, 3]}"#).unwrap(), Some(plain));
        for bad in ["[2, 3, 4]", "[8]", "[2, 3, -3]", "8", "[18446744073709551615, 2, 7]"] {
            let error = read(&format!(r#"{{"mrope_section": {bad}}}"#)).unwrap_err().to_string();
            assert!(error.contains("text_config.mrope_section is"), "{error}");
        }
    }
}
