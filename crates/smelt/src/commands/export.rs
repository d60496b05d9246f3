//! `smelt export`: a checkpoint's part as ONNX, without a pipeline.

use smelt_model::dtype::Dtype;
use smelt_model::export;

use crate::exit::{Exit, Failed};
use crate::flags::{ExportFlags, FloatType};
use crate::fresh::FreshDir;
use crate::given;
use crate::say::tell;

pub(crate) fn run(flags: &ExportFlags) -> Result<Exit, Failed> {
    let out = FreshDir::begin(&flags.out)?;
    let given = given::open(&flags.checkpoint, &flags.out)?;
    let dtype = match flags.dtype {
        FloatType::F32 => Dtype::F32,
        FloatType::F16 => Dtype::F16,
        FloatType::Bf16 => Dtype::BF16,
    };
    export::vision(&given.checkpoint, dtype, out.path(), &mut |line| tell(line))
        .map_err(Failed::model)?;
    out.finish()?;
    tell(format_args!("wrote {}", flags.out.display()));
    Ok(Exit::Ok)
}
