//! Holds which kernel multiplies fastest on one card, and of which cards that is true.
//!
//! [`CardTactics::tune`] asks whoever can time a product; the choice is kept as `tactics.json`, without the times, so that
//! tuning again and choosing the same changes nothing.  An engine that was built with tactics follows them on cards equal to
//! the one they were found on.  They change how fast numbers come, and never a bit.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use smelt_backend::tactics_file::{self, TacticsError};

use crate::kernels::form::WeightForm;
use crate::kernels::product::{ProductShape, default_shape, shape_of_state};
use crate::{CardFacts, CudaTarget, Processors, Sm};

/// Version of that file.
const FORMAT: u32 = 1;
/// A longer file was not written by us.
const FILE_BYTES_MAX: usize = 256 << 10;
/// More products of different sizes than any decoder has.
const PRODUCTS_MAX: usize = 256;
/// Numbers of tokens that are timed: answers under way, then chunks of prompts.  What lies between them takes the next.
pub const TOKENS: [u32; 8] = [1, 8, 16, 32, 64, 128, 512, 2048];
/// Beyond so many tokens, kernels for few are never the fastest, and would be timed for long.
const FEW_TOKENS_MAX: u32 = 64;
/// What is usual is kept unless another takes less than so much of its time: times differ by a few hundredths from run to run.
const GAIN_MIN: f64 = 0.97;

/// A product of a decoder: the form and the sizes of its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProductSize {
    /// The form.
    pub form: WeightForm,
    /// Rows that count.
    pub rows: u32,
    /// Padded columns.
    pub columns: u32,
}

/// What makes two cards equal here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedCard {
    /// What its driver calls it.
    pub name: String,
    /// The target whose kernels were timed.
    pub target: String,
    /// Processors that blocks are spread over.
    pub multiprocessors: u32,
}

impl TunedCard {
    /// A card of which kernels for `target` are timed.
    pub fn of(card: &CardFacts, target: CudaTarget) -> Self {
        let (name, multiprocessors) = (card.name.clone(), card.multiprocessors);
        Self { name, target: target.word().to_owned(), multiprocessors }
    }

    fn processors(&self) -> Processors {
        let sm = CudaTarget::parse(&self.target).map_or(Sm(0), CudaTarget::sm);
        Processors { count: self.multiprocessors, sm }
    }
}

/// The kernels of a product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProductTactic {
    form: String,
    rows: u32,
    columns: u32,
    /// For up to so many tokens the kernel, by its word.
    shapes: Vec<(u32, String)>,
    /// The one that norms a state itself, where there is such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<String>,
}

/// Which kernel multiplies fastest on a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CardTactics {
    format: u32,
    /// Where they were found.
    pub card: TunedCard,
    products: Vec<ProductTactic>,
}

impl CardTactics {
    /// Has each kernel of each product timed, in seconds; nothing of one for which the card has no room.
    ///
    /// # Errors
    /// Those of `time`.
    pub fn tune<E>(
        card: TunedCard,
        sizes: &[ProductSize],
        time: &mut dyn FnMut(ProductSize, u32, ProductShape) -> Result<Option<f64>, E>,
    ) -> Result<Self, E> {
        let processors = card.processors();
        let one = |size: &ProductSize| {
            let mut fastest = |tokens, usual, all: Vec<ProductShape>| {
                let timed = |shape| Ok(time(*size, tokens, shape)?.map(|took| (took, shape)));
                let timed: Vec<_> = all.into_iter().map(timed).collect::<Result<_, E>>()?;
                Ok(fastest_of(usual, timed.into_iter().flatten()))
            };
            let mut shapes = Vec::new();
            for tokens in TOKENS {
                let usual = default_shape(size.form, [size.rows, size.columns], tokens, processors);
                let all = for_tokens(size.form, tokens, processors);
                if let Some(shape) = fastest(tokens, usual, all)? {
                    shapes.push((tokens, shape.name()));
                }
            }
            let usual = shape_of_state(size.form, size.rows, size.columns, processors.count);
            let state = match usual {
                Some(usual) => fastest(1, usual, for_states(size))?,
                None => None,
            };
            let (form, rows, columns) = (size.form.name.to_owned(), size.rows, size.columns);
            let state = state.map(ProductShape::name);
            Ok(ProductTactic { form, rows, columns, shapes, state })
        };
        let products = sizes.iter().map(one).collect::<Result<_, E>>()?;
        Ok(Self { format: FORMAT, card, products })
    }

