//! `smelt quantize`: a checkpoint's decoder in other weight types, without a pipeline.

use crate::checkpoint;
use crate::exit::{Exit, Failed};
use crate::flags::QuantizeFlags;
use crate::fresh::FreshDir;
use crate::given;
use crate::say::tell;

pub(crate) fn run(flags: &QuantizeFlags) -> Result<Exit, Failed> {
    let out = FreshDir::begin(&flags.out)?;
    let given = given::open(&flags.checkpoint, &flags.out)?;
    let mut say = |line: &str| tell(line);
    checkpoint::quantize(&given.checkpoint, flags.scheme, flags.format, out.path(), &mut say)?;
    out.finish()?;
    tell(format_args!("wrote {}", flags.out.display()));
    Ok(Exit::Ok)
}
