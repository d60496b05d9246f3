//! Writes a conversation the way a model was trained to read it.
//!
//! The chat template of a checkpoint is Jinja with the extras of Hugging Face's renderer; messages
//! come in, prompt text comes out.  Knows nothing of tokens or of what stands for a picture.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
pub use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, context};

use crate::dialect::Dialect;
use crate::markup::Marks;
use crate::tokenizer::Tokenizer;
use clock::strftime;
use python_json::Style;

mod around;
mod bounded;
mod clock;
mod python_json;

/// The file of special tokens, and usually of the chat template.
pub const CONFIG_FILE: &str = "tokenizer_config.json";

/// The file of the chat template in newer checkpoints; goes before the one in [`CONFIG_FILE`].
pub const TEMPLATE_FILE: &str = "chat_template.jinja";

/// The file of the chat template beside a processor, as JSON; goes before the one in [`CONFIG_FILE`].
pub const TEMPLATE_JSON_FILE: &str = "chat_template.json";

/// The file of the chat template for conversations with tools, where that is another one.
pub const TOOLS_FILE: &str = "additional_chat_templates/tool_use.jinja";

/// The longest template or configuration read.  Real ones stay below 1 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The names errors give the template, and that for conversations with tools.
const NAME: &str = "chat_template";
const TOOLS_NAME: &str = "tool_use";

/// Why a chat template could not be used.
#[derive(Debug, thiserror::Error)]
pub enum TemplateError {
    /// A file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its name says.
    #[error("{}: {why}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The checkpoint has no template.
    #[error(
        "{} has no chat template: neither {TEMPLATE_FILE} nor chat_template in {TEMPLATE_JSON_FILE} or {CONFIG_FILE}",
        dir.display()
    )]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The template refuses the conversation or fails on it.
    #[error("the chat template cannot write this conversation: {0}")]
    Render(String),
}

/// How a template takes the content of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentFormat {
    /// As one text.
    Text,
    /// As a list of parts, each with its type.
    Parts,
    /// As either.
    Either,
}

/// What a template is told beside the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Context {
    /// Tools that may be called, as OpenAI's API describes them.
    pub tools: Option<Value>,
    /// Documents that may be quoted.
    pub documents: Option<Value>,
    /// Whatever else the template knows: `enable_thinking`.  The other names of this context cannot
    /// be told so.
    pub variables: BTreeMap<String, Value>,
    /// Whether what people say may hold marks of the model, which then are what they say.
    pub is_markup: bool,
    /// How the prompt ends.
    pub ending: Ending,
}

/// How the prompt of a conversation ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// With the beginning of the assistant's answer.
    #[default]
    Reply,
    /// With the last turn.
    Bare,
    /// In the middle of the last turn, an assistant's, which is gone on with.
    Continued,
}

/// A parsed chat template with the special tokens it may write.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
    content_format: ContentFormat,
}

impl Template {
    /// Reads the template and the special tokens of the checkpoint or deployment in `dir`.
    ///
    /// # Errors
    /// [`TemplateError`] naming the file and what is wrong with it.
    pub fn open(dir: &Path) -> Result<Self, TemplateError> {
        let config = read_json(dir, CONFIG_FILE)?;
        let own = dir.join(TEMPLATE_FILE);
        let (sources, at) = match read_text(&own)? {
            Some(default) => (Sources { default, tools: None }, own),
            None => {
                let beside = read_json(dir, TEMPLATE_JSON_FILE)?;
                let found = [(&beside, TEMPLATE_JSON_FILE), (&config, CONFIG_FILE)]
                    .into_iter()
                    .find_map(|(json, file)| Some((Sources::of(&json["chat_template"])?, file)));
                let Some((sources, file)) = found else {
                    return Err(TemplateError::Missing { dir: dir.into() });
                };
                (sources, dir.join(file))
            }
        };
        let tools = read_text(&dir.join(TOOLS_FILE))?.or(sources.tools);
        Self::parse(Sources { tools, ..sources }, &special_tokens(&config))
            .map_err(|error| TemplateError::Broken { path: at, why: one_line(&error) })
    }

