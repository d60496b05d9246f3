//! Names the forms in which weights lie for tensor cores, and what each keeps beside its levels.
//!
//! A form is what a kernel is compiled for.  Checkpoints have more schemes than there are forms: what is exact in another
//! form is packed into that.  Knows no kernel's arguments and no bytes.

use smelt_tensor::packed::BlockForm;

/// How the numbers of a weight are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Levels {
    /// Four bits; without zero points the level 8 means 0.
    Four,
    /// A byte; 128 means 0.
    Eight,
    /// Half precision.
    Half,
}

impl Levels {
    /// Bits of one.
    pub const fn bits(self) -> usize {
        match self {
            Self::Four => 4,
            Self::Eight => 8,
            Self::Half => 16,
        }
    }

    /// Columns of the 16 bytes that a lane reads at once.
    pub const fn read_columns(self) -> usize {
        256 / self.bits()
    }
}

/// What the sum of a group of columns is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ScaleKind {
    /// Nothing: a row has one scale of f32.
    Row,
    /// An f16.
    F16,
    /// A signed byte times an f16 that [`SPAN_COLUMNS`] columns share.
    Factors,
}

/// Columns that share an f16 where scales are factors, as in ggml's K-quants.
pub const SPAN_COLUMNS: usize = 256;

/// What is kept of a weight, in bytes; each is `[rows / 64]` pieces, see [`super::layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WeightPart {
    /// Its numbers.
    Levels,
    /// Scales of groups.
    Scales,
    /// Zero points of groups, bytes.
    Zeros,
    /// Minima of groups.
    Mins,
    /// What scales are factors of.
    Spans,
    /// What minima are factors of.
    MinSpans,
    /// Scales of rows, f32.
    RowScales,
}

impl WeightPart {
    /// What a part's name adds to that of its weight.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::Levels => "",
            Self::Scales => "_scale",
            Self::Zeros => "_zero",
            Self::Mins => "_min",
            Self::Spans => "_span",
            Self::MinSpans => "_min_span",
            Self::RowScales => "_row",
        }
    }
}

/// A form of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WeightForm {
    /// Its word, with which names of its kernels begin.
    pub name: &'static str,
    /// How numbers are kept.
    pub levels: Levels,
    /// Columns whose products are one chain of sums, and which share a scale where there are such.
    pub group: usize,
    /// How scales are kept.
    pub scales: ScaleKind,
    /// Whether groups have zero points.
    pub has_zeros: bool,
    /// Whether groups have minima, which are subtracted.
    pub has_mins: bool,
}

const fn form(name: &'static str, levels: Levels, group: usize, scales: ScaleKind) -> WeightForm {
    WeightForm { name, levels, group, scales, has_zeros: false, has_mins: false }
}

const fn with_zeros(form: WeightForm) -> WeightForm {
    WeightForm { has_zeros: true, ..form }
}

const fn with_mins(form: WeightForm) -> WeightForm {
    WeightForm { has_mins: true, ..form }
}

impl WeightForm {
    /// The form of graphs' weights: halves whose chains are so long that large tiles have sums of one alone.  More becomes of
    /// their products than of others'.
    pub const OF_GRAPHS: Self = form("half2048", Levels::Half, 2048, ScaleKind::Row);

    /// Every form of decoders' weights.
    pub const ALL: [Self; 18] = [
        form("half", Levels::Half, 128, ScaleKind::Row),
        form("i4", Levels::Four, 128, ScaleKind::Row),
        with_zeros(form("i4z", Levels::Four, 128, ScaleKind::Row)),
        form("i4g32", Levels::Four, 32, ScaleKind::F16),
        with_zeros(form("i4g32z", Levels::Four, 32, ScaleKind::F16)),
        form("i4g64", Levels::Four, 64, ScaleKind::F16),
        with_zeros(form("i4g64z", Levels::Four, 64, ScaleKind::F16)),
        form("i4g128", Levels::Four, 128, ScaleKind::F16),
        with_zeros(form("i4g128z", Levels::Four, 128, ScaleKind::F16)),
        with_mins(form("i4g32m", Levels::Four, 32, ScaleKind::F16)),
        with_mins(form("i4g32fm", Levels::Four, 32, ScaleKind::Factors)),
        form("i8", Levels::Eight, 128, ScaleKind::Row),
        form("i8g16", Levels::Eight, 16, ScaleKind::F16),
        form("i8g32", Levels::Eight, 32, ScaleKind::F16),
        form("i8g128", Levels::Eight, 128, ScaleKind::F16),
        with_mins(form("i8g32m", Levels::Eight, 32, ScaleKind::F16)),
        with_mins(form("i8g32fm", Levels::Eight, 32, ScaleKind::Factors)),
        form("i8g16f", Levels::Eight, 16, ScaleKind::Factors),
    ];

