//! Reads questions with known answers, one JSON object a line, and tells right answers from wrong.
//!
//! `{"question", "answer"}`, optionally `"task"`, `"images"` (beside the file) and `"choices"`, whose
//! answer is a letter.  Other fields are the writer's own.  Knows nothing of models.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::measure::TOKENS_BEYOND;

/// The longest file of questions; MMStar's 1500 are under 1 MB, a hundred thousand are near 20.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Choices have letters.
const CHOICES_MAX: usize = 26;

/// How a question with choices ends, in the words of the benchmarks that models report.
const CHOICE_REQUEST: &str = "Answer with the option's letter from the given choices directly.";

/// Why questions cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum QuestionError {
    /// The file cannot be read.
    #[error("cannot read the questions {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is longer than any.
    #[error("{} is longer than the {FILE_BYTES_MAX} bytes that questions may take", path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
    },
    /// The file has lines, but none with a question.
    #[error("{} holds no question", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A line is no question.
    #[error("{}:{line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

/// A question and its right answer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Question {
    /// What it tests; figures are given for each task.
    #[serde(default = "no_task")]
    pub task: String,
    /// Pictures it shows, relative to the file of questions.
    #[serde(default)]
    pub images: Vec<PathBuf>,
    /// What is asked.
    question: String,
    /// Texts to choose from; none if the answer is free.
    #[serde(default)]
    choices: Vec<String>,
    /// The right answer: a text, or the letter of a choice.
    pub answer: String,
}

/// The task of questions that name none.
fn no_task() -> String {
    "questions".to_owned()
}

impl Question {
    /// The question that a line of JSON holds.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub fn parse(line: &str) -> Result<Self, String> {
        let parsed: Self =
            serde_json::from_str(line).map_err(|error| format!("not a question: {error}"))?;
        parsed.fault().map_or(Ok(parsed), Err)
    }

    fn fault(&self) -> Option<String> {
        if self.question.trim().is_empty() || self.answer.trim().is_empty() {
            return Some("\"question\" and \"answer\" must say something".to_owned());
        }
        let count = self.choices.len();
        if count == 1 || count > CHOICES_MAX {
            return Some(format!("{count} \"choices\"; give 2 to {CHOICES_MAX}, or none"));
        }
        let is_letter = || letters().take(count).any(|letter| self.answer == letter.to_string());
        (count > 0 && !is_letter())
            .then(|| format!("the answer {:?} is not the letter of a choice", self.answer))
    }

    /// What the model is asked: the question; then any choices, a line each, and what is wanted.
    pub fn prompt(&self) -> String {
        let mut prompt = self.question.clone();
        for (letter, choice) in letters().zip(&self.choices) {
            prompt += &format!("\n{letter}. {choice}");
        }
        if !self.choices.is_empty() {
            prompt.extend(["\n", CHOICE_REQUEST]);
        }
        prompt
    }

    /// What is told where the question is the golden prompt of a number, and `said` is not its answer.
    pub fn complaint(&self, number: usize, said: &str) -> String {
        let (prompt, answer) = (self.prompt(), &self.answer);
        format!("golden prompt {number}, {prompt:?}, is answered {said:?} and not {answer:?}")
    }

    /// Tokens that an answer by another program may have: one for each byte of the right one, and some, so that one that goes on
    /// is told from a right one.
    pub fn new_tokens_max(&self) -> usize {
        self.answer.len() + TOKENS_BEYOND
    }

    /// Whether `said` is the answer: the same text but for space around it, or its letter chosen.
    pub fn is_right(&self, said: &str) -> bool {
        if self.choices.is_empty() {
            return said.trim() == self.answer.trim();
        }
        chosen(said).is_some_and(|letter| self.answer.starts_with(letter))
    }
}

fn letters() -> impl Iterator<Item = char> {
    'A'..='Z'
}

/// The letter that `said` begins with, alone (`B`) or set off (`(B)`, `B. a dog`).  A word that
/// begins with one, or an article, chooses nothing.
fn chosen(said: &str) -> Option<char> {
    let mut rest = said.trim().trim_start_matches(['(', '*']).chars();
    let letter = rest.next().filter(char::is_ascii_uppercase)?;
    rest.next().is_none_or(|next| ".):,*\n".contains(next)).then_some(letter)
}

