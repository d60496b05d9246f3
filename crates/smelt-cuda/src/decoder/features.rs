//! Gathers what stands in the places of image tokens: features of runs in, floats for the device out.
//!
//! Features that lie on a device are read by way of the host; 2 MB a picture take less than a fifth of a millisecond.

use smelt_backend::{RunError, SlotInput, Value};

use super::plan::{ImagePiece, PassPlan};

/// The features of a pass: `[1 + deepstack, rows of images, hidden]` floats; nothing where it shows no images.
///
/// # Errors
/// [`RunError`] where a device does not give them, or they are no floats.
pub(super) fn bytes(runs: &[SlotInput<'_>], pass: &PassPlan) -> Result<Vec<u8>, RunError> {
    let mut out = Vec::new();
    let Some(first) = pass.images.first() else { return Ok(out) };
    let layers = values(runs, first).len();
    for layer in 0..layers {
        for piece in &pass.images {
            let values = values(runs, piece);
            let value = values.get(layer).ok_or_else(|| fault("features of fewer layers"))?;
            append(value, piece, &mut out)?;
        }
    }
    Ok(out)
}

/// The features that a piece is of: those that stand in its places, then those that are added behind layers.
fn values<'a>(runs: &'a [SlotInput<'a>], piece: &ImagePiece) -> Vec<&'a Value> {
    let span = runs[piece.run].image.and_then(|image| image.features.get(piece.span));
    span.into_iter().flat_map(|span| span.features.values()).collect()
}

/// Appends the rows of a piece.
fn append(value: &Value, piece: &ImagePiece, out: &mut Vec<u8>) -> Result<(), RunError> {
    let host = value.to_host().map_err(|error| RunError::Device(error.to_string()))?;
    let numbers = host.floats().ok_or_else(|| fault("features are no floats"))?;
    let hidden = value.shape().last().copied().unwrap_or(0);
    let rows = numbers.get(piece.tokens.start * hidden..piece.tokens.end * hidden);
    let rows = rows.ok_or_else(|| fault("features of fewer tokens"))?;
    out.extend(rows.iter().flat_map(|number| number.to_le_bytes()));
    Ok(())
}

fn fault(problem: &str) -> RunError {
    RunError::Device(problem.to_owned())
}

#[cfg(test)]
mod tests {
    use smelt_backend::{FeatureSpan, HostFeatures, ImageEmbeds};

    use super::super::plan::{Held, plan};
    use super::*;

    #[test]
    fn each_layer_has_the_rows_of_all_pictures_in_order() {
        let numbers = |first: usize, count: usize| -> Vec<f32> {
            (first..first + count).map(|number| number as f32).collect()
        };
        let host = HostFeatures { embeds: numbers(0, 6), deepstack: vec![numbers(100, 6)] };
        let features = host.into_features(3);
        let spans = [
            FeatureSpan { features: &features, tokens: 1..3 },
            FeatureSpan { features: &features, tokens: 0..1 },
        ];
        let image = Some(ImageEmbeds { token: 7, features: &spans });
        let runs = [SlotInput { image, ..SlotInput::new(0, &[7, 5, 7, 7]) }];
        let step = plan(&runs, &[Held::default()], false, 3);
        let found = |pass: usize| -> Vec<f32> {
            let bytes = bytes(&runs, &step.passes[pass]).unwrap();
            bytes.as_chunks::<4>().0.iter().map(|number| f32::from_le_bytes(*number)).collect()
        };
        assert_eq!(found(0), [2.0, 3.0, 4.0, 5.0, 102.0, 103.0, 104.0, 105.0]);
        assert_eq!(found(1), [0.0, 1.0, 100.0, 101.0]);
        let text = [SlotInput::new(0, &[1])];
        let step = plan(&text, &[Held::default()], false, 3);
        assert_eq!(bytes(&text, &step.passes[0]), Ok(Vec::new()));
    }
}
