//! Pairs of versions: what changes in a checkpoint, a deployment or a graph that is made anew.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use smelt_random::Random;

use super::Bench;
use crate::root;

const GIB: u64 = 1 << 30;
/// Of a checkpoint that changes: 0.5 %.
const CHANGED_BYTES: u64 = GIB / 200;
/// Layers of a model of such a size.
const LAYERS: u64 = 24;
/// A weight of 16 bits of each 200 is 0.5 % of them.
const WEIGHT_BYTES: usize = 2;
/// The last bits of a bfloat16, by which training changes it: some per cent of its value.
const TRAINED_BITS: u8 = 0b11;
/// What the models of true size are of.
const MODEL: &str = "internvl3-1b";

/// Puts a graph's weights into a file that is called as those of other exporters: a name of as many letters.
const RENAMED: &str = "cp -r --no-preserve=mode old new && mv new/model.onnx.data new/model.onnx_data \
     && LC_ALL=C sed -i 's/model[.]onnx[.]data/model.onnx_data/g' new/model.onnx && smelt onnx check new";

/// A version beside the one before it.
pub(super) struct Case {
    /// The word for it on the command line.
    pub(super) name: &'static str,
    /// What changed, in the report.
    pub(super) what: &'static str,
    /// Whether so little has changed, and in so few places, that hardly anything need be moved.
    pub(super) is_small: bool,
    /// Makes the folders `old` and `new`.
    pub(super) make: fn(&Bench) -> Result<()>,
}

/// Every case.
pub(super) const CASES: &[Case] = &[
    Case {
        name: "tensor",
        what: "a checkpoint, 0.5 % changed in one tensor",
        is_small: true,
        make: |bench| checkpoint(bench, 1),
    },
    Case {
        name: "layers",
        what: "a checkpoint, 0.5 % changed in a tensor of each of 24 layers",
        is_small: true,
        make: |bench| checkpoint(bench, LAYERS),
    },
    Case {
        name: "weights",
        what: "a checkpoint, one weight of each 200 changed",
        is_small: false,
        make: scattered,
    },
    Case {
        name: "projector",
        what: "a deployment in int8, its projector tuned, 0.5 % of the weights",
        is_small: true,
        make: |bench| deployment(bench, "mlp1."),
    },
    Case {
        name: "head",
        what: "a deployment in int8, its head of words tuned, 14 % of the weights",
        is_small: false,
        make: |bench| deployment(bench, "lm_head."),
    },
    Case {
        name: "opset",
        what: "a decoder in ONNX f16, exported in operator set 20 instead of 17",
        is_small: true,
        make: |bench| exported(bench, "smelt onnx to-opset old 20 --out new"),
    },
    Case {
        name: "renamed",
        what: "the same decoder, its weights in a file of another name, as another exporter has it",
        is_small: true,
        make: |bench| exported(bench, RENAMED),
    },
];

/// A file that looks like noise, as weights do, and the same with other noise in so many places.
fn checkpoint(bench: &Bench, places: u64) -> Result<()> {
    noise(bench)?;
    let file = OpenOptions::new().write(true).open(bench.folder.join("new/model.safetensors"))?;
    let mut random = Random::new(places);
    for place in 0..places {
        // Tensors begin anywhere, and rarely where a block does.
        let at = (GIB / places * place + GIB / places / 3) / 64 * 64;
        let mut changed = vec![0; (CHANGED_BYTES / places) as usize];
        changed.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
        file.write_all_at(&changed, at)?;
    }
    Ok(())
}

fn noise(bench: &Bench) -> Result<()> {
    bench.does(&format!(
        "mkdir old new && openssl enc -aes-256-ctr -K 01 -iv 0 </dev/zero 2>/dev/null | head -c {GIB} >old/model.safetensors \
         && cp old/model.safetensors new"
    ))
}

/// The same with a little in every place.
fn scattered(bench: &Bench) -> Result<()> {
    noise(bench)?;
    let path = bench.folder.join("new/model.safetensors");
    changed(&path, (0, GIB), |piece| {
        piece.chunks_mut(200 * WEIGHT_BYTES).for_each(|some| some[0] ^= 1);
    })
}

/// What is deployed of two checkpoints that differ in what training changes of tensors of such names.
fn deployment(bench: &Bench, part: &str) -> Result<()> {
    let stage = format!("[stage.checkpoint]\nkind = \"source\"\nfrom = \"synthetic:{MODEL}\"\n");
    fs::write(bench.folder.join("c.toml"), format!("smelt = 1\nname = \"c\"\n{stage}"))?;
    let pipeline = root().join(format!("pipelines/{MODEL}-int8.toml"));
    let deployed = |version: &str| {
        let command = format!("'{}' --set model=path:$PWD/checkpoint", pipeline.display());
        bench.does(&format!(
            "smelt run {command} --only deployment && mkdir {version} && for s in vision-engine llm-engine deployment; do \
             cp -r --no-preserve=mode \"$(smelt out {command} $s)\" {version}/$s || exit 1; done && rm -rf cache"
        ))
    };
    bench.does("smelt run c.toml && cp -r --no-preserve=mode \"$(smelt out c.toml checkpoint)\" checkpoint")?;
    deployed("old")?;
    tune(&bench.folder.join("checkpoint/model.safetensors"), part)?;
    deployed("new")?;
    bench.does("rm -r checkpoint")
}

/// A graph with its weights, and what a line of a shell makes of it.
fn exported(bench: &Bench, again: &str) -> Result<()> {
    bench.does(&format!(
        "smelt export synthetic:{MODEL} --part llm --dtype f16 --out old && {again}"
    ))
}

/// Changes every weight of the tensors whose names hold `part` a little.
fn tune(file: &Path, part: &str) -> Result<()> {
    let (begin, header) = header(file)?;
    let tensors = header.as_object().context("a header of safetensors is an object")?;
    let mut random = Random::new(1);
    for (_, tensor) in tensors.iter().filter(|(name, _)| name.contains(part)) {
        let offset = |at: usize| tensor["data_offsets"][at].as_u64();
        let (from, to) = offset(0).zip(offset(1)).context("a tensor without a place")?;
        changed(file, (begin + from, begin + to), |piece| {
            let weights = piece.as_chunks_mut::<WEIGHT_BYTES>().0;
            weights.iter_mut().for_each(|[low, _]| *low ^= random.next_u64() as u8 & TRAINED_BITS);
        })?;
    }
    Ok(())
}

/// Where the tensors of a file of safetensors begin, and what its header says of them.
fn header(file: &Path) -> Result<(u64, Value)> {
    let open = File::open(file).with_context(|| file.display().to_string())?;
    let mut length = [0; 8];
    open.read_exact_at(&mut length, 0)?;
    let length = u64::from_le_bytes(length);
    let mut text = vec![0; usize::try_from(length)?];
    open.read_exact_at(&mut text, 8)?;
    Ok((8 + length, serde_json::from_slice(&text)?))
}

/// Changes a part of a file, piece by piece.
fn changed(file: &Path, (from, to): (u64, u64), mut change: impl FnMut(&mut [u8])) -> Result<()> {
    let open = OpenOptions::new().read(true).write(true).open(file)?;
    let mut piece = vec![0; 200 * WEIGHT_BYTES * 4096];
    let mut at = from;
    while at < to {
        let length = (to - at).min(piece.len() as u64) as usize;
        open.read_exact_at(&mut piece[..length], at)?;
        change(&mut piece[..length]);
        open.write_all_at(&piece[..length], at)?;
        at += length as u64;
    }
    Ok(())
}
