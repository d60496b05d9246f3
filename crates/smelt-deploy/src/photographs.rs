//! Says what photographs cost in tokens, and whether the largest picture fits the context.

use smelt_runtime::fit::ANSWER_USUAL;
use smelt_runtime::image::{ImageOptions, ImageProcessor, Size};

/// What most cameras send: a size that is no smaller than any tower sees.
pub const FOUR_THIRDS: Size = Size { height: 3024, width: 4032 };

/// What cameras and phones send: their shape and their size.
const PHOTOGRAPHS: [(&str, Size); 2] =
    [("4:3", FOUR_THIRDS), ("16:9", Size { height: 2160, width: 3840 })];

/// So many of a conversation are told of.
const SEVERAL: usize = 6;

/// What photographs cost models that see by this processor in a context of so many tokens, where the model has so many
/// positions; a warning where the largest does not fit, or none does.
pub fn lines(
    image_processor: &ImageProcessor,
    image_options: &ImageOptions,
    [context, positions]: [usize; 2],
) -> Vec<String> {
    let cost = |size: Size| image_processor.cost(size, image_options).unwrap_or_default();
    let one = PHOTOGRAPHS.map(|(shape, size)| format!("{shape} photograph {}", cost(size)));
    let all = SEVERAL * cost(PHOTOGRAPHS[0].1);
    let mut lines = vec![format!(
        "image tokens: a {}, a {}, {SEVERAL} of {} {all}; the context has {context} tokens",
        one[0], one[1], PHOTOGRAPHS[0].0
    )];
    let least = image_processor.least();
    if least >= context {
        let way = if least < positions { "; raise max-seq-len" } else { "" };
        lines.push(format!(
            "warning: no picture fits a context of {context}: the smallest has {least} image tokens{way}"
        ));
        return lines;
    }
    let largest = image_processor.largest(image_options);
    let answer = ANSWER_USUAL.min(context / 4);
    if largest + answer > context {
        let way = match largest + answer > positions {
            true => "lower tiles",
            false => "raise max-seq-len or lower tiles",
        };
        lines.push(format!(
            "warning: the largest picture has {largest} image tokens, which do not fit a context of {context} with an answer of {answer}: it will be shown smaller; {way}"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use smelt_runtime::image::{Cutting, Grid, Scale, Tiling};

    use super::*;

    #[test]
    fn photographs_of_a_model_of_tiles() {
        let scale = Scale::IMAGENET;
        let tiling =
            Tiling { image_size: 448, min_tiles: 1, max_tiles: 12, use_thumbnail: true, scale };
        let size = Size { height: 448, width: 448 };
        let grids = vec![Grid { size, tokens: 256 }];
        let image_processor =
            ImageProcessor { cutting: Cutting::Tiles(tiling), grids, router: None };
        let told = lines(&image_processor, &ImageOptions::default(), [4096, 32_768]);
        let line = "image tokens: a 4:3 photograph 3328, a 16:9 photograph 2304, 6 of 4:3 19968; the context has 4096 tokens";
        assert_eq!(told, [line]);
        let warning = |context, positions, tiles_max| {
            let image_options = ImageOptions { tiles_max, ..ImageOptions::default() };
            lines(&image_processor, &image_options, [context, positions]).get(1).cloned()
        };
        let told = warning(856, 32_768, None).unwrap();
        assert!(told.contains("has 3328 image tokens"), "{told}");
        assert!(told.ends_with("raise max-seq-len or lower tiles"), "{told}");
        assert!(warning(2048, 2048, None).unwrap().ends_with("; lower tiles"));
        assert!(warning(257, 32_768, None).unwrap().contains("it will be shown smaller"));
        let none = "warning: no picture fits a context of 256: the smallest has 256 image tokens";
        assert_eq!(warning(256, 256, None).unwrap(), none);
        assert_eq!(warning(256, 257, Some(1)).unwrap(), format!("{none}; raise max-seq-len"));
        assert_eq!(warning(2048, 32_768, Some(4)), None);
    }
}
