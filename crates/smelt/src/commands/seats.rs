//! Says where the decoder or the encoder of a deployment answers: on processors, or on cards, each with the whole model.

use std::path::Path;

use smelt_backend::{Decoder, Graph, Heading, KvOptions};
use smelt_cuda::CudaTarget;
use smelt_runtime::deployment::{self, DeploymentError};
use smelt_runtime::engine_dirs::EngineDirs;
use smelt_runtime::service::Seat;

use crate::cards;
use crate::device::{self, BACKENDS};
use crate::exit::{Exit, Failed};

/// The place of the decoder that the deployment in `dir` was opened with.
pub(super) fn own(dir: &Path, kv: KvOptions) -> Result<Seat, Failed> {
    let spec = deployment::read_spec(dir)?;
    let engine = spec.engines(BACKENDS, dir).map_err(DeploymentError::from)?.llm;
    let target = Heading::read(&engine).map_err(DeploymentError::from)?.target;
    // The driver is asked of engines for cards alone.
    let card = CudaTarget::parse(&target).and_then(|_| cards::card().ok());
    let seat = card.map(|card| on_card(card.ordinal, &engine, spec.kv(kv)));
    Ok(seat.unwrap_or_else(Seat::only))
}

/// A decoder, and its place.
type Seated = (Seat, Box<dyn Decoder>);

/// Opens the same decoder on other cards.
pub(super) fn others(dir: &Path, kv: KvOptions, cards: &[u32]) -> Result<Vec<Seated>, Failed> {
    if cards.is_empty() {
        return Ok(Vec::new());
    }
    let spec = deployment::read_spec(dir)?;
    let engine = spec.engines(BACKENDS, dir).map_err(DeploymentError::from)?.llm;
    let kv = spec.kv(kv);
    let open = |&ordinal: &u32| {
        let opened = device::open_on(ordinal, &engine, kv);
        let why =
            |error| Failed::new(Exit::DoesNotFit, format!("--device cuda:{ordinal}: {error}"));
        Ok((on_card(ordinal, &engine, kv), opened.map_err(why)?))
    };
    cards.iter().map(open).collect()
}

/// Where an encoder reads.
pub(super) struct EncoderSeats {
    /// What the device is called that the deployment was opened on; no word for processors.
    pub(super) own: String,
    /// Its engine on other cards, and what they are called.
    pub(super) others: Vec<(String, Box<dyn Graph>)>,
}

/// Opens the engine of the encoder in `dir` on other cards; `engine` is the deployment's.  One for processors has no other.
pub(super) fn of_encoder(
    dir: &Path,
    engine: &EngineDirs,
    cards: &[u32],
) -> Result<EncoderSeats, Failed> {
    let engine = engine.chosen(BACKENDS, dir).map_err(DeploymentError::from)?;
    let target = Heading::read(&engine).map_err(DeploymentError::from)?.target;
    if CudaTarget::parse(&target).is_none() {
        return Ok(EncoderSeats { own: String::new(), others: Vec::new() });
    }
    let open = |&ordinal: &u32| {
        let why =
            |error| Failed::new(Exit::DoesNotFit, format!("--device cuda:{ordinal}: {error}"));
        Ok((name(ordinal), device::open_graph_on(ordinal, &engine).map_err(why)?))
    };
    let others = cards.iter().map(open).collect::<Result<_, Failed>>()?;
    let own = cards::card().map(|card| name(card.ordinal)).unwrap_or_default();
    Ok(EncoderSeats { own, others })
}

fn on_card(ordinal: u32, engine: &Path, kv: KvOptions) -> Seat {
    let engine = engine.to_owned();
    let reopen = Box::new(move || device::open_on(ordinal, &engine, kv));
    Seat { name: name(ordinal), reopen: Some(reopen) }
}

/// What a card is called.
fn name(ordinal: u32) -> String {
    format!("cuda:{ordinal}")
}
