//! Finds the embeddings of a stretch of a prompt's image tokens.

use std::ops::Range;
use std::sync::Arc;

use smelt_backend::FeatureSpan;

use crate::vision::Embedded;

/// The embeddings of a prompt's pictures, in the order of their tokens.
#[derive(Debug, Default)]
pub(super) struct Images {
    /// Of each picture, and how many tokens it has.
    pictures: Vec<(Arc<Embedded>, usize)>,
}

impl Images {
    /// Puts a picture of so many tokens behind the others.
    pub(super) fn push(&mut self, embedded: Arc<Embedded>, tokens: usize) {
        self.pictures.push((embedded, tokens));
    }

    /// What belongs to the image tokens `range`, counted over all pictures.
    pub(super) fn spans(&self, range: Range<usize>) -> Vec<FeatureSpan<'_>> {
        let mut first = 0;
        let mut spans = Vec::new();
        for (embedded, tokens) in &self.pictures {
            let start = range.start.clamp(first, first + tokens) - first;
            let end = range.end.clamp(first, first + tokens) - first;
            first += tokens;
            spans.extend(embedded.spans(start..end));
        }
        spans
    }
}

#[cfg(test)]
mod tests {
    use smelt_backend::HostFeatures;

    use super::*;

    #[test]
    fn any_stretch_is_what_lies_there() {
        let mut images = Images::default();
        let mut all = Vec::new();
        // Of several parts, of one each, and of tokens that lie in two.
        for parts in [&[1, 2][..], &[1], &[3, 1]] {
            let mut embedded = Embedded::default();
            for tokens in parts {
                let first = all.len();
                all.extend((first..first + tokens * 2).map(|x| x as f32));
                let embeds = all[first..].to_vec();
                let deepstack = vec![embeds.iter().map(|x| -x).collect()];
                embedded.push(HostFeatures { embeds, deepstack }.into_features(*tokens));
            }
            let tokens = embedded.tokens();
            images.push(Arc::new(embedded), tokens);
        }
        for start in 0..8 {
            for end in start..=8 {
                let (mut found, mut below) = (Vec::new(), Vec::new());
                for FeatureSpan { features, tokens } in images.spans(start..end) {
                    let host = features.to_host().unwrap();
                    found.extend_from_slice(&host.embeds[tokens.start * 2..tokens.end * 2]);
                    let layer = &host.deepstack[0];
                    below.extend_from_slice(&layer[tokens.start * 2..tokens.end * 2]);
                }
                assert_eq!(found, all[start * 2..end * 2]);
                assert_eq!(below, found.iter().map(|x| -x).collect::<Vec<_>>());
            }
        }
    }
}