    /// How many kernels are timed for a product on a card.
    pub fn count(card: &TunedCard, size: &ProductSize) -> usize {
        let of_tokens = |tokens| for_tokens(size.form, tokens, card.processors()).len();
        TOKENS.into_iter().map(of_tokens).sum::<usize>() + for_states(size).len()
    }

    /// Writes them into `dir`.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, dir: &Path) -> Result<(), TacticsError> {
        tactics_file::write(dir, self)
    }

    /// Reads those in `dir`.
    ///
    /// # Errors
    /// When there are none, or not those of a card.
    pub fn read(dir: &Path) -> Result<Self, TacticsError> {
        tactics_file::read(dir, "a card", Self::parse)
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text.len() > FILE_BYTES_MAX {
            return Err(format!("it is longer than {FILE_BYTES_MAX} bytes"));
        }
        let tactics: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        tactics.table().map(|_| tactics)
    }

    /// The kernels by their products.
    ///
    /// # Errors
    /// Why nobody can follow them.
    pub(crate) fn table(&self) -> Result<ShapeTable, String> {
        if self.format != FORMAT {
            return Err(format!("tactics of format {}, not {FORMAT}", self.format));
        }
        if self.products.len() > PRODUCTS_MAX {
            return Err(format!("{} products, at most {PRODUCTS_MAX}", self.products.len()));
        }
        let processors = self.card.processors();
        let rows = self.products.iter().map(|product| product.row(processors));
        Ok(ShapeTable(rows.collect::<Result<_, _>>()?))
    }

    /// Why they are not those of this card, if so.
    pub(crate) fn unlike(&self, here: &TunedCard) -> Option<String> {
        let their = &self.card;
        let differs = |what: &str, their: &dyn std::fmt::Display, here: &dyn std::fmt::Display| {
            format!("the engine was tuned for a card of {what} {their}, this one has {here}")
        };
        if their.name != here.name {
            return Some(differs("the name", &their.name, &here.name));
        }
        if their.target != here.target {
            return Some(differs("target", &their.target, &here.target));
        }
        (their.multiprocessors != here.multiprocessors)
            .then(|| differs("multiprocessors", &their.multiprocessors, &here.multiprocessors))
    }
}

/// The kernels that are timed for so many tokens on such processors.
fn for_tokens(form: WeightForm, tokens: u32, processors: Processors) -> Vec<ProductShape> {
    let is_tried = |shape: &ProductShape| match shape {
        ProductShape::Few(_) => shape.takes(tokens) && !shape.norms() && tokens <= FEW_TOKENS_MAX,
        ProductShape::Many(_) => true,
        ProductShape::Wide(_) => tokens > FEW_TOKENS_MAX,
    };
    ProductShape::all_on(form, processors).into_iter().filter(is_tried).collect()
}

/// The kernels that are timed for a state.
fn for_states(size: &ProductSize) -> Vec<ProductShape> {
    let norms = |shape: &ProductShape| shape.norms() && shape.has_room(size.form, size.columns);
    ProductShape::all(size.form).into_iter().filter(norms).collect()
}

/// The fastest, or the usual one where none is faster by enough; nothing where none was timed.
fn fastest_of(
    usual: ProductShape,
    timed: impl Iterator<Item = (f64, ProductShape)>,
) -> Option<ProductShape> {
    let timed: Vec<_> = timed.filter(|(took, _)| took.is_finite()).collect();
    let &(least, fastest) = timed.iter().min_by(|a, b| a.0.total_cmp(&b.0))?;
    let of_usual = timed.iter().find(|(_, shape)| *shape == usual);
    let is_usual = of_usual.is_some_and(|(took, _)| least > took * GAIN_MIN);
    Some(if is_usual { usual } else { fastest })
}

