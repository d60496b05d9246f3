//! Answers for ONNX Runtime by the contract of engines.

use smelt_backend::{
    Constant, Graph, GraphError, GraphInput, GraphOutput, OpenError, Pending, Tensor, Value,
    Witness,
};

use super::OnnxruntimeEngine;

impl Graph for OnnxruntimeEngine {
    fn inputs(&self) -> &[GraphInput] {
        self.inputs()
    }

    fn outputs(&self) -> &[GraphOutput] {
        self.outputs()
    }

    /// Runs the graph: its processors are those of who asks.
    fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, GraphError> {
        let outputs = self.run(inputs)?;
        Ok(Pending::done(outputs.into_iter().map(Value::from).collect()))
    }

    fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, GraphError> {
        self.run(inputs)
    }

    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.verify_digest(told)
    }

    fn constant(&self, name: &str) -> Option<Box<dyn Constant + '_>> {
        Some(Box::new(self.constant(name)?))
    }

    fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        self.unfit(purpose, problem)
    }
}
