//! casync and zchunk: what they are told, and which chunks their files list.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Bench, Row, bytes_of, files_of};

/// An index of casync: its head and that of its table, and each chunk, where it ends and its digest.
const INDEX_HEAD_BYTES: usize = 64;
const INDEX_ROW_BYTES: usize = 40;
/// Of files their content and names, as ours: their times are another matter.
const CASYNC: &str = "--without=all --store=casync.castr";

/// Fills a store of chunks and reads it; chunks are packed by zstd.
pub(super) fn casync(bench: &Bench) -> Result<[Row; 2]> {
    let make = |version: &str| {
        format!("casync make {CASYNC} --compression=zstd {version}.caidx {version}")
    };
    bench.does(&make("old"))?;
    let store = bench.folder.join("casync.castr");
    let before = bytes_of(&store)?;
    let (made, _) = bench.told(&make("new"))?;
    let packed = bytes_of(&store)? - before;
    let (read, _) =
        bench.told(&format!("casync extract {CASYNC} --seed=old new.caidx casync-new"))?;
    let [old, new] = ["old.caidx", "new.caidx"].map(|name| fs::read(bench.folder.join(name)));
    let (old, new) = (old?, new?);
    let lists = new.len() as u64;
    let new_bytes = new_bytes(&casync_chunks(&old)?, &casync_chunks(&new)?);
    bench.does("diff -rq new casync-new && rm -rf casync* *.caidx && sync")?;
    let row = |who, new_bytes, figures| Row { who, new_bytes, line_bytes: packed + lists, figures };
    Ok([row("casync make", Some(new_bytes), made), row("casync extract", None, read)])
}

/// Packs each file by itself, by zstd.
pub(super) fn zchunk(bench: &Bench) -> Result<Row> {
    let pack = |version: &str| {
        format!(
            "(cd {version} && find . -type f -size +0) | while read -r f; do \
             mkdir -p zck/{version}/\"$(dirname \"$f\")\" && zck -o zck/{version}/\"$f\" {version}/\"$f\" || exit 1; done"
        )
    };
    bench.does(&pack("old"))?;
    let (figures, _) = bench.told(&pack("new"))?;
    let [old, new] = ["old", "new"].map(|version| bench.folder.join("zck").join(version));
    let (mut new_bytes, mut line_bytes) = (0, 0);
    for path in files_of(&new)?.into_keys() {
        let known = match old.join(&path) {
            before if before.is_file() => zchunk_chunks(&before)?.chunks,
            _ => HashMap::new(),
        };
        let ZchunkFile { header_bytes, chunks } = zchunk_chunks(&new.join(&path))?;
        line_bytes += header_bytes;
        for (_, (bytes, packed)) in chunks.iter().filter(|(name, _)| !known.contains_key(*name)) {
            new_bytes += bytes;
            line_bytes += packed;
        }
    }
    bench.does("rm -rf zck")?;
    Ok(Row { who: "zck", new_bytes: Some(new_bytes), line_bytes, figures })
}

/// Bytes of the chunks of a version that the one before has not.
fn new_bytes(old: &HashMap<Vec<u8>, u64>, new: &HashMap<Vec<u8>, u64>) -> u64 {
    new.iter().filter(|(name, _)| !old.contains_key(*name)).map(|(_, bytes)| bytes).sum()
}

/// The chunks that an index of casync lists, by their digests.
fn casync_chunks(index: &[u8]) -> Result<HashMap<Vec<u8>, u64>> {
    let rows = index.get(INDEX_HEAD_BYTES..).context("this is no index of casync")?;
    let (mut chunks, mut begin) = (HashMap::new(), 0);
    for row in rows.as_chunks::<INDEX_ROW_BYTES>().0 {
        let (end, digest) = row.split_first_chunk().context("a row begins with where it ends")?;
        let end = u64::from_le_bytes(*end);
        // The row behind the last one has no place.
        if end == 0 {
            break;
        }
        ensure!(end > begin, "an index of casync whose chunks are in no order");
        chunks.insert(digest.to_vec(), end - begin);
        begin = end;
    }
    Ok(chunks)
}

/// What lies in a file of zchunk.
struct ZchunkFile {
    header_bytes: u64,
    /// The bytes of each chunk, before and after they were packed.
    chunks: HashMap<String, (u64, u64)>,
}

fn zchunk_chunks(file: &Path) -> Result<ZchunkFile> {
    let mut read = Command::new("zck_read_header");
    let output = read.arg("--show-chunks").arg(file).output().context("zck_read_header")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    zchunk_lines(&String::from_utf8(output.stdout)?).context("zck_read_header says something else")
}

fn zchunk_lines(text: &str) -> Option<ZchunkFile> {
    let header = text.lines().find_map(|line| line.strip_prefix("Header size: "))?;
    let chunk = |line: &str| {
        let [_, digest, _, packed, bytes] = line.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        Some((digest.to_owned(), (bytes.parse().ok()?, packed.parse().ok()?)))
    };
    Some(ZchunkFile {
        header_bytes: header.parse().ok()?,
        chunks: text.lines().filter_map(chunk).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_of_casync_lists_chunks_until_its_last_row() {
        let row = |end: u64, name: u8| [&end.to_le_bytes()[..], &[name; 32]].concat();
        let head = vec![9; INDEX_HEAD_BYTES];
        let index = [head.clone(), row(10, 1), row(25, 2), row(0, 0)].concat();
        let chunks = casync_chunks(&index).unwrap();
        assert_eq!(chunks, HashMap::from([(vec![1; 32], 10), (vec![2; 32], 15)]));
        let other = casync_chunks(&[head, row(7, 3), row(22, 2), row(0, 0)].concat()).unwrap();
        assert_eq!((new_bytes(&chunks, &other), new_bytes(&chunks, &chunks)), (7, 0));
        assert!(casync_chunks(&[0; 10]).is_err());
    }

    #[test]
    fn a_header_of_zchunk_is_read_as_it_is_printed() {
        let text = "zchunk file\n\nHeader size: 123\nChunk count: 2\n       Chunk Checksum    Start    Comp size         Size\n           0 00aa     123            0            0\n           1 f1ee     123        76384        76372\n";
        let file = zchunk_lines(text).unwrap();
        assert_eq!((file.header_bytes, file.chunks["f1ee"]), (123, (76_372, 76_384)));
        assert_eq!(file.chunks.len(), 2);
    }
}
