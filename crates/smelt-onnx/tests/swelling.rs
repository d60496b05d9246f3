//! Feeds the reader files that are small on disk and huge once decoded.

#![allow(clippy::unwrap_used, reason = "a test's failure is a panic")]

use std::fs;

use smelt_onnx::Model;

/// What reading any bad file may take, the whole process together.
const MEMORY_KIB_MAX: u64 = 300 << 10;
const FILE_BYTES: usize = 10 << 20;

fn peak_memory_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// A length-delimited field.
fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![number << 3 | 2];
    let mut length = payload.len();
    while length >= 0x80 {
        bytes.push(length as u8 | 0x80);
        length >>= 7;
    }
    bytes.push(length as u8);
    bytes.extend_from_slice(payload);
    bytes
}

/// `piece` again and again inside the fields `path`, outermost first, as a model file.
fn file(path: &[u8], piece: &[u8]) -> Vec<u8> {
    let mut bytes = piece.repeat(FILE_BYTES / piece.len());
    for number in path.iter().rev() {
        bytes = field(*number, &bytes);
    }
    [&[8, 8][..], &bytes].concat()
}

#[test]
fn files_that_swell_when_decoded_are_refused_in_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let (graph, node, attribute, tensor, value) = (7, 1, 5, 5, 11);
    let swelling: [(&str, &[u8], &[u8]); 11] = [
        ("nodes", &[graph], &[0x0A, 0]),
        ("attributes", &[graph, node], &[0x2A, 0]),
        ("texts of a node", &[graph, node], &[0x0A, 0]),
        ("integers", &[graph, node, attribute], &[0x40, 0]),
        ("packed integers", &[graph, node, attribute, 8], &[0]),
        ("texts of an attribute", &[graph, node, attribute], &[0x4A, 0]),
        ("nodes of a subgraph", &[graph, node, attribute, 6], &[0x0A, 0]),
        ("tensors", &[graph], &[0x2A, 0]),
        ("dimensions of a tensor", &[graph, tensor, 1], &[1]),
        ("dimensions of a value", &[graph, value, 2, 1, 2], &[0x0A, 0]),
        ("metadata", &[], &[0x72, 0]),
    ];
    for (what, path, piece) in swelling {
        let path = {
            let bytes = file(path, piece);
            let path = dir.path().join("model.onnx");
            fs::write(&path, bytes).unwrap();
            path
        };
        let error = Model::read(&path).unwrap_err().to_string();
        assert!(error.contains("the graph takes over 64 MiB"), "{what}: {error}");
        let peak = peak_memory_kib();
        assert!(peak < MEMORY_KIB_MAX, "{what}: {peak} KiB");
    }
}
