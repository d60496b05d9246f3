//! Times kernels that multiply on a card, on weights of any numbers that no cache holds.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::{Driver, DriverError, Priority};
use crate::kernels::form::WeightPart;
use crate::kernels::layout::{STRIP_ROWS, padded_rows, part_bytes};
use crate::kernels::product::{self, Activations, DeviceWeight, Outcome, ProductShape, State};
use crate::owned::{DeviceBuffer, OwnedGraph, OwnedModule, OwnedStream};
use crate::tactics::ProductSize;
use crate::{DeviceAddress, Launch, Processors};

/// Bytes of weights that are multiplied with one after another: more than any card's caches hold.
const BYTES_USUAL: u64 = 512 << 20;
/// Room beside them, for what goes in and out: 2,048 tokens of 32,768 rows.
const BYTES_BESIDE: u64 = 320 << 20;
/// Of what is free, so that whatever else uses the card goes on.
const SHARE_OF_FREE: u64 = 2;
/// Weights of a graph: a launch is a small part of them.
const WEIGHTS_MAX: usize = 28;
/// As often as this a graph is launched, the first time apart, if that takes no longer than some time.
const ROUNDS: usize = 7;
const ROUNDS_MIN: usize = 3;
const TIME_USUAL: Duration = Duration::from_millis(60);
/// Bytes whose halves are small and none of which is zero: 0.065.
const FILLING: u8 = 0x2c;
/// Where parts begin.
const ALIGN: u64 = 256;

/// A card with room for weights.
#[derive(Debug)]
pub struct Stopwatch {
    room: DeviceBuffer,
    stream: OwnedStream,
    module: OwnedModule,
    processors: Processors,
}

impl Stopwatch {
    /// Takes half of what is free, or as much as is needed, and the kernels of a cubin.
    ///
    /// # Errors
    /// When the card has no room, or does not take the kernels.
    pub fn new(driver: &Arc<dyn Driver>, kernels: &[u8]) -> Result<Self, DriverError> {
        let free = driver.memory_info()?.free_bytes;
        let bytes = (BYTES_USUAL + BYTES_BESIDE).min(free / SHARE_OF_FREE);
        let stream = OwnedStream::new(driver, Priority::High)?;
        let room = DeviceBuffer::new(driver, bytes)?;
        driver.memset(stream.id(), room.address(), FILLING, bytes)?;
        stream.synchronize()?;
        let module = OwnedModule::new(driver, kernels)?;
        Ok(Self { room, stream, module, processors: driver.card().processors() })
    }

    /// Seconds of a product of so many tokens by this kernel, the median of some rounds; nothing where there is no room for it.
    ///
    /// # Errors
    /// When the card fails.
    pub fn time(
        &self,
        size: ProductSize,
        tokens: u32,
        shape: ProductShape,
    ) -> Result<Option<f64>, DriverError> {
        let launches = self.launches(size, tokens, shape);
        if launches.is_empty() {
            return Ok(None);
        }
        let put =
            |stream| launches.iter().try_for_each(|launch| self.module.launch(stream, launch));
        let graph = self.stream.capture(put)?;
        let first = self.round(&graph)?;
        let fitting = TIME_USUAL.as_secs_f64() / first.as_secs_f64().max(1e-9);
        let rounds = (fitting as usize).clamp(ROUNDS_MIN, ROUNDS);
        let took = (0..rounds).map(|_| self.round(&graph));
        let mut took = took.collect::<Result<Vec<_>, _>>()?;
        took.sort_unstable();
        Ok(Some(took[rounds / 2].as_secs_f64() / launches.len() as f64))
    }

    fn round(&self, graph: &OwnedGraph) -> Result<Duration, DriverError> {
        self.stream.synchronize()?;
        let begin = Instant::now();
        graph.launch(self.stream.id())?;
        self.stream.synchronize()?;
        Ok(begin.elapsed())
    }

