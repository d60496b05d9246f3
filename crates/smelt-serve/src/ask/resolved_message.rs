//! Decodes what a conversation shows: pictures, and the frames of clips, all within one limit.

use smelt_runtime::deployment::Text;
use smelt_runtime::image::{Animation, Image, ImageOptions, MediaItem, PIXELS_MAX};

use crate::api::chat::Role;
use crate::api::clip::{Clip, FPS_USUAL, Film};
use crate::error::ApiError;
use crate::films::{self, FilmError, Films, Kind};
use crate::images;

use super::pixels::{Decoded, of_bytes};
use super::unprepared;
use super::work::Asker;

/// How much a request may show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most pictures and clips.
    pub(crate) images_max: usize,
    /// Most frames of a clip that are looked at.
    pub(crate) frames_max: usize,
}

/// What one turn says.
pub(super) struct ResolvedMessage<'a> {
    pub(super) role: Role,
    pub(super) pieces: Vec<ResolvedPart<'a>>,
}

/// A piece of a turn, with what is looked at of it.
pub(super) enum ResolvedPart<'a> {
    Text(&'a str),
    Image { at: String, url: &'a str, image_options: ImageOptions },
    Clip { clip: Clip<'a>, fps: Option<f64>, image_options: ImageOptions },
}

impl<'a> ResolvedPart<'a> {
    /// What it says, if it is words.
    pub(super) fn text(&self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image { .. } | Self::Clip { .. } => None,
        }
    }

    /// Whether it may be a film, by what its sender calls it.
    pub(super) fn may_be_film(&self) -> bool {
        matches!(self, Self::Clip { clip, .. } if clip.may_be_film())
    }

    /// Where its files are, with the field that names each.
    pub(super) fn files(&self) -> Vec<(&str, &str)> {
        match self {
            Self::Text(_) => Vec::new(),
            Self::Image { at, url, .. } => vec![(at, url)],
            Self::Clip { clip, .. } => match &clip.film {
                Film::File(url) => vec![(&clip.at, url)],
                Film::Frames(urls) => urls.iter().map(|url| (&clip.at[..], &url[..])).collect(),
            },
        }
    }
}

/// A piece of a turn, with the bytes of its files.
pub(super) struct Files<'a> {
    of: &'a ResolvedPart<'a>,
    files: Vec<Vec<u8>>,
}

impl Files<'_> {
    /// The film that it is, if it is one.
    fn film(&self) -> Option<(Kind, &[u8])> {
        match (self.of, &self.files[..]) {
            (ResolvedPart::Clip { clip: Clip { film: Film::File(_), .. }, .. }, [file]) => {
                Some((Kind::of(file)?, file))
            }
            _ => None,
        }
    }

    /// `decoded` with what its files become at most, as they say.
    fn beside(&self, decoded: Decoded) -> Decoded {
        match self.of {
            ResolvedPart::Clip { clip: Clip { film: Film::File(_), .. }, .. } => {
                decoded.with(PIXELS_MAX)
            }
            _ => self.files.iter().map(|file| Image::pixels_of(file)).fold(decoded, Decoded::with),
        }
    }
}

/// The files of a conversation; `fetched` are those that other hosts have, in order.
///
/// # Errors
/// 400, naming the field that is wrong.
pub(super) fn files<'a>(
    said: &'a [ResolvedMessage<'a>],
    fetched: Vec<Vec<u8>>,
) -> Result<Vec<Files<'a>>, ApiError> {
    let mut fetched = fetched.into_iter();
    let mut file = |(at, url): (&str, &str)| match images::is_elsewhere(url) {
        true => Ok(fetched.next().unwrap_or_default()),
        false => images::inside(url, at),
    };
    let pieces = said.iter().flat_map(|said| &said.pieces);
    let of = |of: &'a ResolvedPart<'a>| {
        let files = of.files().into_iter().map(&mut file).collect::<Result<_, _>>()?;
        Ok(Files { of, files })
    };
    pieces.map(of).collect()
}

