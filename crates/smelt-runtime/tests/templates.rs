//! Compares what templates write with what transformers writes by the same templates.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use smelt_runtime::template::{CONFIG_FILE, Context, TEMPLATE_FILE, Template, Value};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/templates").join(name)
}

#[derive(Deserialize)]
struct Golden {
    now_s: u64,
    tokens: serde_json::Value,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Value>,
    #[serde(default = "yes")]
    add_generation_prompt: bool,
    tools: Option<Value>,
    /// Nothing where the template refuses.
    text: Option<String>,
    #[serde(flatten)]
    variables: BTreeMap<String, Value>,
}

fn yes() -> bool {
    true
}

/// The template of that name, as a checkpoint has it.
fn template(name: &str, tokens: &serde_json::Value) -> Template {
    let dir = tempfile::tempdir().unwrap();
    fs::copy(golden(name), dir.path().join(TEMPLATE_FILE)).unwrap();
    fs::write(dir.path().join(CONFIG_FILE), tokens.to_string()).unwrap();
    Template::open(dir.path()).unwrap()
}

#[test]
fn conversations_are_written_as_transformers_writes_them() {
    let golden: Golden =
        serde_json::from_str(&fs::read_to_string(golden("cases.json")).unwrap()).unwrap();
    let names: BTreeSet<&str> = golden.cases.iter().map(|case| case.template.as_str()).collect();
    let templates: BTreeMap<&str, Template> =
        names.into_iter().map(|name| (name, template(name, &golden.tokens))).collect();
    assert_eq!(templates.len(), 3);
    for (index, case) in golden.cases.iter().enumerate() {
        let variables = case.variables.clone();
        let context = Context { tools: case.tools.clone(), variables, ..Context::default() };
        let template = &templates[case.template.as_str()];
        let reply = case.add_generation_prompt;
        let found = template.render(&case.messages, reply, golden.now_s, &context);
        match (found, &case.text) {
            (Ok(found), Some(expect)) => {
                for (found, expect) in found.lines().zip(expect.lines()) {
                    assert_eq!(found, expect, "{} {index}", case.template);
                }
                assert_eq!(&found, expect);
            }
            (Err(_), None) => {}
            (found, expect) => panic!("{} {index}: {found:?} is not {expect:?}", case.template),
        }
    }
}
