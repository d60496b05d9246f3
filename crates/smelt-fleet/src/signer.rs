//! Asks a program for signatures, behind which a key lies that no file here holds: in a token, an agent, another machine.
//!
//! `PROGRAM public` prints the public key, as `ed25519:…` or in PEM.  `PROGRAM sign` reads a message and prints its
//! signature by RFC 8032: 64 bytes, or those in base64.  What it prints as an error is the user's to read, since it may
//! ask for a touch.  Knows nothing of keys: whether a signature holds, others see.

use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Somebody may have to find a token and touch it.
const TIME_MAX: Duration = Duration::from_secs(60);
/// A public key in PEM has 113 bytes, and a signature in base64 has 88.
const ANSWER_BYTES_MAX: u64 = 4 << 10;
/// Whoever has printed all ends at once.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// What a program is asked for.
pub(crate) const PUBLIC: &str = "public";
pub(crate) const SIGN: &str = "sign";

/// A program that signs.
pub(crate) struct Program {
    path: PathBuf,
    time_max: Duration,
}

/// What a program did wrong, and when.
pub(crate) struct Unsigned {
    pub(crate) program: PathBuf,
    pub(crate) word: &'static str,
    pub(crate) problem: String,
}

impl Program {
    pub(crate) fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), time_max: TIME_MAX }
    }

    /// What it says that its public key is.
    pub(crate) fn public(&self) -> Result<String, Unsigned> {
        let said = ask(&self.path, PUBLIC, Vec::new(), self.time_max)?;
        Ok(String::from_utf8_lossy(&said).into_owned())
    }

    /// What it says that the signature of a message is.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<[u8; 64], Unsigned> {
        let said = ask(&self.path, SIGN, message.to_vec(), self.time_max)?;
        signature(&said).ok_or_else(|| self.wrong(SIGN, "it printed no signature"))
    }

    pub(crate) fn wrong(&self, word: &'static str, problem: &str) -> Unsigned {
        wrong(&self.path, word, problem)
    }
}

/// A signature as bytes, or in base64.
fn signature(said: &[u8]) -> Option<[u8; 64]> {
    let text = || STANDARD.decode(said.trim_ascii()).ok()?.try_into().ok();
    said.try_into().ok().or_else(text)
}

fn wrong(program: &Path, word: &'static str, problem: impl Into<String>) -> Unsigned {
    Unsigned { program: program.to_owned(), word, problem: problem.into() }
}

/// What `program word` prints when it has read `message`.
fn ask(
    program: &Path,
    word: &'static str,
    message: Vec<u8>,
    time_max: Duration,
) -> Result<Vec<u8>, Unsigned> {
    let failed = |error: io::Error| wrong(program, word, error.to_string());
    let mut command = Command::new(program);
    command.arg(word).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let until = Instant::now() + time_max;
    let answer = answer(&mut child, message, until);
    let status = ended(&mut child, until).map_err(failed)?;
    let late = || wrong(program, word, format!("no answer in {} s", time_max.as_secs()));
    let (answer, status) = answer.zip(status).ok_or_else(late)?;
    let answer = answer.map_err(failed)?;
    if answer.len() as u64 > ANSWER_BYTES_MAX {
        return Err(wrong(program, word, format!("it printed more than {ANSWER_BYTES_MAX} bytes")));
    }
    status.success().then_some(answer).ok_or_else(|| wrong(program, word, status.to_string()))
}

/// All that a child prints once it was told, or a byte too much; nothing where that takes too long.
fn answer(child: &mut Child, message: Vec<u8>, until: Instant) -> Option<io::Result<Vec<u8>>> {
    let (mut stdin, stdout) = (child.stdin.take()?, child.stdout.take()?);
    // One that reads nothing fails by itself, or by what it prints.
    thread::spawn(move || stdin.write_all(&message));
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut said = Vec::new();
        let read = stdout.take(ANSWER_BYTES_MAX + 1).read_to_end(&mut said).map(|_| said);
        let _ = sender.send(read);
    });
    receiver.recv_timeout(until.saturating_duration_since(Instant::now())).ok()
}

/// How a child ended, which is killed where it takes too long.
fn ended(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::{Mutex, PoisonError};

    use super::*;
    use crate::keys::SigningKey;

    /// Held by tests that start scripts: a process that another thread starts just then would have a script open for writing,
    /// and what is being written is not started.
    static ALONE: Mutex<()> = Mutex::new(());

    /// A shell script, as a person writes one around a token's tool.
    fn script(folder: &Path, text: &str) -> PathBuf {
        let path = folder.join("signer");
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o700)).unwrap();
        path
    }

    #[test]
    fn openssl_signs_behind_a_script() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let (own, pem) = SigningKey::generate().unwrap();
        fs::write(folder.path().join("key.pem"), pem).unwrap();
        let text = "cd \"$(dirname \"$0\")\"\ncase $1 in\n\
             public) openssl pkey -in key.pem -pubout ;;\n\
             sign) cat > message; openssl pkeyutl -sign -rawin -inkey key.pem -in message ;;\nesac";
        let path = script(folder.path(), text);
        let key = SigningKey::of_program(&path).unwrap();
        assert_eq!(key.public(), own.public());
        let long = vec![7; 300_000];
        for message in [b"a".as_slice(), &long] {
            assert_eq!(key.sign(message).unwrap(), own.sign(message).unwrap());
        }
    }

    #[test]
    fn a_signature_may_be_text() {
        let bytes: [u8; 64] = std::array::from_fn(|at| at as u8);
        let text = STANDARD.encode(bytes);
        assert_eq!(signature(format!("{text}\n").as_bytes()), Some(bytes));
        assert_eq!(signature(&bytes), Some(bytes));
        for no in [&bytes[1..], &text.as_bytes()[1..], b""] {
            assert_eq!(signature(no), None);
        }
    }

    #[test]
    fn what_a_program_gets_wrong_is_told_with_its_name() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().unwrap();
        let public = SigningKey::from_seed(&[7; 32]).public();
        let check_within = |time_max, text: &str, expect: &str| {
            let path = script(folder.path(), &text.replace("PUBLIC", &public.to_string()));
            let program = Program { path, time_max };
            let signed = SigningKey::behind(program).and_then(|it| it.sign(b"message"));
            let error = signed.unwrap_err().to_string();
            assert!(error.contains("/signer ") && error.contains(expect), "{error}");
        };
        let check = |text: &str, expect: &str| check_within(TIME_MAX, text, expect);
        check("exit 3", "exit status: 3");
        check("echo no key", "it printed no ed25519 key");
        check("cat /dev/zero", "it printed more than 4096 bytes");
        for hangs in ["sleep 9", "exec >&-; sleep 9"] {
            check_within(Duration::from_millis(200), hangs, "no answer in 0 s");
        }
        check("echo PUBLIC; [ $1 = public ]", "exit status: 1");
        check("[ $1 = public ] && echo PUBLIC || echo AAAA", "it printed no signature");
        let other = "[ $1 = public ] && echo PUBLIC || head -c 64 /dev/zero";
        check(other, "its signature is not by its public key");
        let none = SigningKey::of_program(&folder.path().join("none")).unwrap_err().to_string();
        assert!(none.contains("No such file"), "{none}");
    }
}
