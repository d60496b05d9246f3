//! Finds out what a model takes by its headers alone: in a directory, at a hub, or as a synthetic one has them.
//!
//! No weight is read and nothing is fetched but small files.  The sizes themselves are the libraries': what a build
//! writes and what is said of it here come of the same lists.

use std::path::{Path, PathBuf};

use smelt_cuda::kernels::page::{HeadShape, PAGE_TOKENS};
use smelt_deploy::photographs::FOUR_THIRDS;
use smelt_deploy::seeing::{self, Unseen};
use smelt_engine::llm::{KvType, kv_block};
use smelt_engine_build::graph::{self, Precision};
use smelt_engine_build::llm;
use smelt_fit::{
    DecoderOption, GpuWays, KvSize, ModelFacts, PhotographCost, TowerOption, building,
};
use smelt_hub::{Address, Commit, GgufFile, Hub, HubError};
use smelt_model::checkpoint::{CONFIG_FILE, Checkpoint};
use smelt_model::decoder::Decoder;
use smelt_model::dtype::Dtype;
use smelt_model::families::TowerInput;
use smelt_model::grid::Grid;
use smelt_model::model::{Encoder, Model, ModelPart, Vision};
use smelt_model::quantize::{self, Method, Options, Scheme};
use smelt_model::synthetic;
use smelt_runtime::image::{Cutting, ImageOptions, ImageProcessor};
use smelt_runtime::service;

use crate::draft::Shape;
use crate::exit::Failed;
use crate::gguf_headers::GgufHeaders;
use crate::hub;
use crate::load;
use crate::model_name::{ModelSource, nearest_names};

/// Configurations take a few KiB.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Sizes of pictures that a tower of any size is exported for, in patches that it merges: a square for what is
/// small, a larger one, and both ways up of a photograph.
const GRIDS: [[usize; 2]; 4] = [[8, 8], [16, 16], [12, 20], [20, 12]];
/// The most tiles that are weighed.
const TILES: [usize; 7] = [1, 2, 4, 6, 9, 12, 16];
/// The most where nobody says otherwise, of a mosaic of tiles, and of a picture whose edge becomes so many: the tiles
/// of the latter are a quarter of the tokens.
const TILES_USUAL: [usize; 2] = [6, 16];
/// Ways to keep a decoder that was not packed yet, the one to be preferred first: 8 bits cost next to nothing where that
/// was measured, and all that is coarser is for want of memory.
const SCHEMES: [(Scheme, Method); 4] = [
    (Scheme::Int8, Method::Rtn),
    (Scheme::Int4G128, Method::Best),
    (Scheme::Int4G32, Method::Rtn),
    (Scheme::None, Method::Rtn),
];

/// A model's headers.
pub(crate) struct Headers {
    pub(crate) checkpoint: Checkpoint,
    /// Bytes of its weights where it comes from.
    fetch_bytes: u64,
    /// Bytes of them that a hub would be asked for.
    pub(crate) missing_bytes: u64,
    files: Files,
}

/// Where a model's small files are.
enum Files {
    Directory(PathBuf),
    Hub(Box<(Hub, Address, Commit)>),
    Synthetic(&'static str),
}

impl Headers {
    /// Of the model that `source` names.
    ///
    /// # Errors
    /// Where its headers are not to be had, or it is of no family that is read.
    pub(crate) fn of(source: &ModelSource) -> Result<Self, Failed> {
        match source {
            ModelSource::Path(path) => Self::at(path),
            ModelSource::Synthetic(name) => Self::synthetic(name),
            ModelSource::Hub(address, _) => Self::of_hub(address),
            ModelSource::Package(choice) => Err(Failed::usage(format!(
                "{} is fetched by a program of its pipeline, and what it holds is known once it is here",
                choice.model.name
            ))),
        }
    }

    fn at(path: &Path) -> Result<Self, Failed> {
        let checkpoint = Checkpoint::open(path).map_err(Failed::model)?;
        let files = Files::Directory(checkpoint.dir().to_owned());
        Ok(Self { fetch_bytes: 0, missing_bytes: 0, files, checkpoint })
    }

