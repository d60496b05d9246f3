//! Gets the pictures that a request shows: out of the request itself, or from other hosts where that
//! is allowed.
//!
//! Every size, time and number has a limit, and what a picture says of itself is not believed: the
//! decoder looks at the bytes.  Knows nothing of models.

mod address;
mod data_uri;
mod remote;

use smelt_runtime::image::Picture;

pub use remote::{Remote, Reach};

use crate::error::ApiError;

/// Gets and decodes the picture at `url`, which the field `at` of the request names.
///
/// # Errors
/// 400, saying what is wrong with the address or the picture.
pub(crate) fn get(url: &str, at: &str, remote: Option<&Remote>) -> Result<Picture, ApiError> {
    let bytes = bytes(url, at, remote)?;
    Picture::decode(&bytes).map_err(|error| ApiError::field(at, error))
}

fn bytes(url: &str, at: &str, remote: Option<&Remote>) -> Result<Vec<u8>, ApiError> {
    let is = |scheme: &str| {
        url.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    };
    if is("data:") {
        return data_uri::bytes(url).map_err(|error| ApiError::field(at, error));
    }
    if !is("http://") && !is("https://") {
        let why = "must be a data: URI, or http(s) where the server allows it";
        return Err(ApiError::field(at, why));
    }
    let Some(remote) = remote else {
        let why = "this server fetches nothing; send the picture as a data: URI, or start it with --allow-remote-images";
        return Err(ApiError::field(at, why));
    };
    remote.get(url).map_err(|error| ApiError::field(at, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(url: &str, says: &str) {
        let error = get(url, "messages[0].content[1].image_url.url", None).unwrap_err();
        assert!(error.message.contains(says), "{error:?}");
        assert_eq!(error.param.as_deref(), Some("messages[0].content[1].image_url.url"));
    }

    #[test]
    fn only_pictures_are_taken() {
        check("file:///etc/passwd", "must be a data: URI");
        check("", "must be a data: URI");
        check("é", "must be a data: URI");
        check("http://example.org/a.png", "--allow-remote-images");
        check("HTTPS://example.org/a.png", "--allow-remote-images");
        check("data:image/png;base64,bm8=", "cannot decode the picture");
    }
}