/// The room in pixels that `files` need, no more than a request may have, and what reads a film beside them.
pub(super) fn pixels(files: &[Files<'_>]) -> u64 {
    let all = files.iter().fold(Decoded::default(), |decoded, one| one.beside(decoded));
    // Films are read one after another.
    let reader = files.iter().any(|one| one.film().is_some());
    all.room() + if reader { of_bytes(films::MEMORY_BYTES_MAX) } else { 0 }
}

/// All pictures and clips of a conversation, in the memory that the largest picture may take.
///
/// # Errors
/// 400, naming the field that is wrong.
pub(super) fn decode(
    files: Vec<Files<'_>>,
    (text, limits): (&Text, Limits),
    films: &Films,
    asker: &Asker,
) -> Result<Vec<MediaItem>, ApiError> {
    let mut decoded = Vec::new();
    let mut budget = Budget(Decoded::default());
    let count = files.iter().filter(|one| !one.files.is_empty()).count();
    for one in files {
        asker.check()?;
        let film = one.film();
        if let (ResolvedPart::Clip { clip, image_options, .. }, Some(film)) = (one.of, film) {
            let share = Share { pixels: PIXELS_MAX / count as u64, frames: limits.frames_max };
            let film = read(film, clip, (text, share), (films, asker))?;
            film.frames.iter().try_for_each(|(_, frame)| budget.take(frame, &clip.at))?;
            let shown = MediaItem::film(film.frames, film.fps);
            decoded.push(
                shown.map_err(|error| ApiError::field(&clip.at, error))?.with(*image_options),
            );
            continue;
        }
        let Files { of: seen, files } = one;
        match seen {
            ResolvedPart::Text(_) => {}
            ResolvedPart::Image { at, image_options, .. } => {
                let picture = budget.pictures(&files, at)?.pop();
                decoded
                    .extend(picture.map(|picture| MediaItem::from(picture).with(*image_options)));
            }
            ResolvedPart::Clip { clip, fps, image_options } => {
                let (frames, fps) = match fps {
                    Some(fps) => (budget.pictures(&files, &clip.at)?, *fps),
                    None => budget.animation(&files, clip, limits.frames_max)?,
                };
                let shown = MediaItem::clip(frames, fps);
                let shown = shown.map_err(|error| ApiError::field(&clip.at, error))?;
                decoded.push(shown.with(*image_options));
            }
        }
    }
    Ok(decoded)
}

/// What one of all that is shown may take.
#[derive(Clone, Copy)]
struct Share {
    /// Pixels of its frames together.
    pixels: u64,
    frames: usize,
}

/// The frames of a film that the model's own processor would look at, no larger than is of use to it.
fn read(
    film: (Kind, &[u8]),
    clip: &Clip<'_>,
    (text, share): (&Text, Share),
    (films, asker): (&Films, &Asker),
) -> Result<films::Film, ApiError> {
    let image_processor = text.seeing().map_err(|blind| unprepared(&clip.at, blind))?;
    let by = (text.spec.family, image_processor);
    let wanted = (clip.wanted(share.frames), share.pixels);
    let film = films.seen(film, by, wanted, &|| asker.check().is_ok());
    film.map_err(|error| match error {
        FilmError::Start(_) | FilmError::Left => ApiError::failed(error.to_string()),
        error => ApiError::field(&clip.at, error),
    })
}

/// What was decoded, within what a request may have.
struct Budget(Decoded);

impl Budget {
    fn take(&mut self, picture: &Image, at: &str) -> Result<(), ApiError> {
        self.0 = self.0.with(picture.size().pixels() as u64);
        self.0.check().map_err(|why| ApiError::field(at, why))
    }

    /// A picture of each file.
    fn pictures(&mut self, files: &[Vec<u8>], at: &str) -> Result<Vec<Image>, ApiError> {
        let one = |bytes: &Vec<u8>| {
            let picture = Image::decode(bytes).map_err(|error| ApiError::field(at, error))?;
            self.take(&picture, at).map(|()| picture)
        };
        files.iter().map(one).collect()
    }

    /// The frames of a file that are looked at, and how many of them there are in a second.
    fn animation(
        &mut self,
        files: &[Vec<u8>],
        clip: &Clip<'_>,
        frames_max: usize,
    ) -> Result<(Vec<Image>, f64), ApiError> {
        let (mut frames, mut speed) = (Vec::new(), FPS_USUAL);
        for bytes in files {
            let film = Animation::decode(bytes, self.0.left());
            let film = film.map_err(|error| {
                let hint = if clip.may_be_film() {
                    "; films are MP4, QuickTime, WebM or Matroska"
                } else {
                    ""
                };
                ApiError::field(&clip.at, format!("{error}{hint}"))
            })?;
            let (kept, fps) = clip.of_file(film.frames.len(), film.fps, frames_max);
            speed = fps;
            let all = film.frames.into_iter().enumerate();
            frames.extend(all.filter(|(at, _)| kept.contains(at)).map(|(_, frame)| frame));
        }
        frames.iter().try_for_each(|frame| self.take(frame, &clip.at))?;
        Ok((frames, speed))
    }
}
