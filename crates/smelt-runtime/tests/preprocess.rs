//! Compares what engines are given of pictures with what the models' own processors give.

use std::fs;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;
use smelt_model::safetensors::Reader;
use smelt_runtime::image::{
    ClipPixels, Cutting, Grid, Image, ImageOptions, ImageProcessor, Mosaic, Patching, Scale, Size,
    Tiling, TooLong, VisionInput, centre,
};

use crate::frames::frames;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/preprocess").join(name)
}

fn json(name: &str) -> Value {
    serde_json::from_str(&fs::read_to_string(golden(name)).unwrap()).unwrap()
}

fn get<T: DeserializeOwned>(entry: &Value, field: &str) -> T {
    serde_json::from_value(entry[field].clone()).unwrap()
}

fn rows<'a>(table: &'a Value, name: &str) -> &'a [Value] {
    let rows = table[name].as_array().unwrap();
    assert!(!rows.is_empty(), "{name}");
    rows
}

fn picture(entry: &Value) -> Image {
    Image::open(&golden(&get::<String>(entry, "file"))).unwrap()
}

fn floats(file: &str, entry: &Value) -> Vec<f32> {
    let reader = Reader::open(&golden(file)).unwrap();
    let tensor = reader.get(&get::<String>(entry, "tensor")).unwrap();
    let mut bytes = vec![0; tensor.elements() * 4];
    reader.read_at(tensor, 0, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn tiling(image_size: usize, min_tiles: usize, max_tiles: usize) -> Tiling {
    Tiling { image_size, min_tiles, max_tiles, use_thumbnail: true, scale: Scale::IMAGENET }
}

/// What an engine takes.
fn image_processor(cutting: Cutting, height: usize, width: usize) -> ImageProcessor {
    let grid = Grid { size: Size { height, width }, tokens: 1 };
    ImageProcessor { cutting, grids: vec![grid], router: None }
}

fn numbers(image_processor: &ImageProcessor, parts: &[VisionInput]) -> Vec<f32> {
    let numbers = |part: &VisionInput| {
        part.numbers(&image_processor.cutting, image_processor.grids[part.grid].size)
    };
    parts.iter().flat_map(numbers).collect()
}

/// What the engines are given of a picture, and how many parts these are.
fn seen(image_processor: &ImageProcessor, picture: &Image) -> (Vec<f32>, usize) {
    let plan = image_processor
        .plan::<TooLong>(picture, &ImageOptions::default(), &|_, _, _| unreachable!())
        .unwrap();
    let view = image_processor.view(picture, &plan);
    assert_eq!(view.tokens, image_processor.tokens(&plan));
    (numbers(image_processor, &view.parts), view.parts.len())
}

#[test]
fn sizes_are_cut_into_the_same_mosaics() {
    for entry in rows(&json("grids.json"), "grids") {
        let [columns, rows] = get(entry, "grid");
        let tiling = tiling(get(entry, "tile"), get(entry, "min_tiles"), get(entry, "max_tiles"));
        let found = Mosaic::closest(get(entry, "width"), get(entry, "height"), &tiling);
        assert_eq!(found, Mosaic { columns, rows }, "{entry}");
        let expect = columns * rows + usize::from(columns * rows > 1);
        assert_eq!(found.with_thumbnail(&tiling), expect, "{entry}");
    }
}

#[test]
fn pictures_become_the_same_tiles_to_the_bit() {
    let (own, others) = (json("grids.json"), json("processors.json"));
    let settings = tiling(56, 1, 4);
    let own = rows(&own, "pictures").iter().map(|entry| ("preprocess.safetensors", entry, 56));
    let others = rows(&others, "tiles");
    let others = others.iter().map(|entry| ("processors.safetensors", entry, 32));
    for (file, entry, image_size) in own.chain(others) {
        let tiling = Tiling { image_size, ..settings.clone() };
        let image_processor = image_processor(Cutting::Tiles(tiling), image_size, image_size);
        let (found, _) = seen(&image_processor, &picture(entry));
        assert!(found == floats(file, entry), "{entry}");
    }
}

fn patching(entry: &Value, min_pixels: usize, max_pixels: usize) -> Patching {
    let scale = Scale { mean: get(entry, "mean"), std: get(entry, "std") };
    let (patch, merge) = (get(entry, "patch"), get(entry, "merge"));
    Patching { patch, merge, frames: 2, min_pixels, max_pixels, clip: None, scale }
}

#[test]
fn pictures_become_the_same_patches_to_the_bit() {
    for entry in rows(&json("processors.json"), "patches") {
        let patching = patching(entry, get(entry, "pixels_min"), get(entry, "pixels_max"));
        let picture = picture(entry);
        let size = Size { height: get(entry, "height"), width: get(entry, "width") };
        assert_eq!(patching.target(picture.size()), Ok(size), "{entry}");
        let image_processor = image_processor(Cutting::Patches(patching), size.height, size.width);
        let (found, parts) = seen(&image_processor, &picture);
        assert_eq!(parts, 1);
        assert!(found == floats("processors.safetensors", entry), "{entry}");
    }
}

#[test]
fn clips_become_the_same_patches_to_the_bit() {
    for entry in rows(&json("processors.json"), "clips") {
        let frames = frames(&picture(entry), get(entry, "frames"));
        let (height, width) = (get(entry, "height"), get(entry, "width"));
        let image_processor =
            image_processor(Cutting::Patches(patching(entry, 1, 1)), height, width);
        let views = image_processor.clip(&frames.iter().collect::<Vec<_>>(), 0);
        assert_eq!(views.len(), get::<usize>(entry, "pairs"));
        let found: Vec<f32> =
            views.iter().flat_map(|view| numbers(&image_processor, &view.parts)).collect();
        assert!(found == floats("processors.safetensors", entry), "{entry}");
    }
}

#[test]
fn pictures_become_the_same_crops_to_the_bit() {
    for entry in rows(&json("processors.json"), "crops") {
        let mut found = Vec::new();
        Scale::CLIP.planes(&centre(&picture(entry), get(entry, "side")).unwrap(), &mut found);
        assert!(found == floats("processors.safetensors", entry), "{entry}");
    }
}

type Sized = (usize, usize, usize, usize, usize, Option<[usize; 2]>);

#[test]
fn sizes_have_the_same_targets() {
    let mut refused = 0;
    for entry in rows(&json("processors.json"), "stills") {
        let (step, min_pixels, max_pixels, height, width, expect): Sized =
            serde_json::from_value(entry.clone()).unwrap();
        let (patch, merge, frames, scale) = (step / 2, 2, 2, Scale::CLIP);
        let patching = Patching { patch, merge, frames, min_pixels, max_pixels, clip: None, scale };
        let found = patching.target(Size { height, width });
        let expect = expect.map(|[height, width]| Size { height, width });
        assert_eq!(found.ok(), expect, "{entry}");
        refused += usize::from(expect.is_none());
    }
    assert_eq!(refused, 5, "pictures too long for their width");
}

type Clip = (String, usize, usize, usize, usize, usize, usize, Option<[usize; 2]>);

/// Every size that comes up is a grid, so the one chosen is the target.
#[test]
fn clips_have_the_same_targets() {
    let clips: Vec<Clip> = serde_json::from_value(json("clips.json")).unwrap();
    let size = |[height, width]: [usize; 2]| Size { height, width };
    let mut sizes: Vec<Size> = clips.iter().filter_map(|clip| clip.7.map(size)).collect();
    sizes.sort_by_key(|size| (size.height, size.width));
    sizes.dedup();
    let grids: Vec<Grid> = sizes.iter().map(|&size| Grid { size, tokens: 1 }).collect();
    let mut refused = 0;
    for (over, patch, min_pixels, max_pixels, frames, height, width, expect) in clips {
        let clip = Some(ClipPixels { together: over == "clip", min_pixels, max_pixels });
        // What pictures are given is not asked for.
        let (scale, limit) = (Scale::CLIP, 1);
        let (merge, depth) = (2, 2);
        let patching = Patching {
            patch,
            merge,
            frames: depth,
            min_pixels: limit,
            max_pixels: limit,
            clip,
            scale,
        };
        let image_processor = ImageProcessor {
            cutting: Cutting::Patches(patching),
            grids: grids.clone(),
            router: None,
        };
        let found =
            image_processor.plan_clip(Size { height, width }, frames, &ImageOptions::default());
        let found = found.ok().map(|grid| grids[grid].size);
        assert_eq!(
            found,
            expect.map(size),
            "{over} {patch} {frames}x{height}x{width} {max_pixels}"
        );
        refused += usize::from(expect.is_none());
    }
    assert_eq!(refused, 56, "clips too long for their width");
}
