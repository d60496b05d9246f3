//! Opens checkpoints and quantises them, for commands and stages alike.
//!
//! What the user should know of a checkpoint's weights is said when it is opened.  A format that
//! other servers load is written from smelt's own, which lies beside it until then.

use std::fs;
use std::io;
use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_model::decoder::LM_HEAD;
use smelt_model::quantize::{self, Options, Report, Scheme};
use smelt_model::repacked::{self, Format};
use smelt_model::tensorrt_llm;

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
    /// That of TensorRT-LLM 0.12.
    TensorRtLlm,
}

impl QuantFormat {
    /// The form of a word.
    pub(crate) fn parse(word: &str) -> Result<Self, String> {
        if word == SMELT {
            return Ok(Self::Smelt);
        }
        if word == tensorrt_llm::FORMAT {
            return Ok(Self::TensorRtLlm);
        }
        let foreign = Format::ALL.map(Format::name).join(" or ");
        let known = || format!("{SMELT} or {foreign} or {}", tensorrt_llm::FORMAT);
        Format::parse(word).map(Self::Foreign).ok_or_else(known)
    }
}

/// Opens the checkpoint at `path`, and says what is odd about it.
pub(crate) fn open(path: &Path) -> Result<Checkpoint, Failed> {
    let checkpoint = Checkpoint::open(path).map_err(Failed::model)?;
    checkpoint.warnings().iter().for_each(|line| tell(format_args!("warning: {line}")));
    Ok(checkpoint)
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
    check(checkpoint, options, form)?;
    match form {
        QuantFormat::Smelt => {
            let report = quantize::quantize(checkpoint, options, out, say);
            report.map(Some).map_err(Failed::model)
        }
        QuantFormat::Foreign(format) => {
            misread_head(checkpoint, options, format).iter().for_each(tell);
            let options = &for_format(options, format);
            through_canonical(checkpoint, options, out, say, &mut |packed, say| {
                repacked::write(packed, checkpoint, format, out, say).map_err(Failed::model)
            })
        }
        QuantFormat::TensorRtLlm => {
            let warning = tensorrt_llm::warning(checkpoint);
            warning.iter().for_each(|line| tell(format_args!("warning: {line}")));
            let options = &with_float_head(options);
            through_canonical(checkpoint, options, out, say, &mut |packed, say| {
                tensorrt_llm::write(packed, out, say).map_err(Failed::model)
            })
        }
    }
}

/// Whether `form` holds what `options` make of `checkpoint`, as far as that follows from its tensors' names, types
/// and shapes.
pub(crate) fn check(
    checkpoint: &Checkpoint,
    options: &Options<'_>,
    form: QuantFormat,
) -> Result<(), Failed> {
    let format = match form {
        QuantFormat::Smelt => return Ok(()),
        QuantFormat::Foreign(format) => format.name(),
        QuantFormat::TensorRtLlm => tensorrt_llm::FORMAT,
    };
    let packs = |scheme: Option<Scheme>| scheme.is_some_and(|scheme| scheme.grid().is_some());
    let is_tensorrt_llm = form == QuantFormat::TensorRtLlm;
    for (what, is_refused) in [
        ("embedding; leave out embeddings", packs(options.embeddings)),
        ("head; leave out head", is_tensorrt_llm && packs(options.head)),
    ] {
        if is_refused {
            return Err(Failed::model(format!("the {format} format cannot hold a packed {what}")));
        }
    }
    if is_tensorrt_llm {
        let options = &with_float_head(options);
        let made = options.rounds().then(|| quantize::described(checkpoint, options)).transpose();
        let made = made.map_err(Failed::model)?;
        tensorrt_llm::check(made.as_ref().unwrap_or(checkpoint)).map_err(Failed::model)?;
    }
    Ok(())
}

/// Has `write` make `out` of smelt's own form of `checkpoint`, which lies inside of it until then; of `checkpoint`
/// itself where nothing is rounded.
fn through_canonical(
    checkpoint: &Checkpoint,
    options: &Options<'_>,
    out: &Path,
    say: &mut dyn FnMut(&str),
    write: &mut Write<'_>,
) -> Result<Option<Report>, Failed> {
    if !options.rounds() {
        write(checkpoint, say)?;
        return Ok(None);
    }
    let canonical = out.join(CANONICAL_DIR);
    let report = quantize::quantize(checkpoint, options, &canonical, say).map_err(Failed::model)?;
    let packed = Checkpoint::open(&canonical).map_err(Failed::model)?;
    write(&packed, say)?;
    drop(packed);
    fs::remove_dir_all(&canonical).map_err(|error| cannot("remove", &canonical, &error))?;
    Ok(Some(report))
}

/// Writes another tool's form of a checkpoint.
type Write<'a> = dyn FnMut(&Checkpoint, &mut dyn FnMut(&str)) -> Result<(), Failed> + 'a;

/// `options` with a head of floats unless they say otherwise.
fn with_float_head<'a>(options: &Options<'a>) -> Options<'a> {
    Options { head: options.head.or(Some(Scheme::None)), ..options.clone() }
}

/// `options` with the defaults of `format`: AWQ and GPTQ say one thing of all modules, and transformers
/// reads no packed head in them, so that the head stays floats unless asked for.
fn for_format<'a>(options: &Options<'a>, format: Format) -> Options<'a> {
    if is_read_as_floats(format) { with_float_head(options) } else { options.clone() }
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
