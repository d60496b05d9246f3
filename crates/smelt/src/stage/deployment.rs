//! `deployment`: engines, tokenizer, chat template and preprocessing in the shape `chat` loads.
//!
//! Engines are gigabytes and immutable, so they are named, not copied: sealed outputs lie beside
//! each other, and a relative path from one to the next holds wherever the store is.

use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_model::families::internvl3::InternVl3;
use smelt_model::model::Encoder;
use smelt_runtime::deployment::{Deployment, FAMILY, FORMAT, Spec, eos_tokens};
use smelt_runtime::embed::{self, Recipe};
use smelt_runtime::image::Settings;
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use super::request::Request;
use crate::exit::Failed;

/// Files of a checkpoint that a deployment carries, where the checkpoint has them.
const FILES: [&str; 3] = [TOKENIZER_FILE, "tokenizer_config.json", "chat_template.jinja"];

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
        spec.image = with_tiles(spec.image, request.count("tiles")?);
    }
    let files: Vec<PathBuf> =
        FILES.iter().map(|name| dir.join(name)).filter(|path| path.exists()).collect();
    Deployment::write(&request.out, &spec, &files).map_err(Failed::model)
}

/// What a deployment of `checkpoint` called `model` says, its engines in these directories.
pub(super) fn spec(
    checkpoint: &Checkpoint,
    model: &str,
    [vision, llm]: [&Path; 2],
) -> Result<Spec, Failed> {
    let dir = checkpoint.dir();
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(Failed::model)?;
    Ok(Spec {
        format: FORMAT,
        family: FAMILY.to_owned(),
        model: model.to_owned(),
        vision: beside(vision)?,
        llm: beside(llm)?,
        image: image(checkpoint.internvl3().map_err(Failed::model)?),
        image_tokens: ImageTokens {
            start: "<img>".to_owned(),
            image: "<IMG_CONTEXT>".to_owned(),
            end: "</img>".to_owned(),
        },
        eos: eos_tokens(dir, &tokenizer).map_err(Failed::model)?,
    })
}

/// InternVL3's preprocessing, by the checkpoint's own numbers.
pub(super) fn image(tower: &InternVl3) -> Settings {
    Settings {
        image_size: tower.image_size,
        min_tiles: tower.min_tiles,
        max_tiles: tower.max_tiles,
        use_thumbnail: tower.use_thumbnail,
        mean: Settings::IMAGENET_MEAN,
        std: Settings::IMAGENET_STD,
    }
}

/// The same preprocessing with at most `tiles` tiles a picture, the thumbnail not counted; fewer tiles
/// are fewer tokens.
fn with_tiles(image: Settings, tiles: usize) -> Settings {
    Settings { min_tiles: image.min_tiles.min(tiles), max_tiles: tiles, ..image }
}

/// The path of a sealed output as seen from another one.
fn beside(sealed: &Path) -> Result<String, Failed> {
    let name = sealed.file_name().and_then(|name| name.to_str());
    let name =
        name.ok_or_else(|| Failed::usage(format!("{} is not a sealed output", sealed.display())))?;
    Ok(format!("../{name}"))
}
