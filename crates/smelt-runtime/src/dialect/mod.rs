//! Tells what a model thinks, says and calls apart, while it is written.
//!
//! Models mark these parts in their text, each family in its way, which its chat template shows.  A
//! [`Reader`] takes pieces of an answer and gives [`Delta`]s; none is ever taken back, and how the text is
//! cut into pieces changes nothing.  Knows nothing of tokens (but for [`Thinking`]), engines or HTTP.

mod call;
mod finder;
mod reader;
mod thinking;
mod tools;

pub use reader::{Delta, Reader};
pub use thinking::Thinking;
pub use tools::{Demand, NAME_CHARS_MAX, TOOLS_MAX, Tool, ToolError, demanded};

/// What opens a model's thinking, and what closes it.
pub const THINK_TAGS: [&str; 2] = ["<think>", "</think>"];

/// What opens a call in the form of Hermes, and what closes it.
pub const CALL_TAGS: [&str; 2] = ["<tool_call>", "</tool_call>"];

/// How a model writes the calls of tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, anywhere: Hermes, Qwen 2.5 and 3, InternVL.
    Hermes,
    /// `{"name": …, "parameters": {…}}` as the whole answer, more behind semicolons: Llama 3.
    Llama3,
}

/// How a model marks the parts of its answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dialect {
    /// Whether it may think between [`THINK_TAGS`].
    pub thinks: bool,
    /// How it calls tools, if it knows how.
    pub calls: Option<Calls>,
}

impl Dialect {
    /// The dialect of a model with this chat template.
    pub fn of_template(template: &str) -> Self {
        let has = |text: &str| template.contains(text);
        let calls = if has(CALL_TAGS[0]) && !has("<function=") {
            Some(Calls::Hermes)
        } else if has("<|python_tag|>") || (has("ipython") && has("\"parameters\"")) {
            Some(Calls::Llama3)
        } else {
            None
        };
        Self { thinks: has(THINK_TAGS[1]), calls }
    }

    /// The marks by which it is read, whether they are tokens or not.
    pub fn marks(self) -> &'static [&'static str] {
        const BOTH: [&str; 4] = [THINK_TAGS[0], THINK_TAGS[1], CALL_TAGS[0], CALL_TAGS[1]];
        match (self.thinks, self.calls) {
            (false, Some(Calls::Hermes)) => &CALL_TAGS,
            (true, Some(Calls::Hermes)) => &BOTH,
            (true, _) => &THINK_TAGS,
            (false, _) => &[],
        }
    }

    /// Whether a `prompt` ends inside of the model's thinking, as some templates do.
    pub fn is_thinking(self, prompt: &str) -> bool {
        self.thinks && prompt.trim_end().ends_with(THINK_TAGS[0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(template: &str, thinks: bool, calls: Option<Calls>) {
        assert_eq!(Dialect::of_template(template), Dialect { thinks, calls });
    }

    #[test]
    fn templates_show_the_dialect() {
        check("{{ messages[0].content }}", false, None);
        let qwen =
            "within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\"name\": <function-name>";
        check(qwen, false, Some(Calls::Hermes));
        check(&format!("{qwen} '<think>\\n\\n</think>\\n\\n'"), true, Some(Calls::Hermes));
        // Qwen3-Coder's calls are no JSON.
        check("<tool_call>\\n<function=example>", false, None);
        check("{{- \"<|python_tag|>\" }}", false, Some(Calls::Llama3));
        check("ipython {{- '\"parameters\": ' }}", false, Some(Calls::Llama3));
    }

    #[test]
    fn some_prompts_end_inside_of_thinking() {
        let dialect = Dialect { thinks: true, calls: None };
        assert!(dialect.is_thinking("<|im_start|>assistant\n<think>\n"));
        assert!(!dialect.is_thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
        assert!(!Dialect::default().is_thinking("Say <think>"));
    }
}
