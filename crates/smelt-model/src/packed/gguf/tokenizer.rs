//! Makes the files of a tokenizer and a chat template from the metadata of a GGUF file.
//!
//! The metadata names a vocabulary, how pieces become longer ones, and by one word how texts are cut
//! before (`tokenizer.ggml.pre`).  What comes out are the files that checkpoints have beside their weights:
//! tokenizer.json, tokenizer_config.json and generation_config.json.  What no published tokenizer of these
//! families does is refused by name, since a text that is cut otherwise gives answers that look right.
//!
//! Sources: `docs/gguf.md` of ggml for the keys, `src/llama-vocab.cpp` of llama.cpp for defaults and the
//! words of `pre`, the tokenizer.json of the published models for what each word does.  Knows nothing of
//! tensors.

use std::collections::HashMap;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::config::bad;
use super::header::{Entry, GgufLie, Header};

const TOKENIZER_FILE: &str = "tokenizer.json";
const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TYPES: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";
const EXTRA: &str = "tokenizer.ggml.remove_extra_whitespaces";
const TEMPLATE: &str = "tokenizer.chat_template";

/// Control tokens that end an answer whatever the metadata names, by llama.cpp's list: models say them at
/// the end of a turn.
const ENDS: [&str; 9] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<EOT>",
    "<｜end▁of▁sentence｜>",
];

/// What a token is, by its number in the metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Normal,
    Unknown,
    /// Says something about the text, and is no part of it.
    Control,
    /// A word that is never cut.
    UserDefined,
    /// Fills the vocabulary up.
    Unused,
    /// One byte of a text that no other token has.
    Byte,
}

impl Type {
    fn of_number(number: f64) -> Option<Self> {
        const ALL: [Type; 6] = [
            Type::Normal,
            Type::Unknown,
            Type::Control,
            Type::UserDefined,
            Type::Unused,
            Type::Byte,
        ];
        ALL.get((number as usize).checked_sub(1)?).copied().filter(|_| number.fract() == 0.0)
    }
}

/// A file to be written beside the weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideFile {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub text: String,
}

impl SideFile {
    fn of(name: &'static str, value: &impl Serialize) -> Self {
        let text = serde_json::to_string_pretty(value).expect("its keys are texts");
        Self { name, text: text + "\n" }
    }
}

/// The files that the metadata of `header` stands for, those that are `wanted`: a tokenizer that is not
/// read matters only where it is.  Some files hold weights alone.
///
/// # Errors
/// [`GgufLie::BadEntry`] naming the entry that is missing, wrong or not read.
pub(crate) fn files(
    header: &Header,
    wanted: &dyn Fn(&str) -> bool,
) -> Result<Vec<SideFile>, GgufLie> {
    if !header.entries.contains_key(MODEL) {
        return Ok(Vec::new());
    }
    let words = Words::of(header)?;
    let mut files = Vec::new();
    if wanted(TOKENIZER_FILE) {
        files.push(SideFile::of(TOKENIZER_FILE, &words.tokenizer()?));
    }
    files.push(SideFile::of("tokenizer_config.json", &words.config()));
    files.push(SideFile::of("generation_config.json", &words.generation()));
    files.retain(|file| wanted(file.name));
    Ok(files)
}

/// How texts are made into pieces that merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// Letters that stand for bytes, cut before by the rules of a `pre`: GPT-2's.
    Bytes(Pre),
    /// Characters, spaces shown as `▁`, bytes where there is no such character: SentencePiece's.
    Characters,
}

/// tokenizer.json, as the library `tokenizers` writes it.  Vocabularies are a hundred thousand texts, which are written as
/// they lie in the file.
#[derive(Serialize)]
struct TokenizerFile<'a> {
    version: &'static str,
    truncation: (),
    padding: (),
    added_tokens: Vec<Value>,
    normalizer: Value,
    pre_tokenizer: Value,
    post_processor: Value,
    decoder: Value,
    model: Bpe<'a>,
}

/// Its vocabulary and how pieces become longer ones.
#[derive(Serialize)]
struct Bpe<'a> {
    r#type: &'static str,
    dropout: (),
    unk_token: Value,
    continuing_subword_prefix: (),
    end_of_word_suffix: (),
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocab<'a>,
    merges: Vec<[&'a str; 2]>,
}

