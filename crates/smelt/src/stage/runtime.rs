//! Asks the golden prompts of an engine by the program that its vendor runs it with, so that one which is half built and
//! loads is found out.
//!
//! Such a program takes all prompts in a file and writes a file of answers, as `llm_inference` of TensorRT Edge-LLM does
//! (`examples/llm/llm_inference.cpp`, 0.6 to 0.11), or one prompt among its words and prints the answer, as `run.py` of
//! TensorRT-LLM does (`examples/run.py`, v0.12).  What is between them is told by the words of the stage.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use serde::Serialize;
use serde_json::{Value, json};
use smelt_runtime::accuracy::golden::PROMPTS_FILE;
use smelt_runtime::accuracy::question::{self, Question};
use smelt_runtime::proof;

use super::request::{Request, say};
use crate::exit::{Exit, Failed};

/// Places in the words that stand for something.
const ENGINE: &str = "{engine}";
const QUESTIONS: &str = "{questions}";
const ANSWERS: &str = "{answers}";
const QUESTION: &str = "{question}";
const TOKENS: &str = "{tokens}";

const QUESTIONS_FILE: &str = "questions.json";
const ANSWERS_FILE: &str = "answers.json";
/// What `run.py` prints before the first answer, which stands in quotes.
const PRINTED: &str = "Output [Text 0 Beam 0]: \"";
/// Golden answers are short; a program that prints or writes more has gone astray.
const ANSWERS_BYTES_MAX: u64 = 16 << 20;

/// How the program is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Once, by files.
    Files,
    /// Once for each prompt, among its words.
    Words,
}

impl Form {
    /// By the words that name it, or why they do not.
    fn of(words: &[String]) -> Result<Self, String> {
        let has = |place: &str| words.iter().any(|word| word.contains(place));
        if !has(ENGINE) {
            return Err(format!("\"runtime\" has no {ENGINE}, which is the engine's directory"));
        }
        match (has(QUESTIONS), has(ANSWERS), has(QUESTION)) {
            (true, true, false) => Ok(Self::Files),
            (false, false, true) => Ok(Self::Words),
            _ => Err(format!(
                "\"runtime\" needs {QUESTIONS} and {ANSWERS}, files of all prompts and answers, or {QUESTION} alone, one prompt at a time"
            )),
        }
    }
}

/// What is wrong with the words of a runtime.
pub(super) fn fault(words: &[String]) -> Option<String> {
    Form::of(words).err()
}

/// What a golden prompt came to.
#[derive(Serialize)]
struct Asked {
    prompt: String,
    expected: String,
    answer: String,
    right: bool,
}

/// Has the engine in `engine` answer the golden prompts by the program that `words` name, and leaves `verify.json`.
///
/// # Errors
/// When it does not answer, or one answer is another than expected.
pub(super) fn ask(request: &Request, engine: &Path, words: &[String]) -> Result<(), Failed> {
    let form = Form::of(words).map_err(Failed::usage)?;
    let folder = request.input("prompts")?;
    let questions = question::read(&folder.join(PROMPTS_FILE), None).map_err(Failed::usage)?;
    let tokens = questions.iter().map(Question::new_tokens_max).max().unwrap_or_default();
    let runtime = Runtime { words, engine, out: &request.out, tokens };
    let answers = match form {
        Form::Files => runtime.ask_by_files(&questions, folder)?,
        Form::Words => runtime.ask_by_words(&questions)?,
    };
    let asked: Vec<Asked> = questions.iter().zip(answers).map(asked).collect();
    let record = json!({ "runtime": words, "prompts": asked });
    write(&request.out.join(proof::FILE), &record)?;
    match asked.iter().position(|it| !it.right) {
        None => {
            say(&format!("golden prompts: all {} right", asked.len()));
            Ok(())
        }
        Some(at) => Err(Failed::invalid(questions[at].complaint(at + 1, &asked[at].answer))),
    }
}

fn write(path: &Path, value: &Value) -> Result<(), Failed> {
    let failed = |error| Failed::new(Exit::StageFailed, format!("cannot write: {error}"));
    fs::write(path, format!("{value:#}\n")).map_err(failed)
}

