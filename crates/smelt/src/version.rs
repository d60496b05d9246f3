//! Says which smelt this is: version, commit, target.
//!
//! The build script finds commit and target; a tarball has no commit.

/// `0.1.0 (1a2b3c4d5e6f, x86_64-unknown-linux-gnu)`.
/// What statements say that they were made by.
pub(crate) const BUILDER: &str = concat!("smelt ", env!("CARGO_PKG_VERSION"));
/// The same with what it was built of.
pub(crate) const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SMELT_BUILT"), ")");

#[cfg(test)]
mod tests {
    use super::TEXT;

    #[test]
    fn commit_and_target_are_told_apart() {
        let (version, built) = TEXT.split_once(" (").unwrap();
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
        let words: Vec<&str> = built.trim_end_matches(')').split(", ").collect();
        assert!(words.len() <= 2 && words.iter().all(|word| !word.contains([',', ' '])), "{TEXT}");
        assert!(words.last().unwrap().matches('-').count() >= 2, "{TEXT} ends with a target");
    }
}