    /// The product with as many weights as there is room for.
    fn launches(&self, size: ProductSize, tokens: u32, shape: ProductShape) -> Vec<Launch> {
        let ProductSize { form, rows, columns } = size;
        let mut place = Place { at: self.room.address(), left: self.room.bytes() };
        let padded = u64::from(tokens.next_multiple_of(8));
        let sizes = [u64::from(columns) * padded * 2, u64::from(rows) * padded * 4]
            .map(|it| place.take(it));
        // A state, and sums of the least groups.
        let others =
            [u64::from(columns) * 4, u64::from(columns) / 16 * padded * 4].map(|it| place.take(it));
        let ([Some(halves), Some(out)], [Some(norm), Some(sums)]) = (sizes, others) else {
            return Vec::new();
        };
        let sums = if form.has_mins { sums } else { DeviceAddress::NULL };
        let x = Activations { halves, sums, tokens };
        let state = State { numbers: halves, norm, hidden: columns, eps: 1e-6 };
        let outcome = Outcome::Store { out, stride: rows };
        let weights = (0..WEIGHTS_MAX).map_while(|_| place.weight(size));
        let launch = |weight: DeviceWeight| match shape.norms() {
            true => product::product_of_state(&weight, DeviceAddress::NULL, state, outcome, shape),
            false => {
                let by = (shape, self.processors);
                product::product(&weight, DeviceAddress::NULL, x, outcome, by)
            }
        };
        weights.map(launch).collect()
    }
}

/// What is left of the room.
struct Place {
    at: DeviceAddress,
    left: u64,
}

impl Place {
    fn take(&mut self, bytes: u64) -> Option<DeviceAddress> {
        let bytes = bytes.next_multiple_of(ALIGN);
        self.left = self.left.checked_sub(bytes)?;
        let own = self.at;
        self.at = own.offset(bytes);
        Some(own)
    }

    fn weight(&mut self, size: ProductSize) -> Option<DeviceWeight> {
        let ProductSize { form, rows, columns } = size;
        let strips = (padded_rows(rows as usize) / STRIP_ROWS) as u64;
        let mut weight = DeviceWeight::of_levels(form, rows, columns, DeviceAddress::NULL);
        for part in form.parts() {
            let place = self.take(part_bytes(form, part, columns as usize) as u64 * strips)?;
            *match part {
                WeightPart::Levels => &mut weight.levels,
                WeightPart::Scales => &mut weight.scales,
                WeightPart::Zeros => &mut weight.zeros,
                WeightPart::Mins => &mut weight.mins,
                WeightPart::Spans => &mut weight.spans,
                WeightPart::MinSpans => &mut weight.min_spans,
                WeightPart::RowScales => &mut weight.row_scales,
            } = place;
        }
        Some(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sm;
    use crate::kernels::form::WeightForm;
    use crate::recording::{self, RecordingDriver};
    use crate::tactics::TOKENS;

    fn stopwatch(bytes: u64) -> Stopwatch {
        let card = recording::card(Sm(90), bytes, false);
        let driver: Arc<dyn Driver> = Arc::new(RecordingDriver::new(card));
        Stopwatch::new(&driver, b"cubin").unwrap()
    }

    #[test]
    fn every_kernel_has_its_weights_where_there_is_room_and_none_outside() {
        let stopwatch = stopwatch(256 << 20);
        let begin = stopwatch.room.address();
        for form in WeightForm::ALL {
            let size = ProductSize { form, rows: 1024, columns: 2048 };
            for (tokens, shape) in TOKENS.into_iter().flat_map(|tokens| {
                ProductShape::all(form).into_iter().map(move |shape| (tokens, shape))
            }) {
                let is_possible = shape.takes(tokens) && shape.has_room(form, size.columns);
                if is_possible {
                    assert!(!stopwatch.launches(size, tokens, shape).is_empty(), "{shape}");
                }
            }
            let mut place = Place { at: begin, left: stopwatch.room.bytes() };
            while place.weight(size).is_some() {}
            assert!(place.at.offset(place.left) == begin.offset(stopwatch.room.bytes()));
        }
    }

    #[test]
    fn what_has_no_room_is_not_timed() {
        let stopwatch = stopwatch(1 << 20);
        let form = WeightForm::parse("half").unwrap();
        let size = ProductSize { form, rows: 100_000, columns: 2048 };
        let shape = ProductShape::all(form)[0];
        assert_eq!(stopwatch.time(size, 1, shape).unwrap(), None);
    }
}