    /// Reads the template in `file`, with the special tokens of the checkpoint or deployment in `dir`, and
    /// tries it on a text.
    ///
    /// # Errors
    /// [`TemplateError`] naming the file and what is wrong with it.
    pub fn open_file(file: &Path, dir: &Path) -> Result<Self, TemplateError> {
        let broken = |why| TemplateError::Broken { path: file.into(), why };
        let source = read_text(file)?.ok_or_else(|| broken("there is no such file".to_owned()))?;
        let tokens = special_tokens(&read_json(dir, CONFIG_FILE)?);
        let sources = Sources { default: source, tools: None };
        let template = Self::parse(sources, &tokens).map_err(|error| broken(one_line(&error)))?;
        let part = Value::from(vec![Value::from_pairs([("type", "text"), ("text", "Hello")])]);
        let content = if template.content_format == ContentFormat::Parts {
            part
        } else {
            Value::from("Hello")
        };
        let message = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
        let text = template.render(&[message], true, 0, &Context::default())?;
        if !text.contains("Hello") {
            return Err(broken("it never writes what a message says".to_owned()));
        }
        Ok(template)
    }

    /// Tries the template on one word of a user.
    ///
    /// # Errors
    /// [`TemplateError::Render`] where it refuses the word, or never writes it.
    pub fn try_once(&self) -> Result<(), TemplateError> {
        const WORD: &str = "Hello";
        let part = Value::from(vec![Value::from_pairs([("type", "text"), ("text", WORD)])]);
        let content =
            if self.content_format == ContentFormat::Parts { part } else { Value::from(WORD) };
        let message = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
        match self.render(&[message], true, 0, &Context::default())?.contains(WORD) {
            true => Ok(()),
            false => Err(TemplateError::Render("it never writes what a message says".to_owned())),
        }
    }

    fn parse(sources: Sources, special_tokens: &[(String, String)]) -> Result<Self, Error> {
        let mut environment = Environment::new();
        // Hugging Face's renderer is set up so; the method callback adds what Python's strings do.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        bounded::set_up(&mut environment);
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        environment
            .add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
        environment.add_test("sequence", is_sequence);
        for (name, token) in special_tokens {
            environment.add_global(name.clone(), token.clone());
        }
        bounded::add(&mut environment, NAME, plain(&sources.default))?;
        if let Some(tools) = sources.tools {
            bounded::add(&mut environment, TOOLS_NAME, plain(&tools))?;
        }
        let mut template = Self { environment, content_format: ContentFormat::Text };
        template.content_format = template.tried_content_format();
        Ok(template)
    }

    /// How the template takes the content of a message, of a model whose pictures are `picture` in its
    /// prompts, if it sees: a template that takes both, but knows pictures by another word, is given texts.
    pub fn content_format(&self, picture: Option<&str>) -> ContentFormat {
        let writes = |picture| {
            let part = Value::from_pairs([("type", "image")]);
            self.of_content(Value::from(vec![part])).contains(picture)
        };
        if self.content_format == ContentFormat::Either && !picture.is_some_and(writes) {
            ContentFormat::Text
        } else {
            self.content_format
        }
    }

    /// What form comes through the template, by trying both; one that refuses both is given texts, so
    /// that its own words say why.
    fn tried_content_format(&self) -> ContentFormat {
        const WORD: &str = "wordiness";
        let part = Value::from_pairs([("type", "text"), ("text", WORD)]);
        let comes_through = |content: Value| {
            let text = self.of_content(content);
            // A list that is written out as it is shows its keys.
            text.contains(WORD) && !text.contains("\"type\"") && !text.contains("'type'")
        };
        match [Value::from(WORD), Value::from(vec![part])].map(comes_through) {
            [true, true] => ContentFormat::Either,
            [false, true] => ContentFormat::Parts,
            [_, false] => ContentFormat::Text,
        }
    }

    /// The text of one message of a user; none where the template refuses it.
    fn of_content(&self, content: Value) -> String {
        let message = Value::from_pairs([("role", Value::from("user")), ("content", content)]);
        self.render(&[message], false, 0, &Context::default()).unwrap_or_default()
    }

