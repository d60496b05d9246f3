//! Copies a stage's output to its log, head and tail, with a bound on the file.
//!
//! The first part is kept as it comes.  Past that, the newest output is kept in two alternating
//! segments beside the log, which are appended when the output ends.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// A log is at most head + 2 segments: 64 MiB, more than a person reads and less than a disk.
const HEAD_BYTES_MAX: u64 = 32 << 20;
const SEGMENT_BYTES_MAX: u64 = 16 << 20;

/// Copies all of `from` into the log at `path`.
pub(crate) fn copy(from: impl Read, path: &Path) -> io::Result<()> {
    copy_within(from, path, HEAD_BYTES_MAX, SEGMENT_BYTES_MAX)
}

fn copy_within(
    mut from: impl Read,
    path: &Path,
    head_bytes_max: u64,
    segment_bytes_max: u64,
) -> io::Result<()> {
    let mut head = create(path)?;
    io::copy(&mut (&mut from).take(head_bytes_max), &mut head)?;
    let segments = ["tail-a", "tail-b"].map(|name| segment_path(path, name));
    let mut lengths = [0_u64; 2];
    let mut passed = 0;
    let mut at = 1;
    loop {
        let next = 1 - at;
        let copied = copy_segment(&mut from, &segments[next], segment_bytes_max)?;
        if copied == 0 {
            break;
        }
        passed += copied;
        lengths[next] = copied;
        at = next;
    }
    let kept = lengths[0] + lengths[1];
    if passed > kept {
        writeln!(head, "\n[smelt: {} bytes left out here]", passed - kept)?;
    }
    for older_first in [1 - at, at] {
        append(&mut head, &segments[older_first], lengths[older_first])?;
    }
    Ok(())
}

/// A file that is empty.  Most are new, and of what can only be new the kernel asks nobody (`confine::names`).
fn create(path: &Path) -> io::Result<File> {
    match File::create_new(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => File::create(path),
        created => created,
    }
}

fn segment_path(path: &Path, name: &str) -> PathBuf {
    let mut file = path.as_os_str().to_owned();
    file.push(".");
    file.push(name);
    file.into()
}

/// Copies up to the bound; a segment that gets nothing is not created.
fn copy_segment(from: &mut impl Read, path: &Path, bytes_max: u64) -> io::Result<u64> {
    let mut first = [0];
    if from.read(&mut first)? == 0 {
        return Ok(0);
    }
    let mut file = File::create(path)?;
    file.write_all(&first)?;
    Ok(1 + io::copy(&mut from.take(bytes_max - 1), &mut file)?)
}

fn append(head: &mut File, segment: &Path, length: u64) -> io::Result<()> {
    if length > 0 {
        io::copy(&mut File::open(segment)?, head)?;
        fs::remove_file(segment)?;
    }
    Ok(())
}

/// The last line of the log that is not blank, shortened; empty where there is none.
pub fn last_line(path: &Path) -> String {
    const TAIL_BYTES: u64 = 4096;
    const LINE_CHARS_MAX: usize = 500;
    let text = last_bytes(path, TAIL_BYTES).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    // A progress bar overwrites its line with carriage returns; the last state is what counts.
    let line = text.split(['\n', '\r']).rfind(|line| !line.trim().is_empty()).unwrap_or("");
    line.trim().chars().filter(|c| !c.is_control()).take(LINE_CHARS_MAX).collect()
}

/// The last lines of a log, for a person to read: no control characters, overwritten lines as they
/// were last.  Empty where there is no log.
pub fn tail(path: &Path, lines_max: usize) -> String {
    const BYTES_PER_LINE: u64 = 400;
    let text = last_bytes(path, lines_max as u64 * BYTES_PER_LINE).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let shown = |line: &str| -> String {
        let last = line.trim_end_matches('\r').rsplit('\r').next().unwrap_or_default();
        last.chars().filter(|c| !c.is_control() || *c == '\t').collect()
    };
    let lines: Vec<String> = text.trim_end().lines().map(shown).collect();
    lines[lines.len().saturating_sub(lines_max)..].join("\n")
}