/// The questions of the file at `path`, at most the first `limit`.  Empty lines are none.
///
/// # Errors
/// [`QuestionError`] naming file and line, whether or not the line is within the limit.
pub fn read(path: &Path, limit: Option<usize>) -> Result<Vec<Question>, QuestionError> {
    let failed = |source| QuestionError::Read { path: path.into(), source };
    let mut text = String::new();
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(QuestionError::TooLong { path: path.into() });
    }
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let questions = lines.map(|(index, line)| {
        let bad = |why| QuestionError::Line { path: path.into(), line: index + 1, why };
        Question::parse(line).map_err(bad)
    });
    let mut questions = questions.collect::<Result<Vec<_>, _>>()?;
    questions.truncate(limit.unwrap_or(usize::MAX));
    if questions.is_empty() {
        return Err(QuestionError::Empty { path: path.into() });
    }
    Ok(questions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHOICE: &str =
        r#"{"question":"What is it?","choices":["a cat","a dog"],"answer":"B","source":"mine"}"#;

    #[test]
    fn a_free_question_is_asked_as_it_is() {
        let line =
            r#"{"sample":3,"task":"count","images":["a.png"],"question":"How many?","answer":"2"}"#;
        let question = Question::parse(line).unwrap();
        assert_eq!((question.task.as_str(), question.prompt().as_str()), ("count", "How many?"));
        assert_eq!(question.images, [PathBuf::from("a.png")]);
        assert!(question.is_right("2") && question.is_right(" 2\n"));
        assert!(!question.is_right("20") && !question.is_right("two") && !question.is_right(""));
    }

    #[test]
    fn choices_are_asked_with_letters() {
        let question = Question::parse(CHOICE).unwrap();
        assert_eq!(
            question.prompt(),
            "What is it?\nA. a cat\nB. a dog\nAnswer with the option's letter from the given choices directly."
        );
        assert_eq!(question.task, "questions");
    }

    #[test]
    fn the_letter_of_an_answer_counts() {
        let question = Question::parse(CHOICE).unwrap();
        for right in ["B", " B", "B ", "B.", "(B)", "B. a dog", "B: a dog", "**B**", "B\nIt is."] {
            assert!(question.is_right(right), "{right:?}");
        }
        for wrong in ["A", "b", "a dog", "Because", "B dogs", "", "(A) or B"] {
            assert!(!question.is_right(wrong), "{wrong:?}");
        }
    }

    #[track_caller]
    fn refused(line: &str, words: &str) {
        let why = Question::parse(line).unwrap_err();
        assert!(why.contains(words), "{why}");
    }

    #[test]
    fn what_is_no_question_is_refused() {
        refused("{", "not a question");
        refused(r#"{"question":"x"}"#, "missing field `answer`");
        refused(r#"{"question":"x","answer":" "}"#, "must say something");
        refused(r#"{"question":"x","answer":"A","choices":["one"]}"#, "give 2 to 26");
        refused(r#"{"question":"x","answer":"C","choices":["a","b"]}"#, "letter of a choice");
        refused(r#"{"question":"x","answer":"a","choices":["a","b"]}"#, "letter of a choice");
    }

    #[test]
    fn files_are_read_to_the_limit_and_errors_name_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("q.jsonl");
        std::fs::write(&path, format!("{CHOICE}\n\n{CHOICE}\n")).unwrap();
        assert_eq!(read(&path, None).unwrap().len(), 2);
        assert_eq!(read(&path, Some(1)).unwrap().len(), 1);
        std::fs::write(&path, format!("{CHOICE}\n\n{{}}\n")).unwrap();
        let error = read(&path, Some(1)).unwrap_err().to_string();
        assert!(error.contains("q.jsonl:3: not a question"), "{error}");
        std::fs::write(&path, "\n").unwrap();
        assert!(read(&path, None).unwrap_err().to_string().contains("holds no question"));
    }
}
