//! Puts the source of an engine's kernels together: one text for the forms of its weights and the shape of its heads.
//!
//! Constants go into it as definitions, so that Rust and CUDA C have them from one place.  Compiling is another's.

use smelt_backend::KvType;

use super::form::WeightForm;
use super::page::HeadShape;
use super::product::{FewShape, ManyShape, ProductShape};
use super::table;

/// What an engine's kernels depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelSet {
    /// The forms of its weights.
    pub forms: Vec<WeightForm>,
    /// Its heads of keys and values.
    pub head: HeadShape,
}

const COMMON: &str = include_str!("../../kernels/common.cu");
const PRODUCT: &str = include_str!("../../kernels/product.cu");
const NUMBERS: &str = include_str!("../../kernels/numbers.cu");
const ROWS: &str = include_str!("../../kernels/rows.cu");
const ATTENTION: &str = include_str!("../../kernels/attention.cu");
const PAGES: &str = include_str!("../../kernels/pages.cu");
const CHOOSE: &str = include_str!("../../kernels/choose.cu");
const GRAPH: &str = include_str!("../../kernels/graph.cu");
const WGMMA: &str = include_str!("../../kernels/wgmma.cu");
const WIDE: &str = include_str!("../../kernels/wide.cu");

/// The source of the kernels of a set: CUDA C without headers.
pub fn source(set: &KernelSet) -> String {
    let mut text = definitions(set.head);
    for part in [COMMON, NUMBERS, PRODUCT, WGMMA, WIDE, ROWS, ATTENTION, PAGES, CHOOSE] {
        text.push_str(part);
    }
    let mut forms = set.forms.clone();
    forms.sort_unstable();
    forms.dedup();
    for form in forms {
        text.push_str(&instances(form));
    }
    text
}

/// The source of the kernels of a graph whose heads have up to `head` numbers.
pub fn graph_source(head: usize) -> String {
    let mut text = definitions(graph_head(head));
    for part in [COMMON, NUMBERS, PRODUCT, WGMMA, WIDE, ATTENTION, GRAPH] {
        text.push_str(part);
    }
    text.push_str(&instances(WeightForm::OF_GRAPHS));
    text
}

/// The heads that kernels of a graph attend with.
pub const fn graph_head(dim: usize) -> HeadShape {
    HeadShape { dim, kind: KvType::F16 }
}

fn definitions(head: HeadShape) -> String {
    let (pad, own) = (head.padded(), head.padded().div_ceil(32));
    let (is_bytes, bytes) = (u32::from(head.kind == KvType::Int8), head.bytes());
    format!(
        "#define HEAD_PAD {pad}\n#define HEAD_OWN {own}\n#define KV_BYTES {is_bytes}\n\
         #define HEAD_BYTES {bytes}\n"
    )
}

/// The kernels of one form of weights.
fn instances(form: WeightForm) -> String {
    let alias = format!("Form_{}", form.name);
    let mut text = format!("typedef {} {alias};\n", form.template());
    for shape in ProductShape::all(form) {
        let name = table::product(form, shape);
        text.push_str(&match shape {
            ProductShape::Few(FewShape { eights, tiles, warps, norms }) => {
                format!("FEW({name}, {alias}, {eights}, {tiles}, {warps}, {norms})\n")
            }
            ProductShape::Many(many) => {
                let ManyShape { tiles, eights, row_warps, column_warps, stages } = many;
                format!(
                    "MANY({name}, {alias}, {tiles}, {eights}, {row_warps}, {column_warps}, {stages})\n"
                )
            }
            // Nothing but Hopper compiles it.
            ProductShape::Wide(wide) => {
                let (eights, is_split) = (wide.eights, wide.is_split);
                format!("WIDE({name}, {alias}, {eights}, {}, {is_split})\n", wide.stages(form))
            }
        });
    }
    text.push_str(&format!("WIDEN({}, {alias})\n", table::widen(form)));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_the_source_are_those_of_rust() {
        let defined = |text: &str, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
            line.and_then(|value| value.trim().parse::<usize>().ok())
        };
        assert_eq!(defined(PRODUCT, "UNIT"), Some(super::super::layout::COLUMN_ALIGN));
        assert_eq!(defined(PRODUCT, "SPAN_COLUMNS"), Some(super::super::form::SPAN_COLUMNS));
        let pages = |name| defined(PAGES, name);
        assert_eq!(pages("JOIN_THREADS"), Some(super::super::attention::JOIN_THREADS as usize));
        assert_eq!(pages("JOIN_STAGES"), Some(super::super::attention::JOIN_STAGES as usize));
        let warps = Some(super::super::attention::TOGETHER_WARPS as usize);
        assert_eq!(pages("TOGETHER_WARPS"), warps);
        assert_eq!(defined(NUMBERS, "ROW_THREADS"), Some(super::super::rows::ROW_THREADS as usize));
        let groups = Some(super::super::wide::GROUPS_EIGHTS_MAX as usize);
        assert_eq!(defined(WIDE, "GROUPS_EIGHTS_MAX"), groups);
        let choose = |name| defined(CHOOSE, name);
        assert_eq!(choose("TOP_MAX"), Some(smelt_backend::sampling::TOP_LOGPROBS_MAX));
        assert_eq!(choose("ADJUST_TOKENS"), Some(super::super::choose::ADJUST_TOKENS));
        assert_eq!(choose("WEIGHT_BLOCK"), Some(super::super::choose::WEIGHT_BLOCK));
        assert_eq!(choose("SPAN"), Some(super::super::choose::SPAN));
        assert_eq!(choose("CHOOSE_THREADS"), Some(super::super::choose::PICK_THREADS as usize));
        assert_eq!(choose("OWN_BLOCKS"), Some(super::super::choose::OWN_BLOCKS));
        assert_eq!(choose("BUCKETS"), Some(super::super::choose::BUCKETS));
        let graph = |name| defined(GRAPH, name);
        assert_eq!(graph("MAP_THREADS"), Some(super::super::graph::MAP_THREADS as usize));
        assert_eq!(graph("MAP_EACH"), Some(super::super::graph::MAP_EACH as usize));
        assert_eq!(graph("MAP_WORDS"), Some(super::super::graph::MAP_WORDS));
        assert_eq!(graph("MAP_OPERANDS"), Some(super::super::graph::MAP_OPERANDS));
        assert_eq!(graph("MOVE_THREADS"), Some(super::super::graph::MOVE_THREADS as usize));
    }

    #[test]
    fn a_set_has_the_kernels_of_its_forms_alone() {
        let forms = ["i4g128", "half", "i4g128"].map(|name| WeightForm::parse(name).unwrap());
        let head = HeadShape { dim: 24, kind: KvType::Int8 };
        let text = source(&KernelSet { forms: forms.to_vec(), head });
        assert!(text.starts_with("#define HEAD_PAD 32\n"));
        assert_eq!(
            text.matches("\nFEW(i4g128_f8_1x16, Form_i4g128, 1, 1, 16, false)\n").count(),
            1
        );
        assert_eq!(text.matches("typedef Form<16, 128, SCALE_NONE, false, false>").count(), 1);
        assert!(!text.contains("i8_f8_1x16"));
    }
}