/// An object of tokens and their ids, by rising ids.
struct Vocab<'a>(&'a Words<'a>);

impl Serialize for Vocab<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.vocab())
    }
}

/// The vocabulary of a file.
struct Words<'a> {
    header: &'a Header,
    /// Or why it is not known.
    spelling: Result<Spelling, GgufLie>,
    tokens: &'a [String],
    types: Vec<Type>,
    ids: HashMap<&'a str, usize>,
}

impl<'a> Words<'a> {
    fn of(header: &'a Header) -> Result<Self, GgufLie> {
        let spelling = match header.text(MODEL) {
            Some("gpt2") => Pre::of(header).map(Spelling::Bytes),
            Some("llama") => Ok(Spelling::Characters),
            _ => Err(bad(header, MODEL, "\"gpt2\" or \"llama\"")),
        };
        let Some(Entry::Texts(tokens)) = header.entries.get(TOKENS) else {
            return Err(bad(header, TOKENS, "an array of texts"));
        };
        let types = numbers(header, TYPES, tokens.len())?;
        let types =
            types.map(|types| types.iter().map(|number| Type::of_number(*number)).collect());
        let types: Option<Vec<Type>> = match types {
            Some(types) => types,
            None => Some(vec![Type::Normal; tokens.len()]),
        };
        let types = types.ok_or_else(|| bad(header, TYPES, "an array of numbers from 1 to 6"))?;
        let mut words = Self { header, spelling, tokens, types, ids: HashMap::new() };
        let mut ids = HashMap::with_capacity(tokens.len());
        for (token, id) in words.vocab() {
            if ids.insert(&*tokens[id], id).is_some() {
                return Err(GgufLie::DuplicateName { name: token.to_owned() });
            }
        }
        words.ids = ids;
        Ok(words)
    }

    /// The token that the entry `tokenizer.ggml.{name}_token_id` names, or that SentencePiece has there.
    fn named(&self, name: &str, of_characters: Option<usize>) -> Option<usize> {
        let given = self.header.integer(&format!("tokenizer.ggml.{name}_token_id"));
        let given = given.and_then(|id| usize::try_from(id).ok());
        let usual = of_characters.filter(|_| self.spelling == Ok(Spelling::Characters));
        given.or(usual).filter(|id| *id < self.tokens.len())
    }

    fn bos(&self) -> Option<usize> {
        self.named("bos", Some(1))
    }

    fn eos(&self) -> Option<usize> {
        self.named("eos", Some(2))
    }

    fn unknown(&self) -> Option<usize> {
        self.named("unknown", Some(0))
    }

    /// Whether texts begin with the first special token.
    fn adds_bos(&self) -> bool {
        let usual = match self.spelling {
            Ok(Spelling::Bytes(pre)) => pre.adds_bos(),
            Ok(Spelling::Characters) => true,
            Err(_) => false,
        };
        self.header.flag("tokenizer.ggml.add_bos_token").unwrap_or(usual) && self.bos().is_some()
    }

    fn adds_eos(&self) -> bool {
        self.header.flag("tokenizer.ggml.add_eos_token").unwrap_or(false) && self.eos().is_some()
    }

    fn text(&self, id: Option<usize>) -> Value {
        id.map_or(Value::Null, |id| self.tokens[id].as_str().into())
    }

