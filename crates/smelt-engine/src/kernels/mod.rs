//! Holds the arithmetic of every engine: products, normalisation, activations, attention's parts.
//!
//! Slices in, slices out; results depend on neither the number of threads nor the machine's load.
//! Knows nothing of graphs, models or files.

pub(crate) mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod cached_attention;
pub(crate) mod full_attention;
pub(crate) mod isa;
pub(crate) mod lanes;
pub(crate) mod matrix;
pub(crate) mod norm;
mod plain;
pub(crate) mod pool;
pub(crate) mod product;
pub(crate) mod rope;
pub(crate) mod softmax;
pub(crate) mod striped;
pub(crate) mod swiglu;
mod target;
pub(crate) mod threads;

#[cfg(test)]
pub(crate) mod testing;
