//! Opens checkpoints and quantises them, for commands and stages alike.
//!
//! What the user should know of a checkpoint's weights is said when it is opened.  A format that
//! other servers load is written from smelt's own, which lies beside it until then.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_model::decoder::LM_HEAD;
use smelt_model::quantize::{self, Options, Report, Scheme};
use smelt_model::repacked::{Format, write};
use smelt_runtime::deployment::{self, TEXT_FILES};
use smelt_runtime::tokenizer::TOKENIZER_FILE;

use crate::console::tell;
use crate::exit::{Exit, Failed};

/// The word for smelt's own form.
const SMELT: &str = "smelt";

/// Where smelt's own form lies while another is made of it.
const CANONICAL_DIR: &str = ".canonical";

/// The form of a quantised checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QuantFormat {
    /// smelt's own.
    Smelt,
    /// That of another tool.
    Foreign(Format),
}

impl QuantFormat {
    /// The form of a word.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        if word == SMELT {
            return Ok(Self::Smelt);
        }
        let known = || format!("{SMELT} or {}", Format::ALL.map(Format::name).join(" or "));
        Format::parse(word).map(Self::Foreign).ok_or_else(known)
    }
}

/// Opens the checkpoint at `path`, and says what is odd about it.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Failed> {
    let checkpoint = Checkpoint::open(path).map_err(Failed::model)?;
    checkpoint.warnings().iter().for_each(|line| tell(format_args!("warning: {line}")));
    Ok(checkpoint)
}

/// Where the files of a GGUF file's own tokenizer lie while they are read, inside of what is made.
pub(crate) const MADE_DIR: &str = ".gguf";

/// The directory of a checkpoint's tokenizer, chat template and end tokens.
pub(crate) struct Beside {
    dir: PathBuf,
    /// Made for this time only.
    is_made: bool,
}

impl Beside {
    /// Of `checkpoint`: its own directory; of a GGUF file that holds some of these files itself, one inside of
    /// `out` with all of them, which is gone when this is dropped.
    pub(crate) fn of(checkpoint: &Checkpoint, out: &Path) -> Result<Self, Failed> {
        let own = checkpoint.dir();
        let made = checkpoint.made_files().map_err(Failed::model)?;
        if checkpoint.path() != own && own.join(TOKENIZER_FILE).exists() {
            let file = checkpoint.path().display();
            tell(format_args!("{TOKENIZER_FILE} beside {file} counts, not the one inside of it"));
        }
        if made.is_empty() {
            return Ok(Self { dir: own.to_owned(), is_made: false });
        }
        let dir = out.join(MADE_DIR);
        fs::create_dir_all(&dir).map_err(|error| cannot("make", &dir, &error))?;
        let beside = Self { dir, is_made: true };
        for name in TEXT_FILES.iter().filter(|name| own.join(name).exists()) {
            deployment::copy(&own.join(name), &beside.dir.join(name)).map_err(Failed::model)?;
        }
        for file in made {
            let path = beside.dir.join(file.name);
            fs::write(&path, file.text).map_err(|error| cannot("write", &path, &error))?;
        }
        Ok(beside)
    }

    /// Where they are.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        if self.is_made {
            // What is left over is in nobody's way: it is no declared output.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failed {
    Failed::new(Exit::StageFailed, format!("cannot {verb} {}: {error}", path.display()))
}

/// Quantises `checkpoint` into `out` in `form`; weights that are packed already are packed again
/// in that form, their integers unchanged, if every scheme is none.  Returns what rounding cost, if
/// anything was rounded.
pub(crate) fn quantize(
    checkpoint: &Checkpoint,
    options: &Options<'_>,
    form: QuantFormat,
    out: &Path,
    say: &mut dyn FnMut(&str),
) -> Result<Option<Report>, Failed> {
    let QuantFormat::Foreign(format) = form else {
        let report = quantize::quantize(checkpoint, options, out, say);
        return report.map(Some).map_err(Failed::model);
    };
    misread_head(checkpoint, options, format).iter().for_each(tell);
    if !options.rounds() {
        write(checkpoint, checkpoint, format, out, say).map_err(Failed::model)?;
        return Ok(None);
    }
    if options.embeddings.is_some_and(|scheme| scheme.grid().is_some()) {
        let format = format.name();
        return Err(Failed::model(format!(
            "the {format} format cannot hold a packed embedding; leave out embeddings"
        )));
    }
    let options = &for_format(options, format);
    let canonical = out.join(CANONICAL_DIR);
    let report = quantize::quantize(checkpoint, options, &canonical, say).map_err(Failed::model)?;
    let packed = Checkpoint::open(&canonical).map_err(Failed::model)?;
    write(&packed, checkpoint, format, out, say).map_err(Failed::model)?;
    drop(packed);
    fs::remove_dir_all(&canonical).map_err(|error| cannot("remove", &canonical, &error))?;
    Ok(Some(report))
}

/// `options` with the defaults of `format`: AWQ and GPTQ say one thing of all modules, and transformers
/// reads no packed head in them, so that the head stays floats unless asked for.
fn for_format<'a>(options: &Options<'a>, format: Format) -> Options<'a> {
    let head = options.head.or_else(|| is_read_as_floats(format).then_some(Scheme::None));
    Options { head, ..options.clone() }
}

/// What transformers makes of a packed head in `format`, where it gets one.
fn misread_head(checkpoint: &Checkpoint, options: &Options<'_>, format: Format) -> Option<String> {
    let is_packed = match options.rounds() {
        true => options.head.is_some_and(|scheme| scheme.grid().is_some()),
        false => checkpoint.parts(LM_HEAD).is_ok_and(|parts| parts.len() > 1),
    };
    (is_packed && is_read_as_floats(format)).then(|| {
        let format = format.name();
        format!(
            "warning: transformers reads no packed head from the {format} format and puts a random one in its place; others, as vLLM, read it"
        )
    })
}

/// Whether transformers takes the head for floats, whatever the configuration says.
fn is_read_as_floats(format: Format) -> bool {
    matches!(format, Format::Awq | Format::Gptq)
}
