//! Shares the rotary frequencies of a head among time, height and width (M-RoPE).
//!
//! A scaling object of a configuration comes in; checked sections come out.  Knows nothing of
//! tensors or of how a prompt's positions are counted.

use serde_json::Value;

use crate::config::{ConfigProblem, Scope};

/// The share of time, height and width in the frequencies of a head (M-RoPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sections {
    /// Frequencies of time, height and width; together half of `head_dim`.
    pub sizes: [usize; 3],
    /// Whether the three take turns instead of lying one after another: frequency `3k + 1` is
    /// height and `3k + 2` width below three times their size, all others time.
    pub is_interleaved: bool,
}

impl Sections {
    /// Which position turns `frequency`: 0 time, 1 height, 2 width (`recomposition_frequencies` of
    /// transformers' Qwen2.5-VL and Qwen3-VL).
    pub fn axis(&self, frequency: usize) -> usize {
        let [time, height, _] = self.sizes;
        let turn = frequency % 3;
        match self.is_interleaved {
            true if turn > 0 && frequency < 3 * self.sizes[turn] => turn,
            true => 0,
            false if frequency < time => 0,
            false if frequency < time + height => 1,
            false => 2,
        }
    }

    /// The sections a scaling object names, of heads with `half` frequencies; nothing if none.
    pub(super) fn read(
        scaling: &Value,
        half: usize,
        scope: Scope,
    ) -> Result<Option<Self>, ConfigProblem> {
        let Some(list) = scaling.get("mrope_section") else { return Ok(None) };
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
        let is_interleaved = scaling.get("mrope_interleaved").and_then(Value::as_bool);
        Ok(Some(Self { sizes, is_interleaved: is_interleaved.unwrap_or(false) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(sizes: [usize; 3], is_interleaved: bool, expect: &str) {
        let sections = Sections { sizes, is_interleaved };
        let axes = (0..sizes.iter().sum()).map(|at| ["t", "h", "w"][sections.axis(at)]);
        assert_eq!(axes.collect::<String>(), expect);
    }

    #[test]
    fn every_frequency_has_its_axis() {
        check([2, 3, 3], false, "tthhhwww");
        check([6, 3, 3], true, "thwthwthwttt");
        check([4, 3, 1], true, "thwthtth");
    }

    #[test]
    fn sections_that_do_not_fill_a_head_are_refused() {
        let read = |json: &str| {
            Sections::read(&serde_json::from_str(json).unwrap(), 8, Scope("text_config"))
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
