//! Knows what tools and kernels say when they fail: patterns from a data file, looked for in a log.
//!
//! The file in the binary is `signatures.toml` beside this one, which says what a signature holds;
//! users add a file of the same form.  Pure: text in, finding out.

use std::collections::{BTreeMap, BTreeSet};

use regex::{Regex, RegexSet};
use serde::Deserialize;
use smelt_plan::FailureClass;

/// The signatures that come with smelt.
const BUILT_IN: &str = include_str!("signatures.toml");
/// A file larger than this, or with more signatures, was not written by a person.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
const SIGNATURES_MAX: usize = 1000;
/// A pattern takes this much when compiled, far more than a line's worth needs.
const PATTERN_BYTES_MAX: usize = 1 << 20;
/// Nobody writes his error past this column.
const LINE_CHARS_MAX: usize = 4096;
/// Of the line that decides, as much as a person reads.
const SHOWN_CHARS_MAX: usize = 300;
/// The largest size that any machine could have been asked for: 1 PiB.
const SIZE_BYTES_MAX: u64 = 1 << 50;

/// What is wrong with a file of signatures.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {message}")]
pub struct SignatureError {
    /// The file.
    pub file: String,
    /// What is wrong and where, on one line.
    pub message: String,
}

/// How much a signature says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Rank {
    /// Why something failed.
    #[default]
    Cause,
    /// What is left of a failure whose cause stands elsewhere.
    Trace,
    /// A build may go on and end well.
    Warning,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Signature {
    id: String,
    pattern: String,
    class: FailureClass,
    #[serde(default)]
    rank: Rank,
    #[serde(default)]
    after: Vec<String>,
    size: Option<usize>,
    #[serde(default = "byte")]
    unit: u64,
    means: String,
    remedy: String,
}

fn byte() -> u64 {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    signature: Vec<Signature>,
}

/// Every signature that is looked for.
pub struct Signatures {
    all: Vec<Signature>,
    patterns: Vec<Regex>,
    set: RegexSet,
}

/// What a log says of a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Which signature decided.
    pub id: String,
    /// The class that it stands for.
    pub class: FailureClass,
    /// The line, shortened.
    pub line: String,
    /// Bytes that were asked for and refused, where the log tells.
    pub size_bytes: Option<u64>,
    /// What happened, as a clause.
    pub means: String,
    /// What to try, in order.
    pub remedy: String,
}

impl Signatures {
    /// Those that come with smelt.
    pub fn built_in() -> Self {
        Self::compile("smelt's own signatures", parse("smelt's own signatures", BUILT_IN))
            .expect("a test reads smelt's own signatures")
    }

    /// Those, and what `text`, the content of the user's `file`, adds or replaces.
    pub fn with(file: &str, text: &str) -> Result<Self, SignatureError> {
        let own = parse(file, text)?;
        let replaced: BTreeSet<&str> = own.iter().map(|signature| signature.id.as_str()).collect();
        let mut all = parse("smelt's own signatures", BUILT_IN)?;
        all.retain(|signature| !replaced.contains(signature.id.as_str()));
        all.extend(own);
        Self::compile(file, Ok(all))
    }

    /// None: worlds without logs have nothing to find, and compiling takes time.
    #[cfg(test)]
    pub(crate) fn none() -> Self {
        Self { all: Vec::new(), patterns: Vec::new(), set: RegexSet::empty() }
    }

    fn compile(
        file: &str,
        all: Result<Vec<Signature>, SignatureError>,
    ) -> Result<Self, SignatureError> {
        let all = all?;
        let fail = |message: String| SignatureError { file: file.to_owned(), message };
        let ids: BTreeSet<&str> = all.iter().map(|signature| signature.id.as_str()).collect();
        let mut patterns = Vec::with_capacity(all.len());
        for signature in &all {
            let pattern = compiled(signature).map_err(&fail)?;
            if let Some(missing) = signature.after.iter().find(|id| !ids.contains(id.as_str())) {
                let id = &signature.id;
                return Err(fail(format!("signature \"{id}\": no signature \"{missing}\"")));
            }
            patterns.push(pattern);
        }
        let texts = all.iter().map(|signature| &signature.pattern);
        let set = RegexSet::new(texts).map_err(|error| fail(one_line(&error.to_string())))?;
        Ok(Self { all, patterns, set })
    }

