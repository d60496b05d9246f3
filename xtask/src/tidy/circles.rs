//! Finds modules of a crate that name each other in a circle, and names of types that many crates use for different things.
//!
//! Circles that are there are listed; the list may only shrink.  Modules are those at the top of a crate, and tests do not
//! count.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::Source;

/// The circles that there are: a crate, and the modules of it that reach each other.
const KNOWN: [(&str, &[&str]); 7] = [
    ("smelt", &["pins", "tools"]),
    ("smelt-exec", &["attempt", "prepare"]),
    ("smelt-model", &["checkpoint", "families", "model", "packed", "synthetic"]),
    ("smelt-plan", &["key", "plan"]),
    ("smelt-plan", &["pipeline", "retry"]),
    ("smelt-runtime", &["dialect", "grammar", "markup", "template", "tokenizer"]),
    (
        "smelt-store",
        &[
            "actions",
            "ballast",
            "collect",
            "digester",
            "disk",
            "inventory",
            "layout",
            "log",
            "modes",
            "roots",
            "run",
            "seal",
            "stat_cache",
            "store",
            "verify",
            "walk",
        ],
    ),
];

/// Which modules each module names.
type Graph<'a> = BTreeMap<&'a str, BTreeSet<&'a str>>;

/// Circles that are not listed, and listed ones that are gone.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, files) in by_crate(sources) {
        let circles = circles(&graph(&files));
        found.extend(circles.into_iter().map(|circle| (name, circle)));
    }
    let is_known = |(name, circle): &(&str, BTreeSet<&str>)| {
        let mut known = KNOWN.iter().filter(|(known, _)| known == name);
        known.any(|(_, modules)| circle.iter().all(|module| modules.contains(module)))
    };
    let new = found.iter().filter(|one| !is_known(one)).map(|(name, circle)| {
        let circle: Vec<&str> = circle.iter().copied().collect();
        format!("{name}: modules name each other in a circle: {}", circle.join(", "))
    });
    let gone = KNOWN.iter().filter(|(name, modules)| {
        let all = modules.iter().copied().collect::<BTreeSet<_>>();
        !found.iter().any(|(crate_name, circle)| crate_name == name && *circle == all)
    });
    let gone = gone.map(|(name, modules)| {
        format!(
            "{name}: the circle of {} is smaller now or gone; say so in the list of circles",
            modules.join(", ")
        )
    });
    new.chain(gone).collect()
}

/// A file of product code.
struct File<'a> {
    /// The module at the top of the crate that it belongs to.
    module: &'a str,
    text: &'a str,
    /// What stands before the names of such modules in it.
    roots: &'static [&'static str],
}

/// Of a file beside `lib.rs`, whose parent is the crate itself; and of one farther down.
const BESIDE: &[&str] = &["crate::", "super::"];
const BELOW: &[&str] = &["crate::"];

/// The files of product code, by crate.
fn by_crate(sources: &[Source]) -> BTreeMap<&str, Vec<File<'_>>> {
    let mut crates: BTreeMap<&str, Vec<File<'_>>> = BTreeMap::new();
    let of_tests: Vec<PathBuf> = sources.iter().flat_map(modules_of_tests).collect();
    for source in sources {
        let parts: Vec<&str> = source.path.iter().filter_map(|part| part.to_str()).collect();
        let ["crates", name, "src", inside @ ..] = &parts[..] else { continue };
        let is_tests = inside
            .iter()
            .any(|part| ["tests", "tests.rs", "simulation.rs", "simulation"].contains(part))
            || of_tests.iter().any(|module| is_of(&source.path, module));
        if is_tests || matches!(inside, ["lib.rs" | "main.rs"]) {
            continue;
        }
        let module = inside[0].strip_suffix(".rs").unwrap_or(inside[0]);
        let text = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let roots = if inside.len() == 1 { BESIDE } else { BELOW };
        crates.entry(name).or_default().push(File { module, text, roots });
    }
    crates
}

/// The modules that a file declares for tests alone: their folders, or their files without the ending.
fn modules_of_tests(source: &Source) -> impl Iterator<Item = PathBuf> + '_ {
    let is_root = ["lib.rs", "main.rs", "mod.rs"].iter().any(|name| source.path.ends_with(name));
    let beside = source.path.parent().unwrap_or(Path::new("")).to_owned();
    let folder = if is_root { beside } else { source.path.with_extension("") };
    let declared = source.text.split("#[cfg(test)]\n").skip(1).filter_map(|behind| {
        let line = behind.lines().next()?.trim_start_matches("pub(crate) ");
        line.trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')
    });
    declared.map(move |name| folder.join(name))
}

