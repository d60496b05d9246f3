//! Says what form an answer has whose calls of tools are demanded, or only well formed.
//!
//! The frame of a call is fixed text, as the model was trained to write it; its arguments are held to the
//! tool's schema.  Knows nothing of vocabularies.

use serde_json::{Value, json};

use super::{CALL_TAGS, Calls};
use crate::grammar::{Grammar, bounded, quoted};

/// Most tools of a request; each is a rule to compile.
pub const TOOLS_MAX: usize = 128;

/// The longest name of a tool, as in OpenAI's API.
pub const NAME_CHARS_MAX: usize = 64;

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Letters, digits, `_`, `-` and `.`.
    pub name: String,
    /// A JSON schema of its arguments.
    pub parameters: Value,
}

/// Whether tools must be called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Demand {
    /// None may be; the prompt should not offer any.
    None,
    /// As the model sees fit.
    Auto,
    /// At least one must be.
    Required,
    /// This one must be.
    Named(String),
}

/// Tools that cannot be demanded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ToolError {
    /// Too many.
    #[error("{0} tools are more than {TOOLS_MAX}")]
    TooMany(usize),
    /// A call is demanded, but nothing can be called.
    #[error("a call is required, but no tool is given")]
    NoTools,
    /// The tool is not among those given.
    #[error("tool_choice names {0:?}, which is none of the tools")]
    NoTool(String),
    /// A name that no call could be told by.
    #[error("{0:?} is no name of a tool: 1 to {NAME_CHARS_MAX} letters, digits, '_', '-' and '.'")]
    Name(String),
    /// Two tools have one name.
    #[error("two tools are named {0:?}")]
    Twice(String),
    /// Calls and what is said could not be told apart.
    #[error(
        "this model writes calls as bare JSON, so an answer cannot be either those or JSON of a schema; set tool_choice to none or required"
    )]
    Alike,
    /// What is said has a form that stands in no other.
    #[error("beside tools, only JSON can be held to, or set tool_choice to none or required")]
    Content,
}

/// What an answer must look like; nothing where any may.  Where the model decides, only what follows the
/// beginning of a call is held to a form, or the answer is either calls or of the form `content`.  With
/// `is_parallel` there may be several calls.
///
/// # Errors
/// [`ToolError`] saying what is wrong with the tools or the demand.
pub fn demanded(
    calls: Calls,
    tools: &[Tool],
    demand: &Demand,
    is_parallel: bool,
    content: Option<&Grammar>,
) -> Result<Option<Grammar>, ToolError> {
    check(tools)?;
    let callable: Vec<&Tool> = match demand {
        Demand::None => return Ok(None),
        Demand::Auto if tools.is_empty() => return Ok(None),
        Demand::Auto => tools.iter().collect(),
        Demand::Required if tools.is_empty() => return Err(ToolError::NoTools),
        Demand::Required => tools.iter().collect(),
        Demand::Named(name) => match tools.iter().find(|tool| tool.name == *name) {
            Some(tool) => vec![tool],
            None => return Err(ToolError::NoTool(name.clone())),
        },
    };
    let is_many = is_parallel && !matches!(demand, Demand::Named(_));
    let beside = match (*demand == Demand::Auto, content) {
        (false, _) => Beside::Nothing,
        (true, None) => Beside::Text,
        (true, Some(_)) if calls == Calls::Llama3 => return Err(ToolError::Alike),
        (true, Some(Grammar::JsonObject)) => Beside::Json(json!({ "type": "object" })),
        (true, Some(Grammar::JsonSchema(schema))) => Beside::Json(schema.clone()),
        (true, Some(_)) => return Err(ToolError::Content),
    };
    Ok(Some(Grammar::Calls(lark(calls, &callable, &beside, is_many))))
}

/// What an answer may be beside calls.
enum Beside {
    /// There must be a call.
    Nothing,
    /// Any text, also around calls.
    Text,
    /// JSON of this schema, in the place of calls.
    Json(Value),
}

fn check(tools: &[Tool]) -> Result<(), ToolError> {
    if tools.len() > TOOLS_MAX {
        return Err(ToolError::TooMany(tools.len()));
    }
    for (place, Tool { name, .. }) in tools.iter().enumerate() {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_legal) {
            return Err(ToolError::Name(name.clone()));
        }
        if tools[..place].iter().any(|other| other.name == *name) {
            return Err(ToolError::Twice(name.clone()));
        }
    }
    Ok(())
}

