//! Reads films: a confined `ffmpeg` is given a file that lies in memory, and what it says and shows is counted.
//!
//! It runs twice.  First it lists when the frames are shown, without decoding any; then it decodes, and writes the chosen ones.
//! What is held does not grow with the film.  Whoever starts the server says how it is confined.

mod child;
mod list;
mod ppm;
mod select;

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::time::Duration;

use smelt_runtime::deployment::{ModelFamily, Text};
use smelt_runtime::image::{
    FILE_BYTES_MAX, Image, ImageProcessor, MediaItem, PIXELS_MAX, Reel, Wanted, chosen,
};

use child::{Child, ChildOutput};

/// Processor time of one reading of a film: an hour of small pictures, or minutes of large ones.
pub const CPU_TIME_MAX: Duration = Duration::from_secs(60);
/// How long one may take in all: others may be at work on the same cores.
const TIME_MAX: Duration = Duration::from_secs(90);
/// What a child may write to in its own memory: 16 pictures of 4K that others are told by, threads and tables.
pub const MEMORY_BYTES_MAX: u64 = 512 << 20;
/// The longest film: what the positions of a model count, and more than a person would ask about.
const LENGTH_S_MAX: f64 = 4.0 * 3600.0;

/// Of a frame for each pixel that a model sees: a picture is made smaller twice, by `ffmpeg` to twice the side that is seen, and as
/// the model's processor does.
const PIXELS_PER_SEEN: u64 = 4;

/// How the program that confines says that there is no `ffmpeg`, as shells do.
pub const ABSENT: i32 = 127;
/// How it says that it cannot confine it.
pub const UNFIT: i32 = 126;

/// What a film is kept in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// MP4 and `QuickTime`.
    Mp4,
    /// Matroska and `WebM`.
    Matroska,
}

impl Kind {
    /// What `bytes` are, if they are a film: by their beginning, whatever their sender calls them.
    pub(crate) fn of(bytes: &[u8]) -> Option<Self> {
        const EBML: [u8; 4] = [0x1a, 0x45, 0xdf, 0xa3];
        const BOXES: [&[u8]; 6] = [b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"];
        match bytes {
            _ if bytes.starts_with(&EBML) => Some(Self::Matroska),
            [_, _, _, _, name @ ..] if BOXES.iter().any(|known| name.starts_with(known)) => {
                Some(Self::Mp4)
            }
            _ => None,
        }
    }

    /// As `ffmpeg` calls it.
    fn demuxer(self) -> &'static str {
        match self {
            Self::Mp4 => "mov",
            Self::Matroska => "matroska",
        }
    }
}

/// Why a film is not seen.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FilmError {
    /// There is no program.
    #[error(
        "films are read by ffmpeg, which this machine lacks; install it (Debian: apt-get install ffmpeg) or send frames"
    )]
    Absent,
    /// It cannot be held.
    #[error("films are not read here: {0}")]
    Unfit(String),
    /// It does not start.
    #[error("cannot read films: {0}")]
    Start(#[from] io::Error),
    /// It took too long.
    #[error("reading the film takes more than {} s of processor time; send a shorter part of it, or a smaller one", CPU_TIME_MAX.as_secs())]
    TooSlow,
    /// It waits for what does not come.
    #[error("the film's pictures take more than {} MiB while they are read; send a smaller one", MEMORY_BYTES_MAX >> 20)]
    Stuck,
    /// It lasts too long.
    #[error("the film lasts longer than {} hours; send a part of it", LENGTH_S_MAX / 3600.0)]
    TooLong,
    /// There is nothing to see.
    #[error("the film shows nothing that can be read{}", .0.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    Empty(Option<String>),
    /// Who asked has left.
    #[error("who asked has left")]
    Left,
}

/// The frames that were looked at, each with its time in seconds from the first one's.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Film {
    pub(crate) frames: Vec<(f64, Image)>,
    /// How many of them there are in a second, on average.
    pub(crate) fps: f64,
}

/// Reads films by a program that confines `ffmpeg`, behind whose arguments that program's own stand.
#[derive(Clone, Debug)]
pub(crate) struct Films {
    command: Vec<OsString>,
}

impl Films {
    /// By this program with its first arguments.
    pub(crate) fn new(command: Vec<OsString>) -> Self {
        Self { command }
    }