    /// tokenizer.json.
    fn tokenizer(&self) -> Result<TokenizerFile<'_>, GgufLie> {
        let spelling = self.spelling.clone()?;
        if self.header.flag(EXTRA) == Some(true) {
            return Err(bad(self.header, EXTRA, "false"));
        }
        let is_of_characters = spelling == Spelling::Characters;
        let has_bytes = self.types.iter().filter(|kind| **kind == Type::Byte).count() == 256;
        let unknown = if is_of_characters { self.text(self.unknown()) } else { Value::Null };
        let model = Bpe {
            r#type: "BPE",
            dropout: (),
            unk_token: unknown,
            continuing_subword_prefix: (),
            end_of_word_suffix: (),
            fuse_unk: is_of_characters,
            byte_fallback: is_of_characters && has_bytes,
            ignore_merges: matches!(spelling, Spelling::Bytes(pre) if pre.ignores_merges()),
            vocab: Vocab(self),
            merges: self.merges(spelling)?,
        };
        Ok(TokenizerFile {
            version: "1.0",
            truncation: (),
            padding: (),
            added_tokens: self.added(),
            normalizer: self.normalizer(spelling),
            pre_tokenizer: pre_tokenizer(spelling),
            post_processor: self.post_processor(),
            decoder: self.decoder(spelling),
            model,
        })
    }

    /// Tokens and their ids, without those that only fill up.
    fn vocab(&self) -> impl Iterator<Item = (&str, usize)> {
        let all = self.tokens.iter().enumerate();
        let used = all.filter(|(id, _)| self.types[*id] != Type::Unused);
        used.map(|(id, token)| (token.as_str(), id))
    }

    /// Tokens that are found in texts before these are cut.
    fn added(&self) -> Vec<Value> {
        let token = |(id, kind): (usize, &Type)| {
            let is_special = matches!(kind, Type::Control | Type::Unknown);
            (is_special || *kind == Type::UserDefined).then(|| {
                let content = &self.tokens[id];
                json!({
                    "id": id,
                    "content": content,
                    "single_word": false,
                    "lstrip": false,
                    "rstrip": false,
                    "normalized": false,
                    "special": is_special,
                })
            })
        };
        self.types.iter().enumerate().filter_map(token).collect()
    }

    /// Whether a space goes before each stretch of words.
    fn has_prefix(&self) -> bool {
        self.header.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true)
    }

    fn normalizer(&self, spelling: Spelling) -> Value {
        match spelling {
            Spelling::Bytes(pre) if pre.composes() => json!({"type": "NFC"}),
            Spelling::Bytes(_) => Value::Null,
            Spelling::Characters => {
                let prefix = json!({"type": "Prepend", "prepend": "▁"});
                let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
                let prefix = Some(prefix).filter(|_| self.has_prefix());
                let all: Vec<Value> = prefix.into_iter().chain([spaces]).collect();
                json!({"type": "Sequence", "normalizers": all})
            }
        }
    }

    fn decoder(&self, spelling: Spelling) -> Value {
        let bytes = || json!({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
        if matches!(spelling, Spelling::Bytes(_)) {
            return bytes();
        }
        let mut steps = vec![
            json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
            json!({"type": "ByteFallback"}),
            json!({"type": "Fuse"}),
        ];
        if self.has_prefix() {
            steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        }
        json!({"type": "Sequence", "decoders": steps})
    }

    /// What goes around a text.
    fn post_processor(&self) -> Value {
        let first = self.bos().filter(|_| self.adds_bos());
        let last = self.eos().filter(|_| self.adds_eos());
        if first.is_none() && last.is_none() {
            return Value::Null;
        }
        let special = |id: usize, of: u8| {
            let word = &self.tokens[id];
            json!({"SpecialToken": {"id": word, "type_id": of}})
        };
        let around = |name: &str, of: u8| {
            let text = json!({"Sequence": {"id": name, "type_id": of}});
            let first = first.map(|id| special(id, of));
            let last = last.map(|id| special(id, of));
            first.into_iter().chain([text]).chain(last).collect::<Vec<Value>>()
        };
        let named = |id: usize| {
            let text = self.tokens[id].clone();
            (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}))
        };
        let tokens: serde_json::Map<String, Value> =
            first.into_iter().chain(last).map(named).collect();
        let pair = [around("A", 0), around("B", 1)].concat();
        json!({
            "type": "TemplateProcessing",
            "single": around("A", 0),
            "pair": pair,
            "special_tokens": tokens,
        })
    }

    /// Pairs of pieces that become one, those that go first in front.
    fn merges(&self, spelling: Spelling) -> Result<Vec<[&str; 2]>, GgufLie> {
        match spelling {
            Spelling::Bytes(_) => self.given_merges(),
            Spelling::Characters => self.merges_by_score(),
        }
    }

    fn given_merges(&self) -> Result<Vec<[&str; 2]>, GgufLie> {
        let Some(Entry::Texts(merges)) = self.header.entries.get(MERGES) else {
            return Err(bad(self.header, MERGES, "an array of texts"));
        };
        let mut whole = String::new();
        let mut pair = |merge: &'a String| {
            // The first piece has one letter at least, which may be a space.
            let second = merge.char_indices().nth(1)?.0;
            let space = second + merge[second..].find(' ')?;
            let pair = [&merge[..space], &merge[space + 1..]];
            whole.clear();
            whole.extend(pair);
            let is_known =
                pair.iter().copied().chain([whole.as_str()]).all(|x| self.ids.contains_key(x));
            is_known.then_some(pair)
        };
        let found = merges.iter().map(|merge| pair(merge).ok_or(merge)).collect::<Result<_, _>>();
        found.map_err(|merge| GgufLie::BadEntry {
            key: MERGES.to_owned(),
            found: format!("{merge:?}"),
            expected: "two tokens that make a third".to_owned(),
        })
    }

    /// SentencePiece joins the two neighbours whose whole has the best score: every way to cut a token
    /// into two is a merge of its score.  Of one token the ways go by their pieces, as transformers has them.
    fn merges_by_score(&self) -> Result<Vec<[&str; 2]>, GgufLie> {
        let scores = numbers(self.header, SCORES, self.tokens.len())?
            .ok_or_else(|| bad(self.header, SCORES, "an array of numbers"))?;
        let mut merges = Vec::new();
        let normal = |(id, _): &(usize, &String)| self.types[*id] == Type::Normal;
        for (id, token) in self.tokens.iter().enumerate().filter(normal) {
            let cuts = token.char_indices().skip(1).filter_map(|(at, _)| {
                let (left, right) = token.split_at(at);
                Some(([*self.ids.get(left)?, *self.ids.get(right)?], [left, right]))
            });
            let is_merged = |pieces: [usize; 2]| pieces.iter().all(|id| self.is_piece(*id));
            let cuts = cuts.filter(|(pieces, _)| is_merged(*pieces));
            let mut cuts: Vec<_> = cuts.collect();
            cuts.sort_unstable();
            merges.extend(cuts.into_iter().map(|(_, pair)| (scores[id], id, pair)));
        }
        // A stable order: of one score the token of the lower number goes first.
        merges.sort_by(|(a, first, _), (b, second, _)| b.total_cmp(a).then(first.cmp(second)));
        Ok(merges.into_iter().map(|(_, _, pair)| pair).collect())
    }

    fn is_piece(&self, id: usize) -> bool {
        self.types[id] == Type::Normal
    }

    /// tokenizer_config.json.
    fn config(&self) -> Value {
        let texts = |name: &str| self.header.text(name).map(Value::from);
        let default = texts(TEMPLATE);
        let tools = texts(&format!("{TEMPLATE}.tool_use"));
        let template = match (default, tools) {
            (Some(default), Some(tools)) => json!([
                {"name": "default", "template": default},
                {"name": "tool_use", "template": tools},
            ]),
            (default, _) => default.unwrap_or_default(),
        };
        let all = [
            ("add_bos_token", self.adds_bos().into()),
            ("add_eos_token", self.adds_eos().into()),
            ("bos_token", self.text(self.bos())),
            ("eos_token", self.text(self.eos())),
            ("unk_token", self.text(self.unknown())),
            ("pad_token", self.text(self.named("padding", None))),
            ("chat_template", template),
        ];
        let is_there = |(_, value): &(&str, Value)| !value.is_null();
        let fields = all.into_iter().filter(is_there);
        Value::Object(fields.map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// generation_config.json: every token that ends an answer.
    fn generation(&self) -> Value {
        let named = ["eos", "eot", "eom"].map(|name| self.named(name, None));
        let known = ENDS.iter().filter_map(|word| self.ids.get(word).copied());
        let known = known.filter(|id| self.types[*id] == Type::Control);
        let mut ends: Vec<usize> =
            named.into_iter().chain([self.eos()]).flatten().chain(known).collect();
        ends.sort_unstable();
        ends.dedup();
        json!({ "bos_token_id": self.bos(), "eos_token_id": ends })
    }
}

fn pre_tokenizer(spelling: Spelling) -> Value {
    match spelling {
        Spelling::Bytes(pre) => json!({"type": "Sequence", "pretokenizers": pre.steps()}),
        Spelling::Characters => Value::Null,
    }
}

/// The numbers of entry `key`, one of each of so many tokens.
fn numbers<'a>(header: &'a Header, key: &str, tokens: usize) -> Result<Option<&'a [f64]>, GgufLie> {
    match header.entries.get(key) {
        None => Ok(None),
        Some(Entry::Numbers(numbers)) if numbers.len() == tokens => Ok(Some(numbers)),
        Some(_) => Err(bad(header, key, &format!("an array of {tokens} numbers"))),
    }
}