fn lark(calls: Calls, tools: &[&Tool], beside: &Beside, is_many: bool) -> String {
    let [open, close] = CALL_TAGS;
    let rules = match (calls, beside) {
        (Calls::Hermes, Beside::Nothing | Beside::Json(_)) => {
            let again = if is_many { "(\"\\n\" call)*" } else { "" };
            let (or, content) = match beside {
                Beside::Json(schema) => {
                    ("content | ", format!("content: %json {}\n", bounded(schema)))
                }
                Beside::Nothing | Beside::Text => ("", String::new()),
            };
            format!("start: {or}call {again}\ncall: \"{open}\\n\" body \"\\n{close}\"\n{content}")
        }
        // A lazy terminal ends as soon as it can, so no text goes past the beginning of a call; behind
        // the only one there is nothing.
        (Calls::Hermes, Beside::Text) => {
            let start = if is_many { "call* TEXT" } else { "call | TEXT" };
            format!(
                "start: {start}\ncall: opening \"\\n\" body \"\\n{close}\"\nopening[lazy]: TEXT \"{open}\"\nTEXT: /(.|\\n)*/\n"
            )
        }
        (Calls::Llama3, Beside::Nothing) => {
            let again = if is_many { "(\"; \" body)*" } else { "" };
            format!("start: body {again}\n")
        }
        // Of JSON nobody could tell calls.
        (Calls::Llama3, Beside::Text | Beside::Json(_)) => {
            let again = if is_many { "(\"; \" body)*" } else { "" };
            format!("start: TEXT | body {again}\nTEXT: /([^{{](.|\\n)*)?/\n")
        }
    };
    let key = match calls {
        Calls::Hermes => "arguments",
        Calls::Llama3 => "parameters",
    };
    let names: Vec<String> = (0..tools.len()).map(|place| format!("tool_{place}")).collect();
    let mut text = format!("{rules}body: {}\n", names.join(" | "));
    for (name, tool) in names.iter().zip(tools) {
        let frame = quoted(&format!("{{\"name\": {}, \"{key}\": ", Value::from(&tool.name[..])));
        text += &format!("{name}: {frame} %json {} \"}}\"\n", bounded(&tool.parameters));
    }
    text
}

#[cfg(test)]
mod tests {
    use smelt_random::Random;

    use super::*;
    use crate::dialect::{Delta, Dialect, Reader};
    use crate::grammar::tests::World;

    fn tools() -> Vec<Tool> {
        let city = json!({
            "type": "object",
            "properties": { "city": { "$ref": "#/$defs/city" } },
            "required": ["city"],
            "additionalProperties": false,
            "$defs": { "city": { "enum": ["Paris", "Oslo"] } },
        });
        let none = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tool = |name: &str, parameters| Tool { name: name.to_owned(), parameters };
        vec![tool("weather", city), tool("time.now", none)]
    }

    /// Whether an answer may be all of `text`.
    fn accepts(world: &World, grammar: &Grammar, text: &str) -> bool {
        let mut matcher = world.compiler.compile(grammar).unwrap();
        let tokens = world.tokenizer.encode(text).unwrap();
        tokens.iter().all(|token| matcher.take(*token).is_ok()) && matcher.may_end().unwrap()
    }