/// The kernels of a product, which were found to be some.
#[derive(Clone, Debug, PartialEq)]
struct Shapes {
    /// For up to so many tokens, ascending.
    by_tokens: Vec<(u32, ProductShape)>,
    of_state: Option<ProductShape>,
}

impl ProductTactic {
    fn row(&self, processors: Processors) -> Result<(ProductSize, Shapes), String> {
        let Self { rows, columns, .. } = *self;
        let no =
            |what: &str| format!("no kernel of {}, {rows} x {columns}, is {what:?}", self.form);
        let form = WeightForm::parse(&self.form).ok_or_else(|| no("any"))?;
        let size = ProductSize { form, rows, columns };
        let find = |name: &String, all: Vec<ProductShape>| {
            let mut all = all.into_iter();
            all.find(|shape| shape.name() == *name).ok_or_else(|| no(name))
        };
        let mut before = 0;
        let mut by_tokens = Vec::new();
        for (tokens, name) in &self.shapes {
            if *tokens <= before || *tokens > TOKENS[TOKENS.len() - 1] {
                return Err(format!("kernels of {rows} x {columns} are for {tokens} tokens"));
            }
            before = *tokens;
            by_tokens.push((*tokens, find(name, for_tokens(form, *tokens, processors))?));
        }
        let of_state = self.state.as_ref().map(|name| find(name, for_states(&size))).transpose()?;
        Ok((size, Shapes { by_tokens, of_state }))
    }
}

/// Which kernel multiplies, by whoever timed it, else by sizes and the card.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ShapeTable(BTreeMap<ProductSize, Shapes>);

impl ShapeTable {
    /// For a product of so many tokens, on a card of such processors.
    pub(crate) fn shape(
        &self,
        size: ProductSize,
        tokens: u32,
        processors: Processors,
    ) -> ProductShape {
        let tuned = self.0.get(&size).and_then(|shapes| {
            let (most, shape) = shapes.by_tokens.iter().find(|(most, _)| *most >= tokens)?;
            // How many waves large tiles are hangs on the very number of tokens, which was not timed.
            let is_for_these = *most == tokens || !matches!(shape, ProductShape::Wide(_));
            is_for_these.then_some(*shape)
        });
        tuned.unwrap_or_else(|| {
            default_shape(size.form, [size.rows, size.columns], tokens, processors)
        })
    }

