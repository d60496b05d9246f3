//! What ONNX Runtime's CPU kernels lack, of what graphs here use.
//!
//! Found by asking ONNX Runtime 1.31 for a session of one node, operator by operator.

use super::{Findings, Subject, TargetRule, finite};
use crate::ElementType;
use crate::check::label;
use crate::external::DataError;

/// Newest operator set of ONNX Runtime 1.20, the oldest that reads 4-bit blocks.
const OPSET_MAX: i64 = 21;

pub(super) const RULES: [TargetRule; 4] = [
    TargetRule { name: "opset", judge: opset },
    TargetRule { name: "domain", judge: domain },
    TargetRule { name: "bf16-kernel", judge: bf16 },
    TargetRule { name: "weight-range", judge: finite::weight_range },
];

type Judged = Result<(), DataError>;

fn opset(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let opset = subject.model.opset;
    if opset > OPSET_MAX {
        let what = format!("operator set {opset} is newer than {OPSET_MAX}");
        found.warning("model", what, "convert it with to-opset 21, or use a newer runtime");
    }
    Ok(())
}

fn domain(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    let nodes = subject.nodes();
    let foreign = |domain: &str| !matches!(domain, "" | "com.microsoft" | "ai.onnx.ml");
    for node in nodes.iter().filter(|node| foreign(&node.domain)) {
        let what = format!("operator set {:?} is not the runtime's", node.domain);
        found.error(label(node), what, "register a library of custom operators");
    }
    Ok(())
}

/// Operators with bf16 kernels: those that move bytes, change types, and one norm.
const BF16: &str = "Cast Concat Constant Flatten Gather Identity LayerNormalization Reshape Shape \
    Size Slice Split Squeeze Transpose Unsqueeze";

fn bf16(subject: &Subject<'_>, found: &mut Findings) -> Judged {
    for node in subject.nodes().iter().filter(|node| node.domain.is_empty()) {
        let narrow = |name: &String| subject.dtype(name) == Some(ElementType::Bf16);
        let values = node.inputs.iter().chain(&node.outputs);
        if values.into_iter().any(narrow) && !BF16.split(' ').any(|op| op == node.op) {
            let remedy = "export in f32 or f16, or insert-cast --to f32";
            found.error(label(node), "there is no CPU kernel of it in bf16", remedy);
        }
    }
    Ok(())
}
