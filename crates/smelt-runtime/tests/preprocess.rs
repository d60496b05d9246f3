//! Compares tiles with those Pillow and the models' own preprocessing give.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use smelt_model::safetensors::Reader;
use smelt_runtime::image::{Grid, Picture, Settings, tile_count, tiles};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/golden/preprocess").join(name)
}

fn table() -> Value {
    serde_json::from_str(&fs::read_to_string(golden("grids.json")).unwrap()).unwrap()
}

fn number(entry: &Value, field: &str) -> usize {
    entry[field].as_u64().unwrap() as usize
}

fn settings(entry: &Value) -> Settings {
    Settings {
        image_size: number(entry, "tile"),
        min_tiles: number(entry, "min_tiles"),
        max_tiles: number(entry, "max_tiles"),
        use_thumbnail: true,
        mean: Settings::IMAGENET_MEAN,
        std: Settings::IMAGENET_STD,
    }
}

fn grid(entry: &Value) -> Grid {
    let [columns, rows]: [usize; 2] = serde_json::from_value(entry["grid"].clone()).unwrap();
    Grid { columns, rows }
}

fn floats(name: &str) -> Vec<f32> {
    let reader = Reader::open(&golden("preprocess.safetensors")).unwrap();
    let tensor = reader.get(name).unwrap();
    let mut bytes = vec![0; tensor.elements() * 4];
    reader.read_at(tensor, 0, &mut bytes).unwrap();
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn sizes_are_cut_into_the_same_grids() {
    for entry in table()["grids"].as_array().unwrap() {
        let (width, height) = (number(entry, "width"), number(entry, "height"));
        let settings = settings(entry);
        let expect = grid(entry);
        assert_eq!(Grid::closest(width, height, &settings), expect, "{entry}");
        let several = expect.columns * expect.rows;
        let expect = several + usize::from(several > 1);
        assert_eq!(tile_count(width, height, &settings), expect, "{entry}");
    }
}

#[test]
fn pictures_become_the_same_tiles_to_the_bit() {
    let table = table();
    let settings = settings(&table["settings"]);
    for entry in table["pictures"].as_array().unwrap() {
        let picture = Picture::open(&golden(entry["file"].as_str().unwrap())).unwrap();
        let found = tiles(&picture, &settings);
        assert_eq!(found.count, number(entry, "tiles"), "{entry}");
        assert!(found.pixels == floats(entry["tensor"].as_str().unwrap()), "{entry}");
    }
}
