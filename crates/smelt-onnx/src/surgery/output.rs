//! Writes a patched model as a directory, whole or not at all, without loading weights.
//!
//! Everything is made in a sibling directory that is renamed last.  A data file goes over as
//! it is, copied by the kernel or renamed; only its live ranges go where much of it is dead
//! or where it is a model file with embedded weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};

use super::externalize::{place_weights, weights};
use super::new_file::free_location;
use super::patch::{ColumnCut, Making};
use super::quantise::Quantisation;
use super::{ApplyError, Consume};
use crate::check;
use crate::encode::WriteError;
use crate::external::{DataError, TENSOR_ALIGNMENT_BYTES, place};
use crate::model::{Data, Initializer, Model};
use crate::survey::{tensors, tensors_mut};

/// Bytes no tensor refers to that a copied data file may keep; with more, only its tensors
/// are copied.
pub const DEAD_BYTES_MAX: u64 = 64 << 10;

/// Files are copied in pieces of this many bytes, each of which is told of.
const PIECE_BYTES: u64 = 64 << 20;

/// Rows of a matrix are cut in blocks of about this many bytes.
const BLOCK_BYTES: usize = 4 << 20;

/// A directory that could not be written; it is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OutputError {
    /// There is something where the new model should be.
    #[error("{} is not an empty directory; name another one", path.display())]
    Occupied {
        /// The directory.
        path: PathBuf,
    },
    /// The operating system refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A tensor's data is not where the model says.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A weight could not be rounded.
    #[error("cannot round tensor {name:?}: {why}")]
    Quantise {
        /// The weight.
        name: String,
        /// Why not.
        why: String,
    },
    /// The model file could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Counts of what was written.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) bytes_written: u64,
    pub(super) bytes_renamed: u64,
    pub(super) bytes_dead: u64,
}

/// Writes `model`, a patched form of the model file `source`, as directory `out_dir`.
pub(super) fn write(
    mut model: Model,
    makings: &[Making],
    source: &Path,
    out_dir: &Path,
    consume: Consume,
    progress: &mut dyn FnMut(&str),
) -> Result<Written, ApplyError> {
    let partial = Partial::create(out_dir)?;
    let own_name = source.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let mut transfer = Transfer {
        from: source.parent().unwrap_or(Path::new("")),
        into: &partial.dir,
        written: Written::default(),
        renames: Vec::new(),
        bytes: bytes_outside(&model),
        progress,
    };
    transfer.make(makings)?;
    transfer.data_files(&mut model, makings, own_name, consume)?;
    model.write(&partial.dir).map_err(OutputError::from)?;
    let mut undo = Undo::default();
    for (from, into) in std::mem::take(&mut transfer.renames) {
        undo.rename(from, into)?;
    }
    check(&model, &partial.dir)
        .map_err(|error| ApplyError::After { path: source.to_owned(), source: error })?;
    partial.publish(out_dir)?;
    undo.forget();
    if consume == Consume::Yes {
        fs::remove_file(source).map_err(io_error("remove", source))?;
    }
    Ok(transfer.written)
}

/// The directory under construction; it goes when dropped.
struct Partial {
    dir: PathBuf,
}

impl Partial {
    fn create(out_dir: &Path) -> Result<Self, OutputError> {
        let first = fs::read_dir(out_dir).map(|mut entries| entries.next());
        let free = match &first {
            Ok(entry) => entry.is_none(),
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        };
        if !free {
            return Err(OutputError::Occupied { path: out_dir.to_owned() });
        }
        let Some(name) = out_dir.file_name() else {
            return Err(OutputError::Occupied { path: out_dir.to_owned() });
        };
        let name = format!(".{}.partial-{}", name.to_string_lossy(), std::process::id());
        let dir = out_dir.with_file_name(name);
        fs::create_dir(&dir).map_err(io_error("create", &dir))?;
        Ok(Self { dir })
    }

    fn publish(&self, out_dir: &Path) -> Result<(), OutputError> {
        fs::rename(&self.dir, out_dir).map_err(io_error("create", out_dir))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // After it is published nothing is there, and a failure to clean up has no remedy.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Renames that are taken back when dropped.
#[derive(Default)]
struct Undo {
    done: Vec<(PathBuf, PathBuf)>,
}

impl Undo {
    fn rename(&mut self, from: PathBuf, into: PathBuf) -> Result<(), OutputError> {
        fs::rename(&from, &into).map_err(io_error("rename", &from))?;
        self.done.push((from, into));
        Ok(())
    }

    fn forget(mut self) {
        self.done.clear();
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        for (from, into) in &self.done {
            // The error that brought us here is the one to tell.
            let _ = fs::rename(into, from);
        }
    }
}

struct Transfer<'p> {
    from: &'p Path,
    into: &'p Path,
    written: Written,
    /// Renames that are due when all else is done.
    renames: Vec<(PathBuf, PathBuf)>,
    /// Bytes that will lie in data files.
    bytes: u64,
    /// Hears what is done, with the share.
    progress: &'p mut dyn FnMut(&str),
}

/// Bytes of the tensors that lie outside the model file.
fn bytes_outside(model: &Model) -> u64 {
    let mut bytes = 0;
    let mut add = |tensor: &Initializer| {
        if let Data::External { length, .. } = &tensor.data {
            bytes += length;
        }
    };
    tensors(&model.graph, &mut add);
    weights(model).iter().for_each(add);
    bytes
}

/// Byte ranges of a file, and where each goes.
type Moves = BTreeMap<u64, (u64, u64)>;

impl Transfer<'_> {
    /// Says what is done now, and how much was.
    fn tell(&mut self, what: &str, name: &str) {
        let done = (self.written.bytes_written + self.written.bytes_renamed).min(self.bytes);
        (self.progress)(&format!("[{done}/{}] {what} {name}", self.bytes));
    }