    /// Whether the template keeps what was said in earlier turns from the model, as one whose model was
    /// trained on single questions does; found by rendering two of them.
    pub fn forgets(&self) -> bool {
        const WORDS: [&str; 3] = ["wordiness", "heedless", "mindful"];
        let message = |(role, word): (&str, &str)| {
            let content = match self.content_format {
                ContentFormat::Parts => {
                    Value::from(vec![Value::from_pairs([("type", "text"), ("text", word)])])
                }
                _ => Value::from(word),
            };
            Value::from_pairs([("role", Value::from(role)), ("content", content)])
        };
        let turns: Vec<Value> =
            ["user", "assistant", "user"].into_iter().zip(WORDS).map(message).collect();
        let text = self.render(&turns, true, 0, &Context::default()).unwrap_or_default();
        text.contains(WORDS[2]) && !text.contains(WORDS[0])
    }

    /// How a model of this template marks the parts of its answers.
    pub fn dialect(&self) -> Dialect {
        Dialect::of_template(&self.source())
    }

    /// The marks that nobody but this template may write, of a model with this tokenizer.
    pub fn marks(&self, tokenizer: &Tokenizer) -> Marks {
        let around = around::around(self);
        Marks::new(tokenizer, &self.source(), &around, self.dialect().marks())
    }

    /// The text of the template, as it is where nobody calls tools.
    pub fn text(&self) -> String {
        let plain = self.environment.get_template(NAME);
        plain.map(|template| template.source().to_owned()).unwrap_or_default()
    }

    /// A special token that the template may write, by its name in `tokenizer_config.json`: `bos_token`.
    pub fn special(&self, name: &str) -> Option<String> {
        let (_, token) = self.environment.globals().find(|(global, _)| *global == name)?;
        token.as_str().map(str::to_owned)
    }

    /// All that was written of it.
    fn source(&self) -> String {
        let source = |(_, template): (_, minijinja::Template<'_, '_>)| template.source().to_owned();
        self.environment.templates().map(source).collect()
    }

    /// The prompt text of `messages`; with `reply`, the start of the assistant's answer follows.
    ///
    /// `now_s` is what `strftime_now` shows, in seconds since 1970, UTC.
    ///
    /// # Errors
    /// [`TemplateError::Render`], also where the template itself refuses the conversation.
    pub fn render(
        &self,
        messages: &[Value],
        reply: bool,
        now_s: u64,
        context: &Context,
    ) -> Result<String, TemplateError> {
        let failed = |error: Error| TemplateError::Render(one_line(&error));
        // As transformers picks it.
        let has_own = || self.environment.get_template(TOOLS_NAME).is_ok();
        let name = if context.tools.is_some() && has_own() { TOOLS_NAME } else { NAME };
        let now = Value::from_function(move |format: &str| strftime(format, now_s));
        let Context { tools, documents, variables, .. } = context;
        let absent = || Value::from(());
        // Hugging Face's renderer defines tools and documents as none where there are no such.
        let own = context! {
            messages,
            add_generation_prompt => reply,
            strftime_now => now,
            tools => tools.clone().unwrap_or_else(absent),
            documents => documents.clone().unwrap_or_else(absent),
        };
        let variables = Value::from_pairs(variables.clone());
        bounded::render(&self.environment, name, context! { ..own, ..variables }).map_err(failed)
    }
}

/// The special token that the checkpoint or deployment in `dir` calls `name`, if it has one.
///
/// # Errors
/// [`TemplateError`] if [`CONFIG_FILE`] cannot be read.
pub fn special_token(dir: &Path, name: &str) -> Result<Option<String>, TemplateError> {
    let tokens = special_tokens(&read_json(dir, CONFIG_FILE)?);
    Ok(tokens.into_iter().find(|(key, _)| key == name).map(|(_, token)| token))
}

/// What the JSON `file` in `dir` says; nothing if there is none.
fn read_json(dir: &Path, file: &str) -> Result<serde_json::Value, TemplateError> {
    let path = dir.join(file);
    let text = read_text(&path)?.unwrap_or_else(|| "{}".to_owned());
    serde_json::from_str(&text).map_err(|error| {
        let why = format!("not JSON: {error}");
        TemplateError::Broken { path, why }
    })
}

/// The text of a file, or nothing if there is no such file.
fn read_text(path: &Path) -> Result<Option<String>, TemplateError> {
    let failed = |source| TemplateError::Read { path: path.into(), source };
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        let why = format!("longer than the {FILE_BYTES_MAX} bytes such a file may have");
        return Err(TemplateError::Broken { path: path.into(), why });
    }
    Ok(Some(text))
}

