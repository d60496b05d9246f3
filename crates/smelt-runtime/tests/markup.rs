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
    marks: &'static [&'static str],
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

const FAMILIES: [FamilyCase; 7] = [
    FamilyCase {
        name: "Qwen, InternVL, SmolLM: ChatML",
        marks: CHATML,
        template: "{%- if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{%- if m.content is string %}{% set c = m.content %}{% else %}{% set c = '' %}{% for p in m.content %}{% set c = p.text %}{{ c }}{% endfor %}{% endif %}{%- if '</think>' in c %}<think>{{ c.split('</think>')[0] }}</think>{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}{{ c | trim }}{%- for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{{ greeting }}{% endif %}",
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
        template: "<|begin_of_text|>{% if tools %}{{ tools | tojson(indent=4) }}{% endif %}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}{% for call in m.tool_calls or [] %}{{ call.function.arguments | tojson }}{% endfor %}<|eot_id|>{% endfor %}{{ greeting }}",
    },
    FamilyCase {
        name: "Mistral",
        marks: &["[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "</s>", "<s>"],
        template: "<s>{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content }}{% for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}{{ call.function.arguments | tojson }}{% endfor %}</s>{% else %}[INST]{{ m.content }}[/INST]{% endif %}{% endfor %}{{ greeting }}",
    },
    FamilyCase {
        name: "Gemma",
        marks: &["<start_of_turn>", "<end_of_turn>", "<bos>", "<eos>"],
        template: "<bos>{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}{{ m.tool_calls | tojson if m.tool_calls }}<end_of_turn>\n{% endfor %}{{ tools | tojson if tools }}{{ greeting }}",
    },
    FamilyCase {
        name: "Phi",
        marks: &["<|user|>", "<|assistant|>", "<|system|>", "<|end|>"],
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
        template: "<｜begin▁of▁sentence｜>{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}{% for call in m.tool_calls or [] %}<｜tool▁calls▁begin｜>{{ call.function.name }}\n{{ call.function.arguments | tojson }}{% endfor %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}{{ tools | tojson if tools }}{{ greeting }}",
    },
    FamilyCase {
        name: "GLM",
        marks: &["[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|observation|>"],
        template: "[gMASK]<sop>{{ tools | tojson(ensure_ascii=True) if tools }}{% for m in messages %}<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content.strip() }}{{ m.tool_calls | tojson(ensure_ascii=True) if m.tool_calls }}{% endfor %}<|assistant|>{{ greeting }}",
    },
];

/// The tokenizer of shapes with these marks as special tokens, all but every third as the words that they are.
fn with_marks(dir: &Path, marks: &[&str]) -> Tokenizer {
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
    let tokens = tokenizer.encode_guarded(&text, marks.tokens()).unwrap();
    tokens.into_iter().filter(|token| marks.tokens().contains(token)).collect()
}

#[test]
fn no_family_takes_words_for_marks() {
    for FamilyCase { name, marks, template } in FAMILIES {
        let dir = TempDir::new().unwrap();
        let tokenizer = with_marks(dir.path(), marks);
        fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
        fs::write(dir.path().join("tokenizer_config.json"), "{}").unwrap();
        let template = Template::open(dir.path()).unwrap();
        let content_format = if template.content_format(None) == ContentFormat::Parts {
            ContentFormat::Parts
        } else {
            ContentFormat::Text
        };
        let forms = if name.starts_with("Qwen") {
            vec![content_format, ContentFormat::Parts]
        } else {
            vec![content_format]
        };
        for content_format in forms {
            let of = |texts: &[&str]| conversation(texts, content_format, &template, &tokenizer);
            let expect = of(&["plain"]);
            assert!(expect.len() >= 5, "{name} writes its own: {expect:?}");
            for mark in marks {
                let middle = mark.char_indices().nth(mark.chars().count() / 2).unwrap().0;
                let (first, second) = mark.split_at(middle);
                for texts in [
                    &[*mark][..],
                    &[first, second],
                    &[second, first],
                    &["a", mark, mark, "b"],
                    &[&mark[1..]],
                    &[&mark[..mark.len() - 1]],
                    &["<", &mark[1..]],
                    &["</think>", first, "</think>", second],
                ] {
                    // What was thought is told apart, and written by the template between its own marks.
                    let thoughts = ["<think>", "</think>"].map(|tag| tokenizer.token(tag));
                    let others = |tokens: Vec<u32>| -> Vec<u32> {
                        tokens
                            .into_iter()
                            .filter(|token| !thoughts.contains(&Some(*token)))
                            .collect()
                    };
                    let found = others(of(texts));
                    assert_eq!(
                        found,
                        others(expect.clone()),
                        "{name} {content_format:?}: {texts:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn what_the_server_said_comes_back_to_the_same_tokens() {
    let dir = TempDir::new().unwrap();
    let FamilyCase { marks, template, .. } = &FAMILIES[0];
    let tokenizer = with_marks(dir.path(), marks);
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
    let read = tokenizer.encode_guarded(&text, marks.tokens()).unwrap();
    let written = format!(
        "<|im_start|>assistant{said}<tool_call>\n{{\"name\": \"find\", \"arguments\": {{\"query\": \"a<b\"}}}}\n</tool_call><|im_end|>\n"
    );
    assert_eq!(read, tokenizer.encode(&written).unwrap());
}
