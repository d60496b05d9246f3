//! Hands a graph to ONNX Runtime, passes values to it and takes its results.
//!
//! Callers hold f32 and i64; the graph says which of its types they become.  Errors are one line.

use std::borrow::Cow;
use std::num::NonZero;
use std::path::Path;
use std::thread;

use half::{bf16, f16};
use ort::session::SessionInputValue;
use ort::value::{
    DynValue, OwnedTensorArrayData, PrimitiveTensorElementType, TensorElementType, ValueType,
};
use ort::{Error, Result};

use crate::graph::Tensor;

/// Loads the library at `path`; later calls find it loaded.
pub(super) fn load(path: &Path) -> std::result::Result<(), String> {
    let environment = ort::init_from(path).map_err(said)?;
    // False where it was done before: its settings are the same.
    environment.with_name("smelt").with_telemetry(false).commit();
    Ok(())
}

/// A graph that ONNX Runtime has read.
#[derive(Debug)]
pub(super) struct Session(ort::session::Session);

impl Session {
    /// Reads the graph at `path`, for `threads` or as many as there are processors.
    pub(super) fn begin(path: &Path, threads: Option<usize>) -> std::result::Result<Self, String> {
        let all = || thread::available_parallelism().map_or(1, NonZero::get);
        let begin = || {
            let builder = ort::session::Session::builder()?;
            let builder = builder.with_intra_threads(threads.unwrap_or_else(all))?;
            // A decoder runs on the same processors right after; threads that wait by spinning slow
            // it.
            let mut builder = builder.with_intra_op_spinning(false)?;
            builder.commit_from_file(path)
        };
        begin().map(Self).map_err(said)
    }

    /// Runs the graph on `inputs` in its own order.
    pub(super) fn run(&mut self, inputs: Vec<Tensor>) -> std::result::Result<Vec<Tensor>, String> {
        run(&mut self.0, inputs).map_err(said)
    }
}

/// What ONNX Runtime said, on one line.
fn said(error: impl std::fmt::Display) -> String {
    error.to_string().replace('\n', "; ")
}

fn run(session: &mut ort::session::Session, inputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let declared = session.inputs().iter().zip(inputs);
    let given: Vec<(Cow<'_, str>, SessionInputValue<'_>)> = declared
        .map(|(input, tensor)| {
            let name = input.name().to_owned();
            Ok((name.into(), value(input.dtype(), tensor)?.into()))
        })
        .collect::<Result<_>>()?;
    let outputs = session.run(given)?;
    outputs.values().map(|output| tensor(&output)).collect()
}

/// A value of the type that the graph declares.
fn value(declared: &ValueType, tensor: Tensor) -> Result<DynValue> {
    use TensorElementType::{Bfloat16, Bool, Float16, Float32, Int32, Int64};
    let kind = declared.tensor_type();
    match (kind, tensor) {
        (Some(Float32), Tensor::F32 { shape, data }) => owned(shape, data),
        (Some(Float16), Tensor::F32 { shape, data }) => {
            owned(shape, data.into_iter().map(f16::from_f32).collect::<Vec<_>>())
        }
        (Some(Bfloat16), Tensor::F32 { shape, data }) => {
            owned(shape, data.into_iter().map(bf16::from_f32).collect::<Vec<_>>())
        }
        (Some(Int64), Tensor::I64 { shape, data }) => owned(shape, data),
        (Some(Int32), Tensor::I64 { shape, data }) => {
            let narrow = |number: i64| i32::try_from(number);
            let data = data.into_iter().map(narrow).collect::<std::result::Result<Vec<_>, _>>();
            owned(shape, data.map_err(|_| Error::new("an input does not fit i32"))?)
        }
        (Some(Bool), Tensor::I64 { shape, data }) => {
            owned(shape, data.into_iter().map(|number| number != 0).collect::<Vec<_>>())
        }
        (kind, _) => Err(Error::new(format!("an input of type {kind:?} is not supported"))),
    }
}

fn owned<T>(shape: Vec<usize>, data: Vec<T>) -> Result<DynValue>
where
    T: PrimitiveTensorElementType + std::fmt::Debug + Clone + 'static,
    (Vec<usize>, Vec<T>): OwnedTensorArrayData<T>,
{
    Ok(ort::value::Tensor::from_array((shape, data))?.into_dyn())
}

/// A result in f32 or i64.
fn tensor(value: &DynValue) -> Result<Tensor> {
    use TensorElementType::{Bfloat16, Bool, Float16, Float32, Int32, Int64};
    match value.dtype().tensor_type() {
        Some(Float32) => floats(value, |number: f32| number),
        Some(Float16) => floats(value, f16::to_f32),
        Some(Bfloat16) => floats(value, bf16::to_f32),
        Some(Int64) => integers(value, |number: i64| number),
        Some(Int32) => integers(value, |number: i32| i64::from(number)),
        Some(Bool) => integers(value, |number: bool| i64::from(number)),
        kind => Err(Error::new(format!("an output of type {kind:?} is not supported"))),
    }
}

fn floats<T: PrimitiveTensorElementType + Copy>(
    value: &DynValue,
    wide: impl Fn(T) -> f32,
) -> Result<Tensor> {
    let (shape, data) = value.try_extract_tensor::<T>()?;
    Ok(Tensor::F32 { shape: sizes(shape), data: data.iter().map(|&number| wide(number)).collect() })
}

fn integers<T: PrimitiveTensorElementType + Copy>(
    value: &DynValue,
    wide: impl Fn(T) -> i64,
) -> Result<Tensor> {
    let (shape, data) = value.try_extract_tensor::<T>()?;
    Ok(Tensor::I64 { shape: sizes(shape), data: data.iter().map(|&number| wide(number)).collect() })
}

fn sizes(shape: &[i64]) -> Vec<usize> {
    shape.iter().map(|&size| usize::try_from(size).unwrap_or_default()).collect()
}
