//! Counts a film's frames by the list of its packets, which is read as it comes and not kept.

use std::io::{BufRead, Read as _};

use smelt_runtime::image::Reel;

/// The longest line of a list.
const LINE_BYTES_MAX: u64 = 1024;
/// Set of packets that are not shown.
const DISCARDED: u32 = 4;
/// Of a film of one frame.
const FPS_USUAL: f64 = 2.0;

/// What `ffmpeg` is told to list packets, with their times, without decoding them.
pub(super) fn arguments() -> Vec<String> {
    ["-c", "copy", "-f", "framecrc", "pipe:1"].map(str::to_owned).into()
}

/// What a list says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Listed {
    /// At least one.
    frames: usize,
    pub(super) first_s: f64,
    last_s: f64,
}

impl Listed {
    /// Reads a list; `None` if it has no frames with a time.
    pub(super) fn read(mut list: impl BufRead) -> Option<Self> {
        let (mut base_s, mut frames) = (1.0, 0);
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        loop {
            let mut line = Vec::new();
            match list.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
                Ok(1..) => {}
                _ => break,
            }
            let line = String::from_utf8_lossy(&line);
            if let Some(base) = line.strip_prefix("#tb 0: ") {
                base_s = ratio(base).unwrap_or(base_s);
            } else if let Some(pts) = shown_at(&line) {
                (first, last) = (first.min(pts), last.max(pts));
                frames += 1;
            }
        }
        (frames > 0).then_some(Self {
            frames,
            first_s: first as f64 * base_s,
            last_s: last as f64 * base_s,
        })
    }

    /// From the first frame to the last, in seconds.
    pub(super) fn length_s(&self) -> f64 {
        self.last_s - self.first_s
    }

    /// The film in numbers.
    pub(super) fn reel(&self) -> Reel {
        let fps = (self.frames - 1) as f64 / self.length_s();
        let fps = if fps.is_finite() && fps > 0.0 { fps } else { FPS_USUAL };
        Reel { frames: self.frames, fps }
    }

    /// The time from which a frame counts as the one of this number: half a frame before its own.
    pub(super) fn begins_s(&self, frame: usize) -> f64 {
        self.first_s + (frame as f64 - 0.5) / self.reel().fps
    }
}

/// `1/15360` as a number.
fn ratio(text: &str) -> Option<f64> {
    let (above, below) = text.trim().split_once('/')?;
    let ratio = above.parse::<f64>().ok()? / below.parse::<f64>().ok()?;
    (ratio.is_finite() && ratio > 0.0).then_some(ratio)
}

/// When the packet of a line is shown, in units of the list: `stream, dts, pts, duration, size, checksum[, flags]`.
fn shown_at(line: &str) -> Option<i64> {
    let mut words = line.strip_prefix("0,")?.split(',').map(str::trim);
    let pts = words.nth(1)?.parse().ok().filter(|pts| *pts != i64::MIN)?;
    let flags = words.find_map(|word| word.strip_prefix("F=0x"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags, 16).ok());
    (flags.unwrap_or(0) & DISCARDED == 0).then_some(pts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_and_those_that_are_not_shown_left_out() {
        let list = "#software: Lavf\n#tb 0: 1/10\n0, -2, 10, 5, 3902, 0xc4\n0, 0, 20, 5, 9, 0x1, F=0x0\n0, 1, 15, 5, 9, 0x1, F=0x5\n0, 1, NOPTS, 5, 9, 0x1\n1, 0, 900, 5, 9, 0x1\n";
        let found = Listed::read(list.as_bytes()).unwrap();
        assert_eq!(found, Listed { frames: 2, first_s: 1.0, last_s: 2.0 });
        assert_eq!(found.reel(), Reel { frames: 2, fps: 1.0 });
        assert_eq!([0, 1].map(|frame| found.begins_s(frame)), [0.5, 1.5]);
    }

    #[test]
    fn a_list_may_be_empty_endless_or_of_one_moment() {
        assert_eq!(Listed::read(&b"#tb 0: 1/0\n"[..]), None);
        assert_eq!(
            Listed::read(std::io::BufReader::new(std::io::repeat(b'0').take(1 << 20))),
            None
        );
        let still = Listed::read(&b"0, 0, 7, 1, 9, 0x1\n0, 0, 7, 1, 9, 0x1\n"[..]).unwrap();
        assert_eq!(still.reel(), Reel { frames: 2, fps: FPS_USUAL });
        let years = format!("0, 0, {}, 1, 9, 0x1\n0, 0, {}, 1, 9, 0x1\n", i64::MIN + 1, i64::MAX);
        assert!(Listed::read(years.as_bytes()).unwrap().length_s() > 1e18);
    }
}
