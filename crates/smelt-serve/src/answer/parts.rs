//! Gathers what is thought, said and called, for a part of a chat or for all of it.

use serde::Serialize;
use smelt_runtime::dialect::Delta;

/// What deltas come to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts {
    pub(super) reasoning: String,
    pub(super) content: String,
    pub(super) calls: Vec<Call>,
}

/// A call of a tool, or more of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) index: usize,
    /// The tool, where the call begins.
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

/// A call as a chat tells it.
#[derive(Serialize)]
pub(super) struct ToldCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

impl Parts {
    pub(super) fn of(deltas: Vec<Delta>) -> Self {
        let mut parts = Self::default();
        for delta in deltas {
            match delta {
                Delta::Reasoning(text) => parts.reasoning += &text,
                Delta::Content(text) => parts.content += &text,
                Delta::Call { index, name } => {
                    let (name, arguments) = (Some(name), String::new());
                    parts.calls.push(Call { index, name, arguments });
                }
                Delta::Arguments { index, text } => match parts.calls.last_mut() {
                    Some(call) if call.index == index => call.arguments += &text,
                    _ => parts.calls.push(Call { index, name: None, arguments: text }),
                },
            }
        }
        parts
    }

    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl Call {
    /// As a part of a stream tells it: the beginning has the call's name, `of` its answer's.
    pub(super) fn part(&self, of: &str) -> ToldCall<'_> {
        let begins = self.name.is_some();
        ToldCall { index: Some(self.index), ..self.told(of, begins) }
    }

    /// As a whole answer tells it.
    pub(super) fn whole(&self, of: &str) -> ToldCall<'_> {
        self.told(of, true)
    }

    fn told(&self, of: &str, begins: bool) -> ToldCall<'_> {
        let function = Function { name: self.name.as_deref(), arguments: &self.arguments };
        let id = begins.then(|| format!("call_{of}_{}", self.index));
        ToldCall { index: None, id, r#type: begins.then_some("function"), function }
    }
}
