//! Moves the files of outputs over one stream.  What is there is not sent again, also of a move that was cut short.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek as _, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use smelt_store::FileEntry;
use smelt_store::bundle::BundledOutput;

use super::incoming::{Draft, Incoming};
use crate::exit::{Exit, Failed};

/// What is read and written at a time.
const PIECE_BYTES: usize = 1 << 20;

/// The end of a file of an output, from a place on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The number of the output.
    output: usize,
    /// That of the file in it.
    file: usize,
    from: u64,
}

impl Part {
    /// Its file, if there is one that is as long.
    fn entry<'a>(&self, outputs: &'a [BundledOutput]) -> Option<&'a FileEntry> {
        self.entry_of(outputs.get(self.output)?)
    }

    fn entry_of<'a>(&self, output: &'a BundledOutput) -> Option<&'a FileEntry> {
        output.files.files().get(self.file).filter(|entry| self.from < entry.size)
    }
}

/// How many bytes some parts of outputs have.
pub(crate) fn bytes_of(parts: &[Part], outputs: &[BundledOutput]) -> u64 {
    let bytes = |part: &Part| part.entry(outputs).map_or(0, |entry| entry.size - part.from);
    parts.iter().map(bytes).fold(0, u64::saturating_add)
}

/// What is missing of outputs that come, in the order in which it is received.
pub(crate) fn missing(incoming: &Incoming<'_>) -> Result<Vec<Part>, Failed> {
    let mut parts = Vec::new();
    for (output, folder) in incoming.drafts()? {
        let known = incoming.known_by_another_key(output);
        for (file, entry) in incoming.outputs()[output].files.files().iter().enumerate() {
            let path = folder.join(&entry.path);
            if let Some(known) = &known {
                take(&known.join(&entry.path), &path)
                    .map_err(|error| cannot("copy", &path, &error))?;
            }
            let there = fs::metadata(&path).map_or(0, |stat| stat.len());
            // A file that is too long is another one.
            let from = if there <= entry.size { there } else { 0 };
            if from < entry.size {
                parts.push(Part { output, file, from });
            }
        }
    }
    Ok(parts)
}

/// Copies a file that is here.
fn take(from: &Path, to: &Path) -> io::Result<()> {
    make_folder(to)?;
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop)
}

fn make_folder(of: &Path) -> io::Result<()> {
    of.parent().map_or(Ok(()), fs::create_dir_all)
}

/// Sends parts of outputs, each with the folder that it is in; `told` hears of bytes as they go.
pub(crate) fn send(
    outputs: &[(BundledOutput, PathBuf)],
    parts: &[Part],
    to: &mut impl Write,
    told: &mut dyn FnMut(u64),
) -> Result<(), Failed> {
    let odd = || Failed::new(Exit::StageFailed, "it asks for what no output has");
    for part in parts {
        let (output, folder) = outputs.get(part.output).ok_or_else(odd)?;
        let entry = part.entry_of(output).ok_or_else(odd)?;
        let rest = entry.size - part.from;
        let path = folder.join(&entry.path);
        let copied = File::open(&path).and_then(|mut file| {
            if file.metadata()?.len() != entry.size {
                return Err(io::Error::other(
                    "it is not what was sealed any more: smelt cache fsck",
                ));
            }
            file.seek(SeekFrom::Start(part.from))?;
            copy(&mut file, rest, to, told)
        });
        copied.map_err(|error| cannot("send", &path, &error))?;
    }
    to.flush().map_err(|error| cannot("send", Path::new("files"), &error))
}

