//! Finds the stored tensors of one packed weight and checks them.
//!
//! A [`Finder`] looks up tensors by the module's name and refuses wrong shapes and types; what the
//! formats find is a [`Stored`], the same for all of them.  Knows nothing of models.

use smelt_tensor::packed::GROUP_SIZES;

use crate::dtype::Dtype;
use crate::safetensors::{Shards, Tensor};

use super::PackedError;
use super::words::WordLayout;

/// The types scales come in.
const SCALES: [Dtype; 3] = [Dtype::F16, Dtype::BF16, Dtype::F32];

/// A packed weight as it is stored.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// `[out, in]`.
    pub(crate) shape: [usize; 2],
    /// Groups of a row.
    pub(crate) groups: usize,
    /// The quants, and how they lie; 8-bit ones are offset by 128, 4-bit ones by their zero.
    pub(crate) quants: (Tensor, WordLayout),
    /// The scales, and whether they are stored `[groups, out]`.
    pub(crate) scales: (Tensor, bool),
    /// The zeros, if the format stores them.
    pub(crate) zeros: Option<(Tensor, WordLayout)>,
    /// The input channel of each column once columns are sorted by group; nothing where they are.
    pub(crate) order: Option<Vec<u32>>,
}

/// Looks for the tensors of one module.
pub(crate) struct Finder<'a> {
    /// Where tensors are looked up and read.
    pub(crate) files: &'a Shards,
    /// The module's stored name, without `.weight`.
    pub(crate) module: &'a str,
    /// What the model calls for: `[out, in]`.
    pub(crate) shape: [usize; 2],
}

impl Finder<'_> {
    /// The name of the module's tensor `part`.
    pub(crate) fn name(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    /// The module's tensor `part`, if it is there.
    pub(crate) fn get(&self, part: &str) -> Option<&Tensor> {
        self.files.get(&self.name(part))
    }

    /// The module's tensor `part`, which belongs to its tensor `beside`.
    pub(crate) fn need(&self, part: &str, beside: &str) -> Result<&Tensor, PackedError> {
        self.get(part).ok_or_else(|| PackedError::Missing {
            path: self.files.path().into(),
            tensor: self.name(part),
            beside: self.name(beside),
        })
    }

    /// Refuses `tensor` unless it has `shape` and is I32.
    pub(crate) fn check_words(&self, tensor: &Tensor, shape: &[usize]) -> Result<(), PackedError> {
        self.check(tensor, shape, &[Dtype::I32], "I32")
    }

    /// Refuses `tensor` unless it has `shape` and one of the types.
    pub(crate) fn check(
        &self,
        tensor: &Tensor,
        shape: &[usize],
        dtypes: &[Dtype],
        expected: &'static str,
    ) -> Result<(), PackedError> {
        let (path, name) = (self.files.path().into(), tensor.name.clone());
        if !dtypes.contains(&tensor.dtype) {
            let found = tensor.dtype;
            return Err(PackedError::WrongDtype { path, tensor: name, found, expected });
        }
        if tensor.shape != shape {
            let (found, expected) = (tensor.shape.clone(), shape.to_vec());
            return Err(PackedError::Shape { path, tensor: name, found, expected });
        }
        Ok(())
    }

    /// The scales `part`, stored `[groups, out]` if `turned`, and the number of groups of size
    /// `group` (nothing for one a row).
    pub(crate) fn scales(
        &self,
        part: &str,
        beside: &str,
        turned: bool,
        group: Option<usize>,
    ) -> Result<(Tensor, usize), PackedError> {
        let [rows, columns] = self.shape;
        let groups = group.map_or(1, |group| columns.div_ceil(group));
        let tensor = self.need(part, beside)?;
        let shape = if turned { [groups, rows] } else { [rows, groups] };
        self.check(tensor, &shape, &SCALES, "F16, BF16 or F32")?;
        Ok((tensor.clone(), groups))
    }

    /// Columns sorted by the group that `part` (I32 `[in]`) gives each input channel; nothing if
    /// they are in order already.
    ///
    /// # Errors
    /// If a group is out of range, or the groups do not all have `group` members but the last.
    pub(crate) fn order(
        &self,
        part: &str,
        groups: usize,
        group: usize,
    ) -> Result<Option<Vec<u32>>, PackedError> {
        let Some(tensor) = self.get(part) else { return Ok(None) };
        self.check_words(tensor, &self.shape[1..])?;
        let mut bytes = vec![0; self.shape[1] * size_of::<i32>()];
        self.files.read_at(tensor, 0, &mut bytes)?;
        let of: Vec<i32> =
            bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
        sorted_by_group(&of, groups, group).map_err(|problem| PackedError::BadValues {
            path: self.files.path().into(),
            tensor: tensor.name.clone(),
            problem,
        })
    }
}

/// The columns in the order of their groups, within a group in their own; nothing if that changes
/// nothing.
fn sorted_by_group(of: &[i32], groups: usize, group: usize) -> Result<Option<Vec<u32>>, String> {
    let is_group = |&index: &i32| usize::try_from(index).is_ok_and(|index| index < groups);
    if let Some(bad) = of.iter().find(|index| !is_group(index)) {
        return Err(format!("names group {bad}, but there are {groups}"));
    }
    let mut order: Vec<u32> = (0..of.len() as u32).collect();
    order.sort_by_key(|&channel| of[channel as usize]);
    for (column, &channel) in order.iter().enumerate() {
        if of[channel as usize] as usize != column / group {
            return Err(format!("does not give each group {group} input channels"));
        }
    }
    let moved = order.iter().enumerate().any(|(column, &channel)| column != channel as usize);
    Ok(moved.then_some(order))
}

/// The group size that `group_size` in a configuration means for rows of any length: nothing for
/// one group a row.
///
/// # Errors
/// The value and what it may be, if it is no size that is read.
pub(crate) fn group_size(found: i64) -> Result<Option<usize>, String> {
    if found == -1 {
        return Ok(None);
    }
    let size = usize::try_from(found).ok().filter(|size| GROUP_SIZES.contains(size));
    size.map(Some).ok_or_else(|| format!("-1 or one of {GROUP_SIZES:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_are_sorted_by_group_and_keep_their_order_inside() {
        assert_eq!(sorted_by_group(&[0, 0, 1, 1, 2], 3, 2), Ok(None));
        let order = sorted_by_group(&[1, 0, 2, 1, 0], 3, 2).unwrap().unwrap();
        assert_eq!(order, [1, 4, 0, 3, 2]);
    }

    #[test]
    fn groups_that_cannot_be_made_contiguous_are_refused() {
        let refusal = |of: &[i32]| sorted_by_group(of, 2, 2).unwrap_err();
        assert!(refusal(&[0, 0, 0, 1]).contains("2 input channels"));
        assert!(refusal(&[0, 0, 1, 2]).contains("names group 2, but there are 2"));
        assert!(refusal(&[0, 0, 1, -1]).contains("names group -1"));
    }

    #[test]
    fn only_the_canonical_group_sizes_are_read() {
        assert_eq!((group_size(-1), group_size(128)), (Ok(None), Ok(Some(128))));
        for size in [0, -2, 48, 8] {
            assert!(group_size(size).is_err(), "{size}");
        }
    }
}
