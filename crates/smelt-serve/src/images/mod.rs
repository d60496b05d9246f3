//! Gets the pictures that a request shows: out of the request itself, or from other hosts where that
//! is allowed.
//!
//! Every size, time and number has a limit, and what a picture says of itself is not believed: the
//! decoder looks at the bytes.  Knows nothing of models.

mod address;
mod camera;
mod data_uri;
mod remote;

pub(crate) use data_uri::ANIMATIONS;
pub use remote::Reach;
pub(crate) use remote::{Errand, Remote};

use crate::error::ApiError;

/// Whether another host has the picture at `url`.
pub(crate) fn is_elsewhere(url: &str) -> bool {
    begins(url, "http://") || begins(url, "https://") || is_camera(url)
}

/// Whether what is at `url` is recorded, not read.
pub(crate) fn is_camera(url: &str) -> bool {
    begins(url, "rtsp://")
}

/// The file of the picture that `url` holds itself; the field `at` of the request names it.
///
/// # Errors
/// 400, saying what is wrong with it.
pub(crate) fn inside(url: &str, at: &str) -> Result<Vec<u8>, ApiError> {
    if !begins(url, "data:") {
        let why = "must be a data: URI, or http(s), of a film rtsp, where the server allows it";
        return Err(ApiError::field(at, why));
    }
    data_uri::bytes(url).map_err(|error| ApiError::field(at, error))
}

/// The file of the picture that another host has, as part of an `errand`; the field `at` of the request names it.
///
/// # Errors
/// 400, saying why it is not to be had.
pub(crate) fn fetch(
    url: &str,
    at: &str,
    remote: Option<&Remote>,
    errand: &Errand,
) -> Result<Vec<u8>, ApiError> {
    let Some(remote) = remote else {
        let why = "this server fetches nothing; send the picture as a data: URI, or start it with --allow-remote-images";
        return Err(ApiError::field(at, why));
    };
    remote.get(url, errand).map_err(|error| ApiError::field(at, error))
}

fn begins(url: &str, scheme: &str) -> bool {
    url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, says: &str) {
        let at = "messages[0].content[1].image_url.url";
        let errand = Errand::new(std::sync::Weak::new());
        let got = if is_elsewhere(url) { fetch(url, at, None, &errand) } else { inside(url, at) };
        let error = got.unwrap_err();
        assert!(error.message.contains(says), "{error:?}");
        assert_eq!(error.param.as_deref(), Some(at));
    }

    #[test]
    fn only_pictures_are_taken() {
        check("file:///etc/passwd", "must be a data: URI");
        check("", "must be a data: URI");
        check("é", "must be a data: URI");
        check("http://example.org/a.png", "--allow-remote-images");
        check("HTTPS://example.org/a.png", "--allow-remote-images");
        check("rtsp://me:secret@camera/", "--allow-remote-images");
        check("rtsps://camera/", "must be a data: URI");
        check("data:text/plain;base64,bm8=", "text/plain");
    }
}
