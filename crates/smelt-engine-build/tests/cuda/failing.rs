//! Lets every call of the driver fail in turn: nothing may leak, be used late, or be answered wrong.

use std::path::Path;
use std::sync::Arc;

use smelt_backend::sampling::Sampler;
use smelt_backend::sampling::Settings;
use smelt_backend::{
    Answer, Decoder, HostFeatures, ImageEmbeds, KvOptions, LogitRows, RunError, SlotInput,
};
use smelt_backend::{FeatureSpan, Features};
use smelt_cuda::decoder::CudaDecoder;
use smelt_cuda::driver::{Driver, DriverError};
use smelt_cuda::recording::{Held, RecordingDriver};
use smelt_engine_build::llm::Limits;
use smelt_model::quantize::Scheme;
use tempfile::TempDir;

use super::made;

const LIMITS: Limits = Limits { max_seq_len: 130, max_slots: 3 };

/// What a step appends: slot, tokens, and whether it shows an image.
type Run = (usize, &'static [u32], bool);

/// Steps that use everything: prompts, images, single tokens of several slots, forks that part, blocks.
const STEPS: [&[Run]; 4] = [
    &[(0, &[5, 9, 9, 7], true)],
    &[(1, &[4; 66], false), (0, &[3], false)],
    &[(0, &[1], false), (1, &[2], false), (2, &[8], false)],
    &[(2, &[6, 5], false)],
];

/// The settings of the draws.
fn settings() -> Settings {
    Settings { temperature: 0.8, top_k: 9, seed: 3, top_logprobs: Some(2), ..Settings::GREEDY }
}

/// Tries a step until the device takes it, if it is not lost; every time it is refused, nothing may have changed.
fn step(
    decoder: &mut dyn Decoder,
    runs: &[Run],
    features: &Features,
) -> Result<Vec<Answer>, RunError> {
    let settings = settings();
    let sampler = Sampler::new(&settings, &[], 64).unwrap();
    let draws = [sampler.draw(None)];
    let spans = [FeatureSpan { features, tokens: 0..2 }];
    let input = |(slot, tokens, shows): &Run| {
        let image = shows.then_some(ImageEmbeds { token: 9, features: &spans });
        let run = SlotInput { image, ..SlotInput::new(*slot, tokens) };
        run.choosing(&draws).showing(LogitRows::Last)
    };
    let inputs: Vec<SlotInput<'_>> = runs.iter().map(input).collect();
    let before: Vec<usize> = (0..3).map(|slot| decoder.held(slot)).collect();
    let usage = decoder.kv_usage();
    for _ in 0..3 {
        match decoder.step(&inputs) {
            Ok(answers) => return Ok(answers),
            Err(error) => {
                let held: Vec<usize> = (0..3).map(|slot| decoder.held(slot)).collect();
                assert_eq!((held, decoder.kv_usage()), (before.clone(), usage), "{error}");
            }
        }
    }
    decoder.step(&inputs)
}

/// Everything once; what was answered.
fn everything(
    engine: &Path,
    driver: &Arc<dyn Driver>,
    features: &Features,
) -> Result<Vec<Answer>, String> {
    let told = |error: RunError| error.to_string();
    let mut decoder = match CudaDecoder::open(engine, driver, KvOptions::default()) {
        Ok(decoder) => decoder,
        // It may be tried again at once.
        Err(_) => CudaDecoder::open(engine, driver, KvOptions::default())
            .map_err(|error| error.to_string())?,
    };
    let mut all = Vec::new();
    for runs in &STEPS[..2] {
        all.extend(step(&mut decoder, runs, features).map_err(told)?);
    }
    decoder.fork(1, 2, 65).map_err(told)?;
    for runs in &STEPS[2..] {
        all.extend(step(&mut decoder, runs, features).map_err(told)?);
    }
    let block = |decoder: &CudaDecoder| {
        let block = decoder.block(1, 0).map_err(told)?;
        let block = block.ok_or("no block")?;
        Ok::<_, String>((block.ends.into_owned(), block.bytes.into_owned()))
    };
    let (ends, bytes) = block(&decoder).or_else(|_| block(&decoder))?;
    decoder.release(0);
    let block = smelt_backend::KvBlock { ends: ends.into(), bytes: bytes.into() };
    decoder.put_block(0, &block).or_else(|_| decoder.put_block(0, &block)).map_err(told)?;
    all.extend(step(&mut decoder, &[(0, &[7], false)], features).map_err(told)?);
    Ok(all)
}

#[test]
fn whatever_call_fails_nothing_leaks_is_used_late_or_answered_wrong() {
    let dir = TempDir::new().unwrap();
    let checkpoint = made::packed("internvl3-tiny", Scheme::Int4G32, dir.path());
    let llm = checkpoint.decoder().unwrap();
    let engine = made::engine(&checkpoint, LIMITS, dir.path());
    let number = |at: usize| ((at * 37) % 64) as f32 / 32.0 - 1.0;
    let embeds = (0..2 * llm.hidden).map(number).collect();
    let features = HostFeatures { embeds, deepstack: Vec::new() }.into_features(2);
    let twin = || {
        let twin = made::device(llm.head_dim, 1 << 28, false);
        let driver: Arc<dyn Driver> = Arc::<RecordingDriver>::clone(&twin);
        (twin, driver)
    };
    let (sound, driver) = twin();
    let expected = everything(&engine, &driver, &features).unwrap();
    assert_eq!(sound.violations(), [""; 0]);
    let calls: Vec<&str> = sound.calls().iter().map(|call| call.name).collect();
    let lost = DriverError::DeviceLost { call: "launch", problem: "gone".to_owned() };
    let refused = DriverError::Refused { call: "launch", problem: "no".to_owned() };
    let errors = [DriverError::NoMemory { bytes: 1 }, refused, lost];
    let stride = calls.len() / SAMPLES + 1;
    let mut went_on = 0;
    for (error, first) in errors.iter().zip(0..) {
        for nth in (first..calls.len()).step_by(stride) {
            let (twin, driver) = twin();
            twin.fail_after(nth, error.clone());
            let what = format!("{nth} {} {error}", calls[nth]);
            match everything(&engine, &driver, &features) {
                Ok(found) => {
                    assert!(found == expected, "{what}: other answers");
                    went_on += 1;
                }
                Err(told) => assert!(error.is_sticky() && told.contains("lost"), "{what}: {told}"),
            }
            assert_eq!(twin.violations(), [""; 0], "{what}");
            assert_eq!(twin.held(), Held::default(), "{what}");
        }
    }
    assert!(went_on > SAMPLES, "{went_on}");
}

/// About so many calls fail of each kind: everything once takes a while on the host.
const SAMPLES: usize = 60;