/// Receives what is missing of outputs that come, and seals them.
pub(crate) fn receive(
    incoming: &Incoming<'_>,
    parts: &[Part],
    from: &mut impl Read,
    told: &mut dyn FnMut(u64),
) -> Result<(), Failed> {
    let (outputs, mut came) = (incoming.outputs(), HashSet::new());
    let sealed = incoming.seal(Draft::Kept, &mut |output, folder| {
        // Of one that several keys lead to it comes for the first.
        let is_first = came.insert(output);
        let own: Vec<&Part> =
            parts.iter().filter(|part| is_first && part.output == output).collect();
        let known = if is_first { None } else { incoming.known_by_another_key(output) };
        let Some(folder) = folder else {
            // Another run has sealed it meanwhile; it comes all the same.
            let rest = own.iter().filter_map(|part| Some(part.entry(outputs)?.size - part.from));
            let passed = copy(from, rest.fold(0, u64::saturating_add), &mut io::sink(), told);
            return passed.map_err(|error| cannot("pass over", Path::new("files"), &error));
        };
        for (file, entry) in outputs[output].files.files().iter().enumerate() {
            let path = folder.join(&entry.path);
            if let Some(known) = &known {
                take(&known.join(&entry.path), &path)
                    .map_err(|error| cannot("copy", &path, &error))?;
            }
            let begins = own.iter().find(|part| part.file == file).map(|part| part.from);
            let put = put(&path, entry, begins, from, told);
            put.map_err(|error| cannot("receive", &path, &error))?;
        }
        Ok(())
    });
    sealed.map(drop)
}

/// Writes the end of a file, if anything of it is missing.
fn put(
    path: &Path,
    entry: &FileEntry,
    begins: Option<u64>,
    from: &mut impl Read,
    told: &mut dyn FnMut(u64),
) -> io::Result<()> {
    make_folder(path)?;
    // One that was about to be sealed may be written by nobody.
    if fs::symlink_metadata(path).is_ok_and(|stat| stat.is_file()) {
        fs::set_permissions(path, Permissions::from_mode(0o644))?;
    }
    let mut file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    if let Some(begins) = begins {
        file.set_len(begins)?;
        file.seek(SeekFrom::End(0))?;
        copy(from, entry.size - begins, &mut file, told)?;
    }
    let mode = if entry.executable { 0o755 } else { 0o644 };
    file.set_permissions(Permissions::from_mode(mode))
}

/// Copies so many bytes, of which each must be there.
fn copy(
    from: &mut impl Read,
    bytes: u64,
    to: &mut impl Write,
    told: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut buffer = vec![0; PIECE_BYTES.min(usize::try_from(bytes).unwrap_or(PIECE_BYTES))];
    let mut left = bytes;
    while left > 0 {
        let some = left.min(buffer.len() as u64);
        let piece = &mut buffer[..usize::try_from(some).expect("a megabyte")];
        from.read_exact(piece)?;
        to.write_all(piece)?;
        left -= some;
        told(some);
    }
    Ok(())
}

