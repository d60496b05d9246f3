//! What the loader says, a line of JSON each.

use std::fmt;

use serde::Deserialize;

/// How bad a message of TensorRT's is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogSeverity {
    /// It cannot go on.
    Error,
    /// It goes on.
    Warning,
}

/// A message of TensorRT's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Log {
    /// How bad it is.
    pub severity: LogSeverity,
    /// As it stands, cut where it is long.
    pub text: String,
}

/// Why the parser does not take a graph.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Refusal {
    /// TensorRT's number for the reason.
    pub code: i32,
    /// Its words.
    pub text: String,
    /// The node's place in the graph, from 0; -1 where it is none's fault.
    pub node: i64,
    /// Its name; empty where it has none.
    pub name: String,
    /// Its operator.
    pub operator: String,
    /// What of the parser refuses it.
    pub function: String,
}

impl Refusal {
    /// What the numbers stand for (`NvOnnxParser.h`, `ErrorCode`).
    pub fn reason(&self) -> &'static str {
        match self.code {
            2 => "memory",
            3 => "file",
            4 => "value",
            5 => "graph",
            6 => "node",
            7 => "unsupported graph",
            8 => "unsupported operator",
            9 => "unsupported attribute",
            10 => "unsupported input",
            11 => "unsupported type",
            12 => "unsupported dynamic shape",
            13 => "unsupported shape",
            _ => "internal",
        }
    }

    /// What to do about it; empty where nothing is known to help.
    pub fn remedy(&self) -> &'static str {
        const NO_PLUGIN: &str =
            "load a plugin for it, or write it in operators that the parser has";
        const ONE_TYPE: &str = "cast to a type that TensorRT has, all inputs of a node to one";
        // Many faults have the number of a node that is wrong; the words tell more.
        let says = |words: &str| self.text.contains(words);
        match self.code {
            3 => "look at the file, and at what it names beside it",
            _ if says("Plugin not found") => NO_PLUGIN,
            _ if says("same input types") || says("same type") => ONE_TYPE,
            _ if says("zero point") || says("zeroPoint") => {
                "round without zero points: TensorRT takes symmetric levels alone"
            }
            8..=10 => "write the node another way",
            11 => ONE_TYPE,
            12 | 13 => "fix the sizes: set-batch, then fold-constants",
            _ => "",
        }
    }
}

/// A line by which the library says that there is no driver of GPUs, in whatever it says; what it is asked here needs none.
const NO_DRIVER: &str = "[checkMacros.cpp::catchCudaError";

/// What TensorRT said, as one line.
pub(crate) fn words(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with(NO_DRIVER));
    lines.collect::<Vec<_>>().join("; ")
}

impl Refusal {
    /// What it says, as one line.
    pub fn words(&self) -> String {
        words(&self.text)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, name, operator, .. } = self;
        match (node, name.as_str()) {
            (..0, _) => {}
            (node, "") => write!(f, "node {node} ({operator}): ")?,
            (_, name) => write!(f, "node {name:?} ({operator}): ")?,
        }
        write!(f, "{}: {}", self.reason(), self.words())
    }
}

/// An input or output as TensorRT sees it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// TensorRT's number for its type.
    #[serde(rename = "type")]
    pub dtype: i32,
    /// Its sizes; -1 is one that varies.
    pub sizes: Vec<i64>,
}

impl Tensor {
    /// The name of its type (`NvInferRuntimeBase.h`, `DataType`).
    pub fn dtype_word(&self) -> &'static str {
        const WORDS: [&str; 12] =
            ["f32", "f16", "i8", "i32", "bool", "u8", "f8", "bf16", "i64", "i4", "f4", "e8m0"];
        usize::try_from(self.dtype).ok().and_then(|at| WORDS.get(at)).unwrap_or(&"unknown")
    }
}

/// What a builder asked of a GPU's memory, in bytes but for counts.  All is 0 of one that touches no GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemoryAsked {
    /// How often it asked.
    pub requests: u64,
    /// How often it was refused.
    pub refused: u64,
    /// The most that it held.
    pub held_most: u64,
    /// The largest request.
    pub largest: u64,
    /// The largest that was refused.
    pub refused_largest: u64,
}

/// A line of the loader's.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub(crate) enum Event {
    Loaded { version: i32, parser_version: i32 },
    Message(Log),
    Refused(Refusal),
    Parsed { layers: i64, inputs: Vec<Tensor>, outputs: Vec<Tensor> },
    Phase { name: String, steps: i64 },
    Step { name: String, step: i64 },
    Steps { count: i64 },
    MemoryRefused { bytes: u64, held: u64, by: String },
    Memory(MemoryAsked),
    Cancelled {},
    Failed { what: String, why: String },
    Built { bytes: u64 },
    Done { well: bool },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_loader_read() {
        let check = |line: &str, expect: Event| {
            assert_eq!(serde_json::from_str::<Event>(line).unwrap(), expect, "{line}");
        };
        check(r#"{"event":"cancelled"}"#, Event::Cancelled {});
        check(r#"{"event":"done","well":false}"#, Event::Done { well: false });
        let version = r#"{"event":"loaded","version":10701,"parser-version":200}"#;
        check(version, Event::Loaded { version: 10701, parser_version: 200 });
        let log = Log { severity: LogSeverity::Warning, text: "w".to_owned() };
        check(r#"{"event":"message","severity":"warning","text":"w"}"#, Event::Message(log));
        assert!(serde_json::from_str::<Event>(r#"{"event":"other"}"#).is_err());
    }

    #[test]
    fn a_refusal_names_its_node() {
        let mut refusal = Refusal {
            code: 8,
            text: "no importer".to_owned(),
            node: 3,
            name: "a/b".to_owned(),
            operator: "X".to_owned(),
            function: String::new(),
        };
        assert_eq!(refusal.to_string(), "node \"a/b\" (X): unsupported operator: no importer");
        refusal.name.clear();
        assert_eq!(refusal.to_string(), "node 3 (X): unsupported operator: no importer");
        (refusal.node, refusal.code) = (-1, 3);
        assert_eq!(refusal.to_string(), "file: no importer");
        refusal.text = "a\nb\n[checkMacros.cpp::catchCudaError::250] no driver".to_owned();
        assert_eq!(refusal.to_string(), "file: a; b");
    }
}
