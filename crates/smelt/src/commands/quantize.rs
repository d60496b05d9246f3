//! `smelt quantize`: a checkpoint's decoder in other weight types, without a pipeline.

use smelt_model::quantize::{Method, Options, Report, Scheme};
use smelt_model::repacked::Format;

use crate::atomic_dir::AtomicDir;
use crate::checkpoint::{self, QuantFormat};
use crate::console::tell;
use crate::exit::{Exit, Failed};
use crate::flags::QuantizeFlags;
use crate::open_checkpoint;
use crate::telling::Telling;

pub(crate) fn run(flags: &QuantizeFlags) -> Result<Exit, Failed> {
    if flags.calibration.is_some() && !flags.method.reads_calibration() {
        let method = flags.method.name();
        let words =
            format!("method {method} reads no --calibration; leave it out, or name a --method");
        return Err(Failed::usage(words));
    }
    if flags.budget.is_some() && flags.method != Method::Best {
        let method = flags.method.name();
        let words = format!("--budget is for --method best; {method} tries one way alone");
        return Err(Failed::usage(words));
    }
    let unread = match flags.format {
        QuantFormat::Foreign(Format::CompressedTensors) => Some("compressed-tensors reads no more"),
        QuantFormat::TensorRtLlm => Some("tensorrt-llm does not read"),
        QuantFormat::Smelt | QuantFormat::Foreign(Format::Awq | Format::Gptq) => None,
    };
    if let Some(unread) = unread.filter(|_| flags.method == Method::GptqActOrder) {
        return Err(Failed::usage(format!(
            "--method gptq-act-order sorts columns, which {unread}; use --method gptq, or --format gptq"
        )));
    }
    let asked = [Some(flags.scheme), flags.head, flags.embeddings];
    if asked.contains(&Some(Scheme::Int4)) && flags.format != QuantFormat::TensorRtLlm {
        let words = "int4 has one scale for each output, which only --format tensorrt-llm takes; use int4-g128";
        return Err(Failed::usage(words));
    }
    let plain = Options::plain(flags.scheme);
    let options = Options {
        head: flags.head,
        embeddings: flags.embeddings,
        method: flags.method,
        budget: flags.budget.unwrap_or(plain.budget),
        exclude: flags.exclude.clone(),
        allow_requantize: flags.allow_requantize,
        calibration: flags.calibration.as_deref(),
        threads: flags.threads.unwrap_or(plain.threads),
        ..plain
    };
    let out = AtomicDir::begin(&flags.out)?;
    let given = open_checkpoint::open(&flags.checkpoint, &flags.out)?;
    let mut telling = Telling::new();
    let mut say = |line: &str| telling.hear(line);
    let report =
        checkpoint::quantize(&given.checkpoint, &options, flags.format, out.path(), &mut say)?;
    drop(telling);
    out.finish()?;
    report.iter().flat_map(Report::table).for_each(tell);
    tell(format_args!("wrote {}", flags.out.display()));
    Ok(Exit::Ok)
}
