//! Checks that a file is whole by its own header: a file that merely stopped growing is not complete.
//!
//! Each form is looked at as far as it says how long it is, in bounded memory: GGUF as its
//! specification has it (github.com/ggml-org/ggml, docs/gguf.md), ONNX as a protobuf message, plans of TensorRT by
//! their beginning, and safetensors by the ends of its tensors.  What the content is worth, these do not say.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;
use smelt_plan::validity::{FileFormat, Validity};
use std::collections::HashMap;

/// A header of more entries, tensors or bytes is none.
const ENTRIES_MAX: u64 = 1 << 20;
const HEADER_BYTES_MAX: u64 = 16 << 20;
const DIMENSIONS_MAX: u32 = 8;

/// Why the file is not what it must be, if so.
pub fn fault(path: &Path, validity: &Validity) -> Option<String> {
    match check(path, validity) {
        Ok(()) => None,
        // What ends before it says it would is a short read.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Some("it ends before its own header says that it would".to_owned())
        }
        Err(error) => Some(error.to_string()),
    }
}

fn check(path: &Path, validity: &Validity) -> io::Result<()> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length < validity.bytes_min {
        let min = validity.bytes_min;
        return Err(wrong(format!("it has {length} bytes, and must have {min} at least")));
    }
    let mut file = BufReader::new(file);
    match validity.form {
        FileFormat::Any | FileFormat::MayBeEmpty => Ok(()),
        FileFormat::Gguf => gguf(&mut file, length),
        FileFormat::Onnx => onnx(&mut file, length),
        FileFormat::Plan => plan(&mut file, length),
        FileFormat::Safetensors => safetensors(&mut file, length),
    }
}

