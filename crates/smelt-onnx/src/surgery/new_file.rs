//! Lays tensors out in a data file that a patch makes: one after another, each on a page.

use std::collections::BTreeSet;

use super::externalize::weights;
use crate::model::{Data, Initializer, Model};
use crate::survey::tensors;
use crate::{ElementType, TENSOR_ALIGNMENT_BYTES};

/// A data file under a name that no tensor of the model uses.
pub(super) struct NewFile {
    location: String,
    end: u64,
}

impl NewFile {
    pub(super) fn beside(model: &Model) -> Self {
        Self { location: free_location(model), end: 0 }
    }

    /// The next tensor of the file; `None` when its size overflows.
    pub(super) fn tensor(
        &mut self,
        name: String,
        dtype: ElementType,
        dims: Vec<usize>,
    ) -> Option<Initializer> {
        let length = dtype.byte_len(&dims)? as u64;
        let offset = self.end.next_multiple_of(TENSOR_ALIGNMENT_BYTES);
        self.end = offset.checked_add(length)?;
        let data = Data::External { location: self.location.clone(), offset, length };
        Some(Initializer { name, dtype, dims, data })
    }
}

/// A name for a data file that no tensor of `model` lies in.
pub(super) fn free_location(model: &Model) -> String {
    let mut taken = BTreeSet::from([crate::MODEL_FILE.to_owned()]);
    let mut note = |tensor: &Initializer| {
        if let Data::External { location, .. } = &tensor.data {
            taken.insert(location.trim_start_matches("./").to_owned());
        }
    };
    tensors(&model.graph, &mut note);
    weights(model).iter().for_each(note);
    let spellings = (2..).map(|count| format!("model.onnx.{count}.data"));
    std::iter::once(crate::DATA_FILE.to_owned())
        .chain(spellings)
        .find(|name| !taken.contains(name))
        .expect("a finite model leaves a name free")
}
