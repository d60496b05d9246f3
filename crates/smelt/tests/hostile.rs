//! Hands smelt checkpoints that lie, through every door: each is refused with one line that names
//! file and reason, in little memory, and nothing is left behind.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{FileExt, symlink};
use std::path::PathBuf;
use std::process::Command;

use crate::world::{World, copy, data, text_world};
use serde_json::{Value, json};

/// What a bad file may cost, in bytes of resident memory.
const RESIDENT_BYTES_MAX: u64 = 300 << 20;

const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const DOWN: &str = "language_model.model.layers.1.mlp.down_proj.weight";
const FC2: &str = "vision_model.encoder.layers.1.mlp.fc2.weight";

/// A small checkpoint in a folder of its own, to be spoilt.
struct Victim {
    world: World,
}

impl Victim {
    fn new() -> Self {
        let pipeline = "smelt = 1\nname = \"hostile\"\n\
            [stage.checkpoint]\nkind = \"source\"\nfrom = \"path:model\"\n\
            [stage.vision]\nkind = \"onnx-export\"\ncheckpoint = \"checkpoint\"\npart = \"vision\"\ndtype = \"f16\"\n\
            [stage.llm]\nkind = \"quantize\"\ncheckpoint = \"checkpoint\"\nscheme = \"int8\"\n";
        let world = World::new(pipeline);
        copy(&data("golden/internvl3-tiny/checkpoint"), &world.path("model"));
        Self { world }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.world.path("model").join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.file(name), bytes).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.file(name)).unwrap();
    }

    /// The weights' header as JSON, and where the data begins.
    fn header(&self) -> (Value, u64) {
        let bytes = fs::read(self.file(WEIGHTS)).unwrap();
        let length = u64::from_le_bytes(*bytes.first_chunk().unwrap());
        (serde_json::from_slice(&bytes[8..8 + length as usize]).unwrap(), 8 + length)
    }

    /// Puts another header before the same data.
    fn put_header(&self, header: &str) {
        let (_, start) = self.header();
        let bytes = fs::read(self.file(WEIGHTS)).unwrap();
        let length = (header.len() as u64).to_le_bytes();
        self.write(WEIGHTS, [&length, header.as_bytes(), &bytes[start as usize..]].concat());
    }

    /// Overwrites the first two bytes of a tensor.
    fn poke(&self, tensor: &str, bytes: [u8; 2]) {
        let (header, start) = self.header();
        let at = start + header[tensor]["data_offsets"][0].as_u64().unwrap();
        let file = File::options().write(true).open(self.file(WEIGHTS)).unwrap();
        let size = if header[tensor]["dtype"] == "F32" { 4 } else { 2 };
        // The upper half of the element says whether it is finite.
        file.write_all_at(&bytes, at + size - 2).unwrap();
    }

    /// The last line of a refusal, after everything about it has been looked at.
    #[track_caller]
    fn refusal(&self, arguments: &[&str], what: &str) -> String {
        let before = self.names();
        let (ended, used) = self.world.measured(arguments);
        let resident = used.maxrss;
        assert_eq!(ended.code, Some(4), "{what}: {arguments:?}: {}", ended.stderr);
        let lines: Vec<&str> = ended.stderr.lines().collect();
        let last = lines.last().unwrap().to_string();
        assert!(last.starts_with("smelt: "), "{what}: {last}");
        let own = lines.iter().filter(|line| line.starts_with("smelt: ")).count();
        assert_eq!(own, 1, "{what}: {}", ended.stderr);
        assert!(last.len() < 600, "{what}: {} bytes", last.len());
        assert!(!last.chars().any(char::is_control), "{what}: {last:?}");
        assert_eq!(self.names(), before, "{what}: something is left");
        assert!(resident < RESIDENT_BYTES_MAX, "{what}: {resident} bytes");
        last
    }

    fn names(&self) -> Vec<std::ffi::OsString> {
        let entries = fs::read_dir(self.world.path("")).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.retain(|name| name != OsStr::new("cache"));
        names.sort();
        names
    }
}

const EXPORT: [&str; 8] =
    ["export", "model", "--part", "vision", "--dtype", "f32", "--out", "made"];
