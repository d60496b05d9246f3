//! Finds in the arguments what says how the others are read.

use std::ffi::OsString;

/// The value of a flag in arguments that nobody has read yet.
pub(crate) fn early(arguments: &[OsString], flag: &str) -> Option<OsString> {
    let behind = arguments.windows(2).find(|pair| pair[0] == flag).map(|pair| pair[1].clone());
    let value =
        |word: &OsString| Some(word.to_str()?.strip_prefix(flag)?.strip_prefix('=')?.into());
    behind.or_else(|| arguments.iter().find_map(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_found_with_its_value_in_either_form() {
        let of = |text: &str| {
            let arguments: Vec<OsString> = text.split(' ').map(OsString::from).collect();
            early(&arguments, "--config").and_then(|value| value.into_string().ok())
        };
        assert_eq!(of("smelt run --config a.toml p").as_deref(), Some("a.toml"));
        assert_eq!(of("smelt --config=a=b.toml ls").as_deref(), Some("a=b.toml"));
        assert_eq!(of("smelt ls --configs=a --config"), None);
    }
}
