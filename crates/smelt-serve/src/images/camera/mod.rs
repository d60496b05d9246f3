//! Records what a camera shows, for some seconds, as a film (RTSP).
//!
//! A connection goes to an address that was judged, and everything comes over it: no packets on ports of their own, no
//! redirects.  What a camera says has bounds before it is waited for.

mod camera_address;
mod clip;
mod description;
mod line;
mod login;
mod matroska;
mod message;
mod sets;
mod units;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::remote::{Errand, RemoteError};
use camera_address::CameraAddress;
use clip::Clip;
use description::Track;
use line::{Came, Line};
use sets::Sets;
use units::{Packet, Units};

/// How long a whole picture is waited for: many cameras send one in four seconds, some in ten.
const KEY_TIME_MAX: Duration = Duration::from_secs(10);
/// What is said where that was in vain.
const NO_PICTURE: &str = "the camera sends no whole picture within 10 s";
/// How much longer than a film a camera may take to send it.
const SLACK: Duration = Duration::from_secs(2);

/// A film of what the camera at `url` shows now; `judge` says which addresses a host has, of those that may be asked.
/// Blocks.
pub(super) fn record(
    url: &str,
    judge: impl FnOnce(&str, u16) -> Result<Vec<SocketAddr>, RemoteError>,
    errand: &Errand,
) -> Result<Vec<u8>, RemoteError> {
    let place = CameraAddress::read(url).ok_or(RemoteError::NoCamera)?;
    let addresses = judge(&place.host, place.port)?;
    let mut line = Line::connect(&addresses, &place, errand)?;
    let track = describe(&mut line, &place)?;
    let channel = set_up(&mut line, &track)?;
    line.ask("PLAY", &track.all, "Range: npt=0.000-\r\n")?;
    let film = listen(&mut line, &track, channel);
    line.leave(&track.all);
    film
}

fn failed(why: impl Into<String>) -> RemoteError {
    RemoteError::Failed(why.into())
}

impl From<message::Fault> for RemoteError {
    fn from(fault: message::Fault) -> Self {
        failed(fault.to_string())
    }
}

fn describe(line: &mut Line<'_>, place: &CameraAddress) -> Result<Track, RemoteError> {
    let answer = line.ask("DESCRIBE", &place.url, "Accept: application/sdp\r\n")?;
    let base = answer.header("content-base").filter(|base| base.starts_with("rtsp://"));
    let text = String::from_utf8_lossy(&answer.body);
    let track = description::track(&text, base.unwrap_or(&place.url));
    track.map_err(|error| failed(error.to_string()))
}

/// The channel on which packets come.
fn set_up(line: &mut Line<'_>, track: &Track) -> Result<u8, RemoteError> {
    let wanted = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n";
    let answer = line.ask("SETUP", &track.url, wanted)?;
    line.enter(&answer)?;
    let granted = answer.header("transport").unwrap_or_default();
    channel(granted).ok_or_else(|| failed("the camera does not send by TCP"))
}

fn channel(granted: &str) -> Option<u8> {
    let mut words = granted.split(';');
    words.next()?.ends_with("/TCP").then_some(())?;
    let named = words.find_map(|word| word.trim().strip_prefix("interleaved="));
    named?.split('-').next()?.parse().ok()
}

/// The film of what comes.
fn listen(line: &mut Line<'_>, track: &Track, channel: u8) -> Result<Vec<u8>, RemoteError> {
    let mut units = Units::new(track.codec, Sets::new(track.codec, track.sets.clone()));
    let mut clip = Clip::new(track.codec, track.clock);
    let mut until = Instant::now() + KEY_TIME_MAX;
    let why = loop {
        let has_begun = clip.has_begun();
        let (own, bytes) = match line.packet(until) {
            Ok(Came::Packet(own, bytes)) => (own, bytes),
            Ok(Came::Closed) => break "the camera hangs up before it has sent a whole picture",
            // What was recorded in time is a film.
            Err(RemoteError::TooSlow) if has_begun => break NO_PICTURE,
            Ok(Came::Silence) => break NO_PICTURE,
            Err(error) => return Err(error),
        };
        if own == channel.wrapping_add(1) && says_goodbye(&bytes) {
            break "the camera ends its stream before it has sent a whole picture";
        }
        let packet = Packet::read(&bytes).filter(|packet| packet.payload == track.payload);
        let Some(packet) = packet.filter(|_| own == channel) else { continue };
        let unit = units.push(&packet).map_err(|error| failed(error.to_string()))?;
        if unit.is_some_and(|unit| clip.take(&unit, &units.sets)) {
            break NO_PICTURE;
        }
        if !has_begun && clip.has_begun() {
            until = Instant::now() + clip::LENGTH + SLACK;
        }
    };
    if let Some(last) = units.last() {
        clip.take(&last, &units.sets);
    }
    clip.film().ok_or_else(|| failed(why.to_owned()))
}

/// Whether a camera ends its stream, by what it says beside it (RTCP, RFC 3550).
fn says_goodbye(mut bytes: &[u8]) -> bool {
    const BYE: u8 = 203;
    while let [_, kind, high, low, ..] = bytes {
        if *kind == BYE {
            return true;
        }
        let length = 4 + 4 * usize::from(u16::from_be_bytes([*high, *low]));
        bytes = bytes.get(length..).unwrap_or_default();
    }
    false
}

#[cfg(test)]
mod tests;
