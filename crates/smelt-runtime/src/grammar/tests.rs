//! Lets a random model answer under grammars: whatever it says must be of the form asked for.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smelt_random::Random;

use super::*;
use crate::sampling::{Chooser, Sampler, Settings};
use crate::tokenizer::{TOKENIZER_FILE, Tokenizer};

/// Tokens of an answer, after which it is given up.
const TOKENS_MAX: usize = 600;

/// A small vocabulary, and a model that says anything.
pub(crate) struct World {
    pub(crate) tokenizer: Tokenizer,
    pub(crate) compiler: Compiler,
    ends: [u32; 1],
    vocab: usize,
    /// Tokens a random model likes, so that it comes to an end.
    closing: Vec<u32>,
}

impl World {
    pub(crate) fn new() -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/shapes-vl");
        let tokenizer = Tokenizer::open(&data.join(TOKENIZER_FILE)).unwrap();
        let ends = [tokenizer.token("<|im_end|>").unwrap()];
        // More logits than words, as models have.
        let vocab = tokenizer.vocab() + 7;
        let compiler = Compiler::new(&tokenizer, vocab, &ends).unwrap();
        let words = ["\"", "}", "]", ")", "\"}", "0", "1", "<|im_end|>"];
        let closing = words.iter().filter_map(|word| tokenizer.token(word)).collect();
        Self { tokenizer, compiler, ends, vocab, closing }
    }

    /// An answer of a random model that is held to `grammar`; nothing if it does not end.
    pub(crate) fn answer(&self, grammar: &Grammar, random: &mut Random) -> Option<String> {
        let mut matcher = self.compiler.compile(grammar).unwrap();
        let settings =
            Settings { temperature: 1.0, seed: random.next_u64(), ..Settings::default() };
        let mut sampler = Sampler::new(&settings, &[], self.vocab).unwrap();
        let mut chooser = Chooser::default();
        let mut tokens = Vec::new();
        while tokens.len() < TOKENS_MAX {
            let mut logits: Vec<f32> =
                (0..self.vocab).map(|_| random.below(1000) as f32 / 200.0).collect();
            self.closing.iter().for_each(|token| logits[*token as usize] += 7.0);
            let may_end = matcher.may_end().unwrap();
            let mask = matcher.mask().unwrap();
            assert_eq!(mask.allows(self.ends[0]), may_end);
            let token = chooser.choose(&logits, &sampler.draw(Some(mask))).unwrap().token;
            sampler.count(token);
            matcher.take(token).unwrap();
            if self.ends.contains(&token) {
                return Some(self.tokenizer.decode(&tokens, true).unwrap());
            }
            tokens.push(token);
        }
        None
    }
}

/// A random schema of parts that models are asked for.
fn schema(random: &mut Random, depth: u64) -> Value {
    let kinds = if depth == 0 { 6 } else { 10 };
    match random.below(kinds) {
        0 => {
            let least = random.below(40) as i64 - 20;
            json!({ "type": "integer", "minimum": least, "maximum": least + random.below(50) as i64 })
        }
        1 => {
            json!({ "type": "string", "minLength": random.below(3), "maxLength": 3 + random.below(9) })
        }
        2 => json!({ "enum": ["red", "green \u{e9}\n", 3, null, true] }),
        3 => {
            json!({ "type": "string", "pattern": random.pick(&["^[a-c]{2,5}$", "^\\d{3}-\\d{2}$", "x+y?"]) })
        }
        4 => json!({ "type": ["boolean", "null"] }),
        5 => json!({ "type": "string", "format": random.pick(&["date", "time", "uuid", "ipv4"]) }),
        6 => {
            let least = random.below(2);
            let items = schema(random, depth - 1);
            json!({ "type": "array", "items": items, "minItems": least, "maxItems": least + random.below(3) })
        }
        7 => json!({ "anyOf": [schema(random, depth - 1), schema(random, depth - 1)] }),
        8 => {
            let shared = schema(random, depth - 1);
            json!({
                "$defs": { "shared": shared },
                "type": "object",
                "properties": { "a": { "$ref": "#/$defs/shared" }, "b": { "type": "number" } },
                "required": ["a"],
                "additionalProperties": false,
            })
        }
        _ => {
            let names = ["name", "count", "a b", "\u{e9}t\u{e9}"];
            let mut properties = serde_json::Map::new();
            for name in &names[..1 + random.below(4)] {
                properties.insert((*name).to_owned(), schema(random, depth - 1));
            }
            let required: Vec<String> =
                properties.keys().filter(|_| random.below(2) == 0).cloned().collect();
            json!({
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": random.below(2) == 0,
            })
        }
    }
}

