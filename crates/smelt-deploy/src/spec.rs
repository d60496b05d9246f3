//! What a deployment of a checkpoint says, by the checkpoint's own files: one that speaks, one that embeds, one that scores.

use std::path::Path;

use smelt_model::checkpoint::Checkpoint;
use smelt_model::families::bert::Bert;
use smelt_model::model::{Encoder, ModelPart, Vision};
use smelt_runtime::deployment::{FORMAT, ModelFamily, Serving, Spec, eos_tokens};
use smelt_runtime::embed::{self, Recipe};
use smelt_runtime::engine_dirs::EngineDirs;
use smelt_runtime::image::{By, Cutting, PreprocessorConfig, Router, Scale};
use smelt_runtime::prompt::ImageTokens;
use smelt_runtime::proof;
use smelt_runtime::score;
use smelt_runtime::similarity;
use smelt_runtime::tokenizer::{TOKENIZER_FILE, Tokenizer};

use crate::DeployError;
use crate::seeing::cutting_by;

/// The engines of a deployment that speaks, as it names them.
#[derive(Debug, Clone)]
pub struct ChatEngines {
    /// The tower, where it sees.
    pub vision: Option<EngineDirs>,
    /// The decoder.
    pub llm: EngineDirs,
}

/// The engines in these sealed outputs, as a deployment names them: outputs lie beside each other, so that a relative path from
/// one to the next holds wherever the store is.
///
/// # Errors
/// When one is no sealed output.
pub fn engine_dirs(sealed: &[impl AsRef<Path>]) -> Result<EngineDirs, DeployError> {
    let beside = |dir: &Path| Ok(format!("../{}", sealed_name(dir)?));
    let dirs = sealed.iter().map(|dir| beside(dir.as_ref()));
    Ok(dirs.collect::<Result<Vec<_>, DeployError>>()?.into())
}

/// The name of a sealed output.
///
/// # Errors
/// When `path` leads to none.
pub fn sealed_name(path: &Path) -> Result<&str, DeployError> {
    let why = || format!("{} is not a sealed output", path.display());
    proof::name(path).ok_or_else(|| DeployError::given(why()))
}

/// What a deployment of `checkpoint` called `model` says, and its tokenizer, which is in `dir`.
///
/// # Errors
/// What it would be refused for.
pub fn chat(
    checkpoint: &Checkpoint,
    dir: &Path,
    model: &str,
    engines: ChatEngines,
) -> Result<(Spec, Tokenizer), DeployError> {
    let ChatEngines { vision, llm } = engines;
    let tokenizer = Tokenizer::open(&dir.join(TOKENIZER_FILE)).map_err(DeployError::model)?;
    let family = family(checkpoint)?;
    let sees = vision.is_some();
    let tower = checkpoint.model().vision.as_ref().filter(|_| sees);
    let spec = Spec {
        format: FORMAT,
        family,
        model: model.to_owned(),
        vision,
        llm,
        image: sees.then(|| cutting(checkpoint)).transpose()?,
        router: None,
        clip: None,
        image_tokens: ImageTokens::of(family).filter(|_| sees),
        places_per_second: tower.and_then(Vision::places_per_second),
        eos: eos_tokens(dir, &tokenizer)?,
        serving: Serving::default(),
        verified: None,
    };
    Ok((spec, tokenizer))
}

/// What one of a sentence encoder says, by the checkpoint's own recipe.
///
/// # Errors
/// When the checkpoint is none of a sentence encoder, or its recipe is not known.
pub fn encoder(
    checkpoint: &Checkpoint,
    model: &str,
    engine: EngineDirs,
) -> Result<embed::Spec, DeployError> {
    let dir = checkpoint.dir();
    let has_recipe = dir.join(embed::MODULES_FILE).exists();
    if !has_recipe && checkpoint.has(ModelPart::Classifier) {
        let why = "has a classification head and no modules.json: to score pairs by it, export part = \"classifier\"";
        return Err(DeployError::model(format!("{} {why}", dir.display())));
    }
    let recipe = Recipe::of_checkpoint(dir).map_err(DeployError::model)?;
    let places = bert(checkpoint)?.positions;
    Ok(embed::Spec {
        format: FORMAT,
        family: embed::FAMILY.to_owned(),
        model: model.to_owned(),
        encoder: engine,
        max_tokens: recipe.max_tokens.unwrap_or(places).min(places),
        pooling: recipe.pooling,
        normalize: recipe.normalize,
        memory_bytes_max: None,
    })
}