    /// Brings over every data file the model refers to, and changes the model to match.
    fn data_files(
        &mut self,
        model: &mut Model,
        makings: &[Making],
        own_name: &str,
        consume: Consume,
    ) -> Result<(), OutputError> {
        let mut inputs = weights(model);
        tensors_mut(&mut model.graph, &mut plain_location);
        inputs.iter_mut().for_each(plain_location);
        let new: BTreeSet<&str> =
            makings.iter().flat_map(Making::results).filter_map(location).collect();
        let mut ranges: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
        let mut note = |tensor: &Initializer| {
            if let Data::External { location, offset, length } = &tensor.data
                && !new.contains(location.as_str())
            {
                ranges.entry(location.clone()).or_default().push((*offset, *length));
            }
        };
        tensors(&model.graph, &mut note);
        inputs.iter().for_each(note);
        for (name, ranges) in ranges {
            let path = place(self.from, &name, &name)?;
            let size = fs::metadata(&path).map_err(io_error("read", &path))?.len();
            let moves = live(ranges);
            let dead = size.saturating_sub(moves.values().map(|(length, _)| length).sum());
            let embedded = name == own_name;
            if !embedded && consume == Consume::Yes && self.can_rename(&path)? {
                self.written.bytes_renamed += size;
                self.written.bytes_dead += dead;
                let into = self.target(&name)?;
                self.renames.push((path, into));
            } else if !embedded && dead <= DEAD_BYTES_MAX {
                self.written.bytes_dead += dead;
                let into = self.target(&name)?;
                self.copy(&path, &into, &BTreeMap::from([(0, (size, 0))]))?;
            } else {
                let new_name = if embedded { free_location(model) } else { name.clone() };
                let into = self.target(&new_name)?;
                self.copy(&path, &into, &moves)?;
                let mut moved = |tensor: &mut Initializer| moved(tensor, &name, &new_name, &moves);
                tensors_mut(&mut model.graph, &mut moved);
                inputs.iter_mut().for_each(moved);
            }
        }
        place_weights(model, &inputs);
        Ok(())
    }

    /// Links stay where they are, and a rename does not cross file systems.
    fn can_rename(&self, path: &Path) -> Result<bool, OutputError> {
        use std::os::unix::fs::MetadataExt;
        let file = fs::symlink_metadata(path).map_err(io_error("read", path))?;
        let into = fs::metadata(self.into).map_err(io_error("read", self.into))?;
        Ok(file.is_file() && file.dev() == into.dev())
    }

    /// The path of a new data file; its folder exists.
    fn target(&self, name: &str) -> Result<PathBuf, OutputError> {
        let path = self.into.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).map_err(io_error("create", folder))?;
        }
        Ok(path)
    }

    /// Copies ranges of one file into another; the kernel moves the bytes.
    fn copy(&mut self, from: &Path, into: &Path, moves: &Moves) -> Result<(), OutputError> {
        let source = File::open(from).map_err(io_error("read", from))?;
        let target = File::create_new(into).map_err(io_error("create", into))?;
        let end = moves.values().map(|(length, new)| length + new).max().unwrap_or(0);
        target.set_len(end).map_err(io_error("extend", into))?;
        let name = into.file_name().unwrap_or_default().to_string_lossy();
        for (begin, (length, new)) in moves {
            for at in (0..*length).step_by(PIECE_BYTES as usize) {
                self.tell("copying", &name);
                let piece = PIECE_BYTES.min(length - at);
                copy_range(&source, begin + at, &target, new + at, piece)
                    .map_err(io_error("copy", from))?;
                self.written.bytes_written += piece;
            }
        }
        Ok(())
    }

    fn make(&mut self, makings: &[Making]) -> Result<(), OutputError> {
        for making in makings {
            match making {
                Making::Columns(cut) => {
                    self.tell("cutting", &cut.from.name);
                    self.deal_columns(cut)?;
                }
                Making::Quantised(made) => {
                    self.tell("rounding", &made.from.name);
                    self.quantise(made)?;
                }
            }
            let lengths = making.results().into_iter().filter_map(Initializer::byte_len);
            self.written.bytes_written += lengths.sum::<usize>() as u64;
        }
        Ok(())
    }

    fn quantise(&mut self, made: &Quantisation) -> Result<(), OutputError> {
        let Some(location) = location(&made.codes) else { return Ok(()) };
        let target = open_new(&self.target(location)?)?;
        made.write(self.from, &target).map_err(|source| OutputError::Quantise {
            name: made.from.name.clone(),
            why: source.to_string(),
        })
    }

    fn deal_columns(&mut self, cut: &ColumnCut) -> Result<(), OutputError> {
        let Data::External { location, offset, .. } = &cut.from.data else { return Ok(()) };
        let from = place(self.from, &cut.from.name, location)?;
        let source = File::open(&from).map_err(io_error("read", &from))?;
        let mut targets = Vec::new();
        for part in &cut.parts {
            let Data::External { location, offset, .. } = &part.data else { continue };
            let target = open_new(&self.target(location)?)?;
            let width = part.dtype.bits() * part.dims[1] / 8;
            targets.push(Column { target, offset: *offset, width });
        }
        deal_rows(&source, *offset, cut.from.dims[0], &targets)
            .map_err(io_error("cut columns of", &from))
    }
}