    /// What the log says, from its lines in order.  The last cause decides; without one the last
    /// trace does.  A size that only an earlier line of the same want names is taken from there.
    pub fn find<'a>(&self, lines: impl Iterator<Item = &'a str>) -> Option<Finding> {
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let (mut cause, mut trace, mut size_bytes) = (None, None, None);
        for line in lines {
            let line = shortened(line, LINE_CHARS_MAX);
            let hits: Vec<usize> = self.set.matches(line).into_iter().collect();
            for &at in &hits {
                let signature = &self.all[at];
                let is_due = |id: &String| seen.contains(id.as_str());
                if !signature.after.is_empty() && !signature.after.iter().any(is_due) {
                    continue;
                }
                size_bytes = self.size(at, line).or(size_bytes);
                match signature.rank {
                    Rank::Cause => cause = Some((at, line)),
                    Rank::Trace => trace = Some((at, line)),
                    Rank::Warning => {}
                }
            }
            seen.extend(hits.iter().map(|&at| self.all[at].id.as_str()));
        }
        let (at, line) = cause.or(trace)?;
        let signature = &self.all[at];
        Some(Finding {
            id: signature.id.clone(),
            class: signature.class,
            line: shown(line),
            size_bytes: size_bytes.filter(|_| signature.class.lacks_memory()),
            means: signature.means.clone(),
            remedy: signature.remedy.clone(),
        })
    }

    fn size(&self, at: usize, line: &str) -> Option<u64> {
        let signature = &self.all[at];
        let number = self.patterns[at].captures(line)?.get(signature.size?)?.as_str();
        let bytes = number.parse::<u64>().ok()?.checked_mul(signature.unit)?;
        (1..=SIZE_BYTES_MAX).contains(&bytes).then_some(bytes)
    }
}

fn parse(file: &str, text: &str) -> Result<Vec<Signature>, SignatureError> {
    let fail = |message: String| SignatureError { file: file.to_owned(), message };
    let parsed = toml::from_str::<File>(text).map_err(|error| {
        let line = error.span().map_or(1, |span| text[..span.start].lines().count().max(1));
        fail(format!("line {line}: {}", one_line(error.message())))
    })?;
    let mut ids = BTreeMap::new();
    for (at, signature) in parsed.signature.iter().enumerate() {
        if ids.insert(&signature.id, at).is_some() {
            return Err(fail(format!("two signatures are called \"{}\"", signature.id)));
        }
    }
    if parsed.signature.len() > SIGNATURES_MAX {
        return Err(fail(format!("more than {SIGNATURES_MAX} signatures")));
    }
    Ok(parsed.signature)
}

fn compiled(signature: &Signature) -> Result<Regex, String> {
    let id = &signature.id;
    let pattern = regex::RegexBuilder::new(&signature.pattern)
        .size_limit(PATTERN_BYTES_MAX)
        .build()
        .map_err(|error| format!("signature \"{id}\": {}", one_line(&error.to_string())))?;
    if pattern.is_match("") {
        return Err(format!("signature \"{id}\" matches an empty line, and so every line"));
    }
    if signature.size.is_some_and(|group| group == 0 || group >= pattern.captures_len()) {
        return Err(format!("signature \"{id}\": \"size\" is no group of its pattern"));
    }
    Ok(pattern)
}

/// Compilers of patterns draw their complaints over several lines; the last says what it is.
fn one_line(text: &str) -> String {
    let line = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
    line.trim().to_owned()
}

fn shortened(line: &str, chars_max: usize) -> &str {
    line.char_indices().nth(chars_max).map_or(line, |(end, _)| &line[..end])
}

fn shown(line: &str) -> String {
    let line: String = line.trim().chars().filter(|c| !c.is_control()).collect();
    shortened(&line, SHOWN_CHARS_MAX).to_owned()
}

#[cfg(test)]
mod tests;