    fn synthetic(name: &'static str) -> Result<Self, Failed> {
        let unknown = || Failed::usage(format!("no synthetic model is called \"{name}\""));
        let checkpoint = Checkpoint::described_synthetic(name).ok_or_else(unknown)?;
        let files = Files::Synthetic(name);
        Ok(Self { fetch_bytes: checkpoint.bytes(), missing_bytes: 0, checkpoint, files })
    }

    fn of_hub(address: &Address) -> Result<Self, Failed> {
        let failed = |error| hub::failed(&error);
        let hub = Hub::from_env().map_err(failed)?;
        let commit = hub.resolve(address).map_err(|error| absent(address, &error))?.commit;
        // What was fetched says more than its configuration.
        let view = hub.view(address, &commit);
        if view.is_dir()
            && let Ok(here) = Self::at(&view)
        {
            return Ok(Self { fetch_bytes: here.checkpoint.bytes(), ..here });
        }
        let is_away = |error: &HubError| {
            matches!(error, HubError::Offline { .. } | HubError::Unreachable { .. })
        };
        let others = match hub.gguf_files(address, &commit) {
            Ok(Some(files)) => return Self::of_gguf(hub, address, commit, &files),
            Err(error) if address.file.is_some() || !is_away(&error) => return Err(failed(error)),
            others => others,
        };
        // The cache may have it where nobody can be asked for a list.
        let config = hub.small_file(&address.repo, &commit, CONFIG_FILE).map_err(failed)?;
        let Some(config) = config else {
            let (repo, commit) = (address.repo.to_string(), commit.to_string());
            let none = || HubError::NoCheckpoint { repo, commit };
            return Err(failed(others.err().unwrap_or_else(none)));
        };
        let stored = hub.weights_bytes(address, &commit).ok().flatten();
        let path = Path::new(address.repo.as_str()).join(CONFIG_FILE);
        let described = Checkpoint::described(&config, &path, stored);
        let checkpoint = described.map_err(Failed::model)?;
        let fetch_bytes = stored.unwrap_or_else(|| checkpoint.bytes());
        Ok(Self::at_hub(hub, address, commit, checkpoint, fetch_bytes))
    }

    /// Of a GGUF file of a hub, in its parts, by their headers.
    fn of_gguf(
        hub: Hub,
        address: &Address,
        commit: Commit,
        files: &[GgufFile],
    ) -> Result<Self, Failed> {
        let headers = GgufHeaders::fetch(&hub, &address.repo, &commit, files)?;
        let opened = Checkpoint::open(headers.first()).map_err(Failed::model);
        let name = format!("hf:{address}");
        let checkpoint = opened.map_err(|why| why.renamed(headers.first().display(), name))?;
        let fetch_bytes = files.iter().map(|file| file.bytes).sum();
        Ok(Self::at_hub(hub, address, commit, checkpoint, fetch_bytes))
    }

    /// Of a checkpoint whose weights, so many bytes, are at a hub.
    fn at_hub(
        hub: Hub,
        address: &Address,
        commit: Commit,
        checkpoint: Checkpoint,
        fetch_bytes: u64,
    ) -> Self {
        let missing_bytes = hub.missing_bytes(address, &commit).ok().flatten();
        let missing_bytes = missing_bytes.unwrap_or(fetch_bytes);
        let files = Files::Hub(Box::new((hub, address.clone(), commit)));
        Self { checkpoint, fetch_bytes, missing_bytes, files }
    }

    /// A small file of it.
    fn file(&self, name: &str) -> Result<Option<String>, String> {
        match &self.files {
            Files::Synthetic(model) => Ok(synthetic::configuration(model, name)),
            Files::Directory(dir) => {
                let path = dir.join(name);
                let read = || load::read_within(&path, "the checkpoint", FILE_BYTES_MAX);
                path.exists().then(read).transpose().map_err(|failed| failed.to_string())
            }
            Files::Hub(at) => {
                let (hub, address, commit) = &**at;
                let file = hub.small_file(&address.repo, commit, name);
                file.map_err(|error| error.to_string())
            }
        }
    }