const QUANTIZE: [&str; 6] = ["quantize", "model", "--scheme", "int8", "--out", "made"];

/// Both commands refuse the spoilt checkpoint in the same words.
#[track_caller]
fn check(what: &str, spoil: impl FnOnce(&Victim), words: &[&str]) {
    let victim = Victim::new();
    spoil(&victim);
    let line = victim.refusal(&EXPORT, what);
    assert_eq!(victim.refusal(&QUANTIZE, what), line, "{what}");
    says(what, &line, words);
}

#[track_caller]
fn says(what: &str, line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{what}: {line}");
    }
}

/// The exporter refuses it: enough where a file is so large that reading it twice takes long.
#[track_caller]
fn check_once(what: &str, spoil: impl FnOnce(&Victim), words: &[&str]) {
    let victim = Victim::new();
    spoil(&victim);
    says(what, &victim.refusal(&EXPORT, what), words);
}

/// A pipeline over it fails in the first stage that reads it, with the same words.
#[track_caller]
fn check_stage(what: &str, spoil: impl FnOnce(&Victim), words: &[&str]) {
    let victim = Victim::new();
    spoil(&victim);
    let ended = victim.world.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(4), "{what}: {}", ended.stderr);
    let line = ended.stderr.lines().find(|line| line.starts_with("smelt: stage ")).unwrap();
    says(what, line, words);
    let sealed = fs::read_dir(victim.world.path("cache/out")).unwrap().count();
    assert_eq!(sealed, 0, "{what}: something is sealed");
}

const LFS: &str = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
const PAGE: &str = "<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n";

type Spoil = fn(&Victim);

/// Files that are not what their names say.
const STRANGERS: [(&str, Spoil, &[&str]); 12] = [
    ("git-lfs weights", |v| v.write(WEIGHTS, LFS), &[WEIGHTS, "git-lfs pointer", "git lfs pull"]),
    ("git-lfs config", |v| v.write("config.json", LFS), &["config.json", "git-lfs pointer"]),
    ("page as weights", |v| v.write(WEIGHTS, PAGE), &[WEIGHTS, "web page"]),
    ("page as config", |v| v.write("config.json", PAGE), &["config.json", "web page"]),
    ("error as weights", |v| v.write(WEIGHTS, "{\"error\":\"gated\"}"), &[WEIGHTS, "it is text"]),
    ("archive as weights", |v| v.write(WEIGHTS, "PK\x03\x04\0\0\x08\x08 "), &[WEIGHTS, "zip"]),
    ("empty weights", |v| v.write(WEIGHTS, ""), &[WEIGHTS, "it has 0 bytes"]),
    ("empty config", |v| v.write("config.json", ""), &["config.json", "EOF"]),
    ("binary config", |v| v.write("config.json", b"\xff\xfe{"), &["config.json", "not UTF-8"]),
    ("no weights", |v| v.remove(WEIGHTS), &["has no model.safetensors"]),
    ("no config", |v| v.remove("config.json"), &["config.json", "No such file"]),
    (
        "pickles",
        |v| {
            v.remove(WEIGHTS);
            v.write("pytorch_model.bin", "\x02");
        },
        &["pickled weights (pytorch_model.bin)", "convert them"],
    ),
];

#[test]
fn strangers_are_called_by_their_names() {
    for (what, spoil, words) in STRANGERS {
        check(what, spoil, words);
    }
}

#[test]
fn stages_say_the_same() {
    for (what, spoil, words) in STRANGERS.into_iter().chain(LIARS) {
        check_stage(what, spoil, words);
    }
}

fn cut(victim: &Victim, bytes: i64) {
    let file = File::options().write(true).open(victim.file(WEIGHTS)).unwrap();
    let length = file.metadata().unwrap().len() as i64 + bytes;
    file.set_len(length as u64).unwrap();
}

fn edit(victim: &Victim, change: impl FnOnce(&mut Value)) {
    let (mut header, _) = victim.header();
    change(&mut header);
    victim.put_header(&header.to_string());
}

/// The header with this entry in front, which it has already.
fn doubled(victim: &Victim) {
    let (header, _) = victim.header();
    let entry = format!("{{\"{DOWN}\":{},", header[DOWN]);
    victim.put_header(&(entry + &header.to_string()[1..]));
}