/// What is searched of a log for signatures: a build of hours says what it is first, and what went
/// wrong last.
const SEARCHED_HEAD_BYTES: u64 = 256 << 10;
const SEARCHED_TAIL_BYTES: u64 = 2 << 20;

/// The head and the tail of a log as text; empty where there is none.
pub(crate) fn head_and_tail(path: &Path) -> String {
    read_ends(path, SEARCHED_HEAD_BYTES, SEARCHED_TAIL_BYTES).unwrap_or_default()
}

fn read_ends(path: &Path, head_bytes: u64, tail_bytes: u64) -> io::Result<String> {
    let length = fs::metadata(path)?.len();
    if length <= head_bytes + tail_bytes {
        return Ok(String::from_utf8_lossy(&last_bytes(path, length)?).into_owned());
    }
    let mut head = Vec::new();
    File::open(path)?.take(head_bytes).read_to_end(&mut head)?;
    // What was cut is not taken for a line.
    head.truncate(head.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1));
    let tail = last_bytes(path, tail_bytes)?;
    let begin = tail.iter().position(|&byte| byte == b'\n').map_or(tail.len(), |at| at + 1);
    head.extend_from_slice(&tail[begin..]);
    Ok(String::from_utf8_lossy(&head).into_owned())
}

fn last_bytes(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes_max)))?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_is_the_last_lines_as_they_were_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let many: String = (0..100).map(|n| format!("line {n}\n")).collect();
        fs::write(&path, many + "1 %\r99 %\n\u{1b}[31mred\r\n\n").unwrap();
        assert_eq!(tail(&path, 3), "line 99\n99 %\n[31mred");
        assert_eq!(tail(&path, 1000).lines().count(), 102);
        assert_eq!(tail(&dir.path().join("nothing"), 3), "");
    }

    #[track_caller]
    fn check(bytes: usize, expect_left_out: Option<usize>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let text: Vec<u8> = (0..bytes).map(|i| b'a' + (i % 23) as u8).collect();
        copy_within(text.as_slice(), &path, 100, 40).unwrap();
        let log = fs::read(&path).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1, "no segment is left behind");
        let Some(left_out) = expect_left_out else {
            return assert_eq!(log, text);
        };
        let note = format!("\n[smelt: {left_out} bytes left out here]\n");
        let kept = bytes - 100 - left_out;
        let expect = [&text[..100], note.as_bytes(), &text[bytes - kept..]].concat();
        assert_eq!(String::from_utf8(log).unwrap(), String::from_utf8(expect).unwrap());
    }

    #[test]
    fn head_and_tail_are_kept() {
        for bytes in [0, 1, 99, 100, 101, 140, 141, 180] {
            check(bytes, None);
        }
        check(181, Some(40));
        check(220, Some(40));
        check(221, Some(80));
        check(1000, Some(840));
    }

    #[test]
    fn of_a_long_log_the_whole_lines_of_its_ends_are_searched() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let text: String = (10..40).map(|n| format!("line {n}\n")).collect();
        fs::write(&path, &text).unwrap();
        assert_eq!(read_ends(&path, 100, 1000).unwrap(), text);
        let ends = read_ends(&path, 20, 20).unwrap();
        assert_eq!(ends, "line 10\nline 11\nline 38\nline 39\n");
        assert_eq!(head_and_tail(&dir.path().join("nothing")), "");
    }

    #[test]
    fn the_last_line_is_what_a_person_would_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let check = |text: &str, expect: &str| {
            fs::write(&path, text).unwrap();
            assert_eq!(last_line(&path), expect);
        };
        check("", "");
        check("one\ntwo\n\n", "two");
        check("10 %\r55 %\r", "55 %");
        check("\u{1b}[31mred\u{1b}[0m\n", "[31mred[0m");
        assert_eq!(last_line(&dir.path().join("nothing")), "");
    }
}
