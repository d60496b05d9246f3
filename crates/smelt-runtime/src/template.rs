//! Writes a conversation the way a model was trained to read it.
//!
//! The chat template of a checkpoint is Jinja with the extras of Hugging Face's renderer; messages
//! come in, prompt text comes out.  Knows nothing of tokens or of what stands for a picture.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use serde::Serialize;

use crate::dialect::Dialect;
use clock::strftime;

mod clock;
mod python_json;

/// The file of special tokens, and usually of the chat template.
pub const CONFIG_FILE: &str = "tokenizer_config.json";

/// The file of the chat template in newer checkpoints; goes before the one in [`CONFIG_FILE`].
pub const TEMPLATE_FILE: &str = "chat_template.jinja";

/// The longest template or configuration read.  Real ones stay below 1 MiB.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Template instructions one rendering may take: real ones need some thousands, and a loop that
/// never ends stops here within a second.
const FUEL: u64 = 5_000_000;

/// The name errors give the template.
const NAME: &str = "chat_template";

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
    #[error("{} has no chat template: neither {TEMPLATE_FILE} nor chat_template in {CONFIG_FILE}", dir.display())]
    Missing {
        /// The directory.
        dir: PathBuf,
    },
    /// The template refuses the conversation or fails on it.
    #[error("the chat template cannot write this conversation: {0}")]
    Render(String),
}

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Message {
    /// Who speaks: `system`, `user`, `assistant`.
    pub role: String,
    /// What is said.
    pub content: String,
}

/// A parsed chat template with the special tokens it may write.
#[derive(Debug)]
pub struct Template {
    environment: Environment<'static>,
}

impl Template {
    /// Reads the template and the special tokens of the checkpoint or deployment in `dir`.
    ///
    /// # Errors
    /// [`TemplateError`] naming the file and what is wrong with it.
    pub fn open(dir: &Path) -> Result<Self, TemplateError> {
        let path = dir.join(CONFIG_FILE);
        let broken = |why| TemplateError::Broken { path: path.clone(), why };
        let text = read_text(&path)?.unwrap_or_else(|| "{}".to_owned());
        let config: serde_json::Value =
            serde_json::from_str(&text).map_err(|error| broken(format!("not JSON: {error}")))?;
        let own = dir.join(TEMPLATE_FILE);
        let (source, at) = match read_text(&own)? {
            Some(source) => (source, own),
            None => match named(&config["chat_template"]) {
                Some(source) => (source.to_owned(), path),
                None => return Err(TemplateError::Missing { dir: dir.into() }),
            },
        };
        Self::parse(source, &special_tokens(&config))
            .map_err(|error| TemplateError::Broken { path: at, why: one_line(&error) })
    }

    fn parse(source: String, special_tokens: &[(String, String)]) -> Result<Self, Error> {
        let mut environment = Environment::new();
        // Hugging Face's renderer is set up so; the method callback adds what Python's strings do.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?;
        environment.set_syntax(syntax);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.set_fuel(Some(FUEL));
        environment.add_function("raise_exception", raise_exception);
        environment.add_filter("tojson", tojson);
        for (name, token) in special_tokens {
            environment.add_global(name.clone(), token.clone());
        }
        environment.add_template_owned(NAME, source)?;
        Ok(Self { environment })
    }

    /// How a model of this template marks the parts of its answers.
    pub fn dialect(&self) -> Dialect {
        let template = self.environment.get_template(NAME);
        template
            .map_or_else(|_| Dialect::default(), |template| Dialect::of_template(template.source()))
    }

    /// The prompt text of `messages`; with `reply`, the start of the assistant's answer follows.
    ///
    /// `now_s` is what `strftime_now` shows, in seconds since 1970, UTC.  Messages are
    /// [`Message`]s, or anything else of their form that the template understands.
    ///
    /// # Errors
    /// [`TemplateError::Render`], also where the template itself refuses the conversation.
    pub fn render<T: Serialize>(
        &self,
        messages: &[T],
        reply: bool,
        now_s: u64,
    ) -> Result<String, TemplateError> {
        let failed = |error: Error| TemplateError::Render(one_line(&error));
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let now = Value::from_function(move |format: &str| strftime(format, now_s));
        let context = minijinja::context! {
            messages => Value::from(Serde(messages)),
            add_generation_prompt => reply,
            strftime_now => now,
        };
        template.render(context).map_err(failed)
    }
}