/// Shards under an index whose one entry is changed.
fn index(victim: &Victim, tensor: &str, file: &str) {
    let (header, _) = victim.header();
    fs::rename(victim.file(WEIGHTS), victim.file("1.safetensors")).unwrap();
    let names = header.as_object().unwrap().keys().filter(|name| *name != "__metadata__");
    let mut places: serde_json::Map<String, Value> =
        names.map(|name| (name.clone(), json!("1.safetensors"))).collect();
    places.insert(tensor.to_owned(), json!(file));
    victim.write(INDEX, json!({ "metadata": {}, "weight_map": places }).to_string());
}

/// Headers and indices that contradict what is there.
const LIARS: [(&str, Spoil, &[&str]); 11] = [
    ("cut data", |v| cut(v, -1000), &[WEIGHTS, "ends at data byte", "fetch it again"]),
    ("surplus data", |v| cut(v, 1000), &[WEIGHTS, "1000 bytes after its last tensor"]),
    (
        "a header that claims all",
        |v| v.write(WEIGHTS, [&[0xFF; 8][..], b"{}"].concat()),
        &[WEIGHTS, "its header claims 18446744073709551615 bytes"],
    ),
    ("a name twice", doubled, &[WEIGHTS, DOWN, "twice"]),
    (
        "overlapping tensors",
        |v| {
            edit(v, |header| {
                let [start, end] =
                    [0, 1].map(|at| header[DOWN]["data_offsets"][at].as_u64().unwrap());
                header[DOWN]["data_offsets"] = json!([start - 4, end - 4]);
            });
        },
        &[WEIGHTS, DOWN, "overlap"],
    ),
    (
        "a shape that lies",
        |v| edit(v, |header| header[DOWN]["shape"] = json!([1, 1])),
        &[WEIGHTS, DOWN, "[1, 1]"],
    ),
    (
        "a shape that overflows",
        |v| edit(v, |header| header[DOWN]["shape"] = json!([1_u64 << 40, 1_u64 << 40])),
        &[WEIGHTS, DOWN, "overflows"],
    ),
    (
        "a name with a line break",
        |v| {
            edit(v, |header| {
                header[DOWN]["dtype"] = json!("F\n\u{1b}[2J");
            });
        },
        &[WEIGHTS, DOWN, "unknown dtype"],
    ),
    ("an index that leads outside", |v| index(v, DOWN, "../1.safetensors"), &[INDEX, DOWN, "../1"]),
    (
        "a missing shard",
        |v| index(v, DOWN, "2.safetensors"),
        &[INDEX, "shard 2.safetensors is missing"],
    ),
    (
        "a shard without the tensor",
        |v| index(v, "ghost", "1.safetensors"),
        &[INDEX, "ghost", "has no such tensor"],
    ),
];

#[test]
fn liars_are_told_what_they_lie_about() {
    for (what, spoil, words) in LIARS {
        check(what, spoil, words);
    }
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let pipe: Spoil = |victim| {
        victim.remove(WEIGHTS);
        let status = Command::new("mkfifo").arg(victim.file(WEIGHTS)).status().unwrap();
        assert!(status.success());
    };
    check("a pipe", pipe, &[WEIGHTS, "not a regular file"]);
    let folder: Spoil = |victim| {
        victim.remove(WEIGHTS);
        fs::create_dir(victim.file(WEIGHTS)).unwrap();
    };
    check("a folder", folder, &[WEIGHTS, "not a regular file"]);
    let folder: Spoil = |victim| {
        victim.remove("config.json");
        fs::create_dir(victim.file("config.json")).unwrap();
    };
    check("a folder as config", folder, &["config.json", "no file"]);
    // Permissions do not stop root, a ring of links stops everyone.
    let unreadable: Spoil = |victim| {
        victim.remove(WEIGHTS);
        symlink(WEIGHTS, victim.file(WEIGHTS)).unwrap();
    };
    check("an unreadable file", unreadable, &["cannot open", WEIGHTS, "symbolic links"]);
}