    /// What it takes in every way to build it.
    ///
    /// Beside the usual schemes of its decoder there is the one that somebody `wants`.
    ///
    /// # Errors
    /// Where it lacks a part, or is read by nothing here, or its weights are packed already in another way.
    pub(crate) fn facts(&self, name: &str, wants: Option<Scheme>) -> Result<ModelFacts, Failed> {
        let model = self.checkpoint.model();
        if let Some(encoder) = &model.encoder {
            return self.of_encoder(name, encoder);
        }
        let llm = self.checkpoint.decoder().map_err(Failed::model)?;
        let vision = model.vision.as_ref().filter(|_| self.checkpoint.has(ModelPart::Vision));
        let towers = vision.map_or_else(Vec::new, |vision| towers(model, vision));
        let [decoders, decoders_on_gpu] = self.decoders(name, wants)?;
        let on_gpu = HeadShape::check(llm.head_dim).map(|()| GpuWays {
            decoders: decoders_on_gpu,
            towers: vision.map(|vision| tower_on_gpu(model, vision)).into_iter().collect(),
            kv: kv_on_gpu(llm),
        });
        Ok(ModelFacts {
            name: name.to_owned(),
            family: llm.family.name.to_owned(),
            fetch_bytes: self.fetch_bytes,
            positions: llm.max_positions,
            decoders,
            towers,
            kv: kv(llm),
            tiles_usual: vision.map_or(0, tiles_usual),
            photographs: vision.map_or(Ok(Vec::new()), |vision| self.photographs(vision))?,
            pictures_bytes: service::Options::default().picture_bytes(),
            on_gpu,
        })
    }

    fn of_encoder(&self, name: &str, encoder: &Encoder) -> Result<ModelFacts, Failed> {
        let model = self.checkpoint.model();
        if matches!(encoder, Encoder::ClipText(_)) {
            return Err(Failed::model(format!(
                "{name} is a CLIP, which routes the tiles of another model and answers nothing itself"
            )));
        }
        let parts = [ModelPart::Encoder, ModelPart::Classifier];
        let tensors =
            model.tensors(if encoder.labels().is_some() { &parts[..] } else { &parts[..1] });
        let towers = vec![tower(&tensors, 0, (Dtype::F32, "f32", Precision::F32))];
        Ok(ModelFacts {
            name: name.to_owned(),
            family: model.family.to_owned(),
            fetch_bytes: self.fetch_bytes,
            positions: 0,
            on_gpu: Ok(GpuWays { decoders: Vec::new(), towers: towers.clone(), kv: Vec::new() }),
            decoders: Vec::new(),
            towers,
            kv: Vec::new(),
            tiles_usual: 0,
            photographs: Vec::new(),
            pictures_bytes: 0,
        })
    }

    /// The ways to keep its decoder, on processors and on GPUs: as it is where somebody packed it, else every scheme.
    fn decoders(
        &self,
        name: &str,
        wants: Option<Scheme>,
    ) -> Result<[Vec<DecoderOption>; 2], Failed> {
        let checkpoint = &self.checkpoint;
        if checkpoint.is_packed() {
            let words = checkpoint.scheme_words();
            if wants.is_some_and(|wants| wants.name() != words) {
                return Err(Failed::usage(format!(
                    "the weights of {name} are packed already, as {words}; leave out --precision, or name the checkpoint that they were made of"
                )));
            }
            let sizes = sizes(checkpoint)?;
            return Ok(sizes.map(|size| vec![decoder(size, words.clone(), None)]));
        }
        let is_usual = |wants: &Scheme| SCHEMES.iter().any(|(scheme, _)| scheme == wants);
        let more = wants.filter(|wants| !is_usual(wants)).map(|wants| (wants, Method::Rtn));
        let mut all = [Vec::new(), Vec::new()];
        for (scheme, method) in SCHEMES.into_iter().chain(more) {
            let [own, on_gpu] = self.decoder(scheme, method)?;
            all[0].push(own);
            all[1].push(on_gpu);
        }
        Ok(all)
    }