/// Whether a file is that module's, or below it.
fn is_of(path: &Path, module: &Path) -> bool {
    path.starts_with(module) || path.with_extension("") == module
}

fn graph<'a>(files: &[File<'a>]) -> Graph<'a> {
    let modules: BTreeSet<&str> = files.iter().map(|file| file.module).collect();
    let mut graph = Graph::new();
    for File { module, text, roots } in files {
        let named = graph.entry(module).or_default();
        let others = roots.iter().flat_map(|root| named_in(text, root));
        named.extend(others.filter(|other| modules.contains(other) && other != module));
    }
    graph
}

/// What stands behind `root` in the code of a text: names, or those of a list.
fn named_in<'a>(text: &'a str, root: &str) -> Vec<&'a str> {
    let is_code = |at: &usize| {
        let line = text[..*at].rsplit('\n').next().unwrap_or_default();
        !line.trim_start().starts_with("//")
    };
    let places = text.match_indices(root).map(|(at, _)| at).filter(is_code);
    let behind = places.map(|at| &text[at + root.len()..]);
    behind.flat_map(|behind| behind.strip_prefix('{').map_or(vec![word(behind)], listed)).collect()
}

/// The first names of a list's parts; `list` begins behind its brace.
fn listed(list: &str) -> Vec<&str> {
    let (mut names, mut depth, mut start) = (Vec::new(), 0_usize, 0);
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                names.push(word(list[start..at].trim_start()));
                start = at + 1;
            }
            _ => {}
        }
        if c == '}' && start == at + 1 {
            break;
        }
    }
    names
}

/// The word that a text begins with.
fn word(text: &str) -> &str {
    let is_other = |c: char| !c.is_alphanumeric() && c != '_';
    &text[..text.find(is_other).unwrap_or(text.len())]
}

/// Sets of modules that all reach each other, of two or more.
fn circles<'a>(graph: &Graph<'a>) -> Vec<BTreeSet<&'a str>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        graph.keys().map(|module| (*module, reach(graph, module))).collect();
    let mut circles: Vec<BTreeSet<&str>> = Vec::new();
    for (module, reaches) in &reached {
        if circles.iter().any(|circle| circle.contains(module)) {
            continue;
        }
        let back = |other: &&&str| reached.get(**other).is_some_and(|back| back.contains(module));
        let circle: BTreeSet<&str> = reaches.iter().filter(back).copied().collect();
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// All that a module names, and what that names.
fn reach<'a>(graph: &Graph<'a>, from: &str) -> BTreeSet<&'a str> {
    let mut reached: BTreeSet<&str> = BTreeSet::new();
    let mut left: Vec<&str> = graph[from].iter().copied().collect();
    while let Some(module) = left.pop() {
        if reached.insert(module) {
            left.extend(graph.get(module).into_iter().flatten());
        }
    }
    reached
}

/// Names that public types of so many crates may share.
const SHARED_MAX: usize = 2;

/// Names that are shared by more: first what a reader expects to be each crate's own, then what should be called by what it
/// is; the second may only shrink.
const EXPECTED: [&str; 3] = ["Options", "Error", "Spec"];
const CROWDED: [&str; 6] = ["Failure", "Finding", "Limits", "Measured", "Progress", "Tensor"];

