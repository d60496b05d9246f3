//! Runs a graph over pictures, and writes between which numbers its values lay: for TensorRT's builder, and for rules that
//! quantise.

use std::fs;
use std::path::{Path, PathBuf};

use smelt_backend::{GraphInput, Tensor, grid};
use smelt_engine_build::graph::{Method, Observer};
use smelt_model::export::{GRIDS_FILE, GridList};
use smelt_onnx::located;
use smelt_plan::kind::calibrate::{PixelScale, RangeMethod};
use smelt_runtime::image::{Image, Patching, Scale, Size, resize};
use smelt_tensorrt::{CALIBRATION_FILE, CalibrationCache};

use crate::exit::{Exit, Failed};

/// Bytes of a pixel, and planes of what a graph reads.
const CHANNELS: usize = 3;
/// Pictures that a graph reads at once; more is no batch of these devices.
const BATCH_MAX: usize = 256;
/// Where the graph lies as an engine meanwhile.
const SCRATCH_DIR: &str = "observed";

/// A graph, and what it is run over.
pub(crate) struct AskedOfGraph<'a> {
    /// A file, or a directory with a `model.onnx`.
    pub(crate) model: &'a Path,
    pub(crate) pictures: Vec<PathBuf>,
    pub(crate) method: RangeMethod,
    pub(crate) pixels: PixelScale,
    /// Pixels on the sides that the graph leaves open.
    pub(crate) side: Option<usize>,
}

/// Runs the graph over the pictures and writes what was seen into `out`; `scratch` holds its weights meanwhile.
pub(crate) fn watch(
    asked: &AskedOfGraph<'_>,
    scratch: &Path,
    out: &Path,
    progress: &mut dyn FnMut(&str),
) -> Result<(), Failed> {
    let scratch = scratch.join(SCRATCH_DIR);
    let mut observer = Observer::open(asked.model, &scratch, progress).map_err(Failed::model)?;
    let beside = located(asked.model).1;
    let list = beside.join(GRIDS_FILE).exists().then(|| GridList::read(&beside)).transpose();
    let list = list.map_err(Failed::model)?;
    let shape = Shape::of(observer.inputs(), asked.side, list.as_ref())
        .map_err(|why| Failed::model(format!("{}: {why}", asked.model.display())))?;
    progress(&format!(
        "{} by {} pixels, {}, by the method {}",
        shape.width,
        shape.height,
        words(asked.pixels),
        asked.method.word()
    ));
    let (all, mut done) = (asked.pictures.len(), 0);
    for batch in asked.pictures.chunks(shape.batch) {
        progress(&format!("[{done}/{all}] seeing {}", batch[0].display()));
        observer.run(vec![shape.tensor(batch, scale(asked.pixels))?]).map_err(Failed::model)?;
        done += batch.len();
    }
    let ranges = observer.ranges(method(asked.method));
    let cache = CalibrationCache::new(&ranges.thresholds());
    let written = ranges
        .write(out)
        .and_then(|()| fs::write(out.join(CALIBRATION_FILE), cache.text(None)))
        .and_then(|()| fs::remove_dir_all(&scratch));
    written.map_err(|error| {
        Failed::new(Exit::StageFailed, format!("cannot write {}: {error}", out.display()))
    })?;
    progress(&format!("[{all}/{all}] {} values have ranges", cache.len()));
    Ok(())
}

/// What a graph reads: pictures in planes, or cut into patches.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    batch: usize,
    height: usize,
    width: usize,
    cut: Option<grid::Patching>,
}

impl Shape {
    /// Of the inputs of a graph; sides that it leaves open have `side` pixels.  `list` says what an exported graph beside it
    /// reads.
    fn of(
        inputs: &[GraphInput],
        side: Option<usize>,
        list: Option<&GridList>,
    ) -> Result<Self, String> {
        let sizes = |input: &GraphInput| {
            let sizes: Vec<String> = input
                .dims
                .iter()
                .map(|dim| dim.map_or_else(|| "?".to_owned(), |size| size.to_string()))
                .collect();
            format!("{} [{}]", input.name, sizes.join(", "))
        };
        let [GraphInput { integer: false, dims, .. }] = inputs else {
            let all: Vec<String> = inputs.iter().map(sizes).collect();
            return Err(format!("{WANTED}; this one reads {}", all.join(" and ")));
        };
        if let (&[Some(patches), Some(values)], Some(list)) = (&dims[..], list)
            && let Some(shape) = Self::of_patches(patches, values, list)
        {
            return Ok(shape);
        }
        let &[batch, Some(CHANNELS), height, width] = &dims[..] else {
            return Err(format!("{WANTED}; this one reads {}", sizes(&inputs[0])));
        };
        let (Some(height), Some(width)) = (height.or(side), width.or(side)) else {
            return Err(format!(
                "it leaves the sides of pictures open: {}; say \"side\", as in 640",
                sizes(&inputs[0])
            ));
        };
        match batch.unwrap_or(1) {
            batch @ 1..=BATCH_MAX => Ok(Self { batch, height, width, cut: None }),
            batch => Err(format!("it reads {batch} pictures at once, more than {BATCH_MAX}")),
        }
    }

    /// Of a graph that reads so many patches of so many values, if they are those of the only grid of a list.
    fn of_patches(patches: usize, values: usize, list: &GridList) -> Option<Self> {
        let ([(grid, _)], patching) = (&list.grids[..], list.patching) else { return None };
        let lattice = patching.lattice(*grid).ok()?;
        let (height, width) = (grid.height, grid.width);
        let is_same = lattice.patches() == patches && patching.values() == values;
        is_same.then_some(Self { batch: 1, height, width, cut: Some(patching) })
    }