/// Why a file is not moved: of a stream that has ended the exit code says so, since there is more to say why.
fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failed {
    let of_stream = [io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe];
    let (exit, why) = match error.kind() {
        kind if of_stream.contains(&kind) => (Exit::NotSeen, "the other side has ended".to_owned()),
        io::ErrorKind::StorageFull => {
            (Exit::StageFailed, format!("{error}; free some space, then the same command goes on"))
        }
        _ => (Exit::StageFailed, error.to_string()),
    };
    Failed::new(exit, format!("cannot {verb} {}: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use smelt_fleet::trust::Trust;
    use smelt_random::Random;
    use smelt_store::bundle::BundledKey;
    use smelt_store::{Digest, Store, Wait};

    use super::super::outgoing::{Leaving, outputs};
    use super::*;

    /// A store with an output of three files.
    fn sender(dir: &Path) -> Vec<(BundledOutput, PathBuf)> {
        let store = Store::open(dir, Wait::No).unwrap();
        let holder = store.begin_hold(std::time::SystemTime::now()).unwrap();
        let work = holder.work_dir("made").unwrap();
        let mut chance = Random::new(1);
        let large: Vec<u8> = (0..2_500_000).map(|_| chance.below(256) as u8).collect();
        fs::create_dir(work.join("deep")).unwrap();
        fs::write(work.join("deep/large"), large).unwrap();
        fs::write(work.join("empty"), "").unwrap();
        fs::write(work.join("run"), "#!").unwrap();
        fs::set_permissions(work.join("run"), Permissions::from_mode(0o755)).unwrap();
        let key = Digest::of(b"made");
        let tree = store.seal_referring(&key, &work, json!({}), &[]).unwrap().digest;
        outputs(&store, &[Leaving { tree, recipes: Vec::new() }]).unwrap()
    }

    fn receive_of(store: &Store, sent: &[(BundledOutput, PathBuf)], cut: usize) -> (u64, bool) {
        let outputs: Vec<BundledOutput> = sent.iter().map(|(output, _)| output.clone()).collect();
        let trust = Trust::default();
        let incoming = Incoming::begin(store, &outputs, &|_| {}, &trust).unwrap();
        let parts = missing(&incoming).unwrap();
        let mut bytes = Vec::new();
        send(sent, &parts, &mut bytes, &mut |_| {}).unwrap();
        assert_eq!(bytes.len() as u64, bytes_of(&parts, &outputs));
        bytes.truncate(cut);
        let received = receive(&incoming, &parts, &mut &bytes[..], &mut |_| {});
        (bytes_of(&parts, &outputs), received.is_ok())
    }

    #[test]
    fn what_is_cut_short_is_gone_on_with_at_its_byte() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sent = sender(from.path());
        let store = Store::open(to.path(), Wait::No).unwrap();
        assert_eq!(receive_of(&store, &sent, 1 << 20), (2_500_002, false));
        assert_eq!(receive_of(&store, &sent, 1 << 20), (2_500_002 - (1 << 20), false));
        let left = 2_500_002 - (2 << 20);
        assert_eq!(receive_of(&store, &sent, usize::MAX), (left, true));
        // What is sealed is there.
        assert_eq!(receive_of(&store, &sent, usize::MAX), (0, true));
        let out = to.path().join("out").join(sent[0].0.tree.to_string());
        let mode = fs::metadata(out.join("run")).unwrap().permissions().mode();
        assert!(mode & 0o100 != 0 && out.join("empty").exists());
    }

    #[test]
    fn what_another_key_leads_to_is_not_sent() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut sent = sender(from.path());
        let store = Store::open(to.path(), Wait::No).unwrap();
        assert!(receive_of(&store, &sent, usize::MAX).1);
        sent[0].0.keys = vec![BundledKey::new(Digest::of(b"its key here"), Vec::new(), &json!({}))];
        assert_eq!(receive_of(&store, &sent, usize::MAX), (0, true));
        assert!(store.lookup(&Digest::of(b"its key here")).unwrap().hit().is_some());
    }

    #[test]
    fn one_that_two_keys_lead_to_comes_once_and_counts_for_both() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut sent = sender(from.path());
        let second = Digest::of(b"a second key");
        sent[0].0.keys.push(BundledKey::new(second, Vec::new(), &json!({})));
        let store = Store::open(to.path(), Wait::No).unwrap();
        assert_eq!(receive_of(&store, &sent, usize::MAX), (2_500_002, true));
        for key in [Digest::of(b"made"), second] {
            assert_eq!(store.lookup(&key).unwrap().hit().unwrap().digest, sent[0].0.tree);
        }
    }

    #[test]
    fn other_bytes_are_not_taken_and_not_gone_on_with() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let sent = sender(from.path());
        let store = Store::open(to.path(), Wait::No).unwrap();
        let outputs: Vec<BundledOutput> = sent.iter().map(|(output, _)| output.clone()).collect();
        let trust = Trust::default();
        let incoming = Incoming::begin(&store, &outputs, &|_| {}, &trust).unwrap();
        let parts = missing(&incoming).unwrap();
        let wrong = receive(&incoming, &parts, &mut io::repeat(7), &mut |_| {});
        assert!(wrong.is_err() && store.lookup(&outputs[0].keys[0].key).unwrap().hit().is_none());
        drop(incoming);
        assert_eq!(receive_of(&store, &sent, usize::MAX), (2_500_002, true));
    }

    #[test]
    fn parts_of_what_no_output_has_are_not_sent() {
        let from = tempfile::tempdir().unwrap();
        let sent = sender(from.path());
        for [output, file, from] in [[1, 0, 0], [0, 3, 0], [0, 0, 2_500_000], [0, 0, usize::MAX]] {
            let part = Part { output, file, from: from as u64 };
            let refused = send(&sent, &[part], &mut io::sink(), &mut |_| {}).unwrap_err();
            assert!(refused.to_string().contains("asks for what no output has"));
        }
    }
}
