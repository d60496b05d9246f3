//! Reads and writes TensorRT's calibration cache: the scale of each tensor of a network, by its name.
//!
//! The first line names the version and the calibrator, as `TRT-100300-EntropyCalibration2`; each line behind it is
//! `NAME: HEX`, the bits of an f32, which is the magnitude that a byte says at most, over 127 (NVIDIA's sampleINT8,
//! "Calibration file").  `trtexec` reads it by `--calib`, with an `IInt8EntropyCalibrator2`, whatever chose the numbers.
//! Without a file it makes ranges up, and says so nowhere (sampleEngines.cpp, setTensorDynamicRange).

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What a cache is kept in.
pub const CALIBRATION_FILE: &str = "calibration.cache";
/// The calibrator of `trtexec` (samples/common/sampleEngines.cpp, RndInt8Calibrator).
const CALIBRATOR: &str = "EntropyCalibration2";
/// The version that a cache is for where nothing says another: that of JetPack 6.2.
const VERSION: &str = "10.3.0";
/// The largest magnitude of a signed byte.
const CODE_MAX: f32 = 127.0;
/// What is always zero is told whole by any range; TensorRT refuses a scale of nothing.
const RANGE_OF_ZEROS: f32 = 1.0;

/// The scales of the tensors of a network.
#[derive(Clone, Debug, PartialEq)]
pub struct CalibrationCache {
    scales: BTreeMap<String, f32>,
}

/// A text that is no cache that `trtexec` would follow.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Its first line is none of a cache.
    #[error("it does not begin as a calibration cache does: TRT-100300-EntropyCalibration2")]
    Head,
    /// Another calibrator made it.
    #[error(
        "it is of {0}, and trtexec reads what is of EntropyCalibration2 and nothing else: calibrate by that"
    )]
    Calibrator(String),
    /// A line is none of a cache.
    #[error("line {0} is no name with a scale, as in images: 3c010a14")]
    Line(usize),
}

impl CalibrationCache {
    /// Of tensors by their names, with the magnitude of each that 8 bits should say.
    pub fn new(thresholds: &BTreeMap<String, f32>) -> Self {
        let scale = |(name, &threshold): (&String, &f32)| {
            // Of the smallest numbers a 127th may be none.
            let scale = (if threshold > 0.0 { threshold } else { RANGE_OF_ZEROS }) / CODE_MAX;
            (name.clone(), scale.max(f32::MIN_POSITIVE))
        };
        // A line ends a name, and nothing stands for one.
        let is_plain = |name: &str| !name.is_empty() && !name.contains(char::is_control);
        Self { scales: thresholds.iter().filter(|(name, _)| is_plain(name)).map(scale).collect() }
    }

    /// Reads a cache.
    ///
    /// # Errors
    /// When it is none, or another calibrator's.
    pub fn parse(text: &str) -> Result<Self, CacheError> {
        let mut lines = text.lines().enumerate();
        let head = lines.next().and_then(|(_, line)| line.trim().strip_prefix("TRT-"));
        let (version, calibrator) =
            head.and_then(|head| head.split_once('-')).ok_or(CacheError::Head)?;
        if version.is_empty() || !version.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CacheError::Head);
        }
        if calibrator != CALIBRATOR {
            return Err(CacheError::Calibrator(calibrator.to_owned()));
        }
        let scales = lines.filter(|(_, line)| !line.trim().is_empty());
        let scales = scales.map(|(at, line)| scale_of(line).ok_or(CacheError::Line(at + 1)));
        Ok(Self { scales: scales.collect::<Result<_, _>>()? })
    }

    /// The text for TensorRT `version`, as `10.3.0.30`; for that of JetPack 6.2 where it is none.
    pub fn text(&self, version: Option<&str>) -> String {
        let number = version.and_then(version_number).or_else(|| version_number(VERSION));
        let mut text = format!("TRT-{}-{CALIBRATOR}\n", number.unwrap_or_default());
        for (name, scale) in &self.scales {
            let _ = writeln!(text, "{name}: {:08x}", scale.to_bits());
        }
        text
    }

    /// Whether a tensor has a scale.
    pub fn has(&self, name: &str) -> bool {
        self.scales.contains_key(name)
    }

    /// How many tensors have scales.
    pub fn len(&self) -> usize {
        self.scales.len()
    }

    /// Whether none has.
    pub fn is_empty(&self) -> bool {
        self.scales.is_empty()
    }
}