    /// The patches of a picture of this size, token by token.
    fn patches(&self, cut: grid::Patching, pixels: &[u8], scale: Scale) -> Vec<f32> {
        let grid::Patching { patch, merge, frames, .. } = cut;
        let (min_pixels, max_pixels) = (1, Patching::PIXELS_MAX);
        let patching = Patching { patch, merge, frames, min_pixels, max_pixels, clip: None, scale };
        patching.flatten(&[pixels], Size { height: self.height, width: self.width })
    }

    /// Pictures as the graph reads them; where they are fewer than it takes at once the last one stands for the rest.
    fn tensor(&self, pictures: &[PathBuf], scale: Scale) -> Result<Tensor, Failed> {
        if let Some(cut) = self.cut {
            let picture = Image::open(&pictures[0]).map_err(Failed::model)?;
            let data = self.patches(cut, &resize(&picture, self.width, self.height), scale);
            return Ok(Tensor::F32 { shape: vec![data.len() / cut.values(), cut.values()], data });
        }
        let each = CHANNELS * self.height * self.width;
        let mut data = Vec::with_capacity(self.batch * each);
        for path in pictures {
            let picture = Image::open(path).map_err(Failed::model)?;
            scale.planes(&resize(&picture, self.width, self.height), &mut data);
        }
        while data.len() < self.batch * each {
            data.extend_from_within(data.len() - each..);
        }
        let shape = vec![self.batch, CHANNELS, self.height, self.width];
        Ok(Tensor::F32 { shape, data })
    }
}

const WANTED: &str = "graphs are calibrated by pictures, which they read as floats [batch, 3, height, width], \
                      or as patches if they were exported for one size";

fn scale(pixels: PixelScale) -> Scale {
    match pixels {
        PixelScale::Unit => Scale::UNIT,
        PixelScale::Halves => Scale::HALVES,
        PixelScale::Imagenet => Scale::IMAGENET,
        PixelScale::Clip => Scale::CLIP,
    }
}

fn words(pixels: PixelScale) -> &'static str {
    match pixels {
        PixelScale::Unit => "bytes as numbers from 0 to 1",
        PixelScale::Halves => "bytes as numbers from -1 to 1",
        PixelScale::Imagenet => "bytes by ImageNet's mean and deviation",
        PixelScale::Clip => "bytes by the mean and deviation of CLIP's pictures",
    }
}

fn method(word: RangeMethod) -> Method {
    match word {
        RangeMethod::Entropy => Method::Entropy,
        RangeMethod::Max => Method::Max,
        RangeMethod::Percentile => Method::Percentile,
    }
}

#[cfg(test)]
mod tests {
    use smelt_backend::grid::Grid;

    use super::*;

    fn input(name: &str, integer: bool, dims: &[Option<usize>]) -> GraphInput {
        GraphInput { name: name.to_owned(), integer, dims: dims.to_vec() }
    }

    #[test]
    fn graphs_that_read_pictures_are_told_from_others() {
        let of = |dims: &[Option<usize>], side| Shape::of(&[input("x", false, dims)], side, None);
        let planes = |height, width| Shape { batch: 1, height, width, cut: None };
        let fixed = [Some(1), Some(3), Some(224), Some(320)];
        assert_eq!(of(&fixed, None), Ok(planes(224, 320)));
        let open = [None, Some(3), None, Some(64)];
        assert_eq!(of(&open, Some(32)), Ok(planes(32, 64)));
        let refused = |shape: Result<Shape, String>, words: &str| {
            let why = shape.unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        refused(of(&open, None), "say \"side\"");
        refused(of(&[Some(64), Some(588)], None), "reads x [64, 588]");
        refused(of(&[Some(0), Some(3), Some(8), Some(8)], None), "0 pictures");
        refused(of(&[Some(257), Some(3), Some(8), Some(8)], None), "more than 256");
        let two = [input("x", false, &fixed), input("ids", true, &[None])];
        refused(Shape::of(&two, None, None), "x [1, 3, 224, 320] and ids [?]");
    }

    #[test]
    fn patches_are_those_of_the_only_grid() {
        let patching = grid::Patching { patch: 14, merge: 2, frames: 2, channels: 3 };
        let one = |height, width| (Grid { height, width }, "model.onnx".to_owned());
        let list = |grids: &[_]| GridList { patching, grids: grids.to_vec() };
        let patches = [input("x", false, &[Some(24), Some(1176)])];
        let shape = Shape { batch: 1, height: 56, width: 84, cut: Some(patching) };
        assert_eq!(Shape::of(&patches, None, Some(&list(&[one(56, 84)]))), Ok(shape));
        for others in [vec![one(56, 56)], vec![one(56, 84), one(84, 56)]] {
            let why = Shape::of(&patches, None, Some(&list(&others))).unwrap_err();
            assert!(why.contains("reads x [24, 1176]"), "{why}");
        }
    }

    #[test]
    fn a_batch_that_is_not_full_ends_with_its_last_picture() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p.png");
        let png = super::super::set::PICTURES[0].png;
        fs::write(&path, png).unwrap();
        let shape = Shape { batch: 3, height: 4, width: 6, cut: None };
        let Tensor::F32 { shape, data } = shape.tensor(&[path.clone(), path], Scale::UNIT).unwrap()
        else {
            panic!("pictures are floats")
        };
        assert_eq!(shape, [3, 3, 4, 6]);
        assert_eq!(data[..72], data[144..]);
        assert!(data.iter().all(|number| (0.0..=1.0).contains(number)));
    }
}
