//! Engines of other programs that are asked their golden prompts by the program that runs them: stand-ins for `llm_inference` of
//! TensorRT Edge-LLM and `run.py` of TensorRT-LLM, since there is no board here.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::world::{Ended, World, ended};

const TOOLS: &str = "tools";
const BY_FILES: &str = include_str!("stand_ins/llm_inference.py");
const BY_WORDS: &str = include_str!("stand_ins/run.py");
const PICTURE: &[u8] = include_bytes!("../../../tests/data/picture.png");

const TEXTS: &str = r#"{"question": "What is 2 + 2?", "answer": "4"}
{"question": "What is the capital of France?", "answer": "Paris"}
"#;
const WITH_PICTURE: &str = r#"{"images": ["table.png"], "question": "What is on the table?", "answer": "a cup"}
"#;

/// A pipeline whose engine goes wrong in a way, and the program that runs it.
struct Board {
    world: World,
}

impl Board {
    /// Its runtime has these words behind its name.
    fn new(program: &str, content: &str, words: &str) -> Self {
        let world = World::new("");
        let board = Self { world };
        board.world.write("golden/questions.jsonl", TEXTS);
        board.put(program, content);
        board.world.write(
            "p.toml",
            &format!(
                r#"
smelt = 1
name = "t"
[stage.engine]
kind = "command"
argv = ["sh", "-c", "cp -r \"$SMELT_INPUTS\"/* ."]
inputs = ["path:made"]
outputs = ["llm.engine", "rank0.engine", "mode"]
[stage.verify]
kind = "verify"
engine = "engine"
prompts = "path:golden"
runtime = ["{program}", {words}]
limits = {{ timeout = "5s" }}
"#
            ),
        );
        board.made("well");
        board
    }

    fn by_files() -> Self {
        let words =
            r#""--engineDir={engine}", "--inputFile={questions}", "--outputFile", "{answers}""#;
        Self::new("llm_inference", BY_FILES, words)
    }

    fn by_words() -> Self {
        let words = r#""--engine_dir", "{engine}", "--input_text", "{question}", "--max_output_len={tokens}""#;
        Self::new("run.py", BY_WORDS, words)
    }

    fn put(&self, program: &str, content: &str) {
        self.world.put_program(&format!("{TOOLS}/{program}"), content);
    }

    /// The engine is made in this way from now on.
    fn made(&self, mode: &str) {
        fs::create_dir_all(self.world.path("made")).unwrap();
        for (name, text) in [("llm.engine", "weights"), ("rank0.engine", "weights"), ("mode", mode)]
        {
            self.world.write(&format!("made/{name}"), text);
        }
    }

    fn smelt(&self, arguments: &[&str]) -> Ended {
        self.world.smelt_by(TOOLS, arguments)
    }

    #[track_caller]
    fn run(&self) -> Vec<String> {
        self.world.run_by(TOOLS)
    }

    fn record(&self) -> Value {
        let out = PathBuf::from(self.smelt(&["out", "p.toml", "verify"]).stdout.trim());
        serde_json::from_str(&fs::read_to_string(out.join("verify.json")).unwrap()).unwrap()
    }

    /// Fails with this class and these words, and seals nothing.
    #[track_caller]
    fn fails(&self, mode: &str, class: &str, words: &str) {
        self.made(mode);
        let code = self.world.fails_by(TOOLS, "verify", mode, (class, words));
        assert_eq!(code, Some(1), "{mode}");
    }
}

#[test]
fn an_engine_that_answers_its_golden_prompts_is_verified() {
    for (board, extra) in [(Board::by_files(), WITH_PICTURE), (Board::by_words(), "")] {
        board.world.write("golden/questions.jsonl", &format!("{TEXTS}{extra}"));
        fs::write(board.world.path("golden/table.png"), PICTURE).unwrap();
        assert_eq!(board.run(), ["engine sealed", "verify sealed"]);
        let record = board.record();
        let prompts = record["prompts"].as_array().unwrap();
        assert_eq!(prompts.len(), 2 + extra.lines().count());
        assert!(prompts.iter().all(|it| it["right"] == true), "{record}");
        assert_eq!(prompts[1]["answer"], "Paris");
        assert_eq!(board.run(), ["engine hit", "verify hit"]);
    }
}

/// However the engine or its program goes wrong, the check fails, says how, and seals nothing.
#[test]
fn an_engine_that_loads_and_answers_nonsense_is_found_out() {
    let board = Board::by_files();
    for (mode, class, words) in [
        ("half-built", "output-invalid", "is answered \"!!!!!!!!\" and not \"4\""),
        ("one-fails", "output-invalid", "llm_inference ended with exit status: 1"),
        ("fails-after", "output-invalid", "llm_inference ended with exit status: 1"),
        ("silent", "output-invalid", "llm_inference left no answers"),
        ("cut", "output-invalid", "llm_inference wrote no JSON"),
        ("one-lacks", "output-invalid", "wrote no answer to golden prompt 2"),
        ("endless", "output-invalid", "more than 16 MiB of answers"),
        ("hangs", "timed-out", "verify"),
    ] {
        board.fails(mode, class, words);
    }
    // Megabytes without an end of line are no failure.
    board.made("noise");
    assert_eq!(board.run(), ["engine sealed", "verify sealed"]);
    let board = Board::by_words();
    for (mode, words) in [
        ("half-built", "golden prompt 1, \"What is 2 + 2?\""),
        ("fails-after", "run.py ended with exit status: 1"),
        ("endless", "more than 16 MiB of answers"),
    ] {
        board.fails(mode, "output-invalid", words);
    }
}

