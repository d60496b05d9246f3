//! Runs the program that reads films: starts it over a file in memory, hears it, and ends it in time.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{self, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::FilmError;

/// Pixels of a decoded frame at most: 8K, as pictures have about.
pub(super) const PIXELS_MAX: &str = "50000000";
/// How often it is looked whether time is up and anybody waits.
const LOOKS_EVERY: Duration = Duration::from_millis(50);
/// How long it may do nothing at all, which it does for ever where a thread of its was refused memory; even a machine
/// that is full of other work gives it a turn in that time.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// The longest line that is read of what it says.
const LINE_BYTES_MAX: u64 = 4096;
/// What is told of its first line.
const TOLD_CHARS_MAX: usize = 160;
/// Times that are heard at most: those of the most frames of a clip.
const TIMES_MAX: usize = smelt_runtime::image::FRAMES_MAX;

/// A file that has no name, and that nobody can change any more.
pub(super) fn in_memory(bytes: &[u8]) -> io::Result<File> {
    let file = memfd_create("film", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    fcntl_add_seals(
        &file,
        SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL,
    )?;
    Ok(file)
}

/// A program at work; it ends with this.
pub(super) struct Child(process::Child);

/// What it said, and how it ended.
#[derive(Debug, Default)]
pub(super) struct ChildOutput {
    /// `None` where it was killed.
    pub(super) code: Option<i32>,
    /// The times of frames, in the order in which they are written.
    pub(super) times_s: Vec<f64>,
    /// The first line that is no time.
    pub(super) line: Option<String>,
}

impl Child {
    /// Starts `command` with `arguments` over `file`, without the environment of this process but `PATH`.
    pub(super) fn start(
        command: &[OsString],
        arguments: &[String],
        file: &File,
    ) -> Result<Self, FilmError> {
        let (program, first) = command.split_first().ok_or(FilmError::Absent)?;
        let mut child = Command::new(program);
        child.args(first).args(arguments).stdin(file.try_clone()?);
        child.stdout(Stdio::piped()).stderr(Stdio::piped()).env_clear();
        // Every thread would reserve memory of its own.
        child
            .env("MALLOC_ARENA_MAX", "1")
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        match child.spawn() {
            Ok(child) => Ok(Self(child)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(FilmError::Absent),
            Err(error) => Err(error.into()),
        }
    }

    /// What `read` makes of its output, and what it said; no longer than `time`, nor than `is_wanted` says.
    pub(super) fn read<T: Send>(
        mut self,
        time: Duration,
        is_wanted: &(dyn Fn() -> bool + Sync),
        read: impl FnOnce(ChildStdout) -> T + Send,
    ) -> Result<(T, ChildOutput), FilmError> {
        let (Some(out), Some(err)) = (self.0.stdout.take(), self.0.stderr.take()) else {
            unreachable!("both are piped")
        };
        let until = Instant::now() + time;
        let mut turns = CpuTime::new(self.0.id());
        thread::scope(|scope| {
            let heard = scope.spawn(|| hear(err));
            let (sender, done) = mpsc::channel();
            scope.spawn(move || sender.send(read(out)));
            let read = loop {
                match done.recv_timeout(LOOKS_EVERY) {
                    Ok(read) => break Ok(read),
                    Err(RecvTimeoutError::Disconnected) => break Err(FilmError::Empty(None)),
                    Err(RecvTimeoutError::Timeout) if !is_wanted() => break Err(FilmError::Left),
                    Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                        break Err(FilmError::TooSlow);
                    }
                    Err(RecvTimeoutError::Timeout) if turns.idle() >= IDLE_MAX => {
                        break Err(FilmError::Stuck);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                }
            };
            if read.is_err() {
                self.0.kill()?;
            }
            // Its output was read to the end, or nobody reads it any more: either ends it.
            let code = self.0.wait()?.code();
            let said = heard.join().unwrap_or_default();
            Ok((read?, ChildOutput { code, ..said }))
        })
    }
}

/// When a process last had the processor.
struct CpuTime {
    stat: PathBuf,
    ticks: Option<u64>,
    since: Instant,
}

impl CpuTime {
    fn new(pid: u32) -> Self {
        Self { stat: format!("/proc/{pid}/stat").into(), ticks: None, since: Instant::now() }
    }

    /// How long it has done nothing.
    fn idle(&mut self) -> Duration {
        let ticks = fs::read_to_string(&self.stat).ok().and_then(|stat| ticks(&stat));
        if ticks != self.ticks {
            (self.ticks, self.since) = (ticks, Instant::now());
        }
        self.since.elapsed()
    }
}

/// Processor time of a process in clock ticks, by its line of `/proc/PID/stat`: `utime` and `stime`, see proc(5).
fn ticks(stat: &str) -> Option<u64> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut words = behind_name.split_whitespace().skip(11);
    Some(words.next()?.parse::<u64>().ok()? + words.next()?.parse::<u64>().ok()?)
}

impl Drop for Child {
    fn drop(&mut self) {
        // It has ended already, but where something failed on the way.
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The times and the first other line of what is said, to its end.
fn hear(said: impl Read) -> ChildOutput {
    let (mut said, mut heard) = (BufReader::new(said), ChildOutput::default());
    loop {
        let mut line = Vec::new();
        match said.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(1..) => heard.line(&String::from_utf8_lossy(&line)),
            _ => return heard,
        }
    }
}

impl ChildOutput {
    fn line(&mut self, line: &str) {
        let time =
            line.rsplit_once("pts_time:").and_then(|(_, time)| time.trim().parse::<f64>().ok());
        match time.filter(|time| time.is_finite()) {
            Some(time) if self.times_s.len() < TIMES_MAX => self.times_s.push(time),
            None if self.line.is_none() && !line.starts_with(super::select::MARK) => {
                // Which part of it speaks, and where that lies in memory, is nobody's business.
                let line = line
                    .strip_prefix('[')
                    .and_then(|line| Some(line.split_once("] ")?.1))
                    .unwrap_or(line);
                let plain = line.trim().chars().filter(|letter| !letter.is_control());
                self.line =
                    Some(without_addresses(&plain.take(TOLD_CHARS_MAX).collect::<String>()));
            }
            _ => {}
        }
    }
}

/// The line without where things lie in memory: ` @ 0x55d0c8a3b2c0` stands behind names within it, too.
fn without_addresses(line: &str) -> String {
    let mut parts = line.split(" @ 0x");
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| part.trim_start_matches(|c: char| c.is_ascii_hexdigit()));
    rest.fold(first, |line, part| line + part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_told() {
        let told = |said: &str| hear(said.as_bytes()).line.unwrap();
        assert_eq!(told("[mov,mp4 @ 0x55d0c8a3b2c0] moov atom not found\n"), "moov atom not found");
        assert_eq!(
            told("Error opening [in#0 @ 0x55d0c8a3] and [h264 @ 0x7f00]: no\n"),
            "Error opening [in#0] and [h264]: no"
        );
        assert_eq!(told("a @ 0x"), "a");
    }

    #[test]
    fn times_are_told_from_all_else() {
        let said = "[mov] bad\nmore\nframe:0    pts:0       pts_time:0\nsmelt=1\nxframe:1 pts:3 pts_time:2.5\npts_time:nan\n";
        let heard = hear(said.as_bytes());
        assert_eq!(heard.times_s, [0.0, 2.5]);
        assert_eq!(heard.line.as_deref(), Some("bad"));
        let endless = hear(io::repeat(b'a').take(1 << 20));
        assert_eq!(endless.line.map(|line| line.len()), Some(TOLD_CHARS_MAX));
    }

    #[test]
    fn processor_time_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 88 0 0 0 31 11 0 0 20 0 2 0 99";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a) S 1"), None);
    }

    #[test]
    fn who_does_nothing_is_known_by_its_ticks() {
        let folder = tempfile::tempdir().unwrap();
        let stat = folder.path().join("stat");
        let write = |ticks| {
            fs::write(&stat, format!("7 (a) S{}{ticks} 0", " 0".repeat(10))).unwrap();
        };
        let mut turns = CpuTime { stat: stat.clone(), ticks: None, since: Instant::now() };
        write(" 5");
        turns.idle();
        let begin = Instant::now();
        thread::sleep(Duration::from_millis(2));
        assert!(turns.idle() >= begin.elapsed() / 2);
        let before = turns.since;
        write(" 6");
        turns.idle();
        assert!(turns.since > before);
        assert!(CpuTime::new(process::id()).idle() < IDLE_MAX);
    }

    #[test]
    fn who_takes_too_long_is_ended() {
        let file = in_memory(b"").unwrap();
        let start = |script: &str| {
            Child::start(&["sh".into(), "-c".into()], &[script.to_owned()], &file).unwrap()
        };
        let all = |mut out: ChildStdout| io::copy(&mut out, &mut io::sink()).unwrap();
        let late = start("exec sleep 60").read(Duration::from_millis(100), &|| true, all);
        assert!(matches!(late, Err(FilmError::TooSlow)));
        let left = start("exec sleep 60").read(Duration::from_secs(60), &|| false, all);
        assert!(matches!(left, Err(FilmError::Left)));
        let (_, said) = start("kill -9 $$").read(Duration::from_secs(60), &|| true, all).unwrap();
        assert_eq!(said.code, None);
    }
}