/// Public types of one name in three crates or more.
pub(super) fn names(sources: &[Source]) -> Vec<String> {
    let mut owners: BTreeMap<&str, BTreeSet<&Path>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("crates")) {
        let Some(crate_path) = source.path.ancestors().find(|path| path.ends_with("src")) else {
            continue;
        };
        for line in source.text.lines() {
            let declared = ["pub struct ", "pub enum ", "pub trait "].iter();
            let Some(rest) = declared.filter_map(|start| line.strip_prefix(start)).next() else {
                continue;
            };
            let end = rest.find(|c: char| !c.is_alphanumeric()).unwrap_or(rest.len());
            owners.entry(&rest[..end]).or_default().insert(crate_path);
        }
    }
    let crowded = |name: &str| owners.get(name).is_some_and(|crates| crates.len() > SHARED_MAX);
    let known = |name: &str| EXPECTED.contains(&name) || CROWDED.contains(&name);
    let new = owners.keys().filter(|name| crowded(name) && !known(name));
    let new =
        new.map(|name| format!("three crates have a public type {name}; call each by what it is"));
    let gone = CROWDED.iter().filter(|name| !crowded(name));
    let gone = gone.map(|name| {
        format!("the name {name} is not shared by three crates any more; take it off the list")
    });
    new.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file<'a>(module: &'a str, text: &'a str) -> File<'a> {
        File { module, text, roots: BESIDE }
    }

    #[test]
    fn circles_are_found_and_lines_are_not() {
        let files = [
            file("a", "use crate::b::B;"),
            file("b", "use crate::{c, d};"),
            file("c", "fn f() { crate::a::g() }"),
            file("d", "use crate::e;"),
            file("e", ""),
        ];
        let circles = circles(&graph(&files));
        assert_eq!(circles, [BTreeSet::from(["a", "b", "c"])]);
    }

    #[test]
    fn modules_are_named_in_every_way_that_the_language_has() {
        let named = |text: &'static str| named_in(text, "crate::");
        assert_eq!(named("use crate::a;\nuse crate::b_c::{D, E};"), ["a", "b_c"]);
        assert_eq!(named("use crate::{a::{B, C}, d, e::F}; crate::g::h()"), ["a", "d", "e", "g"]);
        assert_eq!(named("use crate::{\n    a,\n    b::C,\n};"), ["a", "b", ""]);
        assert_eq!(named("//! [`crate::a`]\n    // crate::b\nuse crate::c;"), ["c"]);
        let files = [
            file("a", "use super::b::B;"),
            file("b", "use crate::a;"),
            File { module: "b", text: "use super::d::D;", roots: BELOW },
            file("d", "use crate::b;"),
        ];
        assert_eq!(circles(&graph(&files)), [BTreeSet::from(["a", "b"])]);
    }

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn new_circles_are_findings_and_so_are_listed_ones_that_are_gone() {
        let (name, modules) = KNOWN[0];
        let names_it = |file: &str, other: &str| {
            source(&format!("crates/{name}/src/{file}"), &format!("use crate::{other};"))
        };
        let next = modules.iter().cycle().skip(1);
        let pairs = modules.iter().zip(next);
        let mut all: Vec<Source> =
            pairs.map(|(one, other)| names_it(&format!("{one}.rs"), other)).collect();
        all.push(names_it("newcomer.rs", modules[0]));
        all.push(names_it(&format!("{}/tests.rs", modules[0]), "newcomer"));
        let findings = check(&all);
        let is_new = |finding: &String| finding.contains("name each other in a circle");
        assert!(!findings.iter().any(is_new), "{findings:?}");
        assert_eq!(findings.len(), KNOWN.len() - 1, "the others are gone: {findings:?}");
        all.push(names_it(&format!("{}/inside.rs", modules[0]), "newcomer"));
        let findings = check(&all);
        let new = findings.iter().filter(|finding| is_new(finding)).collect::<Vec<_>>();
        assert!(new.len() == 1 && new[0].contains("newcomer"), "{findings:?}");
    }

    #[test]
    fn modules_for_tests_do_not_count() {
        let inside = |file: &str, text: &str| source(&format!("crates/one/src/{file}"), text);
        let circle = |lib: &str, file: &str| {
            let all = [
                inside("lib.rs", lib),
                inside("a.rs", "use crate::b;"),
                inside(file, "use crate::a;"),
            ];
            circles(&graph(&by_crate(&all)["one"])).len()
        };
        assert_eq!(circle("mod a;\nmod b;\n", "b.rs"), 1);
        assert_eq!(circle("mod a;\n#[cfg(test)]\nmod b;\n", "b.rs"), 0);
        assert_eq!(circle("#[cfg(test)]\npub(crate) mod b;\n", "b/inside.rs"), 0);
        assert_eq!(circle("#[cfg(test)]\nmod bb;\n#[cfg(test)]\nuse b::C;\n", "b.rs"), 1);
        let below = inside("b.rs", "#[cfg(test)]\nmod told;\n");
        assert_eq!(
            modules_of_tests(&below).collect::<Vec<_>>(),
            [PathBuf::from("crates/one/src/b/told")]
        );
    }

    #[test]
    fn a_name_of_three_crates_is_a_finding() {
        let in_crate = |name: &str, text: &str| source(&format!("crates/{name}/src/a/b.rs"), text);
        let of = |declared: &str| {
            let all = ["a", "b", "c"].map(|name| in_crate(name, declared));
            let finding = "three crates have a public type Engine; call each by what it is";
            names(&all).iter().any(|found| found == finding)
        };
        assert!(
            of("pub struct Engine<T>(T);") && of("pub trait Engine {") && of("pub enum Engine {")
        );
        assert!(!of("struct Engine;") && !of("    pub struct Engine;") && !of("pub fn engine() {"));
        let found = names(&["a", "b", "b"].map(|name| in_crate(name, "pub struct Engine;")));
        assert_eq!(found.len(), CROWDED.len(), "only listed names that are gone: {found:?}");
    }
}
