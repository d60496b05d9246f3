//! Names of repositories, revisions, commits and files, checked once so that each is safe in a
//! URL and in a path.

use std::fmt;
use std::str::FromStr;

use super::error::HubError;

/// The hub's own limit for `ORG/NAME`.
const REPO_BYTES_MAX: usize = 96;
/// Longer than any branch; keeps paths of refs below the system's limit.
const REVISION_BYTES_MAX: usize = 128;
/// The limit of file systems for one name.
const FILE_BYTES_MAX: usize = 255;
/// More parts than published models have; a process may hold 1024 files open.
const PARTS_MAX: usize = 512;
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

/// One GGUF file of a repository, with the folders it lies in: one of several models.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileName(String);

/// What follows `hf:` in a pipeline: `ORG/NAME[@REV][:FILE]`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// The repository.
    pub repo: Repo,
    /// The revision, `main` where none is named.
    pub revision: Revision,
    /// The GGUF file that is meant, where one is named.
    pub file: Option<FileName>,
}

impl FromStr for Address {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let (rest, file) = match text.split_once(':') {
            Some((rest, file)) => (rest, Some(file.parse()?)),
            None => (text, None),
        };
        let (repo, revision) = rest.split_once('@').unwrap_or((rest, MAIN));
        Ok(Self { repo: repo.parse()?, revision: revision.parse()?, file })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.repo, self.revision)?;
        self.file.as_ref().map_or(Ok(()), |file| write!(f, ":{file}"))
    }
}

impl FromStr for FileName {
    type Err = HubError;

    fn from_str(text: &str) -> Result<Self, HubError> {
        let bad = |why| Err(HubError::BadName { text: text.to_owned(), why });
        if text.len() > FILE_BYTES_MAX {
            return bad("the name of the file is longer than 255 bytes");
        }
        if !text.ends_with(".gguf") {
            return bad("behind the colon goes one GGUF file of several, as in :model-Q4_K_M.gguf");
        }
        if !text.split('/').all(is_name) || text.contains("..") {
            return bad("a file's name is of letters, digits, \"-\", \"_\", \"+\" and \".\"");
        }
        Ok(Self(text.to_owned()))
    }
}

impl FileName {
    /// The names of all parts of it, the first in front: `m-00001-of-00003.gguf` is the first of three.
    /// Of a whole file its own.
    pub(super) fn parts(&self) -> Vec<String> {
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let count = || {
            let (rest, count) = self.0.strip_suffix(".gguf")?.rsplit_once("-of-")?;
            let (stem, number) = rest.rsplit_once('-')?;
            let count: usize = Some(count).filter(|text| is_number(text))?.parse().ok()?;
            is_number(number).then_some((stem, count.min(PARTS_MAX)))
        };
        match count() {
            Some((stem, count)) => {
                (1..=count).map(|number| format!("{stem}-{number:05}-of-{count:05}.gguf")).collect()
            }
            None => vec![self.0.clone()],
        }
    }

    /// Its name in one piece, for a directory of the cache.
    pub(super) fn in_path(&self) -> String {
        self.0.replace('/', "+")
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

shown_as_text!(Repo, Revision, Commit, FileName);

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
    fn one_file_of_several_is_named_behind_a_colon() {
        let address: Address = "a/b@v1:Q4_K_M/m-00002-of-00003.gguf".parse().unwrap();
        assert_eq!(address.to_string(), "a/b@v1:Q4_K_M/m-00002-of-00003.gguf");
        let file = address.file.unwrap();
        assert_eq!(file.parts(), [1, 2, 3].map(|n| format!("Q4_K_M/m-{n:05}-of-00003.gguf")));
        assert_eq!(file.in_path(), "Q4_K_M+m-00002-of-00003.gguf");
        let address: Address = "a/b:m.Q8_0.gguf".parse().unwrap();
        assert_eq!((address.revision.as_str(), address.file.unwrap().parts().len()), ("main", 1));
        for text in
            ["a/b:", "a/b:m.bin", "a/b:../m.gguf", "a/b:/m.gguf", "a/b:x/.m.gguf", "a/b:m.gguf@v1"]
        {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
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