/// How a text is cut before its pieces merge: what the word of `tokenizer.ggml.pre` stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pre {
    Gpt2,
    SmolLm,
    Llama3,
    Qwen2,
    /// Qwen2's cuts, but no text is composed before.
    DeepSeekR1Qwen,
    DeepSeekLlm,
    DeepSeekCoder,
}

/// The words that are known; those behind one another are one tokenizer.
const PRES: [(&str, Pre); 11] = [
    ("gpt-2", Pre::Gpt2),
    ("smollm", Pre::SmolLm),
    ("llama-bpe", Pre::Llama3),
    ("llama3", Pre::Llama3),
    ("llama-v3", Pre::Llama3),
    ("falcon3", Pre::Llama3),
    ("qwen2", Pre::Qwen2),
    ("megrez", Pre::Qwen2),
    ("deepseek-r1-qwen", Pre::DeepSeekR1Qwen),
    ("deepseek-llm", Pre::DeepSeekLlm),
    ("deepseek-coder", Pre::DeepSeekCoder),
];

/// The cut of Llama 3, with runs of digits of at most `{}`.
const WORDS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The letters of DeepSeek's first models: every cased one.
const CASED: &str = r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";

/// Its punctuation.
const MARKS: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";

/// Chinese, Korean and what lies between, in DeepSeek's first models.
const IDEOGRAPHS: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

