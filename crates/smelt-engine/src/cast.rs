//! Views mapped bytes as numbers.
//!
//! Bytes in, a slice of the same memory out, after its length and alignment were checked.
//! Knows nothing of files or tensors.

#![allow(unsafe_code)]

/// Types of which every bit pattern is a value, so that any bytes may be seen as them.
pub(crate) trait Number: Copy + private::Sealed {}

mod private {
    pub(crate) trait Sealed {}
}

macro_rules! numbers {
    ($($kind:ty),*) => { $(impl private::Sealed for $kind {} impl Number for $kind {})* };
}
numbers!(u8, i8, u16, i32, i64, f32);

/// `bytes` as a slice of `T` in the machine's order, or `None` where the address or the length
/// does not fit `T`.
pub(crate) fn slice_of<T: Number>(bytes: &[u8]) -> Option<&[T]> {
    let aligned = bytes.as_ptr().cast::<T>().is_aligned();
    if !aligned || !bytes.len().is_multiple_of(size_of::<T>()) {
        return None;
    }
    let count = bytes.len() / size_of::<T>();
    // SAFETY: the pointer is aligned and covers `count` values inside one live slice, whose
    // lifetime the result keeps; `Number` holds only types without invalid bit patterns.
    Some(unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast::<T>(), count) })
}

/// `bytes` as a slice of `T` that can be written, or `None` where the address or the length does not
/// fit `T`.
pub(crate) fn slice_of_mut<T: Number>(bytes: &mut [u8]) -> Option<&mut [T]> {
    let aligned = bytes.as_ptr().cast::<T>().is_aligned();
    if !aligned || !bytes.len().is_multiple_of(size_of::<T>()) {
        return None;
    }
    let count = bytes.len() / size_of::<T>();
    // SAFETY: as in `slice_of`, and the borrow is exclusive; every `T` leaves valid bytes behind.
    Some(unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast::<T>(), count) })
}

/// The bytes of `numbers`, in the machine's order.
#[cfg(test)]
pub(crate) fn bytes_of<T: Number>(numbers: &[T]) -> &[u8] {
    // SAFETY: the numbers are initialised, have no padding, and `u8` needs no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast::<u8>(), size_of_val(numbers)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_round_trip() {
        let numbers = [1.5f32, -0.0, f32::INFINITY];
        assert_eq!(slice_of::<f32>(bytes_of(&numbers)), Some(&numbers[..]));
    }

    #[test]
    fn odd_addresses_and_lengths_are_refused() {
        let numbers = [0u16; 8];
        let bytes = bytes_of(&numbers);
        assert_eq!(slice_of::<f32>(&bytes[..6]), None);
        assert_eq!(slice_of::<u16>(&bytes[1..5]), None);
        assert_eq!(slice_of::<i8>(&bytes[1..4]), Some(&[0i8; 3][..]));
        let mut bytes = bytes.to_vec();
        assert_eq!(slice_of_mut::<i8>(&mut bytes).map(|numbers| numbers.len()), Some(16));
        assert_eq!(slice_of_mut::<f32>(&mut bytes[..6]), None);
    }
}