    const OSLO: &str = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}";

    #[track_caller]
    fn check(calls: Calls, demand: &Demand, is_many: bool, good: &[&str], bad: &[&str]) {
        let world = World::new();
        let grammar = demanded(calls, &tools(), demand, is_many, None).unwrap().unwrap();
        for text in good {
            assert!(accepts(&world, &grammar, text), "{demand:?} wants {text}");
        }
        for text in bad {
            assert!(!accepts(&world, &grammar, text), "{demand:?} does not want {text}");
        }
    }

    #[test]
    fn demands_are_forms_of_hermes() {
        let oslo = &format!("<tool_call>\n{OSLO}\n</tool_call>")[..];
        let now = "<tool_call>\n{\"name\": \"time.now\", \"arguments\": {}}\n</tool_call>";
        let both = &format!("{oslo}\n{now}")[..];
        let wrong = &oslo.replace("Oslo", "Rome")[..];
        let said = &format!("Let us see: {oslo}")[..];
        let wrong_said = &format!("Let us see: {wrong}")[..];
        check(
            Calls::Hermes,
            &Demand::Required,
            true,
            &[oslo, now, both],
            &["No.", said, wrong, ""],
        );
        check(Calls::Hermes, &Demand::Required, false, &[oslo, now], &[both]);
        let named = Demand::Named("time.now".to_owned());
        check(Calls::Hermes, &named, true, &[now], &[oslo, both]);
        let free = ["", "No <tool>.", oslo, said, &format!("{both} So.")[..]];
        check(Calls::Hermes, &Demand::Auto, true, &free, &[wrong, wrong_said, "a <tool_call>"]);
        check(Calls::Hermes, &Demand::Auto, false, &free[..4], &[both, wrong_said]);
    }

    #[test]
    fn demands_are_forms_of_llama() {
        let oslo = &OSLO.replace("arguments", "parameters")[..];
        let both = &format!("{oslo}; {oslo}")[..];
        let wrong = &oslo.replace("Oslo", "Rome")[..];
        check(Calls::Llama3, &Demand::Required, true, &[oslo, both], &["No.", wrong, OSLO]);
        check(Calls::Llama3, &Demand::Auto, true, &["", "No {}.", oslo, both], &[wrong, "{}"]);
        check(Calls::Llama3, &Demand::Auto, false, &["No.", oslo], &[both]);
    }

    #[test]
    fn an_answer_is_calls_or_json_of_a_schema() {
        let world = World::new();
        let schema = json!({ "type": "object", "properties": { "count": { "type": "integer" } },
            "required": ["count"], "additionalProperties": false });
        let content = Grammar::JsonSchema(schema);
        let of = |calls, demand, content| demanded(calls, &tools(), &demand, true, Some(content));
        let either = of(Calls::Hermes, Demand::Auto, &content).unwrap().unwrap();
        let call = format!("<tool_call>\n{OSLO}\n</tool_call>");
        for text in [&call[..], "{\"count\": 3}", &format!("{call}\n{call}")] {
            assert!(accepts(&world, &either, text), "{text}");
        }
        for text in ["", "Three.", "{\"count\": \"3\"}", &format!("{{\"count\": 3}}{call}"), OSLO] {
            assert!(!accepts(&world, &either, text), "{text}");
        }
        let called = of(Calls::Hermes, Demand::Required, &content).unwrap().unwrap();
        assert!(accepts(&world, &called, &call) && !accepts(&world, &called, "{\"count\": 3}"));
        assert_eq!(of(Calls::Llama3, Demand::Auto, &content), Err(ToolError::Alike));
        let pattern = Grammar::Regex("a".to_owned());
        assert_eq!(of(Calls::Hermes, Demand::Auto, &pattern), Err(ToolError::Content));
    }

    #[test]
    fn what_a_random_model_calls_is_read_and_valid() {
        let (world, tools) = (World::new(), tools());
        let mut random = Random::new(7);
        for calls in [Calls::Hermes, Calls::Llama3] {
            let grammar = demanded(calls, &tools, &Demand::Required, false, None).unwrap().unwrap();
            for _ in 0..8 {
                let Some(text) = world.answer(&grammar, &mut random) else { continue };
                let mut reader = Reader::new(Dialect { thinks: false, calls: Some(calls) }, false);
                let mut deltas = reader.push(&text);
                deltas.extend(reader.finish());
                let [Delta::Call { index: 0, name }, Delta::Arguments { index: 0, text }] =
                    &deltas[..]
                else {
                    panic!("{deltas:?}")
                };
                let tool = tools.iter().find(|tool| tool.name == *name).unwrap();
                let arguments = serde_json::from_str(text).unwrap();
                assert!(jsonschema::is_valid(&tool.parameters, &arguments), "{text}");
            }
        }
    }

    #[test]
    fn wrong_tools_are_named() {
        let error = |tools: &[Tool], demand| {
            demanded(Calls::Hermes, tools, &demand, true, None).unwrap_err().to_string()
        };
        assert!(error(&[], Demand::Required).contains("no tool is given"));
        assert!(error(&tools(), Demand::Named("x".to_owned())).contains("\"x\", which is none"));
        let twice = [tools(), tools()].concat();
        assert_eq!(error(&twice, Demand::Auto), "two tools are named \"weather\"");
        let named = |name: &str| vec![Tool { name: name.to_owned(), parameters: json!({}) }];
        assert!(error(&named("a\"b"), Demand::Auto).contains("is no name"));
        assert!(error(&named(&"a".repeat(65)), Demand::None).contains("1 to 64 letters"));
        let many: Vec<Tool> = (0..129).flat_map(|n| named(&format!("f{n}"))).collect();
        assert_eq!(error(&many, Demand::Auto), "129 tools are more than 128");
        assert_eq!(demanded(Calls::Hermes, &[], &Demand::Auto, true, None), Ok(None));
        assert_eq!(demanded(Calls::Hermes, &tools(), &Demand::None, true, None), Ok(None));
    }
}