    /// Those, and that of graphs' weights.
    pub(super) fn every() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().chain([Self::OF_GRAPHS])
    }

    /// The form of the word `name`.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|form| form.name == name)
    }

    /// The form for levels of four or eight bits with a scale for `group` columns, for a row where there is none.
    ///
    /// Scales of larger groups are repeated for each 128 columns, and nibbles in groups of 16 become bytes; both are exact.
    pub fn of_levels(levels: Levels, group: Option<usize>, has_zeros: bool) -> Option<Self> {
        let found = |levels, group, scales, has_zeros| {
            Self::ALL.into_iter().find(|form| {
                let own = (form.levels, form.group, form.scales, form.has_zeros);
                own == (levels, group, scales, has_zeros) && !form.has_mins
            })
        };
        let Some(group) = group else { return found(levels, 128, ScaleKind::Row, has_zeros) };
        let own = if group.is_multiple_of(128) { 128 } else { group };
        found(levels, own, ScaleKind::F16, has_zeros).or_else(|| {
            // Bytes hold a nibble less its zero point; groups of 64 bytes are two of 32.
            let own = if own == 64 { 32 } else { own };
            found(Levels::Eight, own, ScaleKind::F16, false)
        })
    }

    /// The form that holds a form of ggml's blocks.
    pub fn of_blocks(blocks: BlockForm) -> Option<Self> {
        let levels = if blocks.bits == 4 { Levels::Four } else { Levels::Eight };
        let scales = if blocks.has_factors() { ScaleKind::Factors } else { ScaleKind::F16 };
        Self::ALL.into_iter().find(|form| {
            let own = (form.levels, form.group, form.scales, form.has_mins);
            own == (levels, blocks.group, scales, blocks.has_mins) && !form.has_zeros
        })
    }

    /// What is kept of a weight of this form, in the order in which kernels are given it.
    pub fn parts(self) -> Vec<WeightPart> {
        let has_factors = self.scales == ScaleKind::Factors;
        let all = [
            (WeightPart::Levels, true),
            (WeightPart::Scales, self.scales != ScaleKind::Row),
            (WeightPart::Zeros, self.has_zeros),
            (WeightPart::Mins, self.has_mins),
            (WeightPart::Spans, has_factors),
            (WeightPart::MinSpans, has_factors && self.has_mins),
            (WeightPart::RowScales, self.scales == ScaleKind::Row),
        ];
        all.into_iter().filter(|(_, is_kept)| *is_kept).map(|(part, _)| part).collect()
    }

    /// Whether weights are of graphs.
    pub fn is_of_graphs(self) -> bool {
        self == Self::OF_GRAPHS
    }

    /// What the kernels' source calls it.
    pub(super) fn template(self) -> String {
        let scales = match self.scales {
            ScaleKind::Row => "SCALE_NONE",
            ScaleKind::F16 => "SCALE_F16",
            ScaleKind::Factors => "SCALE_FACTORS",
        };
        let Self { levels, group, has_zeros, has_mins, .. } = self;
        format!("Form<{}, {group}, {scales}, {has_zeros}, {has_mins}>", levels.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_forms_apart() {
        for form in WeightForm::ALL {
            assert_eq!(WeightForm::parse(form.name), Some(form));
            assert!(matches!(form.group, 16 | 32 | 64 | 128));
            assert!(!form.is_of_graphs() && form.name != WeightForm::OF_GRAPHS.name);
        }
        let mut all = WeightForm::ALL.map(|form| WeightForm { name: "", ..form }).to_vec();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), WeightForm::ALL.len());
    }

    #[test]
    fn every_scheme_has_a_form_that_holds_it() {
        let name = |levels, group, has_zeros| {
            WeightForm::of_levels(levels, group, has_zeros).map(|form| form.name)
        };
        assert_eq!(name(Levels::Four, Some(128), true), Some("i4g128z"));
        assert_eq!(name(Levels::Four, Some(1024), false), Some("i4g128"));
        assert_eq!(name(Levels::Four, None, true), Some("i4z"));
        assert_eq!(name(Levels::Four, Some(16), true), Some("i8g16"));
        assert_eq!(name(Levels::Eight, Some(64), false), Some("i8g32"));
        assert_eq!(name(Levels::Eight, None, false), Some("i8"));
        for group in smelt_tensor::packed::GROUP_SIZES {
            for (levels, has_zeros) in
                [(Levels::Four, false), (Levels::Four, true), (Levels::Eight, false)]
            {
                assert!(name(levels, Some(group), has_zeros).is_some(), "{levels:?} {group}");
            }
        }
        for blocks in BlockForm::ALL {
            let form = WeightForm::of_blocks(blocks).unwrap();
            assert_eq!(form.has_mins, blocks.has_mins, "{}", blocks.name);
        }
    }
}
