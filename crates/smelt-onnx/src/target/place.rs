//! Rules of where a model's bytes lie, which all readers of ONNX share.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;

use super::{Findings, Subject, TargetRule};
use crate::external::{DataError, place};
use crate::model::Data;
use crate::survey::tensors;

pub(super) const RULES: [TargetRule; 3] = [
    TargetRule { name: "protobuf-size", judge: protobuf_size },
    TargetRule { name: "data-alignment", judge: data_alignment },
    TargetRule { name: "data-links", judge: data_links },
];

/// Weights in the model file are held whole by most readers, twice by some, and protobuf ends
/// at 2 GiB; past half of that a larger dtype no longer fits.
const EMBEDDED_BYTES_MAX: u64 = 1 << 30;

/// Offsets that are multiples of this are copied to devices without a detour.
const ALIGNMENT_BYTES: u64 = 64;

type Judged = Result<(), DataError>;

/// Byte ranges of every data file, and one tensor of each.
fn ranges(subject: &Subject<'_>) -> BTreeMap<String, Vec<(String, u64, u64)>> {
    let mut files: BTreeMap<String, Vec<(String, u64, u64)>> = BTreeMap::new();
    tensors(&subject.model.graph, &mut |tensor| {
        if let Data::External { location, offset, length } = &tensor.data {
            let range = (tensor.name.clone(), *offset, *length);
            files.entry(location.clone()).or_default().push(range);
        }
    });
    files
}

fn own_name<'s>(subject: &Subject<'s>) -> &'s str {
    subject.path.file_name().and_then(|name| name.to_str()).unwrap_or_default()
}

fn protobuf_size(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let files = ranges(subject);
    let embedded = files.get(own_name(subject)).into_iter().flatten();
    let bytes: u64 = embedded.map(|(_, _, length)| *length).fold(0, u64::saturating_add);
    if bytes > EMBEDDED_BYTES_MAX {
        let what = format!("{bytes} bytes of weights lie inside it, and protobuf ends at 2 GiB");
        found.warning("model file", what, "any surgery rule moves them out, such as dedupe");
    }
    Ok(())
}

fn data_alignment(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for (location, ranges) in ranges(subject) {
        let crooked =
            |(_, offset, _): &&(String, u64, u64)| !offset.is_multiple_of(ALIGNMENT_BYTES);
        let count = ranges.iter().filter(crooked).count();
        let Some((name, offset, _)) = ranges.iter().find(crooked) else { continue };
        if location != own_name(subject) {
            let what = format!("tensor {name:?} begins at byte {offset}, as do {count} in all");
            let remedy = format!("align data to {ALIGNMENT_BYTES} bytes; exporting again does");
            found.warning(format!("data file {location:?}"), what, &remedy);
        }
    }
    Ok(())
}

/// onnx and onnxruntime refuse data files that are links, or have several names: they could be
/// changed from elsewhere.
fn data_links(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for (location, ranges) in ranges(subject) {
        let name = ranges.first().map_or("", |(name, ..)| name);
        let path = place(subject.dir(), name, &location)?;
        let file = match fs::symlink_metadata(&path) {
            Ok(file) => file,
            Err(source) => return Err(DataError::Io { path, source }),
        };
        let what = match (file.is_symlink(), file.nlink()) {
            (true, _) => "it is a symbolic link, which ONNX tools refuse".to_owned(),
            (false, 1) => continue,
            (false, links) => format!("it has {links} names, which ONNX tools refuse"),
        };
        let remedy = "copy it: cp --reflink=auto, or any surgery rule";
        found.warning(format!("data file {location:?}"), what, remedy);
    }
    Ok(())
}