/// The texts of a checkpoint's templates.
struct Sources {
    default: String,
    /// For conversations with tools, where that is another one.
    tools: Option<String>,
}

impl Sources {
    /// Of a `chat_template` field: a text, or a list of named ones.
    fn of(field: &serde_json::Value) -> Option<Self> {
        let Some(list) = field.as_array() else {
            return Some(Self { default: field.as_str()?.to_owned(), tools: None });
        };
        let named = |name| list.iter().find(|entry| entry["name"] == name);
        let text = |entry: &serde_json::Value| entry["template"].as_str().map(str::to_owned);
        let default = text(named("default").or_else(|| list.first())?)?;
        Some(Self { default, tools: named(TOOLS_NAME).and_then(text) })
    }
}

/// The same template without `generation` tags, which mark for training what the assistant says; their
/// content keeps its own variables.
fn plain(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out += before;
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag.trim_matches(|c: char| "{%-+}".contains(c) || c.is_whitespace());
        match word {
            "generation" => out += &tag.replace("generation", "with"),
            "endgeneration" => out += &tag.replace("endgeneration", "endwith"),
            _ => out += tag,
        }
        rest = after;
    }
    out + rest
}

/// The `*_token` fields, each a text or an object with a `content`.
fn special_tokens(config: &serde_json::Value) -> Vec<(String, String)> {
    let fields = config.as_object().into_iter().flatten();
    let named = fields.filter(|(name, _)| name.ends_with("_token"));
    let text = |value: &serde_json::Value| {
        value.as_str().or_else(|| value["content"].as_str()).map(str::to_owned)
    };
    named.filter_map(|(name, value)| Some((name.clone(), text(value)?))).collect()
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// Whether a value has a length and places, as Python's texts and dictionaries have.
fn is_sequence(value: &Value) -> bool {
    use minijinja::value::ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// Python's `json.dumps(value, ensure_ascii=False, …)`.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let separators: Option<(String, String)> = options
        .get::<Option<Vec<String>>>("separators")?
        .and_then(|both| both.try_into().ok())
        .map(|[item, key]: [String; 2]| (item, key));
    let style = Style {
        indent: options.get("indent")?,
        separators,
        is_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        is_sorted: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    Ok(Value::from_safe_string(python_json::dumps(value, &style).map_err(failed)?))
}

/// An error with its place, on one line.
fn one_line(error: &Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::Turn;

    fn template(source: &str) -> Template {
        let sources = Sources { default: source.to_owned(), tools: None };
        Template::parse(sources, &[("eos_token".to_owned(), "<eos>".to_owned())]).unwrap()
    }

    /// Renders one user message over `source`.
    #[track_caller]
    fn check(source: &str, content: &str, expect: &str) {
        let message = Turn::from_marked("user", content, 0).unwrap().message(ContentFormat::Text);
        let text = template(source).render(&[message], true, 86_400 * 365, &Context::default());
        assert_eq!(text.unwrap(), expect);
    }

    #[track_caller]
    fn check_error(source: &str, words: &str) {
        let error =
            template(source).render(&[], true, 0, &Context::default()).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
    }

    #[test]
    fn a_template_that_keeps_earlier_turns_from_the_model_is_found_out() {
        let all = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let last = "{{ messages[-1].content }}";
        let part = "{{ messages[-1].content[0].text }}";
        let refuses = "{% if messages|length > 1 %}{{ raise_exception('one') }}{% endif %}";
        let forgets = |source| template(source).forgets();
        assert_eq!([all, last, part, refuses].map(forgets), [false, true, true, false]);
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data");
        for (name, expect) in [
            ("shapes-vl", true),
            ("shapes-vl-3_5", true),
            ("golden/internvl3-tiny/checkpoint", false),
        ] {
            let template = Template::open(&data.join(name)).unwrap();
            assert_eq!(template.forgets(), expect, "{name}");
        }
    }

    /// Of earlier turns the model of shapes sees every picture, before the last question.
    #[test]
    fn the_model_of_shapes_is_asked_one_question_about_all_pictures() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/shapes-vl");
        let template = Template::open(&data).unwrap();
        let content_format = template.content_format(Some("<IMG_CONTEXT>"));
        assert_eq!(content_format, ContentFormat::Either);
        let said = |turns: &[(&str, &str, usize)]| {
            let message = |(role, text, pictures): &(&str, &str, usize)| {
                Turn::from_marked(role, text, *pictures).unwrap().message(content_format)
            };
            let messages: Vec<Value> = turns.iter().map(message).collect();
            template.render(&messages, true, 0, &Context::default()).unwrap()
        };
        let ask = "<|im_end|>\n<|im_start|>assistant\n";
        let first = ("user", "What is red?", 1);
        assert_eq!(said(&[first]), format!("<|im_start|>user\n<IMG_CONTEXT>\nWhat is red?{ask}"));
        assert_eq!(
            said(&[first, ("assistant", "the ring", 0), ("user", "And blue?", 1)]),
            format!("<|im_start|>user\n<IMG_CONTEXT>\n<IMG_CONTEXT>\nAnd blue?{ask}")
        );
        assert_eq!(
            said(&[("system", "Be kind.", 0), ("user", "Hello", 0)]),
            format!("<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello{ask}")
        );
    }

    #[test]
    fn blocks_are_trimmed_and_nothing_is_escaped() {
        check(
            "{% for m in messages %}\n  {% if true %}\n<{{ m.content }}>\n  {% endif %}\n{% endfor %}",
            "a<b>&'c'",
            "<a<b>&'c'>\n",
        );
    }

    #[test]
    fn special_tokens_are_known_and_others_are_empty() {
        check("{{ eos_token }}{{ bos_token }}{% if tools %}x{% endif %}", "", "<eos>");
    }

    #[test]
    fn pythons_string_methods_work() {
        check("{{ messages[0]['content'].strip().split(' ')[-1].upper() }}", " a b ", "B");
        check("{{ messages[0].content.startswith('a') }}", "abc", "True");
        check(
            "{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}",
            "x",
            "role=user;content=x;",
        );
    }

    /// The message loop of Qwen2.5's template, which InternVL3 checkpoints carry.
    const QWEN25: &str = r#"
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\n<tool_call>\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\n<tool_response>\n' }}
        {{- message.content }}
        {{- '\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
"#;

    #[test]
    fn tool_calls_are_written_as_qwen_was_trained_on_them() {
        let messages: Vec<Value> = serde_json::from_str(
            r#"[{"role": "user", "content": "hi"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, "b"]}}}]},
                {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]"#,
        )
        .unwrap();
        let text = template(QWEN25).render(&messages, false, 0, &Context::default()).unwrap();
        let expect = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<tool_call>\n\
            {\"name\": \"f\", \"arguments\": {\"a\": [1, \"b\"]}}\n</tool_call><|im_end|>\n\
            <|im_start|>user\n<tool_response>\n1\n</tool_response>\n\
            <tool_response>\n2\n</tool_response><|im_end|>\n";
        assert_eq!(text, expect);
    }

    #[test]
    fn json_is_written_as_python_writes_it() {
        check("{{ messages[0] | tojson }}", "é <\"", r#"{"role": "user", "content": "é <\""}"#);
        check(
            "{{ [1, {'a': 2.0}, none, true] | tojson(indent=2) }}",
            "",
            "[\n  1,\n  {\n    \"a\": 2.0\n  },\n  null,\n  true\n]",
        );
    }

    #[test]
    fn the_form_of_a_content_is_found_by_trying() {
        let content_format = |source: &str| template(source).content_format(Some("<C>"));
        assert_eq!(
            content_format("{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"),
            ContentFormat::Text
        );
        assert_eq!(content_format("{{ messages[0].content }}"), ContentFormat::Text);
        let parts =
            "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}";
        assert_eq!(content_format(parts), ContentFormat::Parts);
        let either = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
        assert_eq!(content_format(either), ContentFormat::Text, "pictures have another word");
        let either = either.replace("{{ p.text }}", "{{ p.text or '<C>' }}");
        assert_eq!(content_format(&either), ContentFormat::Either);
        assert_eq!(content_format("{{ raise_exception('no') }}"), ContentFormat::Text);
    }

    #[test]
    fn a_template_is_told_of_tools_documents_and_variables() {
        let source = "{% if tools is defined and tools is none %}no tools{% endif %}{{ tools | tojson }}{{ documents }}{{ enable_thinking }}{{ add_generation_prompt }}";
        let render = |context: &Context| template(source).render(&[], true, 0, context).unwrap();
        assert_eq!(render(&Context::default()), "no toolsnullNoneTrue");
        let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let variables = [("enable_thinking", json("false")), ("add_generation_prompt", json("7"))];
        let context = Context {
            tools: Some(json(r#"[{"b": 1, "a": {"z": [2.0]}}]"#)),
            documents: Some(json("\"d\"")),
            variables: variables.map(|(name, value)| (name.to_owned(), value)).into(),
            ..Context::default()
        };
        assert_eq!(render(&context), r#"[{"b": 1, "a": {"z": [2.0]}}]dFalseTrue"#);
    }

    #[test]
    fn the_clock_is_an_argument() {
        check("{{ strftime_now('%d %b %Y') }}", "", "01 Jan 1971");
    }

    #[test]
    fn a_template_can_refuse() {
        check_error("{{ raise_exception('roles must alternate') }}", "roles must alternate");
        check_error("{{ messages[0].content.nope() }}", "chat_template:1");
    }

    #[test]
    fn a_template_that_never_ends_is_stopped() {
        check_error(
            "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
            "fuel",
        );
    }

    fn dir(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(dir.path().join(name), text).unwrap();
        }
        dir
    }

    /// Opens the template of a directory with these files and renders nothing over it.
    fn opened(files: &[(&str, &str)]) -> Result<String, String> {
        let dir = dir(files);
        let name = dir.path().display().to_string();
        let template = Template::open(dir.path()).map_err(|e| e.to_string().replace(&name, "D"))?;
        template.render(&[], true, 0, &Context::default()).map_err(|e| e.to_string())
    }

    #[test]
    fn the_template_is_found_wherever_checkpoints_keep_it() {
        let config = r#"{"eos_token": {"content": "E"}, "chat_template": "one {{ eos_token }}"}"#;
        assert_eq!(opened(&[(CONFIG_FILE, config)]), Ok("one E".to_owned()));
        let own = (TEMPLATE_FILE, "own {{ eos_token }}");
        assert_eq!(opened(&[(CONFIG_FILE, config), own]), Ok("own E".to_owned()));
        assert_eq!(opened(&[own]), Ok("own ".to_owned()));
        let beside = (TEMPLATE_JSON_FILE, r#"{"chat_template": "beside {{ eos_token }}"}"#);
        assert_eq!(opened(&[(CONFIG_FILE, config), beside]), Ok("beside E".to_owned()));
        assert_eq!(opened(&[own, beside]), Ok("own ".to_owned()));
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(opened(&[(CONFIG_FILE, list)]), Ok("d".to_owned()));
    }

    #[test]
    fn conversations_with_tools_may_have_a_template_of_their_own() {
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        let written = |dir: &tempfile::TempDir| {
            let template = Template::open(dir.path()).unwrap();
            let tools = Some(Value::from(Vec::<Value>::new()));
            let told = Context { tools, ..Context::default() };
            [Context::default(), told].map(|told| template.render(&[], true, 0, &told).unwrap())
        };
        assert_eq!(written(&dir(&[(CONFIG_FILE, list)])), ["d", "t"]);
        let files = dir(&[(TEMPLATE_FILE, "own")]);
        assert_eq!(written(&files), ["own", "own"]);
        fs::create_dir(files.path().join("additional_chat_templates")).unwrap();
        fs::write(files.path().join(TOOLS_FILE), "tools").unwrap();
        assert_eq!(written(&files), ["own", "tools"]);
    }

    #[test]
    fn generation_tags_leave_what_they_hold() {
        let source = "{% set x = 1 %}a {%- generation -%} {% set x = 2 %}{{ x }} {%- endgeneration %}\n{{ x }}{{ '{% generation %}' }}";
        check(source, "", "a21{% with %}");
    }

    #[test]
    fn a_missing_or_broken_template_is_one_clear_line() {
        assert_eq!(
            opened(&[]),
            Err("D has no chat template: neither chat_template.jinja nor chat_template in chat_template.json or tokenizer_config.json".to_owned())
        );
        let error = opened(&[(CONFIG_FILE, "{")]).unwrap_err();
        assert!(error.starts_with("D/tokenizer_config.json: not JSON: EOF"), "{error}");
        let error = opened(&[(TEMPLATE_FILE, "{% for %}")]).unwrap_err();
        assert!(error.starts_with("D/chat_template.jinja: syntax error"), "{error}");
    }
}
