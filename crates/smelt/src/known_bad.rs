//! Knows what goes wrong together: a tool, its version, what it is told, and the device.
//!
//! The rows are data (`known_bad.toml` beside this file, which says what one holds).  They are held against the stages of a
//! pipeline before anything runs; nothing is refused, since devices and tools get better.

use std::collections::BTreeMap;
use std::env;
use std::path::Path;
use std::sync::LazyLock;

use serde::Deserialize;
use serde_json::Value;
use smelt_plan::kind::engine_build::GraphBackend;
use smelt_plan::kind::{BACKEND, TOOL, Values};
use smelt_plan::plan::Stage;
use smelt_plan::{Plan, StageId};

use crate::tools::parts::{Parts, VendorTool, numbers};
use crate::{device, tools};

const BUILT_IN: &str = include_str!("known_bad.toml");

static ALL: LazyLock<Vec<Combination>> = LazyLock::new(|| {
    let file: File = toml::from_str(BUILT_IN).expect("a test reads it");
    file.combination
});

#[derive(Deserialize)]
struct File {
    combination: Vec<Combination>,
}

/// What goes wrong together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Combination {
    pub(crate) id: String,
    #[serde(default)]
    backend: Vec<String>,
    #[serde(default)]
    tool: Vec<String>,
    since: Option<(u32, u32)>,
    until: Option<(u32, u32)>,
    #[serde(default)]
    with: Vec<String>,
    #[serde(default)]
    without: Vec<String>,
    #[serde(default)]
    params: BTreeMap<String, Allowed>,
    #[serde(default)]
    sm: Vec<String>,
    l4t: Option<String>,
    /// What happens, as a clause.
    pub(crate) means: String,
    /// What to do instead.
    pub(crate) remedy: String,
    /// Where it is known from.
    pub(crate) known: String,
}

/// What a field of a stage must be.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Allowed {
    /// A number, and no more than this.
    Most(u64),
    /// One of these.
    Words(Vec<String>),
}

/// A stage as far as rows ask.
struct Subject<'a> {
    params: &'a Values,
    argv: Vec<&'a str>,
    tools: Vec<&'a str>,
    /// The version of its tool.
    version: Option<(u32, u32)>,
    sm: Option<&'a str>,
    l4t: Option<&'a str>,
}

/// What of this is so of the stages of a plan, on this device and with the tools that are here, a line each; `folder` is
/// where the pipeline lies.
pub(crate) fn lines(plan: &Plan, folder: &Path) -> Vec<(StageId, String)> {
    let of = |(id, stage): (StageId, &Stage)| {
        let found = of_stage(&stage.params, folder);
        let line = |row: &Combination| (id, format!("stage {}: {}", stage.name, row.words()));
        found.into_iter().map(line).collect::<Vec<_>>()
    };
    plan.stages().flat_map(of).collect()
}

/// The rows that a stage with these params is like.
pub(crate) fn of_stage(params: &Values, folder: &Path) -> Vec<&'static Combination> {
    static DEVICE: LazyLock<[Option<String>; 2]> =
        LazyLock::new(|| ["sm", "l4t"].map(device::fact_of));
    let argv = tools::texts(params, "argv");
    let program = argv.first().copied();
    let named: Vec<&str> = program.into_iter().chain(tools::texts(params, TOOL)).collect();
    // Most stages are of no tool that a row names, and nothing is looked for then.
    let rows: Vec<&Combination> = ALL.iter().filter(|row| row.names(params, &named)).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let version = version(params, &named, folder);
    let [sm, l4t] = &*DEVICE;
    let subject =
        Subject { params, argv, tools: named, version, sm: sm.as_deref(), l4t: l4t.as_deref() };
    rows.into_iter().filter(|row| row.is_so(&subject)).collect()
}

fn backend(params: &Values) -> Option<&str> {
    params.get(BACKEND)?.as_str()
}

/// The version of the tool that a stage is built with: its back end's, or that of the first that is known.
fn version(params: &Values, named: &[&str], folder: &Path) -> Option<(u32, u32)> {
    let path = match backend(params) == Some(GraphBackend::TensorRt.word()) {
        true => tools::builder()?,
        false => {
            let name = named.iter().find(|name| VendorTool::of(name).is_some())?;
            tools::on_path(name, folder).or_else(|| tools::at_vendor(name))?
        }
    };
    let own = tools::libraries(params).map(str::to_owned);
    let libraries = own.or_else(|| env::var("LD_LIBRARY_PATH").ok());
    numbers(&Parts::of(&path, libraries.as_deref()).version?)
}

impl Combination {
    /// Whether it is about the back end, or one of the programs, of a stage.
    fn names(&self, params: &Values, programs: &[&str]) -> bool {
        let is_named = |tool: &String| programs.iter().any(|name| is_program(name, tool));
        let backend = backend(params);
        self.backend.iter().any(|own| backend == Some(own)) || self.tool.iter().any(is_named)
    }

