//! Reads what a chat shows as a clip: a list of frames, or a file that moves.

use std::borrow::Cow;

use smelt_runtime::image::Wanted;

use crate::error::ApiError;
use crate::images::ANIMATIONS;

/// How vLLM's clients send frames: JPEG files in base64, a comma between.
const JPEGS: &str = "data:video/jpeg;base64,";

/// Frames a second of a list that says nothing of it; Qwen's clients cut clips so.
pub(crate) const FPS_USUAL: f64 = 2.0;

/// Which frames of a clip are looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Pace {
    /// Of a list: how fast its frames were taken.  Of a file: how many of a second are looked at.
    pub(crate) fps: Option<f64>,
    /// Most frames.
    pub(crate) nframes: Option<usize>,
}

/// Where the frames of a clip are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Film<'a> {
    /// In one file.
    File(&'a str),
    /// Each in its own.
    Frames(Vec<Cow<'a, str>>),
}

/// A clip as a request names it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Clip<'a> {
    /// The field, for errors.
    pub(crate) at: String,
    pub(crate) film: Film<'a>,
    pace: Pace,
}

impl Pace {
    /// The clip at `url` of the field `at`.
    ///
    /// # Errors
    /// If its pace is none.
    pub(crate) fn of_url<'a>(self, url: &'a str, at: String) -> Result<Clip<'a>, ApiError> {
        let film = if begins(url, JPEGS) {
            let frames = url[JPEGS.len()..].split(',');
            Film::Frames(
                frames.map(|data| format!("data:image/jpeg;base64,{data}").into()).collect(),
            )
        } else {
            Film::File(url)
        };
        self.clip(film, at)
    }

    /// The clip of the frames at `urls`, or of what one alone shows: it may move.
    ///
    /// # Errors
    /// If there are none.
    pub(crate) fn of_list<'a>(self, urls: &'a [String], at: String) -> Result<Clip<'a>, ApiError> {
        match urls {
            [] => Err(ApiError::field(at, "has no frames")),
            [url] => self.of_url(url, at),
            _ => self.clip(Film::Frames(urls.iter().map(|url| url.as_str().into()).collect()), at),
        }
    }

    fn clip<'a>(self, film: Film<'a>, at: String) -> Result<Clip<'a>, ApiError> {
        let part = at.rsplit_once(".video").map_or(&at[..], |(part, _)| part);
        self.check(part, "nframes")?;
        Ok(Clip { at, film, pace: self })
    }

    /// Whether it is one; the object `at` holds it, its number of frames under this name.
    ///
    /// # Errors
    /// Naming what is out of bounds.
    pub(crate) fn check(self, at: &str, nframes: &str) -> Result<(), ApiError> {
        if self.fps.is_some_and(|fps| !(fps > 0.0 && fps.is_finite())) {
            return Err(ApiError::field(format!("{at}.fps"), "must be more than 0"));
        }
        match self.nframes {
            Some(0) => Err(ApiError::field(format!("{at}.{nframes}"), "must be at least 1")),
            _ => Ok(()),
        }
    }
}

fn begins(url: &str, start: &str) -> bool {
    url.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
}

impl<'a> Clip<'a> {
    /// The same clip at this `pace` where it is a file that says nothing of it.
    pub(crate) fn or(mut self, pace: Pace) -> Self {
        if let (Film::File(_), Pace { fps: None, nframes: None }) = (&self.film, self.pace) {
            self.pace = pace;
        }
        self
    }

    /// Whether it is one file that its sender does not call a picture or an animation.
    pub(crate) fn may_be_film(&self) -> bool {
        let Film::File(url) = self.film else { return false };
        let is_called = |kind: &str| begins(url, &format!("data:{kind}"));
        !is_called("image/") && !ANIMATIONS.iter().any(|kind| is_called(kind))
    }

    /// What is asked of it where it is a film.
    pub(crate) fn wanted(&self, frames_max: usize) -> Wanted {
        Wanted { fps: self.pace.fps, frames: self.pace.nframes, frames_max }
    }

    /// The same clip without the frames of a list that are not looked at, of which there are at most
    /// `most`; gives with it how many frames a second those have, where that is known yet.
    pub(crate) fn sampled(self, most: usize) -> (Self, Option<f64>) {
        let Film::Frames(frames) = &self.film else { return (self, None) };
        let kept = spread(frames.len(), self.most(most));
        let fps = self.pace.fps.unwrap_or(FPS_USUAL) * kept.len() as f64 / frames.len() as f64;
        let frames = kept.into_iter().map(|at| frames[at].clone()).collect();
        (Self { film: Film::Frames(frames), ..self }, Some(fps))
    }

