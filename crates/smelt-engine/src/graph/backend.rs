//! Answers for a native graph by the contract of engines.

use std::sync::Arc;

use smelt_backend::{
    Constant as AnyConstant, Graph, GraphError, GraphInput, GraphOutput, OpenError, Pending,
    Processors, Tensor, Value, Witness,
};

use super::{Constant, GraphEngine, Pause};
use crate::processors::Shared;

impl Graph for GraphEngine {
    fn inputs(&self) -> &[GraphInput] {
        self.inputs()
    }

    fn outputs(&self) -> &[GraphOutput] {
        self.outputs()
    }

    /// Runs the graph: its processors are those of who asks.
    fn submit(&self, inputs: Vec<Tensor>) -> Result<Pending, GraphError> {
        let _working = self.shared.as_ref().map(|shared| shared.graph_runs());
        let outputs = self.run(inputs)?;
        Ok(Pending::done(outputs.into_iter().map(Value::from).collect()))
    }

    fn run(&self, inputs: Vec<Tensor>) -> Result<Vec<Tensor>, GraphError> {
        self.run(inputs)
    }

    fn share(&mut self, processors: &Processors) {
        self.shared = processors.get::<Shared>();
        let shared = self.shared.clone();
        self.pause = shared.map(|shared| Pause(Arc::new(move || shared.wait_for_prompts())));
    }

    fn verify_digest(&self, told: &mut dyn Witness) -> Result<(), OpenError> {
        self.verify_digest(told)
    }

    fn untuned(&self) -> Option<&str> {
        self.untuned()
    }

    fn constant(&self, name: &str) -> Option<Box<dyn AnyConstant + '_>> {
        Some(Box::new(self.constant(name)?))
    }

    fn unfit(&self, purpose: &'static str, problem: String) -> OpenError {
        self.unfit(purpose, problem)
    }
}

impl AnyConstant for Constant<'_> {
    fn count(&self) -> usize {
        self.count()
    }

    fn dtype(&self) -> &'static str {
        self.dtype().name()
    }

    fn widen(&self, start: usize, out: &mut [f32]) {
        self.widen(start, out);
    }
}