fn asked((question, answer): (&Question, String)) -> Asked {
    let (prompt, expected) = (question.prompt(), question.answer.clone());
    Asked { prompt, expected, right: question.is_right(&answer), answer }
}

/// A program and what it is asked with.
struct Runtime<'a> {
    words: &'a [String],
    engine: &'a Path,
    out: &'a Path,
    /// Most tokens of an answer.
    tokens: usize,
}

impl Runtime<'_> {
    /// All prompts, in order, by one start.
    fn ask_by_files(&self, questions: &[Question], folder: &Path) -> Result<Vec<String>, Failed> {
        let [from, to] = [QUESTIONS_FILE, ANSWERS_FILE].map(|name| self.out.join(name));
        write(&from, &file_of(questions, folder, self.tokens))?;
        say(&format!("{} golden prompts for {}", questions.len(), self.words[0]));
        let places = [(QUESTIONS, from.as_path()), (ANSWERS, to.as_path())];
        let places = places.map(|(place, path)| (place, path.display().to_string()));
        let mut child = self.start(&places, Stdio::inherit())?;
        self.ended_well(child.wait())?;
        let text = read_within(
            File::open(&to).map_err(|error| self.invalid(&format!("left no answers: {error}")))?,
        );
        let text = text.map_err(|why| self.invalid(&why))?;
        answers_of(&text, questions.len()).map_err(|why| self.invalid(&why))
    }

    /// Each prompt by a start of its own.
    fn ask_by_words(&self, questions: &[Question]) -> Result<Vec<String>, Failed> {
        let count = questions.len();
        let ask = |(index, question): (usize, &Question)| {
            say(&format!("[{index}/{count}] golden prompt {}", index + 1));
            if !question.images.is_empty() {
                return Err(Failed::usage(format!(
                    "golden prompt {} shows pictures, which only {QUESTIONS} carries",
                    index + 1
                )));
            }
            let mut child = self.start(&[(QUESTION, question.prompt())], Stdio::piped())?;
            let printed = child.stdout.take().map_or(Ok(String::new()), read_within);
            let ended = child.wait();
            let printed = printed.map_err(|why| self.invalid(&why))?;
            self.ended_well(ended)?;
            Ok(answer_in(&printed).to_owned())
        };
        questions.iter().enumerate().map(ask).collect()
    }

    fn start(&self, places: &[(&str, String)], stdout: Stdio) -> Result<Child, Failed> {
        let own = [(ENGINE, self.engine.display().to_string()), (TOKENS, self.tokens.to_string())];
        let words: Vec<String> = self.words.iter().map(|word| put(word, &[&own, places])).collect();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(stdout);
        command.spawn().map_err(|error| {
            Failed::new(Exit::StageFailed, format!("cannot start {}: {error}", words[0]))
        })
    }

    fn ended_well(&self, ended: std::io::Result<ExitStatus>) -> Result<(), Failed> {
        match ended {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(self.invalid(&format!("ended with {status}"))),
            Err(error) => Err(self.invalid(&error.to_string())),
        }
    }

    fn invalid(&self, why: &str) -> Failed {
        Failed::invalid(format!("{} {why}", self.words[0]))
    }
}

/// A word with all that it names in its places; what is put there is not looked at again.
fn put(word: &str, places: &[&[(&str, String)]]) -> String {
    let (mut all, mut rest) = (String::new(), word);
    let places: Vec<&(&str, String)> = places.iter().copied().flatten().collect();
    while let Some((at, (place, text))) =
        places.iter().filter_map(|it| Some((rest.find(it.0)?, *it))).min_by_key(|(at, _)| *at)
    {
        all += &rest[..at];
        all += text;
        rest = &rest[at + place.len()..];
    }
    all + rest
}

/// The file of `llm_inference`: one request at a time, and the likeliest token always.
fn file_of(questions: &[Question], folder: &Path, tokens: usize) -> Value {
    let request = |question: &Question| {
        let image = |path| json!({ "type": "image", "image": folder.join(path) });
        let text = json!({ "type": "text", "text": question.prompt() });
        let content: Vec<Value> = question.images.iter().map(image).chain([text]).collect();
        json!({ "messages": [{ "role": "user", "content": content }] })
    };
    json!({
        "batch_size": 1, "temperature": 1.0, "top_p": 1.0, "top_k": 1, "max_generate_length": tokens,
        "requests": questions.iter().map(request).collect::<Vec<_>>(),
    })
}