/// What one of an encoder with a head says, which scores pairs or classifies texts.
///
/// # Errors
/// When the checkpoint has no such head, or its recipe is not known.
pub fn cross_encoder(
    checkpoint: &Checkpoint,
    model: &str,
    engine: EngineDirs,
) -> Result<score::Spec, DeployError> {
    let (dir, bert) = (checkpoint.dir(), bert(checkpoint)?);
    let bad = |why: String| DeployError::model(format!("{}: {why}", dir.display()));
    let labels = bert.labels.unwrap_or_default();
    if !(1..=score::LABELS_MAX).contains(&labels) {
        let max = score::LABELS_MAX;
        return Err(bad(format!("its head has {labels} labels, not between 1 and {max}")));
    }
    let recipe = score::Recipe::of_checkpoint(dir, labels).map_err(DeployError::model)?;
    if recipe.kinds && bert.types < 2 {
        return Err(bad("type_vocab_size is 1, but pairs have two kinds of tokens".to_owned()));
    }
    let places = bert.positions.min(embed::TOKENS_MAX);
    Ok(score::Spec {
        format: FORMAT,
        family: score::FAMILY.to_owned(),
        model: model.to_owned(),
        encoder: engine,
        max_tokens: recipe.max_tokens.unwrap_or(places).min(places),
        activation: recipe.activation,
        kinds: recipe.kinds,
        labels: recipe.labels,
        memory_bytes_max: None,
    })
}

/// The CLIP that says how near tiles are to the question, by its checkpoint's own numbers; its engines are the tower's and
/// that of the half that reads.
///
/// # Errors
/// When the checkpoint is none of a CLIP that reads.
pub fn clip(
    checkpoint: &Checkpoint,
    [vision, text]: [EngineDirs; 2],
) -> Result<similarity::Spec, DeployError> {
    let Some(Encoder::ClipText(reader)) = &checkpoint.model().encoder else {
        let dir = checkpoint.dir().display();
        let why = format!("\"clip\": {dir} is no checkpoint of a CLIP that reads");
        return Err(DeployError::model(why));
    };
    let processor = PreprocessorConfig::of_checkpoint(checkpoint.dir());
    let processor = processor.map_err(DeployError::model)?;
    Ok(similarity::Spec {
        vision,
        text,
        max_tokens: reader.positions,
        scale: processor.scale.unwrap_or(Scale::CLIP),
    })
}

/// The router of the thresholds or image tokens that are given; by similarity where there is a CLIP.
///
/// # Errors
/// When a threshold is no number.
pub fn router(
    thresholds: &[String],
    tokens_max: Option<usize>,
    has_clip: bool,
) -> Result<Option<Router>, DeployError> {
    let number = |text: &String| {
        let why = |_| DeployError::pipeline(format!("\"thresholds\": {text:?} is no number"));
        text.parse::<f32>().map_err(why)
    };
    let thresholds = thresholds.iter().map(number).collect::<Result<Vec<_>, _>>()?;
    let is_there = !thresholds.is_empty() || tokens_max.is_some();
    let by = if has_clip { By::Similarity } else { By::Texture };
    Ok(is_there.then_some(Router { by, thresholds, tokens_max }))
}

/// Whether a model can be served in this way.
///
/// # Errors
/// When it has no positions for such a context.
pub fn check_serving(serving: &Serving, checkpoint: &Checkpoint) -> Result<(), DeployError> {
    let positions = checkpoint.decoder().map_err(DeployError::model)?.max_positions;
    match serving.max_seq_len {
        Some(asked) if asked > positions => Err(DeployError::pipeline(format!(
            "\"max-seq-len\" is {asked}, more than the model's {positions} positions"
        ))),
        _ => Ok(()),
    }
}

