//! Finds the embeddings of a stretch of a prompt's image tokens.

use std::ops::Range;
use std::sync::Arc;

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

    /// Copies what belongs to the image tokens `range`, counted over all pictures.
    pub(super) fn slice(&self, range: Range<usize>) -> Embedded {
        let mut out = Embedded::default();
        let mut first = 0;
        for (embedded, tokens) in &self.pictures {
            let start = range.start.clamp(first, first + tokens) - first;
            let end = range.end.clamp(first, first + tokens) - first;
            first += tokens;
            if start < end {
                out.append_rows(embedded, start..end, *tokens);
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_stretch_is_what_lies_there() {
        let mut images = Images::default();
        let mut all = Vec::new();
        for tokens in [3, 1, 4] {
            let first = all.len();
            all.extend((first..first + tokens * 2).map(|x| x as f32));
            let embeds = all[first..].to_vec();
            let deepstack = vec![embeds.iter().map(|x| -x).collect()];
            images.push(Arc::new(Embedded { embeds, deepstack }), tokens);
        }
        for start in 0..8 {
            for end in start..=8 {
                let found = images.slice(start..end);
                assert_eq!(found.embeds, all[start * 2..end * 2]);
                let below: Vec<f32> = found.embeds.iter().map(|x| -x).collect();
                let layers = if start < end { vec![below] } else { Vec::new() };
                assert_eq!(found.deepstack, layers);
            }
        }
    }
}