/// References are of the whole document, so only the outermost schema may define anything.
fn is_definable(schema: &Value) -> bool {
    let inner = schema.to_string().matches("$defs\":").count();
    inner == 0 || (inner == 1 && schema.get("$defs").is_some())
}

#[test]
fn whatever_is_said_under_a_schema_validates() {
    let world = World::new();
    let mut random = Random::new(1);
    let (mut ended, mut tried) = (0, 0);
    while tried < 150 {
        let schema = schema(&mut random, 2);
        if !is_definable(&schema) {
            continue;
        }
        tried += 1;
        let options = jsonschema::options().should_validate_formats(true);
        let validator = options.build(&schema).unwrap();
        let grammar = Grammar::JsonSchema(schema.clone());
        let Some(answer) = world.answer(&grammar, &mut random) else { continue };
        match serde_json::from_str::<Value>(&answer) {
            Ok(value) => assert!(validator.is_valid(&value), "{schema}\n{answer}"),
            // JSON sets numbers no limit.
            Err(error) => assert!(error.to_string().contains("out of range"), "{answer}: {error}"),
        }
        ended += 1;
    }
    assert!(ended > 100, "only {ended} of {tried} answers ended");
}

#[test]
fn other_forms_are_kept_too() {
    let world = World::new();
    let mut random = Random::new(2);
    let mut check = |grammar: Grammar, holds: &dyn Fn(&str) -> bool| {
        let answers: Vec<String> =
            (0..12).filter_map(|_| world.answer(&grammar, &mut random)).collect();
        assert!(answers.len() > 4, "{grammar:?}: {answers:?}");
        for answer in answers {
            assert!(holds(&answer), "{grammar:?}: {answer:?}");
        }
    };
    check(Grammar::JsonObject, &|text| {
        serde_json::from_str::<Value>(text)
            .map_or_else(|error| error.to_string().contains("out of range"), |v| v.is_object())
    });
    let choices = ["yes", "no", "it is \"unsure\"\n", "yes, but"].map(str::to_owned);
    check(Grammar::Choice(choices.to_vec()), &|text| choices.iter().any(|choice| choice == text));
    check(Grammar::Regex("a{1,3}(b|c)/\\d".to_owned()), &|text| {
        let rest = text.trim_start_matches('a');
        let count = text.len() - rest.len();
        (1..=3).contains(&count) && rest.starts_with(['b', 'c']) && rest.as_bytes()[1] == b'/'
    });
    check(Grammar::Lark("start: \"<\" /[0-9]{1,4}/ \">\"".to_owned()), &|text| {
        text.starts_with('<') && text.ends_with('>') && (3..=6).contains(&text.len())
    });
    let sum = "root ::= part (\" + \" part)*\npart ::= [0-9]{1,3} | \"(\" root \")\"\n";
    check(Grammar::of_text(sum.to_owned()), &|text| {
        let deep = text.chars().try_fold(0i32, |deep, c| match c {
            '(' => Some(deep + 1),
            ')' => (deep > 0).then_some(deep - 1),
            '0'..='9' | ' ' | '+' => Some(deep),
            _ => None,
        });
        deep == Some(0) && !text.contains("()") && !text.ends_with("+ ")
    });
    let flat = Grammar::of_text("root ::= \"a\"? [b-d]* \"ba\"".to_owned());
    check(flat, &|text| text.ends_with("ba") && !text[1..].trim_end_matches('a').contains('a'));
}

