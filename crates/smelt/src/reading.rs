//! Reads files of people, which have an end.

use std::fs;
use std::io::{self, Read as _};
use std::path::Path;

use smelt_store::is_disk_failing;

use crate::exit::{Exit, Failed};

/// The text of a file that `what` is in, if it has no more than `bytes_max`.
pub(crate) fn read_within(path: &Path, what: &str, bytes_max: u64) -> Result<String, Failed> {
    let fail = |exit: Exit, why: String| {
        Failed::new(exit, format!("cannot read {what} {}: {why}", path.display()))
    };
    let failed = |error: io::Error| match is_disk_failing(&error) {
        true => fail(Exit::StageFailed, error.to_string()),
        false => fail(Exit::BadPipeline, error.to_string()),
    };
    let file = fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    file.take(bytes_max + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > bytes_max {
        return Err(fail(Exit::BadPipeline, format!("it is larger than {bytes_max} bytes")));
    }
    Ok(text)
}