/// The special token that the checkpoint or deployment in `dir` calls `name`, if it has one.
///
/// # Errors
/// [`TemplateError`] if [`CONFIG_FILE`] cannot be read.
pub fn special_token(dir: &Path, name: &str) -> Result<Option<String>, TemplateError> {
    let tokens = special_tokens(&read_config(dir)?);
    Ok(tokens.into_iter().find(|(key, _)| key == name).map(|(_, token)| token))
}

/// What [`CONFIG_FILE`] says; nothing if there is none.
fn read_config(dir: &Path) -> Result<serde_json::Value, TemplateError> {
    let path = dir.join(CONFIG_FILE);
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

/// The template of a `chat_template` field: a text, or the default of a list of named ones.
fn named(field: &serde_json::Value) -> Option<&str> {
    let Some(list) = field.as_array() else { return field.as_str() };
    let default = list.iter().find(|entry| entry["name"] == "default");
    default.or_else(|| list.first())?["template"].as_str()
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

/// Python's `json.dumps(value, ensure_ascii=False, indent=…)`.
fn tojson(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    // Hugging Face takes these too; their defaults are what templates use.
    let _: (Option<Value>, Option<Value>, Option<Value>) =
        (options.get("ensure_ascii")?, options.get("separators")?, options.get("sort_keys")?);
    options.assert_all_used()?;
    let failed =
        |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    Ok(Value::from_safe_string(python_json::dumps(value, indent).map_err(failed)?))
}

/// An error with its place, on one line.
fn one_line(error: &Error) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(source: &str) -> Template {
        Template::parse(source.to_owned(), &[("eos_token".to_owned(), "<eos>".to_owned())]).unwrap()
    }

    /// Renders one user message over `source`.
    #[track_caller]
    fn check(source: &str, content: &str, expect: &str) {
        let message = Message { role: "user".to_owned(), content: content.to_owned() };
        assert_eq!(template(source).render(&[message], true, 86_400 * 365).unwrap(), expect);
    }

    #[track_caller]
    fn check_error(source: &str, words: &str) {
        let error = template(source).render(&[] as &[Message], true, 0).unwrap_err().to_string();
        assert!(error.contains(words) && !error.contains('\n'), "{error}");
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
        let messages: serde_json::Value = serde_json::from_str(
            r#"[{"role": "user", "content": "hi"},
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": [1, "b"]}}}]},
                {"role": "tool", "content": "1"}, {"role": "tool", "content": "2"}]"#,
        )
        .unwrap();
        let text = template(QWEN25).render(messages.as_array().unwrap(), false, 0).unwrap();
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
        template.render(&[] as &[Message], true, 0).map_err(|e| e.to_string())
    }

    #[test]
    fn the_template_is_found_wherever_checkpoints_keep_it() {
        let config = r#"{"eos_token": {"content": "E"}, "chat_template": "one {{ eos_token }}"}"#;
        assert_eq!(opened(&[(CONFIG_FILE, config)]), Ok("one E".to_owned()));
        let own = (TEMPLATE_FILE, "own {{ eos_token }}");
        assert_eq!(opened(&[(CONFIG_FILE, config), own]), Ok("own E".to_owned()));
        assert_eq!(opened(&[own]), Ok("own ".to_owned()));
        let list = r#"{"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]}"#;
        assert_eq!(opened(&[(CONFIG_FILE, list)]), Ok("d".to_owned()));
    }

    #[test]
    fn a_missing_or_broken_template_is_one_clear_line() {
        assert_eq!(
            opened(&[]),
            Err("D has no chat template: neither chat_template.jinja nor chat_template in tokenizer_config.json".to_owned())
        );
        let error = opened(&[(CONFIG_FILE, "{")]).unwrap_err();
        assert!(error.starts_with("D/tokenizer_config.json: not JSON: EOF"), "{error}");
        let error = opened(&[(TEMPLATE_FILE, "{% for %}")]).unwrap_err();
        assert!(error.starts_with("D/chat_template.jinja: syntax error"), "{error}");
    }
}
