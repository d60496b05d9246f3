//! Reads the fields that are ours, or of other servers, and mean in every protocol what they mean in chats.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What a chat is told beside a protocol's own words; chats look at the values.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Ours {
    seed: Option<Value>,
    min_p: Option<Value>,
    repetition_penalty: Option<Value>,
    presence_penalty: Option<Value>,
    frequency_penalty: Option<Value>,
    pub(super) chat_template_kwargs: Option<Value>,
    enable_thinking: Option<Value>,
    thinking_budget: Option<Value>,
    parse_special: Option<Value>,
    ignore_eos: Option<Value>,
    priority: Option<Value>,
    timeout_s: Option<Value>,
    cache_salt: Option<Value>,
    id_slot: Option<Value>,
    /// What other servers' clients say.
    logit_bias: Option<Value>,
    stop_token_ids: Option<Value>,
    repeat_penalty: Option<Value>,
    n_predict: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    structured_outputs: Option<Value>,
    grammar: Option<Value>,
    json_schema: Option<Value>,
    regex: Option<Value>,
    ebnf: Option<Value>,
}

impl Ours {
    /// Those that are said, as a chat names them.
    pub(super) fn fields(&self) -> Map<String, Value> {
        let told = serde_json::to_value(self).expect("values are JSON");
        let Value::Object(mut told) = told else { unreachable!("a struct is an object") };
        told.retain(|_, value| !value.is_null());
        told
    }
}