/// A file of weights that is all header, close to the limit of 100 MB, made of `piece`s.
fn all_header(victim: &Victim, open: &str, piece: impl Fn(usize) -> String, close: &str) {
    let mut file = BufWriter::new(File::create(victim.file(WEIGHTS)).unwrap());
    file.write_all(&[0; 8]).unwrap();
    file.write_all(open.as_bytes()).unwrap();
    let (mut length, mut n) = (open.len() + close.len(), 0);
    loop {
        let next = piece(n);
        if length + next.len() > 99_999_000 {
            break;
        }
        file.write_all(next.as_bytes()).unwrap();
        (length, n) = (length + next.len(), n + 1);
    }
    file.write_all(close.as_bytes()).unwrap();
    let file = file.into_inner().unwrap();
    file.write_all_at(&(length as u64).to_le_bytes(), 0).unwrap();
}

#[test]
fn a_header_of_100_mb_takes_little_memory() {
    let entry = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
    let tensors = |v: &Victim| {
        all_header(v, "{\"\":", |n| format!("{entry},\"{n}\":"), &format!("{entry}}}"));
    };
    check_once("many tensors", tensors, &[WEIGHTS, "more than 131072 tensors"]);
    let name = |v: &Victim| {
        all_header(v, "{\"", |_| "n".repeat(1000), &format!("\":{entry}}}"));
    };
    check_once("a long name", name, &[WEIGHTS, "a name of 99", "limit of 1024"]);
    let metadata = |v: &Victim| {
        all_header(v, "{\"__metadata__\":{", |n| format!("\"{n}\":\"\","), "\"\":\"\"}}");
    };
    check_once("much metadata", metadata, &[WEIGHTS, "lacks tensor"]);
    let shape = |v: &Victim| {
        all_header(v, "{\"a\":{\"dtype\":\"U8\",\"shape\":[", |_| "1,".to_owned(), "1]}}");
    };
    check_once("a long shape", shape, &[WEIGHTS, "missing field"]);
    let dtype = |v: &Victim| {
        all_header(v, "{\"a\":{\"dtype\":\"", |_| "\\u0041".to_owned(), "\",\"x\":1}}");
    };
    check_once("a long word", dtype, &[WEIGHTS, "unknown field"]);
    let text = |v: &Victim| {
        all_header(v, "{\"a\":{\"shape\":\"", |_| "n".repeat(1000), "\"}}");
    };
    check_once("text as shape", text, &[WEIGHTS, "invalid type"]);
}

#[test]
fn configurations_and_indices_of_any_form_take_little_memory() {
    let config = |text: String| move |v: &Victim| v.write("config.json", &text);
    let million = 1 << 20;
    check("many lists", config(format!("[{}[]]", "[],".repeat(million))), &["config.json"]);
    check(
        "many numbers",
        config(format!("{{\"a\":[{}0]}}", "0,".repeat(2 * million - 9))),
        &["config"],
    );
    check("too long", config(" ".repeat(5 * million)), &["config.json", "no file of at most"]);
    check("deep", config("[".repeat(million)), &["config.json", "recursion limit"]);
    let index = |v: &Victim| {
        v.remove(WEIGHTS);
        let entries: String = (0..million).map(|n| format!("\"{n}\":\"a\",")).collect();
        v.write(INDEX, format!("{{\"weight_map\":{{{entries}\"\":\"a\"}}}}"));
    };
    check("a long index", index, &[INDEX, "more than 262144 tensors"]);
}

/// Everything of a part is looked at, and what is not finite is named.
#[test]
fn weights_that_are_not_finite_are_named() {
    let vision = Victim::new();
    vision.poke(FC2, [0xC0, 0x7F]);
    for dtype in ["f32", "f16", "bf16"] {
        let arguments = ["export", "model", "--part", "vision", "--dtype", dtype, "--out", "made"];
        let line = vision.refusal(&arguments, dtype);
        assert!(line.contains(FC2) && line.contains("NaN"), "{line}");
    }
    let llm = Victim::new();
    llm.poke(DOWN, [0x80, 0xFF]);
    let line = llm.refusal(&QUANTIZE, "an infinity");
    assert!(line.contains(DOWN) && line.contains("not finite"), "{line}");
    check_stage("NaN", |victim| victim.poke(FC2, [0xC0, 0x7F]), &[FC2, "NaN"]);
}