#[track_caller]
fn check_error(grammar: &Grammar, words: &[&str]) {
    let error = World::new().compiler.compile(grammar).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn faults_are_named() {
    let schema = |value: Value| Grammar::JsonSchema(value);
    check_error(&schema(json!({ "type": "strin" })), &["JSON schema", "strin"]);
    check_error(&schema(json!({ "type": "array", "uniqueItems": true })), &["uniqueItems"]);
    check_error(&schema(json!({ "$ref": "#/$defs/none" })), &["none"]);
    check_error(
        &schema(json!({ "type": "integer", "minimum": 5, "maximum": 3 })),
        &["nsatisfiable"],
    );
    check_error(
        &schema(json!({ "type": "string", "pattern": "(" })),
        &["JSON schema", "unclosed group"],
    );
    check_error(&schema(json!([1])), &["JSON schema", "object"]);
    check_error(&Grammar::Regex("a(".to_owned()), &["regular expression"]);
    check_error(&Grammar::Lark("begin: \"a\"".to_owned()), &["grammar", "start"]);
    check_error(&Grammar::Gbnf("root ::= x".to_owned()), &["no rule \"x\""]);
    check_error(&Grammar::Choice(Vec::new()), &["must be 1 to 1024, not 0"]);
    check_error(&Grammar::Regex("a".repeat(300_000)), &["300000 bytes"]);
}

#[test]
fn what_a_client_says_of_white_space_is_not_heard() {
    let world = World::new();
    let mut schema =
        json!({ "type": "object", "properties": { "a": { "enum": [1] } }, "required": ["a"] });
    schema["x-guidance"] = json!({ "lenient": true, "whitespace_pattern": "x" });
    let mut random = Random::new(3);
    let answer = world.answer(&Grammar::JsonSchema(schema), &mut random).unwrap();
    assert!(serde_json::from_str::<Value>(&answer).unwrap()["a"] == 1, "{answer}");
}

#[test]
fn no_grammar_takes_long() {
    let world = World::new();
    let wide: Value = (0..2000)
        .map(|n| (format!("p{n}"), json!({ "type": "string", "pattern": "^(a|b)*c{3}$" })))
        .collect();
    let hostile = [
        Grammar::Regex("((a{1,100}){1,100}){1,100}".to_owned()),
        Grammar::Regex("(a|b)*a(a|b){60}".to_owned()),
        Grammar::Regex("(.*a){40}".to_owned()),
        Grammar::Regex("[\\w\\s]{5000}".to_owned()),
        Grammar::Lark("start: start start | \"a\" | start \"b\" start".to_owned()),
        Grammar::Lark("start: (\"a\"? \"a\"? \"a\"?)*".to_owned()),
        Grammar::Gbnf("root ::= root root root | \"a\" | \"\"".to_owned()),
        Grammar::JsonSchema(json!({ "type": "object", "properties": wide })),
        Grammar::JsonSchema(json!({ "type": "array", "items": { "$ref": "#" }, "minItems": 1000 })),
        Grammar::JsonSchema(json!({ "type": "string", "maxLength": 1_000_000_000 })),
        Grammar::JsonSchema(
            json!({ "allOf": vec![json!({ "type": "string", "pattern": "a.*b" }); 50] }),
        ),
    ];
    for grammar in hostile {
        let start = Instant::now();
        if let Ok(mut matcher) = world.compiler.compile(&grammar) {
            for _ in 0..30 {
                let Ok(mask) = matcher.mask() else { break };
                let Some(token) = mask.tokens().next() else { break };
                if world.ends.contains(&token) || matcher.take(token).is_err() {
                    break;
                }
            }
        }
        // Unbounded, some of these take minutes and gigabytes.
        assert!(start.elapsed() < Duration::from_secs(20), "{grammar:?}: {:?}", start.elapsed());
    }
}

#[test]
fn a_constraint_moves_between_threads_and_refuses_what_it_did_not_allow() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let world = World::new();
    let grammar = Grammar::Choice(vec!["a".to_owned()]);
    let mut matcher = is_send(world.compiler.compile(&grammar).unwrap());
    let (a, b) = (world.tokenizer.token("a").unwrap(), world.tokenizer.token("b").unwrap());
    let mut other = matcher.clone();
    assert!(matcher.take(b).is_err());
    assert_eq!(other.mask().unwrap().tokens().collect::<Vec<_>>(), [a]);
    other.take(a).unwrap();
    assert!(other.is_ended());
    assert_eq!(other.mask().unwrap().tokens().collect::<Vec<_>>(), world.ends);
    other.take(world.ends[0]).unwrap();
}