/// Lets pictures have so many tiles, the thumbnail not counted.
///
/// # Errors
/// When the model does not see tiles.
pub fn allow_tiles(image: &mut Option<Cutting>, tiles: usize) -> Result<(), DeployError> {
    if image.as_mut().is_none_or(|image| image.allow_tiles(tiles)) {
        return Ok(());
    }
    let why = "\"tiles\" are of models that see tiles; this one sees patches, leave them out";
    Err(DeployError::pipeline(why))
}

/// The family that a checkpoint's deployment is of.
///
/// # Errors
/// When it is of one that does not speak.
pub fn family(checkpoint: &Checkpoint) -> Result<ModelFamily, DeployError> {
    let name = checkpoint.model().family;
    ModelFamily::named(name).ok_or_else(|| {
        let dir = checkpoint.dir().display();
        DeployError::model(format!("{dir} is of {name}, which does not speak"))
    })
}

/// A family's preprocessing, by the checkpoint's own numbers.
///
/// # Errors
/// When the checkpoint's preprocessing cannot be read, or it does not see.
pub fn cutting(checkpoint: &Checkpoint) -> Result<Cutting, DeployError> {
    let dir = checkpoint.dir();
    let processor = PreprocessorConfig::of_checkpoint(dir).map_err(DeployError::model)?;
    let clips = PreprocessorConfig::of_clips(dir).map_err(DeployError::model)?;
    let found = cutting_by(checkpoint.model(), &processor, &clips);
    found.ok_or_else(|| DeployError::model(format!("{} does not see and speak", dir.display())))
}

/// The BERT of a checkpoint.
fn bert(checkpoint: &Checkpoint) -> Result<&Bert, DeployError> {
    match &checkpoint.model().encoder {
        Some(Encoder::Bert(bert)) => Ok(bert),
        _ => {
            let dir = checkpoint.dir().display();
            Err(DeployError::model(format!("{dir} is no checkpoint of a sentence encoder")))
        }
    }
}

#[cfg(test)]
mod tests {
    use smelt_runtime::image::Tiling;

    use crate::Blame;

    use super::*;

    #[test]
    fn engines_are_named_as_neighbours() {
        let dirs = engine_dirs(&["/store/out/aa", "/store/out/bb"]).unwrap();
        assert_eq!(dirs.all(), ["../aa", "../bb"]);
        let refused = engine_dirs(&["/"]).unwrap_err();
        assert_eq!(refused, DeployError::given("/ is not a sealed output"));
    }

    #[test]
    fn a_router_follows_from_thresholds_or_tokens() {
        let texts =
            |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        assert_eq!(router(&[], None, true).unwrap(), None);
        let by = |has_clip| router(&texts(&["0.25", "1"]), Some(9), has_clip).unwrap().unwrap();
        assert_eq!(by(false).thresholds, [0.25, 1.0]);
        assert!(matches!((by(false).by, by(true).by), (By::Texture, By::Similarity)));
        assert_eq!(router(&[], Some(9), false).unwrap().unwrap().tokens_max, Some(9));
        let refused = router(&texts(&["0.5", "half"]), None, false).unwrap_err();
        assert_eq!(refused.blame, Blame::Pipeline);
        assert_eq!(refused.to_string(), "\"thresholds\": \"half\" is no number");
    }

    #[test]
    fn tiles_are_of_models_that_see_tiles() {
        let scale = Scale::IMAGENET;
        let tiling =
            Tiling { image_size: 448, min_tiles: 1, max_tiles: 12, use_thumbnail: true, scale };
        let mut image = Some(Cutting::Tiles(tiling));
        allow_tiles(&mut image, 20).unwrap();
        assert!(matches!(image, Some(Cutting::Tiles(Tiling { max_tiles: 20, .. }))), "{image:?}");
        allow_tiles(&mut None, 3).unwrap();
    }
}