/// What a spoilt text model is refused for: by `plan` before anything is built, and by the deployment's stage.
#[track_caller]
fn check_words(what: &str, name: &str, text: &str, words: &str) {
    let world = text_world("qwen2-tiny");
    world.write(&format!("checkpoint/{name}"), text);
    let (plan, planning) = world.measured(&["plan", "p.toml"]);
    assert_eq!(plan.code, Some(0), "{what}: {}", plan.stderr);
    let line = plan.stdout.lines().find(|line| line.starts_with("deployment will be refused: "));
    assert!(line.is_some_and(|line| line.contains(words)), "{what}: {}", plan.stdout);
    let (ended, running) = world.measured(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(4), "{what}: {}", ended.stderr);
    let own = ended.stderr.lines().filter(|line| line.starts_with("smelt: stage "));
    let own: Vec<&str> = own.collect();
    assert!(own.len() == 1 && own[0].contains(words), "{what}: {}", ended.stderr);
    assert!(own[0].len() < 600, "{what}: {}", own[0]);
    let out = world.smelt(&["out", "p.toml", "deployment"]);
    assert_ne!(out.code, Some(0), "{what}: it is sealed");
    let resident = planning.maxrss.max(running.maxrss);
    assert!(resident < RESIDENT_BYTES_MAX, "{what}: {resident} bytes");
}

#[test]
fn templates_that_overflow_and_grow_take_little_memory() {
    let check = |what, text: &str, words| check_words(what, "chat_template.jinja", text, words);
    let said = "{{ messages[0].content }}";
    check("nots", &format!("{{{{ {}x }}}}{said}", "not ".repeat(5000)), "words and signs");
    check("minus", &format!("{{{{ {}1 }}}}{said}", "-".repeat(20_000)), "words and signs");
    check("ifs", &format!("{}{said}", "{% if true %}".repeat(4000)), "recursion");
    let doubled = |step: &str| {
        format!(
            "{{% set ns = namespace(s='x') %}}{{% for i in range(99) %}}{{% set ns.s = {step} %}}{{% endfor %}}{said}"
        )
    };
    check("sums", &doubled("ns.s ~ ns.s"), "more than 64 MiB");
    check("replacements", &doubled("ns.s | replace('x', 'xx')"), "more than 64 MiB");
}

#[test]
fn tokenizers_that_grow_take_little_memory() {
    let world = text_world("qwen2-tiny");
    let plain: Value = serde_json::from_str(&world.read("checkpoint/tokenizer.json")).unwrap();
    let check = |what, part: &str, value: Value, words| {
        let mut spoilt = plain.clone();
        spoilt[part] = value;
        check_words(what, "tokenizer.json", &spoilt.to_string(), words);
    };
    let eight = json!({"type": "Replace", "pattern": {"String": "w"}, "content": "wwwwwwww"});
    let twelve = json!({"type": "Sequence", "normalizers": vec![eight; 12]});
    check("twelve", "normalizer", twelve, "its normalizer makes texts more than 16 times longer");
    let padding = json!({"strategy": {"Fixed": 1_000_000_000}, "direction": "Right", "pad_id": 0,
        "pad_to_multiple_of": null, "pad_type_id": 0, "pad_token": "w0"});
    check("padding", "padding", padding, "it pads texts to more than");
    let added = |count: usize, bytes: usize| {
        let words = (0..count).map(|at| {
            json!({"id": 160 + at, "content": format!("{at:02}{}", "x".repeat(bytes)),
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
                "special": false})
        });
        words.collect::<Value>()
    };
    let says = "more than the 512 allowed";
    check("a long word", "added_tokens", added(1, 30_000), says);
    check("long words", "added_tokens", added(60, 40_000), says);
}

/// The golden checkpoint itself passes, so that the refusals above have their own reasons.
#[test]
fn the_unspoilt_checkpoint_is_taken() {
    let victim = Victim::new();
    for arguments in [&EXPORT[..], &QUANTIZE] {
        let ended = victim.world.smelt(arguments);
        assert_eq!(ended.code, Some(0), "{}", ended.stderr);
        fs::remove_dir_all(victim.world.path("made")).unwrap();
    }
}