/// Grammars nearly as long as one of their form may be, of which each level is a call of the compiler.
fn chains() -> Vec<Grammar> {
    let rules = |first: &str, count: usize, rule: &dyn Fn(usize) -> String| {
        let rules: String = (0..count).map(rule).collect();
        format!("{first}{rules}")
    };
    let references = |count: usize, at: &dyn Fn(Value) -> Value| {
        let reference = |n: usize| json!({ "$ref": format!("#/$defs/d{n}") });
        let mut defs: serde_json::Map<String, Value> =
            (0..count).map(|n| (format!("d{n}"), at(reference(n + 1)))).collect();
        defs.insert(format!("d{count}"), json!({ "type": "null" }));
        Grammar::JsonSchema(json!({ "$defs": defs, "$ref": "#/$defs/d0" }))
    };
    let all: Value = (0..4000).map(|n| (format!("property number {n:20}"), json!({}))).collect();
    vec![
        Grammar::Gbnf(rules("root ::= a0\na990 ::= \"y\"\n", 990, &|n| {
            format!("a{n} ::= a{} \"x\"\n", n + 1)
        })),
        Grammar::Lark(rules("start: a0\na990: \"y\"\n", 990, &|n| {
            format!("a{n}: \"x\" a{}\n", n + 1)
        })),
        Grammar::Lark(rules("start: a0\na990: \"y\"\n", 990, &|n| format!("a{n}:a{}\n", n + 1))),
        Grammar::Lark(rules("start: A0\nA990: \"y\"\n", 990, &|n| {
            format!("A{n}: \"x\" A{}\n", n + 1)
        })),
        Grammar::JsonSchema(json!({ "type": "object", "properties": all })),
        references(6500, &|next| next),
        references(5500, &|next| json!({ "allOf": [next] })),
        references(5000, &|next| json!({ "items": next })),
        references(
            2900,
            &|next| json!({ "type": "object", "properties": { "a": next }, "required": ["a"] }),
        ),
    ]
}

/// Answers up to 30 tokens, the first that may come of each, and says how long the slowest took.
fn follow(world: &World, matcher: &mut GrammarMatcher) -> Duration {
    let mut slowest = Duration::ZERO;
    for _ in 0..30 {
        let start = Instant::now();
        let token = matcher.mask().ok().and_then(|mask| mask.tokens().next());
        let taken = token.filter(|token| !world.ends.contains(token));
        let is_taken = taken.is_some_and(|token| matcher.take(token).is_ok());
        slowest = slowest.max(start.elapsed());
        if !is_taken {
            break;
        }
    }
    slowest
}

#[test]
fn the_longest_chains_fill_no_stack() {
    let world = World::new();
    for grammar in chains() {
        let start = Instant::now();
        let compiled = world.compiler.compile(&grammar);
        let took = start.elapsed();
        let why = compiled.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert!(!why.contains("more than"), "{why}");
        assert!(took < Duration::from_secs(20), "{} bytes: {took:?} {why}", grammar.bytes());
        // Answers are followed, and forgotten, by threads of usual stacks.
        if let Ok(mut matcher) = compiled {
            follow(&world, &mut matcher);
        }
    }
}

#[test]
fn what_takes_long_is_refused_before_the_first_token() {
    let refused = |grammar: Grammar, says: &str| {
        let start = Instant::now();
        check_error(&grammar, &[says]);
        assert!(start.elapsed() < Duration::from_secs(10), "{grammar:?}: {:?}", start.elapsed());
    };
    refused(Grammar::Regex("(a{1000}){1000}".to_owned()), "too many");
    refused(Grammar::Gbnf("root ::= ((\"a\"{2000}){2000}){2000}".to_owned()), "too many");
    refused(Grammar::Regex("a?".repeat(60_000)), "60000 parts");
    let schema = json!({ "type": "integer", "multipleOf": 1_000_003 });
    refused(Grammar::JsonSchema(schema), "multipleOf");
}

#[test]
fn what_nothing_is_of_is_refused() {
    check_error(&Grammar::JsonSchema(json!({ "$ref": "#" })), &["no text is of this form"]);
    check_error(&Grammar::Regex("[^\\x00-\\x{10FFFF}]".to_owned()), &["no text is of this form"]);
    check_error(&Grammar::Gbnf("root ::= root".to_owned()), &["no text is of this form"]);
    check_error(&Grammar::Gbnf("root ::= \"a\" root".to_owned()), &["grammar"]);
}

#[test]
fn no_token_keeps_others_waiting() {
    let world = World::new();
    for pattern in ["[bc]{3}(a{1000}){1000}".to_owned(), format!("[bc]{{3}}{}", "a?".repeat(2000))]
    {
        let mut matcher = world.compiler.compile(&Grammar::Regex(pattern)).unwrap();
        let slowest = follow(&world, &mut matcher);
        // Some 40 ms, and tests are many.
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    }
}