impl Pre {
    fn of(header: &Header) -> Result<Self, GgufLie> {
        let word = header.text(PRE);
        let found = PRES.iter().find(|(known, _)| Some(*known) == word);
        found.map(|(_, pre)| *pre).ok_or_else(|| {
            let known = PRES.map(|(word, _)| word).join(", ");
            bad(
                header,
                PRE,
                &format!("one of {known}; put the model's tokenizer.json beside the file"),
            )
        })
    }

    /// Whether texts begin with the first special token where nothing is said of it.
    fn adds_bos(self) -> bool {
        self == Self::Llama3
    }

    /// Whether a piece that is a token is not cut first.
    fn ignores_merges(self) -> bool {
        self == Self::Llama3
    }

    /// Whether letters and their accents become one before (NFC).
    fn composes(self) -> bool {
        self == Self::Qwen2
    }

    /// The cuts, one after another.
    fn steps(self) -> Vec<Value> {
        let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        let digits = || json!({"type": "Digits", "individual_digits": true});
        let bytes = |cuts: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": cuts});
        let words = |most: &str| split(&WORDS.replace("{DIGITS}", most));
        match self {
            Self::Gpt2 => vec![bytes(true)],
            Self::SmolLm => vec![digits(), bytes(true)],
            Self::Llama3 => vec![words("{1,3}"), bytes(false)],
            Self::Qwen2 | Self::DeepSeekR1Qwen => vec![words(""), bytes(false)],
            Self::DeepSeekLlm => vec![
                split("[\r\n]"),
                split(CASED),
                split(MARKS),
                split(r"\s+$"),
                split(IDEOGRAPHS),
                split(r"\p{N}+"),
                bytes(false),
            ],
            Self::DeepSeekCoder => vec![
                split("[\r\n]"),
                split(r"\s?\p{L}+"),
                split(r"\s?\p{P}+"),
                split(IDEOGRAPHS),
                digits(),
                bytes(false),
            ],
        }
    }
}