fn wrong(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

fn u32_of(file: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    file.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn u64_of(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Steps over bytes that must be there.
fn skip(file: &mut (impl Read + Seek), bytes: u64, length: u64) -> io::Result<()> {
    let end = file.stream_position()?.checked_add(bytes).filter(|&end| end <= length);
    let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
    file.seek(SeekFrom::Start(end)).map(drop)
}

/// Every tensor must begin, and the last have something, before the file ends.
fn gguf(file: &mut (impl Read + Seek), length: u64) -> io::Result<()> {
    let mut magic = [0; 4];
    file.read_exact(&mut magic)?;
    let version = u32_of(file)?;
    if magic != *b"GGUF" || !(2..=3).contains(&version) {
        return Err(wrong("it does not begin as GGUF of version 2 or 3 does"));
    }
    let (tensors, entries) = (u64_of(file)?, u64_of(file)?);
    if tensors == 0 || tensors > ENTRIES_MAX || entries > ENTRIES_MAX {
        return Err(wrong(format!("its header says {tensors} tensors and {entries} entries")));
    }
    for _ in 0..entries {
        skip_text(file, length)?;
        let kind = u32_of(file)?;
        skip_value(file, kind, length)?;
    }
    let mut last = 0;
    for _ in 0..tensors {
        skip_text(file, length)?;
        let dimensions = u32_of(file)?;
        if dimensions > DIMENSIONS_MAX {
            return Err(wrong(format!("a tensor of {dimensions} dimensions")));
        }
        skip(file, u64::from(dimensions) * 8 + 4, length)?;
        last = last.max(u64_of(file)?);
    }
    let end = file.stream_position()?.checked_add(last).ok_or(io::ErrorKind::UnexpectedEof)?;
    if end >= length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

fn skip_text(file: &mut (impl Read + Seek), length: u64) -> io::Result<()> {
    let bytes = u64_of(file)?;
    skip(file, bytes, length)
}

/// Values by their number: u8, i8, u16, i16, u32, i32, f32, bool, text, array, u64, i64, f64.
fn skip_value(file: &mut (impl Read + Seek), kind: u32, length: u64) -> io::Result<()> {
    const SIZES: [u64; 13] = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
    let size = *SIZES.get(kind as usize).ok_or_else(|| wrong(format!("a value of type {kind}")))?;
    match kind {
        8 => skip_text(file, length),
        9 => {
            let (kind, count) = (u32_of(file)?, u64_of(file)?);
            match kind {
                8 if count <= ENTRIES_MAX => (0..count).try_for_each(|_| skip_text(file, length)),
                8 => Err(wrong(format!("a list of {count} texts"))),
                9 => Err(wrong("a list of lists")),
                _ => {
                    let size = SIZES.get(kind as usize).copied();
                    let bytes = size.and_then(|size| size.checked_mul(count));
                    skip(
                        file,
                        bytes.ok_or_else(|| wrong(format!("a list of type {kind}")))?,
                        length,
                    )
                }
            }
        }
        _ => skip(file, size, length),
    }
}

/// The message's fields must fill the file, and one of them is a graph (field 7 of `ModelProto`).
fn onnx(file: &mut (impl Read + Seek), length: u64) -> io::Result<()> {
    const GRAPH: u64 = 7;
    let mut has_graph = false;
    for _ in 0..ENTRIES_MAX {
        if file.stream_position()? == length {
            return if has_graph {
                Ok(())
            } else {
                Err(wrong("it is no ONNX model: it has no graph"))
            };
        }
        let tag = varint(file)?;
        match tag & 7 {
            0 => drop(varint(file)?),
            1 => skip(file, 8, length)?,
            2 => {
                let bytes = varint(file)?;
                skip(file, bytes, length)?;
                has_graph |= tag >> 3 == GRAPH && bytes > 0;
            }
            5 => skip(file, 4, length)?,
            other => {
                return Err(wrong(format!("it is no ONNX model: a field of wire type {other}")));
            }
        }
    }
    Err(wrong("it is no ONNX model: it has too many fields"))
}

fn varint(file: &mut impl Read) -> io::Result<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let mut byte = [0];
        file.read_exact(&mut byte)?;
        value |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] < 0x80 {
            return Ok(value);
        }
    }
    Err(wrong("it is no ONNX model: a number of more than 64 bits"))
}

/// A plan of TensorRT for RTX says how long it is, and which version made it (looked at in plans of 1.7.1: `vtrt`, the
/// form's version 2, the length, the library's version).  One of TensorRT itself does not; of it the beginning alone is
/// known, so that one that was cut later is not noticed.
fn plan(file: &mut impl Read, length: u64) -> io::Result<()> {
    let mut magic = [0; 4];
    file.read_exact(&mut magic)?;
    let (kind, rest) = (u32_of(file)?, u64_of(file)?);
    match &magic {
        b"ptrt" => Ok(()),
        b"vtrt" if (kind, rest) == (0, 2) => match u64_of(file)? {
            said if said == length => Ok(()),
            said if said < length => Err(wrong("it goes on beyond the end that its header says")),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        },
        b"vtrt" => Err(wrong(format!("its form {rest} of a TensorRT plan is not known here"))),
        _ => Err(wrong("it does not begin as a plan of TensorRT does")),
    }
}

/// The file must end where its last tensor does.
fn safetensors(file: &mut impl Read, length: u64) -> io::Result<()> {
    #[derive(Deserialize)]
    struct Tensor {
        data_offsets: Option<(u64, u64)>,
        #[serde(flatten)]
        _rest: HashMap<String, IgnoredAny>,
    }
    let header = u64_of(file)?;
    if header > HEADER_BYTES_MAX {
        return Err(wrong(format!("its header says that it has {header} bytes")));
    }
    if header > length - 8 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let parsed: Result<HashMap<String, Tensor>, _> = serde_json::from_reader(file.take(header));
    let tensors = parsed.map_err(|_| wrong("its header is no list of tensors"))?;
    let ends = tensors.values().filter_map(|tensor| Some(tensor.data_offsets?.1));
    let end = ends.max().ok_or_else(|| wrong("it holds no tensor"))?;
    match (8 + header).checked_add(end) {
        Some(end) if end == length => Ok(()),
        Some(end) if end < length => Err(wrong("it goes on beyond its last tensor")),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn said(bytes: &[u8], form: FileFormat, bytes_min: u64) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("o"), bytes).unwrap();
        fault(&dir.path().join("o"), &Validity { form, bytes_min })
    }

    /// A file of each form, the bytes of its last tensor's or field's content last.
    fn wholes() -> Vec<(FileFormat, Vec<u8>, usize)> {
        let mut gguf = b"GGUF".to_vec();
        gguf.extend(3_u32.to_le_bytes());
        let text = |bytes: &mut Vec<u8>, text: &str| {
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        [1_u64, 3].iter().for_each(|count| gguf.extend(count.to_le_bytes()));
        text(&mut gguf, "general.name");
        gguf.extend(8_u32.to_le_bytes());
        text(&mut gguf, "m");
        text(&mut gguf, "tokens");
        [9_u32, 8].iter().for_each(|word| gguf.extend(word.to_le_bytes()));
        gguf.extend(2_u64.to_le_bytes());
        ["a", "b"].iter().for_each(|token| text(&mut gguf, token));
        text(&mut gguf, "scores");
        [9_u32, 6].iter().for_each(|word| gguf.extend(word.to_le_bytes()));
        gguf.extend(2_u64.to_le_bytes());
        gguf.extend([0; 8]);
        text(&mut gguf, "w");
        gguf.extend(1_u32.to_le_bytes());
        gguf.extend(4_u64.to_le_bytes());
        gguf.extend(0_u32.to_le_bytes());
        gguf.extend(0_u64.to_le_bytes());
        let onnx = [&[0x08, 8, 0x3a, 5][..], b"graph"].concat();
        let mut plan = [&b"vtrt\0\0\0\0"[..], &2_u64.to_le_bytes(), &40_u64.to_le_bytes()].concat();
        plan.extend([7; 16]);
        let header =
            br#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"a":"b"}}"#;
        let mut safetensors = (header.len() as u64).to_le_bytes().to_vec();
        safetensors.extend(header);
        vec![
            (FileFormat::Gguf, [gguf, vec![7; 16]].concat(), 16),
            (FileFormat::Onnx, onnx, 1),
            (FileFormat::Plan, plan, 1),
            (FileFormat::Safetensors, [safetensors, vec![7; 8]].concat(), 1),
        ]
    }

    #[test]
    fn what_is_whole_is_kept() {
        for (form, bytes, _) in wholes() {
            assert_eq!(said(&bytes, form, 1), None, "{form:?}");
            let size = said(&bytes, form, 1 << 20).unwrap();
            assert!(size.contains("must have 1048576 at least"), "{size}");
            assert_eq!(said(&bytes, FileFormat::Any, bytes.len() as u64), None);
        }
    }

    /// Wherever a file stops growing, up to the last tensor, that is noticed.
    #[test]
    fn what_stopped_growing_is_not() {
        for (form, bytes, last) in wholes() {
            for length in 0..=bytes.len() - last {
                assert!(said(&bytes[..length], form, 0).is_some(), "{form:?} of {length} bytes");
            }
        }
    }

    #[test]
    fn plans_say_how_long_they_are_where_they_are_of_tensorrt_for_rtx() {
        let (_, plan, _) = wholes().remove(2);
        let check = |bytes: &[u8], why: &str| {
            let said = said(bytes, FileFormat::Plan, 1).unwrap();
            assert!(said.contains(why), "{said}");
        };
        check(&plan[..39], "ends before");
        check(&[&plan[..], &[0]].concat(), "goes on beyond");
        let mut later = plan.clone();
        later[8] = 3;
        check(&later, "form 3");
        check(b"ftrt0123456789abcdef", "does not begin");
        let of_tensorrt = [&b"ptrt"[..], &[1; 28]].concat();
        assert_eq!(said(&of_tensorrt, FileFormat::Plan, 1), None);
        check(&of_tensorrt[..15], "ends before");
    }

    #[test]
    fn what_is_something_else_is_not() {
        for (form, ..) in wholes() {
            for (other, bytes, _) in wholes() {
                assert_eq!(said(&bytes, form, 1).is_none(), form == other, "{form:?} {other:?}");
            }
            for bytes in [&b"hello, this is a log and no model\n"[..], &[0; 4096], &[0xff; 4096]] {
                assert!(said(bytes, form, 1).is_some(), "{form:?}");
            }
        }
    }
}