    fn is_so(&self, subject: &Subject<'_>) -> bool {
        let is_version = match (subject.version, self.since, self.until) {
            (_, None, None) => true,
            (None, ..) => false,
            (Some(here), since, until) => {
                since.is_none_or(|since| here >= since) && until.is_none_or(|until| here < until)
            }
        };
        let is_told = |word: &String| {
            subject.argv.iter().any(|argument| argument.to_lowercase().contains(&**word))
        };
        let fits = |(name, allowed): (&String, &Allowed)| {
            subject.params.get(name).is_some_and(|value| allowed.holds(value))
        };
        let is_own = |sm: &str| self.sm.iter().any(|own| own == sm);
        let is_l4t = |part: &String| subject.l4t.is_some_and(|line| line.contains(part));
        self.names(subject.params, &subject.tools)
            && is_version
            && self.with.iter().map(|word| word.to_lowercase()).all(|word| is_told(&word))
            && !self.without.iter().map(|word| word.to_lowercase()).any(|word| is_told(&word))
            && self.params.iter().all(fits)
            && (self.sm.is_empty() || subject.sm.is_some_and(is_own))
            && self.l4t.iter().all(is_l4t)
    }

    /// For a person, to go on from a stage's name.
    pub(crate) fn words(&self) -> String {
        format!("{} ({}); instead: {}", self.means, self.known, self.remedy)
    }
}

/// Whether a word of a pipeline is that program, by its path or its name.
fn is_program(word: &str, program: &str) -> bool {
    Path::new(word).file_name().is_some_and(|name| name == program)
}

impl Allowed {
    fn holds(&self, value: &Value) -> bool {
        match self {
            Self::Most(most) => value.as_u64().is_some_and(|number| number <= *most),
            Self::Words(words) => {
                value.as_str().is_some_and(|word| words.iter().any(|own| own == word))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// A stage, as rows see it.
    #[derive(Default)]
    struct Made {
        params: Values,
        argv: &'static [&'static str],
        version: Option<(u32, u32)>,
        sm: Option<&'static str>,
        l4t: Option<&'static str>,
    }

    impl Made {
        fn found(&self) -> Vec<&str> {
            let subject = Subject {
                params: &self.params,
                argv: self.argv.to_vec(),
                tools: self.argv.iter().take(1).copied().collect(),
                version: self.version,
                sm: self.sm,
                l4t: self.l4t,
            };
            ALL.iter().filter(|row| row.is_so(&subject)).map(|row| row.id.as_str()).collect()
        }
    }

    fn engine(more: Value) -> Values {
        let mut params: Values = serde_json::from_value(more).unwrap();
        params.insert(BACKEND.to_owned(), Value::from("tensorrt"));
        params
    }

    #[test]
    fn every_row_says_what_where_from_and_what_to_do() {
        let ids: BTreeSet<&str> = ALL.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(ids.len(), ALL.len());
        for row in ALL.iter() {
            let Combination { means, remedy, known, backend, tool, .. } = row;
            assert!([means, remedy, known].iter().all(|text| !text.is_empty()), "{}", row.id);
            assert_ne!(backend.is_empty(), tool.is_empty(), "{}", row.id);
        }
    }

    /// Each row is met, and is not where one of its conditions is another.
    #[test]
    fn a_row_is_met_only_where_all_of_it_is_so() {
        const BAD: &str = "# R36 (release), REVISION: 4.7, GCID: 42132812";
        const GOOD: &str = "# R36 (release), REVISION: 5.0, GCID: 43688277";
        let halves = |level: u64| engine(serde_json::json!({ "precision": "f16", "level": level }));
        let orin = |params: Values, version| Made {
            params,
            version: Some(version),
            sm: Some("87"),
            ..Made::default()
        };
        assert_eq!(orin(halves(2), (10, 16)).found(), ["level-of-halves"]);
        for other in [
            orin(halves(3), (10, 16)),
            orin(halves(2), (10, 3)),
            orin(halves(2), (10, 17)),
            orin(engine(serde_json::json!({ "precision": "f32", "level": 1 })), (10, 16)),
            orin(engine(serde_json::json!({ "precision": "f16" })), (10, 16)),
            Made { sm: Some("86"), ..orin(halves(2), (10, 16)) },
            Made { version: None, ..orin(halves(2), (10, 16)) },
        ] {
            assert_eq!(other.found(), Vec::<&str>::new());
        }
        let release = |l4t| Made { l4t: Some(l4t), ..orin(halves(3), (10, 3)) };
        assert_eq!(release(BAD).found(), ["l4t-36.4.7"]);
        assert!(release(GOOD).found().is_empty());
        let dla = |precision: &str| {
            orin(engine(serde_json::json!({ "precision": precision, "dla": 0 })), (10, 3))
        };
        assert_eq!(dla("int8").found(), ["scales-on-dla"]);
        assert!(dla("f16").found().is_empty());
    }

    #[test]
    fn programs_are_known_by_what_they_are_told() {
        let told = |argv: &'static [&'static str], sm| {
            Made { argv, sm: Some(sm), ..Made::default() }.found().join(" ")
        };
        let trtexec = &["/usr/src/tensorrt/bin/trtexec", "--int8", "--useDLACore=0"];
        assert_eq!(told(trtexec, "87"), "made-up-scales");
        assert_eq!(told(&["trtexec", "--int8", "--useDLACore=0", "--calib=c"], "87"), "");
        let w8a8 = &["vllm", "serve", "RedHatAI/Q-quantized.W8A8", "--enforce-eager"];
        assert_eq!(told(w8a8, "87"), "w8a8-on-orin");
        assert_eq!(told(w8a8, "90"), "");
        assert_eq!(told(&["vllm", "serve", "m"], "87"), "compile-on-orin");
        let packed = &["vllm", "serve", "m", "--enforce-eager", "--quantization=bitsandbytes"];
        assert_eq!(told(packed, "87"), "bitsandbytes-on-orin");
    }
}
