//! Says what a token costs beside its engine: masks of grammars, and draws from wide rows.
//!
//! `bench_words TOKENIZER_JSON VOCAB END_TOKEN` answers under usual grammars with a random model and prints
//! one line each: compiling, and the median and slowest mask, in milliseconds.

#![expect(clippy::unwrap_used, reason = "a measurement has nobody to answer to")]

use std::path::Path;
use std::time::Instant;

use serde_json::json;
use smelt_runtime::grammar::{Compiler, Grammar};
use smelt_runtime::sampling::{Chooser, Sampler, Settings};
use smelt_runtime::tokenizer::Tokenizer;

/// Tokens of an answer at most.
const TOKENS_MAX: usize = 300;

/// Answers under each grammar.
const ANSWERS: u64 = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, tokenizer, vocab, end] = &arguments[..] else {
        eprintln!("bench_words TOKENIZER_JSON VOCAB END_TOKEN");
        return;
    };
    let (vocab, end): (usize, u32) = (vocab.parse().unwrap(), end.parse().unwrap());
    let tokenizer = Tokenizer::open(Path::new(tokenizer)).unwrap();
    let start = Instant::now();
    let compiler = Compiler::new(&tokenizer, vocab, &[end]).unwrap();
    println!("compiler of {vocab} tokens: {:.0} ms", ms(start));
    for (name, grammar) in grammars() {
        masks(name, &compiler, &grammar, vocab, end);
    }
    draws(vocab);
}

fn grammars() -> Vec<(&'static str, Grammar)> {
    let point = json!({
        "type": "object",
        "properties": { "x": { "type": "integer" }, "y": { "type": "integer" } },
        "required": ["x", "y"],
        "additionalProperties": false,
    });
    let found = json!({
        "type": "object",
        "properties": {
            "label": { "type": "string", "maxLength": 40 },
            "kind": { "enum": ["person", "car", "animal", "other"] },
            "corners": { "type": "array", "items": point, "minItems": 2, "maxItems": 2 },
            "score": { "type": "number" },
        },
        "required": ["label", "kind", "corners"],
        "additionalProperties": false,
    });
    let list = json!({ "type": "array", "items": found, "maxItems": 20 });
    vec![
        ("json_object", Grammar::JsonObject),
        ("json_schema", Grammar::JsonSchema(list)),
        ("regex", Grammar::Regex("\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2} [\\w ]{0,80}".to_owned())),
        ("choice", Grammar::Choice(["yes", "no", "unsure"].map(str::to_owned).to_vec())),
        ("gbnf", Grammar::of_text("root ::= e\ne ::= [0-9]+ | \"(\" e \" + \" e \")\"".to_owned())),
    ]
}

fn masks(name: &str, compiler: &Compiler, grammar: &Grammar, vocab: usize, end: u32) {
    let start = Instant::now();
    let whole = compiler.compile(grammar).unwrap();
    let compile = ms(start);
    let mut times = Vec::new();
    for seed in 0..ANSWERS {
        let mut matcher = whole.clone();
        let settings = Settings { temperature: 1.0, seed, ..Settings::default() };
        let mut sampler = Sampler::new(&settings, &[], vocab).unwrap();
        let mut chooser = Chooser::default();
        let logits = vec![0.0; vocab];
        for _ in 0..TOKENS_MAX {
            let start = Instant::now();
            let mask = matcher.mask().unwrap();
            times.push(ms(start));
            let token = chooser.choose(&logits, &sampler.draw(Some(mask))).unwrap().token;
            sampler.count(token);
            if token == end {
                break;
            }
            matcher.take(token).unwrap();
        }
    }
    tell(&format!("{name}: compiled in {compile:.1} ms, masks"), times);
}

fn draws(vocab: usize) {
    // Sums of sines: a bell of logits, as those of models.
    let sines = |token: usize| (1..9).map(|k| (token as f32 * 0.37 * k as f32).sin()).sum::<f32>();
    let logits: Vec<f32> = (0..vocab).map(|token| sines(token) * 1.5).collect();
    let named = [
        ("all", Settings { temperature: 1.0, ..Settings::default() }),
        ("top-k 40", Settings { temperature: 1.0, top_k: 40, ..Settings::default() }),
        ("top-p 0.95", Settings { temperature: 1.0, top_p: 0.95, ..Settings::default() }),
        (
            "top-p 0.95, temperature 2",
            Settings { temperature: 2.0, top_p: 0.95, ..Settings::default() },
        ),
        (
            "min-p 0.01, temperature 2",
            Settings { temperature: 2.0, min_p: 0.01, ..Settings::default() },
        ),
    ];
    for (name, settings) in named {
        let mut sampler = Sampler::new(&settings, &[], vocab).unwrap();
        let mut chooser = Chooser::default();
        let mut times = Vec::new();
        for _ in 0..50 {
            let start = Instant::now();
            let chosen = chooser.choose(&logits, &sampler.draw(None)).unwrap();
            sampler.count(chosen.token);
            times.push(ms(start));
        }
        tell(&format!("{name}: draws"), times);
    }
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

fn tell(what: &str, mut times: Vec<f64>) {
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    let (median, late, slowest) = (at(0.5), at(0.99), at(1.0));
    println!("{what} {median:.3} ms, p99 {late:.3}, slowest {slowest:.3}, of {}", times.len());
}