/// Schemas of lists that cannot be told apart before they end.
fn lists(count: usize) -> Grammar {
    let list =
        |least| json!({ "type": "array", "items": { "$ref": "#/$defs/a" }, "minItems": least });
    let lists: Vec<Value> = (0..count).map(list).collect();
    Grammar::JsonSchema(json!({ "$defs": { "a": { "anyOf": lists } }, "$ref": "#/$defs/a" }))
}

#[test]
fn no_ambiguity_keeps_others_waiting() {
    let world = World::new();
    let gbnf = |text: &str| Grammar::Gbnf(text.to_owned());
    let ambiguous = [
        gbnf("root ::= a\na ::= a a | [a-z]"),
        gbnf("root ::= c\nc ::= [a-z]* c | \"q\""),
        gbnf(
            "root ::= a | b | c\na ::= \"x\" a \"y\" | a a | \"\"\nb ::= a b | \"z\"\nc ::= [a-z]* c | \"q\"",
        ),
        gbnf("root ::= e\ne ::= e e | e \"+\" e | \"(\" e \")\" | [a-z0-9 ]+"),
        gbnf("root ::= root root root | \"a\" | \"\""),
        lists(2),
        lists(128),
        lists(600),
    ];
    let mut random = Random::new(4);
    for grammar in ambiguous {
        let Ok(work) = bounds::work(&grammar) else { continue };
        let Ok(mut matcher) = world.compiler.compile(&grammar) else { continue };
        for _ in 0..300 {
            let Ok(mask) = matcher.mask() else { break };
            let tokens: Vec<u32> = mask.tokens().collect();
            // The last places are full before they are counted.
            assert!(matcher.items() <= work.mask_items + 2 * work.row_items, "{grammar:?}");
            let token = random.pick(&tokens);
            if world.ends.contains(&token) || matcher.take(token).is_err() {
                break;
            }
        }
    }
}

#[test]
fn an_ambiguous_answer_ends_before_it_takes_long() {
    let world = World::new();
    let grammar = Grammar::Gbnf("root ::= a\na ::= a a | [a-z]".to_owned());
    let mut matcher = world.compiler.compile(&grammar).unwrap();
    let letter = world.tokenizer.token("a").unwrap();
    let mut say = || -> Result<(), ConstraintError> {
        matcher.mask()?;
        matcher.take(letter)
    };
    let said = (0..1000).find_map(|_| say().err());
    let why = said.expect("a thousand letters can be read in too many ways").to_string();
    assert!(why.contains("too many ways to read"), "{why}");
}

#[test]
fn wide_schemas_and_grammars_that_refer_to_themselves_are_held_to() {
    let world = World::new();
    let wide = |count: usize| -> Value {
        (0..count).map(|n| (format!("field{n}"), json!({ "type": "string" }))).collect()
    };
    let kind = |n: usize| json!({ "properties": { "kind": { "const": n }, "of": {} }, "required": ["kind"] });
    let kinds: Vec<Value> = (0..128).map(kind).collect();
    let gbnf = |text: &str| Grammar::Gbnf(text.to_owned());
    let honest = [
        Grammar::JsonSchema(json!({ "type": "object", "properties": wide(300) })),
        Grammar::JsonSchema(json!({ "type": "array", "items": { "anyOf": kinds } })),
        gbnf(
            "root ::= object\nobject ::= \"{\" (pair (\",\" pair)*)? \"}\"\npair ::= string \":\" value\nvalue ::= object | string | [0-9]+ | \"[\" (value (\",\" value)*)? \"]\"\nstring ::= \"\\\"\" [^\"]* \"\\\"\"",
        ),
        gbnf(
            "root ::= sum\nsum ::= part ([-+*/] part)*\npart ::= [a-z]+ | [0-9]+ | \"(\" sum \")\"",
        ),
        gbnf("root ::= \"- \" [^\\n]+ \"\\n\" root | \"\""),
    ];
    let mut random = Random::new(5);
    for grammar in honest {
        let mut matcher = world.compiler.compile(&grammar).unwrap();
        for _ in 0..300 {
            let tokens: Vec<u32> = matcher.mask().unwrap().tokens().collect();
            let token = random.pick(&tokens);
            if world.ends.contains(&token) {
                break;
            }
            matcher.take(token).unwrap();
        }
    }
}

