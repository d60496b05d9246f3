//! Holds surgery to its memory: a model of 3.4 GB is operated on in a few MiB.
//!
//! The weights are holes in a sparse file, so the test takes no disk.  It is alone in its
//! program, because the peak that the kernel reports is the whole process's.

#![allow(clippy::unwrap_used, reason = "a test's failure is a panic")]

mod world;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use smelt_onnx::surgery::{Consume, Parts, Rule, apply};
use smelt_onnx::{Data, Dim, ElementType, Initializer, Model};
use world::{World, symbol};

/// Most resident memory of the process; the frame of a test program is some MiB of it.
const RSS_BYTES_MAX: u64 = 40 << 20;

const HIDDEN: usize = 2048;
const WIDE: usize = 12_288;
const VOCAB: usize = 151_936;

/// A chain of 56 products and a head, 3.44 GB of f16 in a file of holes.
fn large_world(dir: &Path) -> Model {
    let mut world = World::new(dir);
    world.input("x", ElementType::F16, &[symbol("b"), Dim::Fixed(HIDDEN)]);
    let mut end = 0;
    let mut last = "x".to_owned();
    let shapes = std::iter::repeat_n([[WIDE, HIDDEN], [HIDDEN, WIDE]], 28).flatten();
    for (at, dims) in shapes.chain([[VOCAB, HIDDEN]]).enumerate() {
        let length = (dims[0] * dims[1] * 2) as u64;
        let data = Data::External { location: "model.onnx.data".into(), offset: end, length };
        end += length.next_multiple_of(4096);
        let name = format!("w{at}");
        let dtype = ElementType::F16;
        let tensor = Initializer { name: name.clone(), dtype, dims: dims.to_vec(), data };
        world.model.graph.initializers.push(tensor);
        let next = if dims[0] == VOCAB { "logits".to_owned() } else { format!("v{at}") };
        world.node("Gemm", &[&last, &name], &next, &[("transB", 1)]);
        last = next;
    }
    world.output("logits", ElementType::F16);
    fs::File::options()
        .write(true)
        .open(dir.join("model.onnx.data"))
        .unwrap()
        .set_len(end)
        .unwrap();
    assert!((3_430_000_000..3_450_000_000).contains(&end), "{end}");
    world.done(dir)
}

/// `VmHWM` of this process.
fn peak_rss_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_head_of_622_mb_is_split_in_a_few_mib() {
    let dir = tempfile::tempdir().unwrap();
    large_world(dir.path());
    let out = dir.path().join("out");
    let rule = Rule::SplitHead { output: None, parts: Parts::MaxBytes(200 << 20) };
    let report = apply(dir.path(), &rule, &out, Consume::Yes).unwrap();
    assert_eq!(report.nodes, [57, 57 - 1 + 3 + 1], "{report:?}");
    assert_eq!(report.bytes_written, 0, "rows are split where they lie");
    let data = fs::metadata(out.join("model.onnx.data")).unwrap();
    assert!(data.blocks() < 1000, "the holes are still holes: {} blocks", data.blocks());
    let peak = peak_rss_bytes();
    assert!(peak <= RSS_BYTES_MAX, "{peak} bytes were resident");
}