    /// Which of a file's `total` frames are looked at, at most `most`, and how many of them there are in a
    /// second.  A file that says nothing of its speed has `total` at the usual one.
    pub(crate) fn of_file(&self, total: usize, fps: Option<f64>, most: usize) -> (Vec<usize>, f64) {
        let own = fps.unwrap_or(FPS_USUAL);
        let wanted = self.pace.fps.map_or(total, |wanted| (total as f64 / own * wanted) as usize);
        let kept = spread(total, wanted.clamp(1, self.most(most)));
        let fps = own * kept.len() as f64 / total as f64;
        (kept, fps)
    }

    fn most(&self, most: usize) -> usize {
        self.pace.nframes.unwrap_or(most).min(most)
    }
}

/// `wanted` of `total` frames, or all if there are fewer, equally far apart from the first: as
/// `BaseVideoProcessor.sample_frames` of transformers takes them.
fn spread(total: usize, wanted: usize) -> Vec<usize> {
    let wanted = wanted.min(total);
    (0..wanted).map(|at| at * total / wanted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_taken_equally_far_apart() {
        assert_eq!(spread(3, 8), [0, 1, 2]);
        assert_eq!(spread(10, 4), [0, 2, 5, 7]);
        assert_eq!(spread(9, 3), [0, 3, 6]);
    }

    const USUAL: Pace = Pace { fps: None, nframes: None };

    fn at(fps: f64) -> Pace {
        Pace { fps: Some(fps), nframes: None }
    }

    #[test]
    fn a_list_is_thinned_before_it_is_fetched() {
        let urls: Vec<String> = (0..8).map(|at| at.to_string()).collect();
        let clip = USUAL.of_list(&urls, "c.video".to_owned()).unwrap();
        let (clip, fps) = clip.sampled(4);
        assert_eq!(
            (clip.film, fps),
            (Film::Frames(["0", "2", "4", "6"].map(Cow::from).into()), Some(1.0))
        );
        let clip = Pace { nframes: Some(2), ..at(30.0) }.of_list(&urls, "c.video".to_owned());
        assert_eq!(clip.unwrap().sampled(4).1, Some(7.5));
    }

    #[test]
    fn a_file_is_thinned_to_a_speed() {
        let kept = |pace: Pace, most| {
            let clip = pace.of_url("data:,", "c.video_url.url".to_owned()).unwrap();
            clip.of_file(40, Some(20.0), most)
        };
        assert_eq!(kept(USUAL, 4), (vec![0, 10, 20, 30], 2.0));
        assert_eq!(kept(at(1.0), 32), (vec![0, 20], 1.0));
        assert_eq!(kept(at(0.01), 32), (vec![0], 0.5));
        assert_eq!(kept(Pace { nframes: Some(3), ..at(1000.0) }, 32).0, [0, 13, 26]);
    }

    #[test]
    fn jpegs_may_follow_each_other() {
        let url = "data:video/jpeg;base64,AA==,BB==";
        let clip = USUAL.of_url(url, "c.video_url.url".to_owned()).unwrap();
        let frames = ["AA==", "BB=="].map(|data| format!("data:image/jpeg;base64,{data}").into());
        assert_eq!(clip.film, Film::Frames(frames.into()));
    }

    #[test]
    fn a_list_of_one_file_and_a_video_that_is_an_animation_are_files() {
        for url in ["data:image/gif;base64,AA==", "data:video/gif;base64,AA==", "http://x/a.webp"] {
            let (urls, at) = ([url.to_owned()], "c.video".to_owned());
            assert_eq!(USUAL.of_list(&urls, at.clone()).unwrap().film, Film::File(url));
            assert_eq!(USUAL.of_url(url, at).unwrap().film, Film::File(url));
        }
    }

    #[test]
    fn a_film_is_what_is_not_called_a_picture() {
        let is = |url: &str| USUAL.of_url(url, "c.video_url.url".to_owned()).unwrap().may_be_film();
        assert!(
            ["data:video/mp4;base64,AA==", "data:;base64,AA==", "http://x/a.gif"]
                .iter()
                .all(|url| is(url))
        );
        let others = [
            "data:image/gif;base64,AA==",
            "DATA:video/GIF;base64,AA==",
            "data:video/jpeg;base64,AA==",
        ];
        assert!(!others.iter().any(|url| is(url)));
    }

    #[test]
    fn what_is_no_clip_is_named() {
        let refused = |pace: Pace, url: &str| {
            let at = "m.content[0].video_url.url".to_owned();
            pace.of_url(url, at).unwrap_err().param.unwrap()
        };
        assert_eq!(refused(at(0.0), "data:,"), "m.content[0].fps");
        assert_eq!(refused(Pace { nframes: Some(0), ..USUAL }, "data:,"), "m.content[0].nframes");
        assert!(USUAL.of_list(&[], "c.video".to_owned()).is_err());
    }
}
