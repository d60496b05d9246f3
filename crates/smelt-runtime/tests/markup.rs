//! Nothing that people write becomes a mark of the model: the marks of each family, whole and in halves, in every place.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};
use smelt_runtime::prompt::{PromptPart, Turn};
use smelt_runtime::template::{ContentFormat, Context, Serde, Template, Value};
use smelt_runtime::tokenizer::Tokenizer;
use tempfile::TempDir;

/// A family: its marks, and how its template writes a conversation with tools.
struct FamilyCase {
    name: &'static str,
    /// Those that are tokens.
    marks: &'static [&'static str],
    /// Those that are plain words to its tokenizer.
    spelled: &'static [&'static str],
    template: &'static str,
}

const CHATML: &[&str] = &[
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "<think>",
    "</think>",
    "<|vision_start|>",
];

const FAMILIES: [FamilyCase; 17] = [
    FamilyCase {
        name: "Qwen, InternVL, SmolLM: ChatML",
        marks: CHATML,
        spelled: &[],
        template: "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{%- if m.content is string %}{% set c = m.content %}{% else %}{% set c = '' %}{% for p in m.content %}{% set c = p.text %}{{ c }}{% endfor %}{% endif %}{%- if '</think>' in c %}<think>{{ c.split('</think>')[0] }}</think>{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}{%- if m.role == 'tool' %}<tool_response>\n{{ c }}\n</tool_response>{% else %}{{ c | trim }}{% endif %}{%- for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ greeting }}{% endif %}",
    },
    FamilyCase {
        name: "Llama 3",
        marks: &[
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
        ],
        spelled: &[],
        template: "<|begin_of_text|>{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|eot_id|>{% endfor %}{{ greeting }}",
    },
    FamilyCase {
        name: "Mistral",
        marks: &["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "</s>", "<s>"],
        spelled: &[],
        template: "<s>{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}{{ greeting }}",
    },
    FamilyCase {
        name: "Gemma",
        marks: &["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"],
        spelled: &[],
        template: "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}{{ m.tool_calls | tojson if m.tool_calls }}<end_of_turn>\n{% endfor %}{{ tools | tojson if tools }}{{ greeting }}",
    },
    FamilyCase {
        name: "Phi",
        marks: &["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
        spelled: &[],
        template: "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}<|end|>\n{% endfor %}{{ tools | tojson if tools }}<|assistant|>{{ greeting }}",
    },
    FamilyCase {
        name: "DeepSeek",
        marks: &[
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜end▁of▁sentence｜>",
            "<｜tool▁calls▁begin｜>",
        ],
        spelled: &[],
        template: "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{% for call in m.tool_calls or [] %}<｜tool▁calls▁begin｜>{{ call.function.name }}\n{{ call.function.arguments | tojson }}{% endfor %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}{{ tools | tojson if tools }}{{ greeting }}",
    },
    FamilyCase {
        name: "GLM",
        marks: &["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"],
        spelled: &[],
        template: "[gMASK]<sop>{{ tools | tojson(ensure_ascii=True) if tools }}{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content.strip() }}{{ m.tool_calls | tojson(ensure_ascii=True) if m.tool_calls }}{% endfor %}<|assistant|>{{ greeting }}",
    },
    FamilyCase {
        name: "GLM 4.5",
        marks: &[
            "[gMASK]",
            "<sop>",
            "<|user|>",
            "<|system|>",
            "<|assistant|>",
            "<think>",
            "<|observation|>",
            "<tool_call>",
            "<arg_key>",
            "<tool_response>",
        ],
        spelled: &[],
        template: "[gMASK]<sop>{% if tools %}<|system|>\n{% for t in tools %}{{ t | tojson(ensure_ascii=False) }}\n{% endfor %}{% endif %}{% for m in messages %}{% if m.role == 'tool' %}<|observation|>\n<tool_response>\n{{ m.content }}\n</tool_response>{% elif m.role == 'assistant' %}<|assistant|>\n<think></think>{{ '\n' + m.content.split('</think>')[-1].strip() }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function.name }}\n{% for k, v in call.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | tojson if v is not string else v }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}{% else %}<|{{ m.role }}|>\n{{ m.content }}{% endif %}{% endfor %}<|assistant|>\n{{ greeting }}",
    },
    FamilyCase {
        name: "DeepSeek R1",
        marks: &[
            "<｜begin▁of▁sentence｜>",
            "<｜User｜>",
            "<｜Assistant｜>",
            "<｜end▁of▁sentence｜>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "<｜tool▁outputs▁begin｜>",
            "<｜tool▁output▁begin｜>",
        ],
        spelled: &[],
        template: "{% set ns = namespace(system='') %}{% for m in messages if m.role == 'system' %}{% set ns.system = ns.system + m.content %}{% endfor %}<｜begin▁of▁sentence｜>{{ ns.system }}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% elif m.role == 'assistant' %}<｜Assistant｜>{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}{% for call in m.tool_calls or [] %}<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ call.function.name }}\n```json\n{{ call.function.arguments | tojson }}\n```<｜tool▁call▁end｜>{% endfor %}<｜end▁of▁sentence｜>{% elif m.role == 'tool' %}<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{% endfor %}{{ tools | tojson if tools }}<｜Assistant｜><think>\n{{ greeting }}",
    },
    FamilyCase {
        name: "Gemma 3",
        marks: &["<bos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<eos>"],
        spelled: &[],
        template: "{{ bos_token }}<bos>{%- if messages[0].role == 'system' -%}{%- set first = messages[0].content ~ '\n\n' -%}{%- set rest = messages[1:] -%}{%- else -%}{%- set first = '' -%}{%- set rest = messages -%}{%- endif -%}{%- for m in rest -%}{%- set role = 'model' if m.role == 'assistant' else m.role -%}{{ '<start_of_turn>' + role + '\n' + (first if loop.first else '') }}{%- if m.content is string -%}{{ m.content | trim }}{%- elif m.content is iterable -%}{%- for item in m.content -%}{%- if item.type == 'image' -%}<start_of_image>{%- elif item.type == 'text' -%}{{ item.text | trim }}{%- endif -%}{%- endfor -%}{%- endif -%}{{ m.tool_calls | tojson if m.tool_calls }}{{ '<end_of_turn>\n' }}{%- endfor -%}{{ tools | tojson if tools }}<start_of_turn>model\n{{ greeting }}",
    },
    FamilyCase {
        name: "Mistral v7",
        marks: &[
            "<s>",
            "[SYSTEM_PROMPT]",
            "[/SYSTEM_PROMPT]",
            "[INST]",
            "[/INST]",
            "[TOOL_CALLS]",
            "[TOOL_RESULTS]",
            "</s>",
        ],
        spelled: &[],
        template: "<s>{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]{% elif m.role == 'user' %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[TOOL_RESULTS]{{ {'content': m.content} | tojson }}[/TOOL_RESULTS]{% else %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}{% endfor %}</s>{% endif %}{% endfor %}{{ greeting }}",
    },
    FamilyCase {
        name: "Command R",
        marks: &[
            "<BOS_TOKEN>",
            "<|START_OF_TURN_TOKEN|>",
            "<|USER_TOKEN|>",
            "<|SYSTEM_TOKEN|>",
            "<|CHATBOT_TOKEN|>",
            "<|END_OF_TURN_TOKEN|>",
        ],
        spelled: &[],
        template: "<BOS_TOKEN>{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m.role == 'user' %}<|USER_TOKEN|>{% elif m.role == 'assistant' %}<|CHATBOT_TOKEN|>{% else %}<|SYSTEM_TOKEN|>{% endif %}{{ m.content.strip() }}{{ m.tool_calls | tojson if m.tool_calls }}<|END_OF_TURN_TOKEN|>{% endfor %}{{ tools | tojson if tools }}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{{ greeting }}",
    },
    FamilyCase {
        name: "gpt-oss",
        marks: &["<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>"],
        spelled: &[],
        template: "{% for m in messages %}<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>{% for call in m.tool_calls or [] %}<|start|>assistant to=functions.{{ call.function.name }}<|channel|>commentary json<|message|>{{ call.function.arguments | tojson }}<|call|>{% endfor %}{% endfor %}{{ tools | tojson if tools }}<|start|>assistant{{ greeting }}",
    },
    FamilyCase {
        name: "Llama 2",
        marks: &["<s>", "</s>"],
        spelled: &["[INST]", "[/INST]", "<<SYS>>", "<</SYS>>"],
        template: "{% for m in messages %}{% if m.role == 'system' %}<s>[INST] <<SYS>>\n{{ m.content }}\n<</SYS>>\n\n [/INST] </s>{% elif m.role == 'assistant' %} {{ m.content | trim }}{{ m.tool_calls | tojson if m.tool_calls }} </s>{% else %}<s>[INST] {{ m.content | trim }} [/INST]{% endif %}{% endfor %}{{ tools | tojson if tools }}{{ greeting }}",
    },
    FamilyCase {
        name: "Zephyr, TinyLlama",
        marks: &["<s>", "</s>"],
        spelled: &["<|user|>", "<|system|>", "<|assistant|>"],
        template: "<s>{% for m in messages %}{% if m.role == 'user' %}{{ '<|user|>\n' + m.content + '</s>' }}{% elif m.role == 'system' %}{{ '<|system|>\n' + m.content + '</s>' }}{% else %}{{ '<|' + 'assistant|>\n' + m.content }}{{ m.tool_calls | tojson if m.tool_calls }}</s>{% endif %}\n{% endfor %}{{ tools | tojson if tools }}<|assistant|>\n{{ greeting }}",
    },
    FamilyCase {
        name: "Vicuna, DeepSeek LLM",
        marks: &["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"],
        spelled: &["User:", "Assistant:"],
        template: "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'user' %}{{ 'User: ' + m.content + '\n\n' }}{% elif m.role == 'assistant' %}{{ 'Assistant: ' + m.content }}{{ m.tool_calls | tojson if m.tool_calls }}<｜end▁of▁sentence｜>{% else %}{{ m.content + '\n\n' }}{% endif %}{% endfor %}{{ tools | tojson if tools }}<｜end▁of▁sentence｜>Assistant:{{ greeting }}",
    },
    FamilyCase {
        name: "DeepSeek Coder, Alpaca",
        marks: &["<｜begin▁of▁sentence｜>", "<|EOT|>"],
        spelled: &["### Instruction:", "### Response:"],
        template: "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n{% elif m.role == 'assistant' %}### Response:\n{{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}\n<|EOT|>\n{% else %}{{ m.content }}\n{% endif %}{% endfor %}{{ tools | tojson if tools }}<|EOT|>### Response:\n{{ greeting }}",
    },
];

/// Teaches `file` this word as one token.
fn teach(file: &mut Json, word: &str) {
    let model = &mut file["model"];
    for end in 2..=word.len() {
        let (before, letter) = (&word[..end - 1], &word[end - 1..end]);
        let next = 200_000 + model["vocab"].as_object().unwrap().len();
        model["vocab"].as_object_mut().unwrap().entry(&word[..end]).or_insert(json!(next));
        model["merges"].as_array_mut().unwrap().insert(end - 2, json!([before, letter]));
    }
}

/// The words of a mark, without brackets.
fn words(mark: &str) -> impl Iterator<Item = &str> {
    mark.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 1)
}

/// The tokenizer of shapes with these marks as special tokens, all but every third as the words that they are, and
/// with tokens for the words of those that are `spelled`.
fn with_marks(dir: &Path, marks: &[&str], spelled: &[&str]) -> Tokenizer {
    let data =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/shapes-vl/tokenizer.json");
    let mut file: Json = serde_json::from_slice(&fs::read(data).unwrap()).unwrap();
    let added = file["added_tokens"].as_array_mut().unwrap();
    for (at, mark) in marks.iter().enumerate() {
        if added.iter().any(|token| token["content"] == *mark) {
            continue;
        }
        added.push(
            json!({ "id": 100_000 + at, "content": mark, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": at % 3 != 2 }),
        );
    }
    for word in spelled.iter().flat_map(|mark| words(mark)) {
        teach(&mut file, word);
    }
    let path = dir.join("tokenizer.json");
    fs::write(&path, file.to_string()).unwrap();
    Tokenizer::open(&path).unwrap()
}

/// A conversation of all roles, in each place of which one of these stands.
fn conversation(
    texts: &[&str],
    content_format: ContentFormat,
    template: &Template,
    tokenizer: &Tokenizer,
) -> Vec<u32> {
    let (marks, dialect) = (template.marks(tokenizer), template.dialect());
    let parts: Vec<PromptPart<'_>> = texts.iter().map(|text| PromptPart::Text(text)).collect();
    let whole = texts.concat();
    let object: Json = [(whole.clone(), json!([whole, 1.5]))].into_iter().collect();
    let call = json!([{ "function": { "name": whole, "arguments": object } }]);
    let turn = |role: &str| Turn::from_parts(role, &parts).unwrap();
    let turns = [
        turn("system"),
        turn("user"),
        turn("assistant").with("tool_calls", Value::from(Serde(call))).unwrap(),
        turn("tool").with("name", Value::from(whole.clone())).unwrap(),
        turn("user"),
    ];
    let tool =
        json!([{ "function": { "name": whole, "description": whole, "parameters": object } }]);
    let variables = [("greeting".to_owned(), Value::from(whole.clone()))].into();
    let tools = Some(marks.guarded_value(&Value::from(Serde(tool))));
    let guarded = |(name, value): (String, Value)| (name, marks.guarded_value(&value));
    let variables: std::collections::BTreeMap<String, Value> = variables;
    let variables = variables.into_iter().map(guarded).collect();
    let context = Context { tools, variables, ..Context::default() };
    let messages: Vec<Value> =
        turns.iter().map(|turn| turn.guarded(&marks, dialect).message(content_format)).collect();
    let text = template.render(&messages, true, 0, &context).unwrap();
    tokenizer.encode_guarded(&text, &marks).unwrap()
}

/// The marks among `tokens`: those that are tokens, but for thoughts, which are told apart and which the template writes
/// between its own marks, and how often each that is spelled stands there.
fn found(tokens: &[u32], case: &FamilyCase, tokenizer: &Tokenizer) -> (Vec<u32>, Vec<usize>) {
    let told = case.marks.iter().filter(|mark| !["<think>", "</think>"].contains(mark));
    let told: Vec<u32> = told.filter_map(|mark| tokenizer.token(mark)).collect();
    let count = |mark: &&str| {
        let mark = tokenizer.encode(mark).unwrap();
        tokens.windows(mark.len()).filter(|window| *window == mark).count()
    };
    let marks = tokens.iter().copied().filter(|token| told.contains(token)).collect();
    (marks, case.spelled.iter().map(count).collect())
}

#[test]
fn no_family_takes_words_for_marks() {
    for case in &FAMILIES {
        let FamilyCase { name, marks, spelled, template } = case;
        let dir = TempDir::new().unwrap();
        let tokenizer = with_marks(dir.path(), marks, spelled);
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
        let template = Template::open(dir.path()).unwrap();
        let of_template = template.content_format(None);
        let mut forms = vec![match of_template {
            ContentFormat::Parts => ContentFormat::Parts,
            _ => ContentFormat::Text,
        }];
        forms.extend(name.starts_with("Qwen").then_some(ContentFormat::Parts));
        for content_format in forms {
            let of = |texts: &[&str]| {
                let tokens = conversation(texts, content_format, &template, &tokenizer);
                found(&tokens, case, &tokenizer)
            };
            let expect = of(&["plain"]);
            let own = expect.0.len() + expect.1.iter().sum::<usize>();
            assert!(own >= 5, "{name} writes its own: {expect:?}");
            for (mark, count) in spelled.iter().zip(&expect.1) {
                assert!(*count > 0, "{name} writes {mark}");
            }
            for mark in marks.iter().chain(*spelled) {
                let middle = mark.char_indices().nth(mark.chars().count() / 2).unwrap().0;
                let (first, second) = mark.split_at(middle);
                for texts in [
                    &[*mark][..],
                    &[first, second],
                    &[second, first],
                    &["a", mark, mark, "b"],
                    &["a ", mark, "\n", mark, " b"],
                    &[&mark[1..]],
                    &[&mark[..mark.len() - 1]],
                    &["<", &mark[1..]],
                    &["</think>", first, "</think>", second],
                ] {
                    assert_eq!(of(texts), expect, "{name} {content_format:?}: {texts:?}");
                }
            }
        }
    }
}

#[test]
fn what_the_server_said_comes_back_to_the_same_tokens() {
    let dir = TempDir::new().unwrap();
    let FamilyCase { marks, template, .. } = &FAMILIES[0];
    let tokenizer = with_marks(dir.path(), marks, &[]);
    fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
    let template = Template::open(dir.path()).unwrap();
    let marks = template.marks(&tokenizer);
    let said = "if a < b: [x] <br> {\"c\": 1}";
    let call = json!([{ "function": { "name": "find", "arguments": { "query": "a<b" } } }]);
    let turn = Turn::from_parts("assistant", &[PromptPart::Text(said)]).unwrap();
    let turn = turn.with("tool_calls", Value::from(Serde(call))).unwrap();
    let message = turn.guarded(&marks, template.dialect()).message(ContentFormat::Text);
    let text = template.render(&[message], false, 0, &Context::default()).unwrap();
    let read = tokenizer.encode_guarded(&text, &marks).unwrap();
    let written = format!(
        "<|im_start|>assistant{said}<tool_call>\n{{\"name\": \"find\", \"arguments\": {{\"query\": \"a<b\"}}}}\n</tool_call><|im_end|>\n"
    );
    assert_eq!(read, tokenizer.encode(&written).unwrap());
}
