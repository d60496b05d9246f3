//! Reads golden vectors that other libraries computed: `CASE/in/INPUT` and `CASE/out/OUTPUT`.
//!
//! Serves tests only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use smelt_onnx::ElementType;
use smelt_onnx::eval::Tensor;

use crate::checkpoint::Checkpoint;
use crate::dtype::Dtype;
use crate::safetensors::Reader;

/// The text-only checkpoints.
pub(crate) const TEXT: [&str; 10] = [
    "qwen2-tiny",
    "qwen2_5-tiny",
    "qwen3-tiny",
    "qwen3-tied-tiny",
    "llama3-tiny",
    "llama3-tied-tiny",
    "qwen3-yarn-tiny",
    "qwen2-yarn-tiny",
    "llama-linear-tiny",
    "llama-dynamic-tiny",
];

/// A folder of golden vectors with their checkpoint.
pub(crate) struct Golden {
    dir: PathBuf,
    file: Reader,
}

/// Tensors by the names a graph has for them.
pub(crate) type Tensors = BTreeMap<String, Tensor>;

impl Golden {
    /// The folder `name` of `tests/data/golden`.
    pub(crate) fn open(name: &str) -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden");
        let dir = root.join(name);
        let file = Reader::open(&dir.join("cases.safetensors")).unwrap();
        Self { dir, file }
    }

    pub(crate) fn checkpoint(&self) -> Checkpoint {
        Checkpoint::open(&self.dir.join("checkpoint")).unwrap()
    }

    pub(crate) fn copy_checkpoint(&self, to: &Path) {
        for entry in std::fs::read_dir(self.dir.join("checkpoint")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }

    /// The names of the cases.
    pub(crate) fn cases(&self) -> BTreeSet<String> {
        let name = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        self.file.tensors().map(|tensor| name(&tensor.name)).collect()
    }

    /// What a case gives (`in`) or expects (`out`).
    pub(crate) fn tensors(&self, case: &str, side: &str) -> Tensors {
        let prefix = format!("{case}/{side}/");
        let found = self.file.tensors().filter_map(|tensor| {
            let name = tensor.name.strip_prefix(&prefix)?;
            Some((name.to_owned(), self.tensor(&tensor.name)))
        });
        found.collect()
    }

    fn tensor(&self, name: &str) -> Tensor {
        let tensor = self.file.get(name).unwrap();
        let mut bytes = vec![0; tensor.elements() * tensor.dtype.size_bytes()];
        self.file.read_at(tensor, 0, &mut bytes).unwrap();
        let dtype = match tensor.dtype {
            Dtype::F32 => ElementType::F32,
            Dtype::I64 => ElementType::I64,
            other => panic!("{name} is {other}"),
        };
        Tensor::from_bytes(dtype, &tensor.shape, &bytes).unwrap()
    }

    /// The image token and the tokens of the first prompt of `prompts.json`, that of case `llm`.
    pub(crate) fn prompt(&self) -> (u32, Vec<u32>) {
        #[derive(serde::Deserialize)]
        struct Prompts {
            image_token: u32,
            prompts: Vec<Prompt>,
        }
        #[derive(serde::Deserialize)]
        struct Prompt {
            ids: Vec<u32>,
        }
        let text = std::fs::read_to_string(self.dir.join("prompts.json")).unwrap();
        let mut all: Prompts = serde_json::from_str(&text).unwrap();
        (all.image_token, all.prompts.swap_remove(0).ids)
    }

    /// The first sequence, prompt and step together: tokens, and logits at every position.
    pub(crate) fn first_sequence(&self) -> (Vec<u32>, Vec<f32>) {
        let (mut ids, mut logits) = (Vec::new(), Vec::new());
        for case in ["llm", "llm-step"] {
            let (given, expected) = (self.tensors(case, "in"), self.tensors(case, "out"));
            let of_first = |tensor: &Tensor| tensor.elements() / tensor.dims()[0];
            let tokens = &given["input_ids"];
            let row = &tokens.as_ints().unwrap()[..of_first(tokens)];
            ids.extend(row.iter().map(|id| u32::try_from(*id).unwrap()));
            let all = &expected["logits"];
            let row = &all.as_floats().unwrap()[..of_first(all)];
            logits.extend(row.iter().map(|logit| *logit as f32));
        }
        (ids, logits)
    }
}

/// Demands that no value of `found` is off by more than `bound` times the largest expected.
#[track_caller]
pub(crate) fn check_close(what: &str, found: &[f64], expect: &[f64], bound: f64) {
    assert_eq!(found.len(), expect.len(), "{what}");
    let scale = expect.iter().fold(0.0, |scale: f64, x| scale.max(x.abs()));
    let pairs = found.iter().zip(expect);
    let error = pairs.fold(0.0, |error: f64, (f, e)| error.max((f - e).abs()));
    assert!(error <= bound * scale, "{what} is off by {:e} of scale", error / scale);
}
