//! `deployment`: engines, tokenizer, chat template and preprocessing in the shape `chat` loads.
//!
//! Engines are gigabytes and immutable, so they are named, not copied: sealed outputs lie beside
//! each other, and a relative path from one to the next holds wherever the store is.

use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_model::families::internvl3::InternVl3;
use smelt_model::grid::Patching;
use smelt_model::model::{Encoder, Vision};
use smelt_runtime::deployment::{Deployment, FORMAT, Family, Spec, eos_tokens};
use smelt_runtime::embed::{self, Recipe};
use smelt_runtime::image::{self, Cutting, Processor, Router, Scale, Tiling};
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use super::request::Request;
use crate::exit::{Exit, Failed};

/// Files of a checkpoint that a deployment carries, where the checkpoint has them.
const FILES: [&str; 4] =
    [TOKENIZER_FILE, "tokenizer_config.json", "chat_template.jinja", "chat_template.json"];

pub(crate) fn run(request: &Request) -> Result<(), Failed> {
    match request.optional_input("encoder") {
        Some(engine) => encoder(request, engine),
        None => chat(request),
    }
}

/// An encoder that embeds sentences, by the checkpoint's own recipe.
fn encoder(request: &Request, engine: &Path) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let dir = checkpoint.dir();
    let recipe = Recipe::of_checkpoint(dir).map_err(Failed::model)?;
    let places = match &checkpoint.model().encoder {
        Some(Encoder::Bert(bert)) => bert.positions,
        _ => {
            let dir = dir.display();
            return Err(Failed::model(format!("{dir} is no checkpoint of a sentence encoder")));
        }
    };
    let spec = embed::Spec {
        format: FORMAT,
        family: embed::FAMILY.to_owned(),
        model: request.word("model")?.to_owned(),
        encoder: beside(engine)?,
        max_tokens: recipe.max_tokens.unwrap_or(places).min(places),
        pooling: recipe.pooling,
        normalize: recipe.normalize,
    };
    spec.write(&request.out, &dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    Tokenizer::open(&request.out.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    Ok(())
}

/// A language model that sees.
fn chat(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let dir = checkpoint.dir();
    let engines = [request.input("vision")?, request.input("llm")?];
    let mut spec = spec(&checkpoint, request.word("model")?, engines)?;
    if request.params.contains_key("tiles") {
        spec.image = with_tiles(spec.image, request.count("tiles")?)?;
    }
    spec.router = router(&request.texts("thresholds"))?;
    let files: Vec<PathBuf> =
        FILES.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect();
    Deployment::write(&request.out, &spec, &files).map_err(Failed::model)
}

/// The router of these thresholds; none without any.
fn router(thresholds: &[String]) -> Result<Option<Router>, Failed> {
    let number = |text: &String| {
        let why = || format!("\"thresholds\": {text:?} is no number");
        text.parse::<f32>().map_err(|_| Failed::new(Exit::BadPipeline, why()))
    };
    let thresholds = thresholds.iter().map(number).collect::<Result<Vec<f32>, _>>()?;
    Ok((!thresholds.is_empty()).then_some(Router { thresholds }))
}

/// What a deployment of `checkpoint` called `model` says, its engines in these directories.
pub(super) fn spec(
    checkpoint: &Checkpoint,
    model: &str,
    [vision, llm]: [&Path; 2],
) -> Result<Spec, Failed> {
    let dir = checkpoint.dir();
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    let family = family(checkpoint)?;
    Ok(Spec {
        format: FORMAT,
        family,
        model: model.to_owned(),
        vision: beside(vision)?,
        llm: beside(llm)?,
        image: cutting(checkpoint)?,
        router: None,
        image_tokens: image_tokens(family),
        places_per_second: match &checkpoint.model().vision {
            Some(Vision::Qwen25(tower)) => tower.places_per_second.try_into().ok(),
            _ => None,
        },
        eos: eos_tokens(dir, &tokenizer).map_err(Failed::model)?,
    })
}

/// The family that a checkpoint's deployment is of.
pub(super) fn family(checkpoint: &Checkpoint) -> Result<Family, Failed> {
    let name = checkpoint.model().family;
    Family::named(name).ok_or_else(|| {
        let dir = checkpoint.dir().display();
        Failed::model(format!("{dir} is of {name}, which does not see and speak"))
    })
}

/// The words of a family's pictures, which are in its tokenizer.
pub(super) fn image_tokens(family: Family) -> ImageTokens {
    let words = |start: &str, image: &str, end: &str, video: Option<&str>| ImageTokens {
        start: start.to_owned(),
        image: image.to_owned(),
        end: end.to_owned(),
        video: video.map(str::to_owned),
    };
    match family {
        Family::InternVl3 => words("<img>", "<IMG_CONTEXT>", "</img>", None),
        Family::Qwen25Vl | Family::Qwen3Vl => {
            let video = Some("<|video_pad|>");
            words("<|vision_start|>", "<|image_pad|>", "<|vision_end|>", video)
        }
    }
}

/// A family's preprocessing, by the checkpoint's own numbers.
pub(super) fn cutting(checkpoint: &Checkpoint) -> Result<Cutting, Failed> {
    let dir = checkpoint.dir();
    let processor = Processor::of_checkpoint(dir).map_err(Failed::model)?;
    // What the published models have, where the checkpoint does not say.
    let patching = |patching: Patching, scale, min_pixels, max_pixels| {
        Cutting::Patches(image::Patching {
            patch: patching.patch,
            merge: patching.merge,
            frames: patching.frames,
            min_pixels: processor.min_pixels.unwrap_or(min_pixels),
            max_pixels: processor.max_pixels.unwrap_or(max_pixels),
            scale: processor.scale.unwrap_or(scale),
        })
    };
    match &checkpoint.model().vision {
        Some(Vision::InternVit(tower)) => Ok(Cutting::Tiles(tiling(tower))),
        Some(Vision::Qwen25(tower)) => {
            Ok(patching(tower.patching, Scale::CLIP, 56 * 56, 12_845_056))
        }
        Some(Vision::Qwen3(tower)) => {
            Ok(patching(tower.patching, Scale::HALVES, 256 * 256, 16_777_216))
        }
        Some(Vision::Clip(_)) | None => {
            Err(Failed::model(format!("{} does not see and speak", dir.display())))
        }
    }
}

/// InternVL3's preprocessing, by the checkpoint's own numbers.
pub(super) fn tiling(tower: &InternVl3) -> Tiling {
    Tiling {
        image_size: tower.image_size,
        min_tiles: tower.min_tiles,
        max_tiles: tower.max_tiles,
        use_thumbnail: tower.use_thumbnail,
        scale: Scale::IMAGENET,
    }
}

/// The same preprocessing with at most `tiles` tiles a picture, the thumbnail not counted; fewer tiles
/// are fewer tokens.
fn with_tiles(image: Cutting, tiles: usize) -> Result<Cutting, Failed> {
    match image {
        Cutting::Tiles(tiling) => {
            let min_tiles = tiling.min_tiles.min(tiles);
            Ok(Cutting::Tiles(Tiling { min_tiles, max_tiles: tiles, ..tiling }))
        }
        Cutting::Patches(_) => {
            let why =
                "\"tiles\" are of models that see tiles; this one sees patches, leave them out";
            Err(Failed::new(Exit::BadPipeline, why))
        }
    }
}

/// The path of a sealed output as seen from another one.
fn beside(sealed: &Path) -> Result<String, Failed> {
    let name = sealed.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failed::usage(format!("{} is not a sealed output", sealed.display())))?;
    Ok(format!("../{name}"))
}
