//! Reads where a delivery is, as a person writes it: `oci://REGISTRY/NAME:TAG`, or `oci:DIR:TAG` for a directory.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// As the distribution specification has it.
const TAG_BYTES_MAX: usize = 128;
/// Registries take no longer ones.
const NAME_BYTES_MAX: usize = 255;
/// Tags of this kind are lists of who vouches for a digest.
pub(crate) const REFERRERS_TAG: &str = "sha256-";
/// What a directory's only tag is, as other tools have it.
const TAG_USUAL: &str = "latest";

/// A tag at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where.
    pub at: At,
    /// Which of what is there.
    pub tag: String,
}

/// Where deliveries are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// A repository of a registry.
    Registry {
        /// By TLS.
        is_secure: bool,
        /// `HOST` or `HOST:PORT`.
        host: String,
        /// `NAME`, with slashes within.
        name: String,
    },
    /// An image layout.
    Layout(PathBuf),
}

/// A text that is no such reference.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no place of a delivery: {problem}; write oci://REGISTRY/NAME:TAG, or oci:DIR:TAG for a directory"
)]
pub struct NotAReference {
    text: String,
    problem: &'static str,
}

/// Whether a text means a delivery, be it well written or not.
pub fn is_meant(text: &str) -> bool {
    text.starts_with("oci:") || text.starts_with("oci+http:")
}

/// Whether a text is a name in a registry.
pub(crate) fn is_name(name: &str) -> bool {
    let is_part = |part: &str| {
        let ends = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let inner = |c: char| ends(c) || matches!(c, '.' | '_' | '-');
        part.starts_with(ends) && part.ends_with(ends) && part.chars().all(inner)
    };
    name.len() <= NAME_BYTES_MAX && name.split('/').all(is_part)
}

/// Whether a text is a tag.
pub(crate) fn is_tag(tag: &str) -> bool {
    let begins = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let inner = |c: char| begins(c) || matches!(c, '.' | '-');
    tag.len() <= TAG_BYTES_MAX && tag.starts_with(begins) && tag.chars().all(inner)
}

fn registry(rest: &str, is_secure: bool) -> Result<Reference, &'static str> {
    let (host, path) = rest.split_once('/').ok_or("it has no name behind the registry")?;
    let odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']'));
    if host.is_empty() || host.contains(odd) {
        return Err("its registry is no HOST or HOST:PORT");
    }
    if path.contains('@') {
        return Err("it names a digest, and what is delivered has a tag");
    }
    let (name, tag) = path.rsplit_once(':').ok_or("it has no tag")?;
    if !is_name(name) {
        return Err("its name is not of lower-case letters, digits, and . _ - between them");
    }
    check_tag(tag)?;
    let at = At::Registry { is_secure, host: host.to_owned(), name: name.to_owned() };
    Ok(Reference { at, tag: tag.to_owned() })
}

fn layout(rest: &str) -> Result<Reference, &'static str> {
    let tagged = rest.rsplit_once(':').filter(|(_, tag)| !tag.contains('/'));
    let (dir, tag) = tagged.unwrap_or((rest, TAG_USUAL));
    if dir.is_empty() || dir.starts_with("//") {
        return Err("it names no directory");
    }
    check_tag(tag)?;
    Ok(Reference { at: At::Layout(dir.into()), tag: tag.to_owned() })
}

fn check_tag(tag: &str) -> Result<(), &'static str> {
    match tag.starts_with(REFERRERS_TAG) {
        true => Err("its tag is one of those that list who vouches"),
        false if is_tag(tag) => Ok(()),
        false => Err("its tag is not of letters, digits, and . _ - between them"),
    }
}

impl FromStr for Reference {
    type Err = NotAReference;

    fn from_str(text: &str) -> Result<Self, NotAReference> {
        let read = if let Some(rest) = text.strip_prefix("oci://") {
            registry(rest, true)
        } else if let Some(rest) = text.strip_prefix("oci+http://") {
            registry(rest, false)
        } else if let Some(rest) = text.strip_prefix("oci:") {
            layout(rest)
        } else {
            Err("its scheme is another one")
        };
        read.map_err(|problem| NotAReference { text: text.to_owned(), problem })
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tag = &self.tag;
        match &self.at {
            At::Registry { is_secure, host, name } => {
                let scheme = if *is_secure { "oci" } else { "oci+http" };
                write!(f, "{scheme}://{host}/{name}:{tag}")
            }
            At::Layout(dir) => write!(f, "oci:{}:{tag}", dir.display()),
        }
    }
}

impl Reference {
    /// What a delivery there is called: `NAME:TAG`.  Of a directory nobody knows.
    pub fn called(&self) -> Option<String> {
        match &self.at {
            At::Registry { name, .. } => Some(format!("{name}:{}", self.tag)),
            At::Layout(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_and_written() {
        for (text, called) in [
            ("oci://registry.lan/fleet/demo:prod", Some("fleet/demo:prod")),
            ("oci://registry.lan:5000/demo:v1.2", Some("demo:v1.2")),
            ("oci+http://127.0.0.1:5000/a-b/c_d:x", Some("a-b/c_d:x")),
            ("oci://[::1]:5000/demo:prod", Some("demo:prod")),
            ("oci:/media/usb/demo:prod", None),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), text);
            assert_eq!(reference.called().as_deref(), called);
        }
        let usual: Reference = "oci:media/usb".parse().unwrap();
        assert_eq!(usual, Reference { at: At::Layout("media/usb".into()), tag: "latest".into() });
        let colon: Reference = "oci:a:b/c".parse().unwrap();
        assert_eq!(colon.at, At::Layout("a:b/c".into()));
    }

    #[test]
    fn what_is_no_reference_is_refused_with_the_form() {
        for (text, problem) in [
            ("demo:prod", "its scheme is another one"),
            ("docker://a/b:c", "its scheme is another one"),
            ("oci://registry.lan", "it has no name"),
            ("oci://registry.lan/demo", "it has no tag"),
            ("oci:///demo:prod", "its registry is no HOST"),
            ("oci://user@registry.lan/demo:prod", "its registry is no HOST"),
            ("oci://registry.lan/Demo:prod", "its name is not"),
            ("oci://registry.lan/../demo:prod", "its name is not"),
            ("oci://registry.lan/demo/:prod", "its name is not"),
            ("oci://registry.lan/demo:", "its tag is not"),
            ("oci://registry.lan/demo:a b", "its tag is not"),
            ("oci://registry.lan/demo:sha256-00", "its tag is one of those"),
            ("oci://registry.lan/demo@sha256:00", "it names a digest"),
            ("oci:", "it names no directory"),
            ("oci:dir:", "its tag is not"),
        ] {
            let error = text.parse::<Reference>().unwrap_err().to_string();
            assert!(error.contains(problem) && error.contains("oci://REGISTRY"), "{error}");
        }
    }
}