/// Names may have colons; the scale is behind the last.
fn scale_of(line: &str) -> Option<(String, f32)> {
    let (name, bits) = line.rsplit_once(':')?;
    let scale = f32::from_bits(u32::from_str_radix(bits.trim(), 16).ok()?);
    (!name.is_empty() && scale.is_finite() && scale > 0.0).then(|| (name.to_owned(), scale))
}

/// `NV_TENSORRT_VERSION`: 8.6.1 is 8601, 10.3.0 is 100300 (NvInferVersion.h of either).
fn version_number(version: &str) -> Option<u32> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    let mut part = || parts.next().unwrap_or(Ok(0)).ok().filter(|part| *part < 100);
    let (major, minor, patch) = (part()?, part()?, part()?);
    Some(if major < 10 {
        major * 1000 + minor * 100 + patch
    } else {
        major * 10_000 + minor * 100 + patch
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, f32)]) -> CalibrationCache {
        let pairs = pairs.iter().map(|(name, most)| ((*name).to_owned(), *most));
        CalibrationCache::new(&pairs.collect())
    }

    /// The line of `prob` in NVIDIA's sampleINT8 says 1.00024: a byte of 127 for it is 3c010a14.
    #[test]
    fn a_scale_is_what_nvidia_s_own_sample_shows() {
        let most = f32::from_bits(0x3c01_0a14) * 127.0;
        assert!((most - 1.000_2).abs() < 1e-3, "{most}");
        let text = of(&[("prob", most)]).text(Some("7.0.0"));
        assert_eq!(text, "TRT-7000-EntropyCalibration2\nprob: 3c010a14\n");
    }

    #[test]
    fn versions_are_numbers_as_the_headers_have_them() {
        let head = |version| of(&[]).text(version).trim_end().to_owned();
        for (version, number) in
            [("8.6.1.6", 8601), ("10.3.0.30", 100_300), ("10.16.2", 101_602), ("10.3", 100_300)]
        {
            assert_eq!(head(Some(version)), format!("TRT-{number}-EntropyCalibration2"));
        }
        assert_eq!(head(None), head(Some("10.3.0")));
        assert_eq!(head(Some("unknown")), head(Some("10.3.0")));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let cache = of(&[("a:0", 2.5), ("zeros", 0.0), ("tiny", 1e-44), ("/b/Add output", 7.0)]);
        assert_eq!(CalibrationCache::parse(&cache.text(None)), Ok(cache.clone()));
        assert!(cache.has("zeros") && !cache.has("b"));
        assert_eq!((of(&[("two\nlines", 1.0), ("", 1.0)]).len(), cache.len()), (0, 4));
    }

    #[test]
    fn what_trtexec_would_not_follow_is_refused() {
        let refused = |text: &str| CalibrationCache::parse(text).unwrap_err();
        for text in
            ["", "images: 3c010a14\n", "TRT-EntropyCalibration2\n", "TRT-1.3-EntropyCalibration2"]
        {
            assert_eq!(refused(text), CacheError::Head, "{text}");
        }
        let other = refused("TRT-8601-MinMaxCalibration\na: 3c010a14\n");
        assert_eq!(other, CacheError::Calibrator("MinMaxCalibration".to_owned()));
        for line in
            ["a 3c010a14", "a: 3c010a1g", "a: 0", "a: 7f800000", ": 3c010a14", "a: 3c010a14f"]
        {
            let text = format!("TRT-100300-EntropyCalibration2\n\nimages: 3c010a14\n{line}\n");
            assert_eq!(refused(&text), CacheError::Line(4), "{line}");
        }
    }
}
