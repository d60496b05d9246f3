//! Names of repositories, revisions, commits and files, checked once so that each is safe in a
//! URL and in a path.

use std::fmt;
use std::str::FromStr;

use super::error::HubError;

/// The hub's own limit for `ORG/NAME`.
const REPO_BYTES_MAX: usize = 96;
/// Longer than any branch; keeps paths of refs below the system's limit.
const REVISION_BYTES_MAX: usize = 128;
/// The branch that is meant when none is named.
const MAIN: &str = "main";

/// A model repository, `ORG/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Repo(String);

/// A branch, a tag, a pull request (`refs/pr/1`) or a commit.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Revision(String);

/// A commit: 40 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Commit(String);

/// What follows `hf:` in a pipeline: `ORG/NAME[@REV]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The repository.
    pub repo: Repo,
    /// The revision, `main` where none is named.
    pub revision: Revision,
}

impl FromStr for Address {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let (repo, revision) = text.split_once('@').unwrap_or((text, MAIN));
        Ok(Self { repo: repo.parse()?, revision: revision.parse()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repo, self.revision)
    }
}

impl FromStr for Repo {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let bad = |why| Err(HubError::BadName { text: text.to_owned(), why });
        let Some((organisation, name)) = text.split_once('/') else {
            return bad("write ORG/NAME");
        };
        if text.len() > REPO_BYTES_MAX {
            return bad("it is longer than 96 bytes");
        }
        if !is_name(organisation) || !is_name(name) {
            return bad("ORG and NAME are of letters, digits, \"-\", \"_\" and \".\"");
        }
        if [organisation, name].iter().any(|part| part.contains("--") || part.contains("..")) {
            return bad("\"--\" and \"..\" are not allowed");
        }
        Ok(Self(text.to_owned()))
    }
}

impl Repo {
    /// `models--ORG--NAME`: its directory in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}", self.0.replace('/', "--"))
    }
}

impl FromStr for Revision {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let bad = |why| Err(HubError::BadName { text: text.to_owned(), why });
        if text.len() > REVISION_BYTES_MAX {
            return bad("the revision is longer than 128 bytes");
        }
        if !text.split('/').all(is_name) {
            return bad("a revision is a branch, a tag or a commit");
        }
        if text.contains("..") {
            return bad("\"..\" is not allowed");
        }
        Ok(Self(text.to_owned()))
    }
}

impl Revision {
    /// As one segment of a URL; all other characters a revision may hold stand for themselves.
    pub(super) fn in_url(&self) -> String {
        self.0.replace('/', "%2F").replace('+', "%2B")
    }

    /// The commit, where the revision names one in full.
    pub fn as_commit(&self) -> Option<Commit> {
        Commit::parse(&self.0)
    }
}

impl Commit {
    /// `None` for anything but 40 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self(text.to_owned()))
    }
}

macro_rules! shown_as_text {
    ($($name:ident),*) => {$(
        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

shown_as_text!(Repo, Revision, Commit);

/// Exactly `digits` lower-case hexadecimal digits.
pub(super) fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// One segment of a repository's or revision's name.  It starts with no dot or dash, so it is
/// never hidden, never `..`, never a flag.
fn is_name(text: &str) -> bool {
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'+');
    let first = text.as_bytes().first();
    first.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_')
        && text.bytes().all(legal)
        && !text.ends_with(['.', '-'])
}

/// Whether a path that a server sent stays inside a directory that it is joined to.
pub(super) fn stays_inside(path: &str) -> bool {
    !path.contains(['\\', '\0'])
        && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let address: Address = "OpenGVLab/InternVL3-2B".parse().unwrap();
        assert_eq!(address.to_string(), "OpenGVLab/InternVL3-2B@main");
        assert_eq!(address.repo.folder(), "models--OpenGVLab--InternVL3-2B");
        let address: Address = "a/b_c.d@refs/pr/1".parse().unwrap();
        assert_eq!(address.revision.in_url(), "refs%2Fpr%2F1");
        let commit = "0123456789012345678901234567890123456789";
        let address: Address = format!("a/b@{commit}").parse().unwrap();
        assert_eq!(address.revision.as_commit().unwrap().as_str(), commit);
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let long = format!("a/{}", "b".repeat(REPO_BYTES_MAX));
        let repos = ["", "a", "/", "a/", "/b", "../b", "a/..", "a/b/c", "a/.b", "a/b?c", "a/b--c"];
        for text in repos.iter().copied().chain([&*long, "a/b c", "a/b%2e", "-a/b", "a/b\n"]) {
            assert!(text.parse::<Repo>().is_err(), "{text:?}");
        }
        for text in ["", "/", "..", "a/../b", "/main", "main/", "a//b", "a b", "a?b", "-x", ".x"] {
            assert!(text.parse::<Revision>().is_err(), "{text:?}");
        }
        assert!("a".repeat(REVISION_BYTES_MAX + 1).parse::<Revision>().is_err());
        assert_eq!(Commit::parse("0123"), None);
        assert_eq!(Commit::parse(&"A".repeat(40)), None);
    }

    #[test]
    fn paths() {
        for path in ["../a", "/a", "a/../b", "a//b", "a\\b", ".", "", "a/"] {
            assert!(!stays_inside(path), "{path}");
        }
        assert!(stays_inside("a/b.json"));
    }
}
