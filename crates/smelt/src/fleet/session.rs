//! What two smelts say to each other where one builds for the other over one stream, which ssh brings: messages of a line of
//! JSON each, and between them the bytes of files (`stream`).
//!
//! The worker greets, hears what is to be built, says what it lacks of that and reads it, tells how it goes and what came of
//! it, hears what the host lacks of that and writes it.  Whoever ends the stream ends the work.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, Read as _, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use smelt_fleet::execution::Took;
use smelt_fleet::statement::Provenance;
use smelt_fleet::work::WorkRequest;
use smelt_store::bundle::{BundledOutput, check};

use super::stream::Part;
use super::workers::Told;

/// A worker's first line begins so; what a login says before it is passed over.
const GREETING: &str = "smelt-session 1 ";
/// Of what a login says.
const LOGIN_LINES_MAX: usize = 1000;
/// Outputs with all of their files, as a bundle may list them, and a pipeline.
const MESSAGE_BYTES_MAX: u64 = 66 << 20;

/// Who a worker is.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Greeting {
    pub(crate) version: String,
    /// What is true of it.
    pub(crate) facts: BTreeMap<String, String>,
}

/// What it is to build.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionWork {
    pub(crate) request: WorkRequest,
    /// The pipeline's text.
    pub(crate) pipeline: String,
    /// What the stage is made of, each behind those that it refers to.
    pub(crate) outputs: Vec<BundledOutput>,
}

/// What it says of that.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Saying {
    /// What of the outputs it has not.
    Lacks(Vec<Part>),
    /// The last line of its log.
    Line(String),
    /// What came of it.
    Ended(Box<SessionOutcome>),
}

/// What came of a piece of work.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct SessionOutcome {
    /// 0 where it went well.
    pub(crate) exit: i32,
    pub(crate) told: Told,
    /// The last lines of its log.
    pub(crate) log: String,
    pub(crate) took: Option<Took>,
    /// What was built, the last of them, and all that it refers to; nothing else where it did not go well.
    pub(crate) outputs: Vec<BundledOutput>,
    /// What led to it.
    pub(crate) provenance: Option<Provenance>,
}

/// A stream that does not say what it should.
#[derive(Debug)]
pub(crate) enum SessionError {
    Io(io::Error),
    Ended,
    Odd(String),
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for SessionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::Ended => f.write_str("it ended"),
            Self::Odd(why) => write!(f, "what it says is none of this version: {why}"),
        }
    }
}

/// Says who this worker is, on a line of its own whatever a login has said.
pub(crate) fn greet(to: &mut impl Write, greeting: &Greeting) -> io::Result<()> {
    to.write_all(b"\n")?;
    to.write_all(GREETING.as_bytes())?;
    say(to, greeting)
}

/// Hears who a worker is, behind whatever a login says.
pub(crate) fn greeted(from: &mut impl BufRead) -> Result<Greeting, SessionError> {
    for _ in 0..LOGIN_LINES_MAX {
        let line = line(from)?.ok_or(SessionError::Ended)?;
        if let Some(greeting) = line.strip_prefix(GREETING.as_bytes()) {
            return read(greeting);
        }
    }
    Err(SessionError::Odd("it does not greet".to_owned()))
}

/// Says something.
pub(crate) fn say(to: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message).expect("texts, numbers and digests are JSON");
    line.push(b'\n');
    if line.len() as u64 > MESSAGE_BYTES_MAX {
        return Err(io::Error::other("the list of its files is too long: pack them into fewer"));
    }
    to.write_all(&line)?;
    to.flush()
}

/// Hears something; nothing where the stream has ended.
pub(crate) fn hear<T: DeserializeOwned>(
    from: &mut impl BufRead,
) -> Result<Option<T>, SessionError> {
    line(from)?.map(|line| read(&line)).transpose()
}

fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, SessionError> {
    serde_json::from_slice(line).map_err(|error| SessionError::Odd(error.to_string()))
}

fn line(from: &mut impl BufRead) -> Result<Option<Vec<u8>>, SessionError> {
    let mut line = Vec::new();
    from.by_ref().take(MESSAGE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) if line.len() as u64 == MESSAGE_BYTES_MAX => {
            Err(SessionError::Odd("it is too long".to_owned()))
        }
        Some(_) => Err(SessionError::Ended),
    }
}

impl SessionWork {
    /// What is wrong with it, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        check(&self.outputs).err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting() -> Greeting {
        let facts = BTreeMap::from([("sm".to_owned(), "87".to_owned())]);
        Greeting { version: "1".to_owned(), facts }
    }

    #[test]
    fn a_login_that_talks_is_passed_over() {
        let mut stream = b"Welcome to Ubuntu\n\nLast login: today".to_vec();
        greet(&mut stream, &greeting()).unwrap();
        say(&mut stream, &Saying::Line("attempt 1".to_owned())).unwrap();
        let mut stream = &stream[..];
        assert_eq!(greeted(&mut stream).unwrap(), greeting());
        let heard: Option<Saying> = hear(&mut stream).unwrap();
        assert_eq!(heard, Some(Saying::Line("attempt 1".to_owned())));
        assert_eq!(hear::<Saying>(&mut stream).unwrap(), None);
    }

    #[test]
    fn what_is_no_greeting_and_what_is_cut_off_is_refused() {
        let refused = |text: &[u8]| greeted(&mut &*text).unwrap_err().to_string();
        assert_eq!(refused(b"bash: smelt: command not found\n"), "it ended");
        assert!(refused(b"smelt-session 1 {}\n").contains("version"));
        assert_eq!(refused(b"smelt-session 1 {\"version\""), "it ended");
        assert!(refused(&b"hello\n".repeat(LOGIN_LINES_MAX + 1)).contains("does not greet"));
        let endless = io::repeat(b'x').take(2 * MESSAGE_BYTES_MAX);
        let mut endless = io::BufReader::new(endless);
        assert!(greeted(&mut endless).unwrap_err().to_string().contains("too long"));
    }
}
