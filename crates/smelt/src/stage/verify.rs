//! `verify`: engines against the f32 reference and the weights they were built from, and golden prompts.

use smelt_plan::kind::verify::Verify;
use smelt_verify::decoder::open_card;
use smelt_verify::{Device, Verification, verify};

use super::request::{Request, say};
use super::{Worker, refusal, runtime};
use crate::cards;
use crate::device::{BACKENDS, LOOKING};
use crate::exit::Failed;

pub(super) const WORKER: Worker =
    Worker { executes_graphs: true, refusal: Some(refusal::of_verify), ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let Verify { full, weights_only, runtime } = request.typed()?;
    if let Some(engine) = request.optional_input("engine") {
        return runtime::ask(request, engine, &runtime);
    }
    let asked = Verification {
        vision: request.optional_input("vision"),
        llm: request.input("llm")?,
        against: request.input("against")?,
        weights: request.optional_input("weights"),
        prompts: request.optional_input("prompts"),
        compared: request.optional_input("compared"),
        full,
        weights_only,
        out: &request.out,
    };
    // Weights are compared where no card is, too.
    let backends = if weights_only { LOOKING } else { BACKENDS };
    let device = Device { backends, open_card: &|target| open_card(target, cards::card()) };
    Ok(verify(&asked, &device, &mut request.witness(|_| {}), &say)?)
}
