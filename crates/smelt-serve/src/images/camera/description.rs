//! Reads what a camera says that it sends (SDP, RFC 8866): the first stream of pictures.

use base64::Engine as _;

use super::super::data_uri::BASE64;
use super::units::Codec;

/// The longest address that is asked for in turn.
const URL_BYTES_MAX: usize = 2048;
/// What is told of a codec's name.
const NAME_CHARS_MAX: usize = 20;

/// A stream of pictures.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Track {
    pub(super) codec: Codec,
    /// What its packets say that they are.
    pub(super) payload: u8,
    /// Its time stamps in a second.
    pub(super) clock: u32,
    /// What is asked for to have it, and to have all play.
    pub(super) url: String,
    pub(super) all: String,
    /// Parameter sets, as far as they are told beforehand.
    pub(super) sets: Vec<Vec<u8>>,
}

/// Why there is no stream that can be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoTrack {
    #[error("the camera sends no pictures")]
    None,
    #[error("the camera sends {0}; H.264 and H.265 are read")]
    Codec(String),
    #[error("the camera's description cannot be read")]
    Garbled,
}

/// The first stream of pictures that can be read of what is described at `base`.
pub(super) fn track(text: &str, base: &str) -> Result<Track, NoTrack> {
    let mut parts = parts(text);
    let head = parts.next().unwrap_or_default();
    let all = url(base, attribute(&head, "control")).ok_or(NoTrack::Garbled)?;
    let mut why = NoTrack::None;
    for part in parts {
        let Some(media) = part.first().and_then(|first| first.strip_prefix("m=video ")) else {
            continue;
        };
        match stream(media, &part, base, &all) {
            Ok(track) => return Ok(track),
            Err(error) => why = error,
        }
    }
    Err(why)
}

/// The lines before the first stream, and those of each.
fn parts(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let mut lines = text.lines().map(str::trim_end).peekable();
    let mut is_head = true;
    std::iter::from_fn(move || {
        let mut part = if is_head { Vec::new() } else { vec![lines.next()?] };
        is_head = false;
        while let Some(line) = lines.next_if(|line| !line.starts_with("m=")) {
            part.push(line);
        }
        Some(part)
    })
}

fn stream(media: &str, part: &[&str], base: &str, all: &str) -> Result<Track, NoTrack> {
    let number = media.split(' ').nth(2).and_then(|number| number.parse().ok());
    let payload: u8 = number.ok_or(NoTrack::Garbled)?;
    let mapped = numbered(part, "rtpmap", payload).unwrap_or(match payload {
        26 => "JPEG/90000",
        32 => "MPV/90000",
        _ => "unknown/90000",
    });
    let (name, clock) = mapped.split_once('/').ok_or(NoTrack::Garbled)?;
    let parameters: Vec<_> = numbered(part, "fmtp", payload)
        .into_iter()
        .flat_map(|text| text.split(';').filter_map(|one| one.trim().split_once('=')))
        .collect();
    let codec = Codec::named(name).filter(|codec| codec.is_in_order(&parameters));
    let codec = codec.ok_or_else(|| NoTrack::Codec(plain(name)))?;
    let clock = clock.split('/').next().and_then(|clock| clock.parse().ok());
    let clock = clock.filter(|clock| *clock > 0).ok_or(NoTrack::Garbled)?;
    let url = url(base, attribute(part, "control")).ok_or(NoTrack::Garbled)?;
    let told = parameters.iter().filter(|(name, _)| codec.sets_are_in(name));
    let sets = told.flat_map(|(_, sets)| sets.split(','));
    let sets = sets.filter_map(|set| BASE64.decode(set.trim()).ok()).collect();
    Ok(Track { codec, payload, clock, url, all: all.to_owned(), sets })
}

/// What stands behind `a=NAME:`.
fn attribute<'a>(part: &[&'a str], name: &str) -> Option<&'a str> {
    let behind = |line: &&'a str| line.strip_prefix("a=")?.strip_prefix(name)?.strip_prefix(':');
    part.iter().find_map(behind).map(str::trim)
}

/// What stands behind `a=NAME:NUMBER `.
fn numbered<'a>(part: &[&'a str], name: &str, number: u8) -> Option<&'a str> {
    let of = |line: &&'a str| {
        let line = attribute(&[*line], name)?;
        let (own, rest) = line.split_once(' ')?;
        (own.parse() == Ok(number)).then_some(rest.trim())
    };
    part.iter().find_map(of)
}

/// What is asked for by `control`, whose beginning may be left out.  Nobody connects to it: it goes to the camera.
fn url(base: &str, control: Option<&str>) -> Option<String> {
    let url = match control {
        None | Some("*" | "") => base.to_owned(),
        Some(whole) if whole.starts_with("rtsp://") => whole.to_owned(),
        Some(part) => format!("{}/{part}", base.strip_suffix('/').unwrap_or(base)),
    };
    (url.len() <= URL_BYTES_MAX && url.bytes().all(|byte| byte.is_ascii_graphic())).then_some(url)
}

fn plain(name: &str) -> String {
    let plain =
        name.chars().filter(|letter| letter.is_ascii_alphanumeric() || "-.".contains(*letter));
    plain.take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: &str = "rtsp://cam:554/live/";

    #[test]
    fn the_first_pictures_that_can_be_read_are_found() {
        let text = "v=0\r\no=- 0 0 IN IP4 1.2.3.4\r\na=control:*\r\nm=audio 0 RTP/AVP 0\r\na=control:trackID=1\r\n\
            m=video 0 RTP/AVP 26\r\na=control:t2\r\n\
            m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n\
            a=fmtp:96 packetization-mode=1; sprop-parameter-sets=Z00=,aO4; profile-level-id=4D\r\na=control:trackID=2\r\n";
        let track = track(text, BASE).unwrap();
        assert_eq!((track.codec, track.payload, track.clock), (Codec::H264, 96, 90_000));
        assert_eq!(track.url, "rtsp://cam:554/live/trackID=2");
        assert_eq!(track.all, BASE);
        assert_eq!(track.sets, [vec![0x67, 0x4d], vec![0x68, 0xee]]);
        let text = "m=video 0 RTP/AVP 97\na=rtpmap:97 h265/90000\na=fmtp:97 sprop-vps=QAE=;sprop-sps=QgE=;sprop-pps=RAE=\na=control:rtsp://cam/x\n";
        let track = super::track(text, BASE).unwrap();
        assert_eq!(
            (track.codec, track.sets.len(), &track.url[..]),
            (Codec::H265, 3, "rtsp://cam/x")
        );
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let why = |text: &str| track(text, BASE).unwrap_err();
        assert_eq!(why(""), NoTrack::None);
        assert_eq!(why("m=audio 0 RTP/AVP 0\n"), NoTrack::None);
        assert_eq!(why("m=video 0 RTP/AVP 26\n"), NoTrack::Codec("JPEG".to_owned()));
        let odd = format!("m=video 0 RTP/AVP 98\na=rtpmap:98 A\x1b{}/90000\n", "b".repeat(99));
        assert_eq!(why(&odd), NoTrack::Codec(format!("A{}", "b".repeat(NAME_CHARS_MAX - 1))));
        let of = |more: &str| why(&format!("m=video 0 RTP/AVP 96\na=rtpmap:96 H264/{more}\n"));
        assert_eq!(of("0"), NoTrack::Garbled);
        assert_eq!(of("90000\na=control:a b"), NoTrack::Garbled);
        assert_eq!(of("90000\na=fmtp:96 packetization-mode=2"), NoTrack::Codec("H264".to_owned()));
        assert_eq!(why("m=video\n"), NoTrack::None);
    }
}
