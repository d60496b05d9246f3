//! Finds the parts of a GGUF file that was split, and holds them against each other.
//!
//! The first part has all metadata; each has tensors of its own.  Their names end in the number of the part,
//! from 1, and how many there are: `-00001-of-00003.gguf`.
//!
//! Source: `tools/gguf-split` of llama.cpp.  Opens nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::config::bad;
use super::header::{GgufLie, Header};

/// The entries of a part: its number from 0, how many parts and how many tensors there are in all.
const NUMBER: &str = "split.no";
const COUNT: &str = "split.count";
const TENSORS: &str = "split.tensors.count";

/// The most parts: a process may hold 1024 files open, and published models have under 100.
const PARTS_MAX: u64 = 512;

/// A name of a part in pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Name<'a> {
    stem: &'a str,
    /// From 1.
    number: u64,
    count: u64,
}

impl<'a> Name<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, number) = rest.rsplit_once('-')?;
        let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
        let parse = |text: &str| Some(text).filter(|text| is_number(text))?.parse::<u64>().ok();
        let (number, count) = (parse(number)?, parse(count)?);
        (1..=count).contains(&number).then_some(Self { stem, number, count })
    }

    fn text(&self) -> String {
        format!("{}-{:05}-of-{:05}.gguf", self.stem, self.number, self.count)
    }
}

/// The names of all parts of the file that is called `name`, the first in front; itself where it is whole.
fn parts_of(name: &str) -> Vec<String> {
    let file = name.rsplit_once('/').map_or(name, |(_, file)| file);
    let folder = &name[..name.len() - file.len()];
    match Name::parse(file) {
        None => vec![name.to_owned()],
        Some(part) => (1..=part.count.min(PARTS_MAX))
            .map(|number| format!("{folder}{}", Name { number, ..part }.text()))
            .collect(),
    }
}

/// The first part, if `files` are all parts of one file.
pub(crate) fn first_of(files: &[PathBuf]) -> Option<&PathBuf> {
    let name = |path: &'_ PathBuf| path.file_name()?.to_str().map(str::to_owned);
    let names = files.iter().map(name).collect::<Option<Vec<_>>>()?;
    let first = names.iter().position(|name| Name::parse(name).is_some_and(|n| n.number == 1))?;
    let expected = parts_of(&names[first]);
    names.iter().all(|name| expected.contains(name)).then(|| &files[first])
}

/// The other parts of the file at `path` whose tables are `header`.
pub(super) fn others(path: &Path, header: &Header) -> Result<Vec<PathBuf>, GgufLie> {
    let Some(count) = header.integer(COUNT).filter(|count| *count > 1) else {
        return Ok(Vec::new());
    };
    if count > PARTS_MAX {
        return Err(GgufLie::TooMany { place: COUNT.to_owned(), found: count, max: PARTS_MAX });
    }
    let number = header.integer(NUMBER).ok_or_else(|| bad(header, NUMBER, "a number"))?;
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    let name = Name::parse(&file).filter(|name| name.count == count && name.number == number + 1);
    match name {
        None => {
            let suffix = format!("-{:05}-of-{count:05}.gguf", number + 1);
            Err(GgufLie::PartName { number: number + 1, count, suffix })
        }
        Some(Name { number: 1, .. }) => {
            Ok(parts_of(&file).iter().skip(1).map(|name| path.with_file_name(name)).collect())
        }
        Some(name) => {
            let first = Name { number: 1, ..name }.text();
            Err(GgufLie::NotFirst { number: name.number, count, first })
        }
    }
}

/// Whether `header` is of the part of this number, from 0.
pub(super) fn check(header: &Header, number: u64) -> Result<(), GgufLie> {
    match header.integer(NUMBER) {
        Some(found) if found == number => Ok(()),
        _ => Err(bad(header, NUMBER, &format!("{number}, as in the file's name"))),
    }
}

/// Whether parts have as many tensors together as the first one says, none of them twice.
pub(super) fn check_all(parts: &[&Header]) -> Result<(), GgufLie> {
    let mut names = BTreeSet::new();
    for tensor in parts.iter().flat_map(|header| &header.tensors) {
        if !names.insert(&tensor.name) {
            return Err(GgufLie::DuplicateName { name: tensor.name.clone() });
        }
    }
    let Some(first) = parts.first().filter(|_| parts.len() > 1) else { return Ok(()) };
    match first.integer(TENSORS) {
        Some(expected) if expected == names.len() as u64 => Ok(()),
        _ => Err(bad(first, TENSORS, &format!("{}, as many as the parts have", names.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_which_part_of_how_many() {
        let name = Name::parse("q4_k_m-00002-of-00003.gguf").unwrap();
        assert_eq!((name.stem, name.number, name.count), ("q4_k_m", 2, 3));
        assert_eq!(name.text(), "q4_k_m-00002-of-00003.gguf");
        for other in [
            "m.gguf",
            "m-2-of-3.gguf",
            "m-00004-of-00003.gguf",
            "m-00000-of-00003.gguf",
            "m-of-00003.gguf",
        ] {
            assert_eq!(Name::parse(other), None, "{other}");
        }
        assert_eq!(
            parts_of("a/m-00001-of-00002.gguf"),
            ["a/m-00001-of-00002.gguf", "a/m-00002-of-00002.gguf"]
        );
        assert_eq!(parts_of("a/m.gguf"), ["a/m.gguf"]);
    }

    #[test]
    fn parts_of_one_file_are_known_from_several_files() {
        let first = |names: &[&str]| {
            let files: Vec<PathBuf> = names.iter().map(PathBuf::from).collect();
            first_of(&files).map(|path| path.display().to_string())
        };
        let [one, two] = ["d/m-00001-of-00002.gguf", "d/m-00002-of-00002.gguf"];
        assert_eq!(first(&[two, one]).as_deref(), Some(one));
        assert_eq!(first(&[one]).as_deref(), Some(one), "the missing one is named later");
        assert_eq!(first(&[two]), None);
        assert_eq!(first(&[one, two, "d/n.gguf"]), None);
        assert_eq!(first(&[one, "d/n-00002-of-00002.gguf"]), None);
    }
}
