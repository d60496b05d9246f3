//! Finds how fast an engine of the same shape was when it last answered on this device.

use serde::{Deserialize, Serialize};

/// Sizes of towers are known to some thousandths before they are built; other towers differ by more than this part.
const TOWER_PART: u64 = 50;

/// How fast engines were, by the bytes of their weights.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredAnswer {
    /// What the decoder's engine was built for; nothing where that is processors.
    #[serde(default)]
    pub target: Option<String>,
    /// Bytes of the decoder's weights.
    pub decoder_bytes: u64,
    /// Of the tower's, of a model that sees.
    pub tower_bytes: Option<u64>,
    /// Tokens of the answer in a second, where it was long enough to tell.
    pub tokens_per_s: Option<f64>,
    /// Tokens of the prompt in a second, where it was long enough to tell.
    pub prompt_tokens_per_s: Option<f64>,
    /// Image tokens that the tower made in a second, where it saw some.
    pub image_tokens_per_s: Option<f64>,
}

impl MeasuredAnswer {
    fn is_of(&self, decoder_bytes: u64) -> bool {
        self.decoder_bytes == decoder_bytes
    }

    /// Whether its tower is the one of about so many bytes.
    fn saw_by(&self, tower_bytes: u64) -> bool {
        let part = |found: u64| found.abs_diff(tower_bytes) <= tower_bytes / TOWER_PART;
        self.tower_bytes.is_some_and(part)
    }
}

/// What engines for a target did; for processors where there is none.
pub(crate) fn on<'a>(
    history: &'a [MeasuredAnswer],
    target: Option<&str>,
) -> Vec<&'a MeasuredAnswer> {
    history.iter().filter(|one| one.target.as_deref() == target).collect()
}

/// The newest rate of a decoder of so many bytes.
pub(crate) fn of_decoder(
    history: &[&MeasuredAnswer],
    decoder_bytes: u64,
    rate: impl Fn(&MeasuredAnswer) -> Option<f64>,
) -> Option<f64> {
    history.iter().rev().filter(|one| one.is_of(decoder_bytes)).find_map(|one| rate(one))
}

/// The newest rate of a tower of about so many bytes, whatever it saw for.
pub(crate) fn of_tower(history: &[&MeasuredAnswer], tower_bytes: u64) -> Option<f64> {
    let mut seen = history.iter().rev().filter(|one| one.saw_by(tower_bytes));
    seen.find_map(|one| one.image_tokens_per_s)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(decoder_bytes: u64, tower_bytes: Option<u64>, rate: f64) -> MeasuredAnswer {
        MeasuredAnswer {
            target: None,
            decoder_bytes,
            tower_bytes,
            tokens_per_s: Some(rate),
            prompt_tokens_per_s: None,
            image_tokens_per_s: tower_bytes.map(|_| rate),
        }
    }

    #[test]
    fn the_newest_of_the_same_shape_counts() {
        let history = [answer(100, None, 1.0), answer(100, None, 2.0), answer(101, None, 3.0)];
        let history = on(&history, None);
        let of = |bytes| of_decoder(&history, bytes, |one| one.tokens_per_s);
        assert_eq!((of(100), of(101), of(102)), (Some(2.0), Some(3.0), None));
        assert_eq!(of_decoder(&history, 100, |one| one.prompt_tokens_per_s), None);
    }

    #[test]
    fn a_tower_is_known_by_about_its_size() {
        let history =
            [answer(1, Some(10_000), 5.0), answer(2, Some(20_000), 7.0), answer(3, None, 9.0)];
        let history = on(&history, None);
        assert_eq!(of_tower(&history, 10_100), Some(5.0));
        assert_eq!(of_tower(&history, 19_800), Some(7.0));
        assert_eq!(of_tower(&history, 12_000), None);
    }

    #[test]
    fn what_ran_on_a_gpu_says_nothing_of_processors() {
        let on_gpu =
            MeasuredAnswer { target: Some("cuda-sm90".to_owned()), ..answer(1, Some(9), 5.0) };
        let history = [answer(1, Some(9), 1.0), on_gpu];
        let of = |target| of_tower(&on(&history, target), 9);
        assert_eq!((of(None), of(Some("cuda-sm90"))), (Some(1.0), Some(5.0)));
        assert_eq!(of(Some("cuda-sm87")), None);
    }
}
