//! Recognises files that are something else than their name says, by how they start.
//!
//! Downloads leave pointers, error pages and archives under the names of weights and
//! configurations; each deserves better words than "does not parse".  Knows nothing of paths.

/// How a git-lfs pointer file starts: <https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md>.
const GIT_LFS: &[u8] = b"version https://git-lfs";

/// The first bytes that [`recognise`] wants; fewer where the file has fewer.
pub(crate) const START_BYTES: usize = 64;

/// Starts of formats that are met under other names, with the format and what to do.
const FORMATS: [(&[u8], &str); 5] = [
    (b"PK\x03\x04", "a zip archive, as torch.save writes; convert it to safetensors"),
    (b"\x80\x02\x8a\x0a", "a pickle, as old torch.save wrote; convert it to safetensors"),
    (b"GGUF", "a GGUF file; give it a name that ends in .gguf"),
    (b"\x89HDF", "an HDF5 file; convert it to safetensors"),
    (b"\x1f\x8b", "a gzip archive; unpack it"),
];

/// What a file is that starts with `start`, and what to do, if it is a known stranger.
///
/// Text counts as one only when asked for, since configurations are text.
pub(crate) fn recognise(start: &[u8], expected: Expected) -> Option<&'static str> {
    if start.starts_with(GIT_LFS) {
        return Some(match expected {
            Expected::Weights => {
                "a git-lfs pointer, not the weights; run `git lfs pull` where it came from"
            }
            Expected::Json => {
                "a git-lfs pointer, not the text; run `git lfs pull` where it came from"
            }
        });
    }
    if start.trim_ascii_start().starts_with(b"<") {
        return Some("a web page, perhaps the error of a download; fetch it again");
    }
    // A header of safetensors may be as long as these bytes say only up to its limit, which none
    // of these starts stays within.
    let known = |(magic, _): &&(&[u8], &str)| start.starts_with(magic) && start.len() >= 8;
    if let Some((_, what)) = FORMATS.iter().find(known) {
        return Some(what);
    }
    let is_text = |byte: &u8| byte.is_ascii_graphic() || byte.is_ascii_whitespace();
    let text = start.len() >= 8 && start.iter().all(is_text);
    (text && expected == Expected::Weights)
        .then_some("text, perhaps the error of a download; fetch it again")
}

/// What a file's name says it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    Weights,
    Json,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_are_called_by_their_names() {
        let weights = |start: &[u8]| recognise(start, Expected::Weights).unwrap_or("");
        let json = |start: &[u8]| recognise(start, Expected::Json).unwrap_or("");
        assert!(weights(b"version https://git-lfs.github.com/spec/v1\n").contains("the weights"));
        assert!(json(b"version https://git-lfs.github.com/spec/v1\n").contains("the text"));
        for page in [&b"<!DOCTYPE html><html>"[..], b"\n <html>", b"<?xml version=\"1.0\"?>"] {
            assert!(weights(page).contains("web page"));
            assert!(json(page).contains("web page"));
        }
        assert!(weights(b"PK\x03\x04\0\0\x08\x08").contains("zip"));
        assert!(weights(b"\x80\x02\x8a\x0al\xfc\x9cF").contains("pickle"));
        assert!(weights(b"GGUF\x03\0\0\0").contains("GGUF"));
        assert!(weights(b"{\"error\":\"Repository not found\"}").contains("text"));
        assert_eq!(json(b"{\"error\":\"Repository not found\"}"), "");
    }

    #[test]
    fn weights_are_no_strangers() {
        for length in [2_u64, 640, 11_408, 100_000_000] {
            let start = [&length.to_le_bytes()[..], b"{\"a\":{\"dtype\""].concat();
            assert_eq!(recognise(&start, Expected::Weights), None, "{length}");
        }
        assert_eq!(recognise(b"", Expected::Weights), None);
    }
}
