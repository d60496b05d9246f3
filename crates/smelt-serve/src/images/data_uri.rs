//! Reads `data:` URIs (RFC 2397) that hold pictures as base64.
//!
//! Knows nothing of what pictures are.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use smelt_runtime::image::FILE_BYTES_MAX;

/// Many clients leave the padding out; what it would say is known without it.
pub(super) const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// What moves and is decoded here; some clients call that a video.
pub(crate) const ANIMATIONS: [&str; 3] = ["video/gif", "video/png", "video/webp"];

/// Why a `data:` URI holds no picture.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum DataUriError {
    /// There is no comma.
    #[error("the data: URI has no comma; it is data:image/png;base64,DATA")]
    NoComma,
    /// The data are not base64.
    #[error("the data: URI must say ;base64 before its comma")]
    NotBase64,
    /// It says that it is something else.
    #[error(
        "the data: URI holds {0:?}, not image/png, image/jpeg, image/webp, image/gif or a video/ type"
    )]
    NotAPicture(String),
    /// It is too long.
    #[error("the picture has more than the {FILE_BYTES_MAX} bytes allowed")]
    TooLong,
    /// A character is none of base64.
    #[error("the data: URI's base64 is wrong: {0}")]
    Base64(base64::DecodeError),
}

/// The bytes that `uri` holds; `data:` in front is known.
pub(super) fn bytes(uri: &str) -> Result<Vec<u8>, DataUriError> {
    let (head, data) = uri["data:".len()..].split_once(',').ok_or(DataUriError::NoComma)?;
    let mut words = head.split(';');
    let kind = words.next().unwrap_or_default().trim();
    let is_base64 = words.any(|word| word.trim().eq_ignore_ascii_case("base64"));
    // Without a type it would be text, says the RFC; clients that leave it out mean the picture.
    let is_picture = kind.is_empty()
        || ["image/", "video/"].iter().any(|start| {
            kind.get(..start.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(start))
        });
    if !is_picture {
        return Err(DataUriError::NotAPicture(kind.chars().take(64).collect()));
    }
    if !is_base64 {
        return Err(DataUriError::NotBase64);
    }
    if data.len() as u64 / 4 * 3 > FILE_BYTES_MAX {
        return Err(DataUriError::TooLong);
    }
    BASE64.decode(data).map_err(DataUriError::Base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_decoded() {
        for uri in [
            "data:image/png;base64,aGk=",
            "data:image/png;base64,aGk",
            "data:image/jpeg;charset=x;BASE64,aGk=",
            "DATA:IMAGE/PNG;base64,aGk=",
            "data:video/gif;base64,aGk=",
            "data:;base64,aGk=",
        ] {
            assert_eq!(bytes(uri), Ok(b"hi".to_vec()), "{uri}");
        }
    }

    #[test]
    fn what_is_no_picture_is_refused() {
        let check = |uri: &str, expect| assert_eq!(bytes(uri), Err(expect), "{uri}");
        check("data:image/png;base64", DataUriError::NoComma);
        check("data:image/png,aGk=", DataUriError::NotBase64);
        check("data:text/html;base64,aGk=", DataUriError::NotAPicture("text/html".into()));
        check("data:é;base64,aGk=", DataUriError::NotAPicture("é".into()));
        assert!(matches!(bytes("data:;base64,a b"), Err(DataUriError::Base64(_))));
        assert!(matches!(bytes("data:;base64,a"), Err(DataUriError::Base64(_))));
    }
}