    fn decoder(&self, scheme: Scheme, method: Method) -> Result<[DecoderOption; 2], Failed> {
        let checkpoint = &self.checkpoint;
        if scheme == Scheme::None {
            let sizes = sizes(checkpoint)?;
            return Ok(sizes.map(|size| decoder(size, scheme.name().to_owned(), None)));
        }
        let options = Options { method, ..Options::plain(scheme) };
        let quantized = quantize::described(checkpoint, &options).map_err(Failed::model)?;
        let building_bytes = match method.needs_calibration() {
            true => building::learning(checkpoint.bytes()),
            false => building::STREAMING_BYTES,
        };
        let checkpoint_bytes = quantized.bytes();
        let made = |size| decoder(size, scheme.name().to_owned(), Some(method.name()));
        let made = sizes(&quantized)?.map(made);
        Ok(made.map(|made| DecoderOption { checkpoint_bytes, building_bytes, ..made }))
    }

    /// What a photograph costs, cut into few tiles and into many.
    fn photographs(&self, vision: &Vision) -> Result<Vec<PhotographCost>, Failed> {
        let model = self.checkpoint.model();
        let grids = grids(vision).unwrap_or_default();
        let merge = vision.patching().merge;
        let seen = |tiles: Option<usize>| -> Result<Option<PhotographCost>, Failed> {
            let read = |file: &str| self.file(file);
            let found = seeing::image_processor(model, (model, &grids), tiles, &read);
            let found = found.map_err(|unseen| match unseen {
                Unseen::NotKnown(why) | Unseen::Refused(why) => Failed::model(why),
            })?;
            Ok(found.map(|processor| {
                let tokens = cost(&processor, tiles);
                let tiles = tiles.filter(|_| !matches!(processor.cutting, Cutting::Patches(_)));
                PhotographCost { tiles, tokens, patches: tokens * merge * merge }
            }))
        };
        let counts: Vec<Option<usize>> = match vision.tile() {
            Some(_) => TILES.into_iter().map(Some).collect(),
            None => vec![None],
        };
        let costs: Result<Vec<_>, Failed> = counts.into_iter().map(seen).collect();
        let mut costs: Vec<PhotographCost> = costs?.into_iter().flatten().collect();
        // Other numbers of tiles may cut it in the same way.  Where the number follows from a picture's size the largest
        // stands for them: pictures of other shapes take that many.
        if is_split(vision) {
            costs.reverse();
        }
        costs.dedup_by_key(|cost| cost.tokens);
        costs.sort_by_key(|cost| cost.tiles);
        Ok(costs)
    }
}

/// A hub's error about an address, with names near to it that exist.
fn absent(address: &Address, error: &HubError) -> Failed {
    let failed = hub::failed(error);
    let is_name = matches!(error, HubError::NoRepo { .. } | HubError::NotAllowed { .. });
    let near = nearest_names(address.repo.as_str(), &[]);
    match is_name && !near.is_empty() {
        true => Failed::new(failed.exit, format!("{failed}; there is {}", near.join(", "))),
        false => failed,
    }
}

/// What can be made of a checkpoint.
pub(crate) fn shape(checkpoint: &Checkpoint) -> Shape {
    let Model { vision, encoder, .. } = checkpoint.model();
    match (encoder, vision) {
        (Some(encoder), _) if encoder.labels().is_some() => Shape::Scores,
        (Some(_), _) => Shape::Embeds,
        (None, Some(vision)) if checkpoint.has(ModelPart::Vision) => Shape::Sees(grids(vision)),
        (None, _) => Shape::Speaks,
    }
}

/// The sizes of pictures that a tower is exported for where it takes any; nothing of one that takes its own.
pub(crate) fn grids(vision: &Vision) -> Option<Vec<Grid>> {
    let takes_any = matches!(vision.input()?, TowerInput::Patches { .. });
    let patching = vision.patching();
    let step = patching.patch * patching.merge;
    let grid = |[rows, columns]: [usize; 2]| Grid { height: rows * step, width: columns * step };
    takes_any.then(|| GRIDS.map(grid).to_vec())
}

fn tiles_usual(vision: &Vision) -> usize {
    let [mosaic, split] = TILES_USUAL;
    if is_split(vision) { split } else { mosaic }
}

/// Whether a picture is cut into as many tiles as its edge holds, and not into the mosaic nearest to its shape.
fn is_split(vision: &Vision) -> bool {
    matches!(vision.input(), Some(TowerInput::Tile { .. }))
}

fn cost(processor: &ImageProcessor, tiles: Option<usize>) -> usize {
    let options = ImageOptions { tiles_max: tiles, ..ImageOptions::default() };
    processor.cost(FOUR_THIRDS, &options).unwrap_or_default()
}

fn decoder(size: llm::LlmSize, scheme: String, method: Option<&'static str>) -> DecoderOption {
    let is_integer = scheme != Scheme::None.name();
    DecoderOption {
        scheme,
        method,
        weights_bytes: size.weights_bytes,
        step_bytes: size.step_bytes,
        prompt_products: size.prompt_products,
        is_integer,
        layers: size.layers,
        attention_products: size.attention_products,
        kv_heads: size.kv_heads,
        checkpoint_bytes: 0,
        building_bytes: building::STREAMING_BYTES,
    }
}

/// What engines of a decoder take, for processors and for GPUs.
fn sizes(checkpoint: &Checkpoint) -> Result<[llm::LlmSize; 2], Failed> {
    let own = llm::size(checkpoint).map_err(Failed::model)?;
    Ok([own, llm::size_for_card(checkpoint).map_err(Failed::model)?])
}

/// What executing a tower holds.
fn working_bytes(vision: &Vision) -> u64 {
    vision.working_bytes(&grids(vision).unwrap_or_default()).unwrap_or_default()
}

/// A tower on a GPU, which keeps halves.
fn tower_on_gpu(model: &Model, vision: &Vision) -> TowerOption {
    let tensors = model.tensors(&[ModelPart::Vision]);
    tower(&tensors, working_bytes(vision), (Dtype::F16, "f16", Precision::F32))
}

fn towers(model: &Model, vision: &Vision) -> Vec<TowerOption> {
    let tensors = model.tensors(&[ModelPart::Vision]);
    let working = working_bytes(vision);
    [("int8", Precision::Int8), ("f32", Precision::F32)]
        .map(|(word, precision)| tower(&tensors, working, (Dtype::F16, word, precision)))
        .to_vec()
}

/// A tower of `tensors`, exported in floats of a type, in a precision by its word.
fn tower(
    tensors: &[(String, Vec<usize>)],
    working_bytes: u64,
    (dtype, word, precision): (Dtype, &'static str, Precision),
) -> TowerOption {
    let numbers = |shape: &[usize]| shape.iter().product::<usize>() as u64;
    let all: u64 = tensors.iter().map(|(_, shape)| numbers(shape)).sum();
    let products = tensors.iter().filter(|(_, shape)| shape.len() > 1);
    TowerOption {
        precision: word,
        weights_bytes: graph::tower_bytes(tensors, dtype, precision),
        working_bytes,
        patch_products: products.map(|(_, shape)| numbers(shape)).sum(),
        graph_bytes: all * dtype.size_bytes() as u64,
    }
}

fn kv(llm: &Decoder) -> Vec<KvSize> {
    let size = |kind: KvType| {
        let block = kv_block(llm.layers, llm.kv_heads, llm.head_dim, kind);
        let (block_tokens, block_bytes) = (block.block_tokens, block.block_bytes);
        KvSize { kind: kind.word(), block_tokens, block_bytes }
    };
    [KvType::F16, KvType::Int8, KvType::F32].map(size).to_vec()
}

/// The forms that engines for GPUs have.
fn kv_on_gpu(llm: &Decoder) -> Vec<KvSize> {
    let size = |kind: KvType| {
        let block_bytes =
            HeadShape { dim: llm.head_dim, kind }.page_bytes(llm.layers, llm.kv_heads);
        KvSize { kind: kind.word(), block_tokens: PAGE_TOKENS, block_bytes }
    };
    [KvType::F16, KvType::Int8].map(size).to_vec()
}

#[cfg(test)]
mod tests {
    use smelt_fit::{DeviceProfile, Gpu, Wanted, table};

    use super::*;

    fn facts(name: &'static str) -> ModelFacts {
        Headers::of(&ModelSource::Synthetic(name)).unwrap().facts(name, None).unwrap()
    }

    /// The decoder's and the tower's engine in int8, in MiB.
    fn engines(name: &'static str) -> [u64; 2] {
        let facts = facts(name);
        [facts.decoders[0].weights_bytes >> 20, facts.towers[0].weights_bytes >> 20]
    }

    /// What directories of engines of these models were measured to take, in MiB, as their pipelines say: to a hundredth,
    /// since beside weights they hold a file of words.
    #[test]
    fn models_of_true_size_take_what_their_builds_were_measured_to_write() {
        let check = |said: u64, measured: u64| {
            assert!(said.abs_diff(measured) <= measured / 100, "{said}, measured {measured}");
        };
        let [decoder, tower] = engines("internvl3-1b");
        check(decoder, 733);
        check(tower, 297);
        check(engines("qwen2_5_vl-3b")[1], 644);
        let calibrated = |name| facts(name).decoders[1].weights_bytes as f64 / f64::from(1 << 30);
        assert!((calibrated("internvl3-2b") - 1.3).abs() < 0.05);
        assert!((calibrated("qwen2_5_vl-3b") - 2.2).abs() < 0.05);
    }

    /// Figures of Qwen3-1.7B's size on an H200 (`docs/figures`): int4 and halves, in steps of a token and in a prompt.
    #[test]
    fn a_gpu_is_estimated_to_do_about_what_it_did() {
        let facts = facts("qwen3_vl-2b");
        let gpu = Gpu::of_card("NVIDIA H200", 90);
        let gpu = Some(Gpu { target: Some("cuda-sm90".to_owned()), ..gpu });
        let device = DeviceProfile { gpu, ..DeviceProfile::named("128GB").unwrap() };
        let tokens = |scheme: &str| {
            let wanted = Wanted { scheme: Some(scheme.to_owned()), ..Wanted::default() };
            let table = table(&facts, &device, &wanted, &[]);
            table.lines[0].speed.unwrap().tokens_per_s.unwrap()
        };
        for (scheme, found) in [("int4-g128", 985.0), ("none", 660.0)] {
            let said = tokens(scheme);
            assert!((said / found - 1.0_f64).abs() < 0.15, "{scheme}: {said}, found {found}");
        }
    }

    #[test]
    fn photographs_cost_what_plans_say() {
        let costs = |name| -> Vec<(Option<usize>, usize)> {
            facts(name).photographs.iter().map(|cost| (cost.tiles, cost.tokens)).collect()
        };
        let internvl3 = costs("internvl3-1b");
        assert!(internvl3.contains(&(Some(6), 7 * 256)), "{internvl3:?}");
        assert!(internvl3.contains(&(Some(12), 13 * 256)), "{internvl3:?}");
        assert_eq!(costs("qwen2_5_vl-3b"), [(None, 240)]);
    }

    #[test]
    fn all_families_have_a_line_that_a_small_board_holds() {
        let device = DeviceProfile::named("orin-nano-8gb").unwrap();
        for name in synthetic::names() {
            let table = table(&facts(name), &device, &Wanted::default(), &[]);
            assert!(table.is_advised, "{name}: {}", table.why);
        }
    }
}