#[test]
fn what_cannot_be_asked_is_told_before_anything_runs() {
    let board = Board::by_words();
    fs::remove_file(board.world.path("tools/run.py")).unwrap();
    let ended = board.smelt(&["run", "p.toml"]);
    assert_eq!(ended.code, Some(5), "{}", ended.stderr);
    assert!(ended.stderr.contains("there is no tool \"run.py\" here"), "{}", ended.stderr);
    let doctor = board.smelt(&["doctor", "p.toml"]);
    assert!(doctor.stdout.contains("stage verify: run.py is not here"), "{}", doctor.stdout);
    let refused = |words: &str, expected: &str| {
        let board = Board::new("run.py", BY_WORDS, words);
        let plan = board.smelt(&["plan", "p.toml"]);
        let told = format!("{}{}", plan.stdout, plan.stderr);
        assert!(told.contains(expected), "{words}: {told}");
    };
    refused(r#""{question}""#, "has no {engine}");
    refused(r#""{engine}""#, "needs {questions} and {answers}");
    let board = Board::by_files();
    for (from, to, expected) in [
        ("prompts = \"path:golden\"\n", "", "these three and no other"),
        ("prompts", "full = true\nprompts", "these three and no other"),
        ("\"llm_inference\"", "\"./llm_inference\"", "write where it lies, from / on"),
    ] {
        let text = fs::read_to_string(board.world.path("p.toml")).unwrap();
        board.world.write("q.toml", &text.replace(from, to));
        let ended = board.smelt(&["run", "q.toml"]);
        assert_eq!(ended.code, Some(3), "{to}: {}", ended.stderr);
        assert!(ended.stderr.contains(expected), "{to}: {}", ended.stderr);
    }
}

/// The program is in the key of the stage that it answers, and in no other.
#[test]
fn a_runtime_that_was_upgraded_is_asked_again() {
    let board = Board::by_files();
    board.run();
    board.put("llm_inference", &format!("{BY_FILES}\n# another\n"));
    let explained = board.smelt(&["explain", "p.toml", "verify"]).stdout;
    assert!(explained.contains("llm_inference"), "{explained}");
    assert_eq!(board.run(), ["engine hit", "verify sealed"]);
}

/// Each rule of the stand-in is violated in turn: what the real program refuses does not get through here.
#[test]
fn the_stand_in_refuses_what_the_program_refuses() {
    let board = Board::by_files();
    let request = r#"{"messages": [{"role": "user", "content": "What is 2 + 2?"}]}"#;
    let file = |fields: &str| format!("{{{fields}}}");
    let good = file(&format!("\"batch_size\": 1, \"requests\": [{request}]"));
    let run = |input: &str, arguments: &[&str]| {
        board.world.write("in.json", input);
        let mut command = Command::new(board.world.path("tools/llm_inference"));
        ended(command.args(arguments).current_dir(board.world.path("")))
    };
    let flags = ["--engineDir=made", "--inputFile=in.json", "--outputFile=out.json"];
    assert_eq!(run(&good, &flags).code, Some(0));
    assert!(fs::read_to_string(board.world.path("out.json")).unwrap().contains("\"4\""));
    for (input, arguments, words) in [
        (good.as_str(), &flags[1..], "--engineDir is required"),
        (&good, &flags[..2], "--outputFile is required"),
        (&good, &["--question=x"], "--question"),
        (&good, &["--engineDir=tools", flags[1], flags[2]], "Failed to initialize LLM"),
        ("{", &flags, "Failed to parse input file"),
        ("{}", &flags, "'requests' array not found"),
        (&file("\"batch_size\": 0, \"requests\": []"), &flags, "Invalid batch_size"),
        (
            &file("\"max_generate_length\": 0, \"requests\": []"),
            &flags,
            "Invalid max_generate_length",
        ),
        (&file("\"requests\": [{}]"), &flags, "non-empty 'messages'"),
        (
            &file("\"requests\": [{\"messages\": [{\"role\": \"user\"}]}]"),
            &flags,
            "'role' and 'content'",
        ),
        (
            &good.replace("\"What is 2 + 2?\"", "[{\"type\": \"image\", \"image\": \"no.png\"}]"),
            &flags,
            "load image",
        ),
        (
            &good.replace("\"What is 2 + 2?\"", "[{\"type\": \"sound\"}]"),
            &flags,
            "Content type must be",
        ),
    ] {
        let ended = run(input, arguments);
        assert_eq!(ended.code, Some(1), "{words}: {}", ended.stderr);
        assert!(ended.stderr.contains(words), "{words}: {}", ended.stderr);
    }
}
