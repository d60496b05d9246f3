//! What operators take of TensorRT's, where that is less than the standard allows or what exporters write in error.
//!
//! Each row was met by asking the parser of TensorRT for RTX 1.7, which names the types that it takes.

use super::{Findings, Subject, TargetRule};
use crate::ElementType;
use crate::check::label;
use crate::external::DataError;
use crate::model::{AttributeValue, Node};

pub(super) const RULES: [TargetRule; 2] = [
    TargetRule { name: "operand-type", judge: operand_type },
    TargetRule { name: "pool-dilation", judge: pool_dilation },
];

type Judged = Result<(), DataError>;

/// Operators, which of their inputs is looked at, and the types that it may have.
const TAKEN: [(&[&str], usize, Types); 7] = [
    (
        &["And", "Or", "Xor", "Not"],
        0,
        Types { words: "bool", takes: |dtype| dtype == ElementType::Bool },
    ),
    (&["And", "Or", "Xor"], 1, Types { words: "bool", takes: |dtype| dtype == ElementType::Bool }),
    (ARITHMETIC, 0, Types { words: "numbers", takes: |dtype| dtype != ElementType::Bool }),
    (ARITHMETIC, 1, Types { words: "numbers", takes: |dtype| dtype != ElementType::Bool }),
    (
        &["Gather", "GatherElements"],
        1,
        Types {
            words: "i32 or i64",
            takes: |dtype| matches!(dtype, ElementType::I32 | ElementType::I64),
        },
    ),
    (&["Softmax", "LogSoftmax"], 0, Types { words: "floats", takes: ElementType::is_float }),
    (
        &["HardSwish"],
        0,
        Types {
            words: "f32, f16 or i8",
            takes: |dtype| {
                use ElementType::{F16, F32, F64, I8};
                matches!(dtype, F32 | F64 | F16 | I8)
            },
        },
    ),
];

const ARITHMETIC: &[&str] = &["Add", "Div", "Max", "Min", "Mod", "Mul", "Pow", "Sub"];

/// Types that an input may have.
struct Types {
    words: &'static str,
    takes: fn(ElementType) -> bool,
}

fn operand_type(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|node| node.domain.is_empty()) {
        let rows = TAKEN.iter().filter(|(operators, ..)| operators.contains(&node.op.as_str()));
        let wrong = rows.filter_map(|(_, at, types)| {
            let name = node.inputs.get(*at)?;
            let dtype = subject.dtype(name).filter(|dtype| !(types.takes)(*dtype))?;
            Some(format!("{name:?} is {dtype}, and it takes {} there", types.words))
        });
        for what in wrong {
            found.error(label(node), what, "cast it before");
        }
        if let Some(what) = remainder_of_floats(subject, node).or_else(|| unknown_type(node)) {
            found.error(label(node), what, "export it again; the standard has no such node");
        }
    }
    Ok(())
}

/// A remainder of floats is C's `fmod`, and must say so.
fn remainder_of_floats(subject: &Subject<'_>, node: &Node) -> Option<String> {
    let is_of_floats = node.inputs.first().and_then(|name| subject.dtype(name))?.is_float();
    let is_wrong = node.op == "Mod" && is_of_floats && node.int("fmod").unwrap_or(0) == 0;
    is_wrong.then(|| "it is a remainder of floats without fmod = 1".to_owned())
}

fn unknown_type(node: &Node) -> Option<String> {
    let Some(AttributeValue::Int(to)) = node.attribute("to").filter(|_| node.op == "Cast") else {
        return None;
    };
    let known = i32::try_from(*to).ok().and_then(ElementType::from_number);
    known.is_none().then(|| format!("it casts to type {to}, which is none of its types"))
}

fn pool_dilation(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let nodes = subject.nodes();
    let pools = nodes.iter().filter(|node| matches!(&*node.op, "MaxPool" | "AveragePool"));
    for node in pools {
        let wide = match node.attribute("dilations") {
            Some(AttributeValue::Ints(steps)) => steps.iter().any(|step| *step != 1),
            _ => false,
        };
        if wide {
            let remedy = "pool by windows without gaps, or gather the places first";
            found.error(label(node), "its windows have gaps (dilations)", remedy);
        }
    }
    Ok(())
}