    /// The frames that a model's own processor would look at, no larger than is of use to it, and together of at most so
    /// many pixels; `is_wanted` says whether anybody still waits.  Blocks.
    ///
    /// # Errors
    /// [`FilmError`].
    pub(crate) fn seen(
        &self,
        film: (Kind, &[u8]),
        (family, image_processor): (ModelFamily, &ImageProcessor),
        (wanted, pixels_max): (Wanted, u64),
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Film, FilmError> {
        let seen =
            image_processor.grids.iter().map(|grid| grid.size.pixels() as u64).max().unwrap_or(1);
        let frames = wanted.frames_max.max(1) as u64;
        let pixels = (seen * PIXELS_PER_SEEN).min(pixels_max / frames).max(1);
        self.read(film, pixels, |reel| chosen(family, reel, wanted), is_wanted)
    }

    /// The frames of the film in `bytes` that `choose` chooses, by their numbers, each of at most so many `pixels`;
    /// `is_wanted` says whether anybody still waits.  Blocks.
    ///
    /// # Errors
    /// [`FilmError`].
    pub(crate) fn read(
        &self,
        (kind, bytes): (Kind, &[u8]),
        pixels: u64,
        choose: impl Fn(Reel) -> Vec<usize>,
        is_wanted: &(dyn Fn() -> bool + Sync),
    ) -> Result<Film, FilmError> {
        let file = child::in_memory(bytes)?;
        let run = |arguments: Vec<String>| {
            Child::start(&self.command, &input(kind).chain(arguments).collect::<Vec<_>>(), &file)
        };
        let (listed, said) = run(list::arguments())?
            .read(TIME_MAX, is_wanted, |out| list::Listed::read(BufReader::new(out)))?;
        let Some(found) = listed.filter(|_| !said.was_stopped()) else { return Err(said.fault()) };
        if found.length_s() > LENGTH_S_MAX {
            return Err(FilmError::TooLong);
        }
        let reel = found.reel();
        let chosen = choose(reel);
        let times: Vec<f64> = chosen.iter().map(|at| found.begins_s(*at)).collect();
        let arguments = select::arguments(&times, pixels);
        let (pictures, said) = run(arguments)?
            .read(TIME_MAX, is_wanted, |out| self::pictures(out, times.len(), pixels))?;
        let fps = reel.fps * pictures.len() as f64 / reel.frames as f64;
        let frames = said.times_s.iter().map(|time| time - found.first_s).zip(pictures);
        let frames: Vec<_> = frames.collect();
        match frames.is_empty() || said.was_stopped() {
            true => Err(said.fault()),
            false => Ok(Film { frames, fps }),
        }
    }
}

/// What a model is shown of the film in `path`, which `command` reads: the program that confines `ffmpeg`, with its first
/// arguments.  Blocks.
///
/// # Errors
/// One line.
pub fn open(
    path: &Path,
    text: &Text,
    wanted: Wanted,
    command: Vec<OsString>,
) -> Result<MediaItem, String> {
    let named = |why: &dyn Display| format!("{}: {why}", path.display());
    let image_processor = text.seeing().map_err(|blind| blind.to_string())?;
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| named(&error))?;
    let read = file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes);
    if read.map_err(|error| named(&error))? as u64 > FILE_BYTES_MAX {
        return Err(named(&format!("the film has more than the {FILE_BYTES_MAX} bytes allowed")));
    }
    let no_film = "it is no film; those are MP4, QuickTime, WebM or Matroska";
    let kind = Kind::of(&bytes).ok_or_else(|| named(&no_film))?;
    let by = (text.spec.family, image_processor);
    let film = Films::new(command).seen((kind, &bytes), by, (wanted, PIXELS_MAX), &|| true);
    let film = film.map_err(|error| named(&error))?;
    MediaItem::film(film.frames, film.fps).map_err(|error| named(&error))
}

/// At most so many pictures of at most so many pixels; what is no picture ends them.
fn pictures(out: impl Read, count: usize, pixels: u64) -> Vec<Image> {
    let mut out = BufReader::new(out);
    std::iter::from_fn(|| ppm::read(&mut out, pixels)).take(count).collect()
}

/// What is read, how, and by what alone.
fn input(kind: Kind) -> impl Iterator<Item = String> {
    /// What cameras, phones and browsers write; others' readers are seldom looked at by anybody.
    const CODECS: &str = "h264,hevc,vp8,vp9,libdav1d,av1,libaom-av1,mpeg4,mpeg2video,mjpeg,prores";
    let words = [
        "-v",
        "error",
        "-nostdin",
        "-filter_threads",
        "1",
        // Of two threads one decodes ahead; more take memory each.
        "-threads",
        "2",
        "-protocol_whitelist",
        "file",
        "-codec_whitelist",
        CODECS,
        "-max_pixels",
        child::PIXELS_MAX,
        "-copyts",
        "-f",
        kind.demuxer(),
        "-i",
        "/dev/fd/0",
        "-map",
        "0:V:0",
    ];
    words.into_iter().map(str::to_owned)
}

impl ChildOutput {
    /// Why nothing came of it.
    fn fault(self) -> FilmError {
        match (self.code, self.line) {
            (Some(ABSENT), _) => FilmError::Absent,
            (Some(UNFIT), why) => FilmError::Unfit(why.unwrap_or_default()),
            (None, _) => FilmError::TooSlow,
            (_, why) => FilmError::Empty(why),
        }
    }

    /// Whether it was killed, by its own limits.
    fn was_stopped(&self) -> bool {
        self.code.is_none()
    }
}

#[cfg(test)]
mod tests;
