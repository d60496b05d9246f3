//! Tries decoders for GPUs: on a device that needs no GPU and does on the host what kernels do, and on a card where one is.

mod card;
mod failing;
mod golden;
mod graphs;
mod made;
mod twin;
