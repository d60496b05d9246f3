//! Says what a deployment of a small InternVL is, whose engines lie beside it.

use smelt_runtime::deployment::{FORMAT, ModelFamily, Serving, Spec};
use smelt_runtime::image::{Cutting, Scale, Tiling};
use smelt_runtime::prompt::ImageTokens;

/// A model of tiles of `image_size`, at most four and a thumbnail, whose answers end with `eos`.
pub(crate) fn internvl(model: &str, image_size: usize, eos: Vec<u32>) -> Spec {
    Spec {
        format: FORMAT,
        family: ModelFamily::INTERNVL3,
        model: model.to_owned(),
        vision: Some("../vision".into()),
        llm: "../llm".into(),
        image: Some(Cutting::Tiles(Tiling {
            image_size,
            min_tiles: 1,
            max_tiles: 4,
            use_thumbnail: true,
            scale: Scale::IMAGENET,
        })),
        router: None,
        clip: None,
        image_tokens: Some(ImageTokens {
            start: "<img>".to_owned(),
            image: "<IMG_CONTEXT>".to_owned(),
            end: "</img>".to_owned(),
            video: None,
        }),
        places_per_second: None,
        eos,
        serving: Serving::default(),
        verified: None,
    }
}