#[test]
fn lists_that_hold_each_other_take_no_more_than_may_be() {
    let world = World::new();
    // As wide as a schema may be that refers to itself, and told apart at no place.
    let mut widest = world.compiler.compile(&lists(150)).unwrap();
    let open = world.tokenizer.token("[").unwrap();
    for _ in 0..200 {
        widest.mask().unwrap();
        assert!(widest.items() <= 12 * RECURSIVE_ROW_ITEMS_MAX, "{}", widest.items());
        widest.take(open).unwrap();
    }
    check_error(&lists(300), &["too many ways to read"]);
    // The same behind what can be told apart ends where it is reached.
    let Grammar::JsonSchema(mut schema) = lists(300) else { unreachable!("it is a schema") };
    let fields = schema.as_object_mut().unwrap();
    let inner = fields.remove("$ref").unwrap();
    fields.insert("properties".to_owned(), json!({ "x": { "$ref": inner } }));
    fields.insert("required".to_owned(), json!(["x"]));
    fields.insert("type".to_owned(), json!("object"));
    let mut hidden = world.compiler.compile(&Grammar::JsonSchema(schema)).unwrap();
    let mut say = |word: &str| -> Result<(), ConstraintError> {
        for token in world.tokenizer.encode(word).unwrap() {
            hidden.mask()?;
            hidden.take(token)?;
        }
        hidden.mask().map(|_| ())
    };
    let said = say("{\"x\":").and_then(|()| say("[[[["));
    let why = said.expect_err("it can be read in too many ways").to_string();
    assert!(why.contains("too many ways to read"), "{why}");
}

#[test]
fn honest_schemas_that_refer_to_themselves_are_held_to() {
    let world = World::new();
    let to = |place: &str| json!({ "$ref": format!("#/$defs/{place}") });
    let kind = |n: usize| {
        let fields = json!({ "op": { "const": format!("o{n}") }, "args": { "type": "array", "items": to("e") } });
        let kind = json!({ "type": "object", "properties": fields, "required": ["op", "args"] });
        (format!("n{n}"), kind)
    };
    let mut expressions: serde_json::Map<String, Value> = (0..100).map(kind).collect();
    let mut all: Vec<Value> = (0..100).map(|n| to(&format!("n{n}"))).collect();
    all.push(json!({ "type": "number" }));
    expressions.insert("e".to_owned(), json!({ "anyOf": all }));
    let field = |n: usize| {
        let of = json!({ "anyOf": [{ "type": "string" }, { "type": "null" }] });
        (format!("field{n}"), of)
    };
    let mut fields: serde_json::Map<String, Value> = (0..100).map(field).collect();
    fields.insert("children".to_owned(), json!({ "type": "array", "items": to("t") }));
    let tree = json!({ "t": { "type": "object", "properties": fields } });
    let honest = [
        json!({ "$defs": expressions, "$ref": "#/$defs/e" }),
        json!({ "$defs": tree, "$ref": "#/$defs/t" }),
    ];
    let mut random = Random::new(6);
    for schema in honest {
        let mut matcher = world.compiler.compile(&Grammar::JsonSchema(schema)).unwrap();
        for _ in 0..300 {
            let tokens: Vec<u32> = matcher.mask().unwrap().tokens().collect();
            let token = random.pick(&tokens);
            if world.ends.contains(&token) {
                break;
            }
            matcher.take(token).unwrap();
        }
    }
}

#[test]
fn white_space_is_a_space_or_an_indented_line() {
    let world = World::new();
    let schema = json!({ "type": "array", "items": { "enum": [1] }, "minItems": 1 });
    let accepts = |text: &str| {
        let mut matcher = world.compiler.compile(&Grammar::JsonSchema(schema.clone())).unwrap();
        let tokens = world.tokenizer.encode(text).unwrap();
        tokens.iter().all(|token| matcher.take(*token).is_ok())
            && matcher.may_end().unwrap_or(false)
    };
    for good in ["[1]", "[ 1, 1 ]", "[\n    1,\n\t1\n]"] {
        assert!(accepts(good), "{good:?}");
    }
    for bad in ["[  1]", "[\n\n1]", &format!("[\n{}1]", " ".repeat(21))[..]] {
        assert!(!accepts(bad), "{bad:?}");
    }
}