/// Opens a file that is being made, in pieces perhaps.
fn open_new(path: &Path) -> Result<File, OutputError> {
    let mut options = File::options();
    let file = options.create(true).write(true).truncate(false).open(path);
    file.map_err(io_error("create", path))
}

/// Columns of a matrix on their way to their own place.
struct Column {
    target: File,
    offset: u64,
    /// Bytes of one row.
    width: usize,
}

/// Deals every row of a matrix out to `columns`, in one pass.
fn deal_rows(source: &File, offset: u64, rows: usize, columns: &[Column]) -> io::Result<()> {
    let row: usize = columns.iter().map(|column| column.width).sum();
    if row > BLOCK_BYTES {
        return deal_long_rows(source, offset, rows, columns);
    }
    let per_block = (BLOCK_BYTES / row.max(1)).max(1);
    let mut block = vec![0; per_block.min(rows) * row];
    let mut part = Vec::new();
    for first in (0..rows).step_by(per_block) {
        let block = &mut block[..per_block.min(rows - first) * row];
        source.read_exact_at(block, offset + (first * row) as u64)?;
        let mut begin = 0;
        for column in columns {
            part.clear();
            for line in block.chunks_exact(row.max(1)) {
                part.extend_from_slice(&line[begin..begin + column.width]);
            }
            column.target.write_all_at(&part, column.offset + (first * column.width) as u64)?;
            begin += column.width;
        }
    }
    Ok(())
}

/// The same for rows that are too long to hold.
fn deal_long_rows(source: &File, offset: u64, rows: usize, columns: &[Column]) -> io::Result<()> {
    let mut begin = offset;
    for row in 0..rows {
        for column in columns {
            let into = column.offset + (row * column.width) as u64;
            copy_range(source, begin, &column.target, into, column.width as u64)?;
            begin += column.width as u64;
        }
    }
    Ok(())
}

fn copy_range(
    mut source: &File,
    begin: u64,
    mut target: &File,
    into: u64,
    length: u64,
) -> io::Result<()> {
    source.seek(SeekFrom::Start(begin))?;
    target.seek(SeekFrom::Start(into))?;
    match io::copy(&mut source.take(length), &mut target)? {
        copied if copied == length => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The ranges that are referred to, joined where they touch or only padding is between them,
/// each laid out anew at the same place within a page.
fn live(mut ranges: Vec<(u64, u64)>) -> Moves {
    ranges.sort_unstable();
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for (begin, length) in ranges {
        let end = begin.saturating_add(length);
        match joined.last_mut() {
            Some((_, last)) if begin < last.saturating_add(TENSOR_ALIGNMENT_BYTES) => {
                *last = end.max(*last);
            }
            _ => joined.push((begin, end)),
        }
    }
    let (mut moves, mut end) = (Moves::new(), 0u64);
    for (begin, last) in joined {
        let new = end.next_multiple_of(TENSOR_ALIGNMENT_BYTES) + begin % TENSOR_ALIGNMENT_BYTES;
        moves.insert(begin, (last - begin, new));
        end = new + (last - begin);
    }
    moves
}

fn moved(tensor: &mut Initializer, name: &str, new_name: &str, moves: &Moves) {
    if let Data::External { location, offset, .. } = &mut tensor.data
        && location == name
        && let Some((begin, (_, new))) = moves.range(..=*offset).next_back()
    {
        *offset = new + (*offset - begin);
        new_name.clone_into(location);
    }
}

fn location(tensor: &Initializer) -> Option<&str> {
    match &tensor.data {
        Data::External { location, .. } => Some(location),
        Data::Inline(_) => None,
    }
}

/// Spells a location without dots, so that one file has one name.
fn plain_location(tensor: &mut Initializer) {
    if let Data::External { location, .. } = &mut tensor.data {
        let parts = Path::new(&*location).components();
        let plain: PathBuf = parts.filter(|part| *part != Component::CurDir).collect();
        if let Some(plain) = plain.to_str() {
            *location = plain.to_owned();
        }
    }
}

fn io_error<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> OutputError + 'a {
    move |source| OutputError::Io { what, path: path.to_owned(), source }
}