    /// For a product that norms a state itself; nothing where none does.
    pub(crate) fn of_state(&self, size: ProductSize, multiprocessors: u32) -> Option<ProductShape> {
        let usual = shape_of_state(size.form, size.rows, size.columns, multiprocessors)?;
        Some(self.0.get(&size).and_then(|shapes| shapes.of_state).unwrap_or(usual))
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::fs;

    use smelt_backend::tactics_file::TACTICS_FILE;

    use super::*;
    use crate::Sm;
    use crate::recording;

    fn card() -> TunedCard {
        TunedCard::of(&recording::card(Sm(90), 8 << 30, false), CudaTarget::Sm90)
    }

    fn own() -> Processors {
        card().processors()
    }

    fn size(rows: u32) -> ProductSize {
        ProductSize { form: WeightForm::parse("i4g128").unwrap(), rows, columns: 2048 }
    }

    /// Tactics of a card on which the kernels of these names take half of the others' time.
    fn tuned(fast: &[&str]) -> CardTactics {
        let mut time = |_, _, shape: ProductShape| {
            let took = if fast.contains(&shape.name().as_str()) { 1.0 } else { 2.0 };
            Ok::<_, Infallible>(Some(took))
        };
        CardTactics::tune(card(), &[size(4096), size(64)], &mut time).unwrap()
    }

    #[test]
    fn the_fastest_kernel_is_taken_and_the_usual_one_where_all_are_equal() {
        let table = tuned(&["f8_2x8", "f32_1x4", "n1_1x8"]).table().unwrap();
        let name = |tokens| table.shape(size(4096), tokens, own()).name();
        assert_eq!(name(1), "f8_2x8");
        assert_eq!(name(3), "f8_2x8", "what was timed for eight");
        assert_eq!(name(9), "f32_1x4", "it takes sixteen as well");
        assert_eq!(name(32), "f32_1x4");
        let usual = |tokens| default_shape(size(4096).form, [4096, 2048], tokens, own()).name();
        for tokens in [33, 64, 100, 512, 2048, 5000] {
            let of_bucket = TOKENS.into_iter().find(|&most| most >= tokens).unwrap_or(tokens);
            let is_wide = usual(of_bucket).starts_with("w_");
            let expect = usual(if is_wide { tokens } else { of_bucket });
            assert_eq!(name(tokens), expect, "{tokens}");
        }
        assert_eq!(table.of_state(size(4096), own().count).unwrap().name(), "n1_1x8");
        // A product that nobody timed.
        let other = size(8192);
        assert_eq!(table.shape(other, 1, own()), default_shape(other.form, [8192, 2048], 1, own()));
        assert_eq!(
            table.of_state(other, own().count),
            shape_of_state(other.form, 8192, 2048, own().count)
        );
    }

    #[test]
    fn small_differences_change_nothing() {
        let mut at = 0.0;
        let mut time = |_, _, _| {
            at += 1.0;
            Ok::<_, Infallible>(Some(100.0 - (at % 3.0)))
        };
        let tactics = CardTactics::tune(card(), &[size(4096)], &mut time).unwrap();
        let table = tactics.table().unwrap();
        for tokens in TOKENS {
            let usual = default_shape(size(4096).form, [4096, 2048], tokens, own());
            assert_eq!(table.shape(size(4096), tokens, own()), usual);
        }
    }

    #[test]
    fn every_kernel_that_is_timed_can_multiply() {
        let mut count = 0;
        let mut time = |size: ProductSize, tokens, shape: ProductShape| {
            assert!(shape.takes(tokens) && shape.has_room(size.form, size.columns), "{shape}");
            count += 1;
            Ok::<_, Infallible>(None)
        };
        for form in WeightForm::ALL {
            let size = ProductSize { form, rows: 96, columns: 8192 };
            let tactics = CardTactics::tune(card(), &[size], &mut time).unwrap();
            assert_eq!(
                tactics.table().unwrap().shape(size, 1, own()),
                default_shape(form, [96, 8192], 1, own())
            );
        }
        let all =
            |form| CardTactics::count(&card(), &ProductSize { form, rows: 96, columns: 8192 });
        assert!(count <= WeightForm::ALL.into_iter().map(all).sum::<usize>());
    }

    #[test]
    fn what_is_written_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let tactics = tuned(&["f8_1x8"]);
        tactics.write(dir.path()).unwrap();
        assert_eq!(CardTactics::read(dir.path()).unwrap(), tactics);
        fs::remove_file(dir.path().join(TACTICS_FILE)).unwrap();
        assert!(matches!(CardTactics::read(dir.path()), Err(TacticsError::Io { .. })));
    }

    #[test]
    fn lies_are_found() {
        let text = serde_json::to_string(&tuned(&["f8_1x8"])).unwrap();
        assert!(CardTactics::parse(&text).is_ok());
        for (from, to, words) in [
            ("\"format\":1", "\"format\":2", "format 2"),
            ("i4g128", "i3g1", "is \"any\""),
            ("f8_1x8", "f9_1x8", "is \"f9_1x8\""),
            ("f8_1x8", "n1_1x8", "is \"n1_1x8\""),
            ("[8,", "[1,", "are for 1 tokens"),
            ("[2048,", "[4096,", "are for 4096 tokens"),
        ] {
            assert!(text.contains(from), "{from} is not in {text}");
            let error = CardTactics::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
        assert!(CardTactics::parse("{}").is_err());
    }

    #[test]
    fn another_card_is_told_apart() {
        let check = |change: fn(&mut TunedCard), words: &str| {
            let mut here = card();
            change(&mut here);
            let why = tuned(&[]).unlike(&here).unwrap();
            assert!(why.contains(words) && !why.contains('\n'), "{why}");
        };
        assert_eq!(tuned(&[]).unlike(&card()), None);
        check(|here| here.name = "NVIDIA Z1".to_owned(), "this one has NVIDIA Z1");
        check(|here| here.target = "cuda-sm87".to_owned(), "cuda-sm87");
        check(|here| here.multiprocessors = 7, "has 7");
    }
}