/// The answers of its file, by the numbers of their requests.
fn answers_of(text: &str, count: usize) -> Result<Vec<String>, String> {
    let read: Value =
        serde_json::from_str(text).map_err(|error| format!("wrote no JSON: {error}"))?;
    let responses = read["responses"].as_array().ok_or("wrote no \"responses\"")?;
    let answer = |number: usize| {
        let is_it = |response: &&Value| response["request_idx"].as_u64() == Some(number as u64);
        let found = responses.iter().find(is_it).and_then(|it| it["output_text"].as_str());
        found
            .map(str::to_owned)
            .ok_or_else(|| format!("wrote no answer to golden prompt {}", number + 1))
    };
    (0..count).map(answer).collect()
}

/// What was printed as the first answer; all of it, where nothing says where that is.
fn answer_in(printed: &str) -> &str {
    let Some((_, behind)) = printed.split_once(PRINTED) else { return printed.trim() };
    // An answer may have quotes of its own.
    let end = behind.trim_end().strip_suffix('"').map(str::len).or_else(|| behind.rfind("\"\n"));
    end.map_or(behind, |end| &behind[..end])
}

/// A text of no more bytes than answers have; what cannot be told apart from nonsense is none.
fn read_within(from: impl std::io::Read) -> Result<String, String> {
    let mut text = Vec::new();
    let read = from.take(ANSWERS_BYTES_MAX + 1).read_to_end(&mut text);
    read.map_err(|error| format!("gives no answers: {error}"))?;
    if text.len() as u64 > ANSWERS_BYTES_MAX {
        return Err(format!("gives more than {} MiB of answers", ANSWERS_BYTES_MAX >> 20));
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn words_say_how_a_runtime_is_asked() {
        let form = |line: &str| Form::of(&words(line));
        assert_eq!(form("x {engine} {questions} --out={answers}"), Ok(Form::Files));
        assert_eq!(form("x --engine={engine} {question} {tokens}"), Ok(Form::Words));
        assert!(form("x {question}").unwrap_err().contains("has no {engine}"));
        for line in
            ["x {engine}", "x {engine} {questions}", "x {engine} {questions} {answers} {question}"]
        {
            assert!(form(line).unwrap_err().contains("{questions} and {answers}"), "{line}");
        }
    }

    #[test]
    fn what_is_put_in_is_not_read_again() {
        let places =
            [("{question}", "{engine} {tokens}".to_owned()), ("{engine}", "/e".to_owned())];
        assert_eq!(put("a{engine}b{question}c", &[&places]), "a/eb{engine} {tokens}c");
        assert_eq!(put("plain", &[&places]), "plain");
    }

    #[test]
    fn an_answer_is_what_stands_in_quotes_or_all_that_is_printed() {
        let printed =
            "[log]\nInput [Text 0]: \"2+2?\"\nOutput [Text 0 Beam 0]: \"4, he \"said\"\nso\"\n";
        assert_eq!(answer_in(printed), "4, he \"said\"\nso");
        assert_eq!(answer_in("Output [Text 0 Beam 0]: \"4\"\n[log] done\n"), "4");
        assert_eq!(answer_in("  Paris\n"), "Paris");
    }

    #[test]
    fn answers_are_found_by_the_numbers_of_their_requests() {
        let text = r#"{"responses": [{"request_idx": 1, "output_text": "b"}, {"request_idx": 0, "output_text": "a"}]}"#;
        assert_eq!(answers_of(text, 2), Ok(vec!["a".to_owned(), "b".to_owned()]));
        assert!(answers_of(text, 3).unwrap_err().contains("golden prompt 3"));
        assert!(answers_of("{}", 1).unwrap_err().contains("responses"));
        assert!(answers_of("{\"resp", 1).unwrap_err().contains("no JSON"));
    }
}
