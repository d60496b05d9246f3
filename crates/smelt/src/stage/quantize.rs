//! `quantize`: a checkpoint's weights in other types, and a report of what that cost.

use smelt_model::price::rounding;
use smelt_model::quantize::{BUDGET, Method, Options, Report, Scheme};
use smelt_model::repacked::Format;
use smelt_plan::kind::quantize::{CheckpointFormat, Quantize, RoundingMethod, WeightScheme};
use smelt_plan::kind::{self, Kind};
use smelt_plan::plan::Stage;

use super::request::{Request, say};
use super::{Worker, refusal};
use crate::checkpoint::{self, QuantFormat};
use crate::checkpoints::Checkpoints;
use crate::exit::Failed;

pub(super) const WORKER: Worker =
    Worker { products: Some(products), refusal: Some(refusal::of_rounding), ..Worker::new(run) };

fn run(request: &Request) -> Result<(), Failed> {
    let checkpoint = request.checkpoint("checkpoint")?;
    let params: Quantize = request.typed()?;
    let form = form(params.format);
    let options = Options { calibration: request.optional_input("calibration"), ..options(params) };
    let report = checkpoint::quantize(&checkpoint, &options, form, &request.out, &mut say)?;
    report.iter().flat_map(Report::table).for_each(|line| say(&line));
    Ok(())
}

/// How a stage with these params rounds, but for what a `calibrate` stage saw.
pub(super) fn options(params: Quantize) -> Options<'static> {
    Options {
        head: params.head.map(scheme),
        embeddings: params.embeddings.map(scheme),
        method: method(params.method),
        budget: params.budget.unwrap_or(BUDGET),
        exclude: params.exclude,
        allow_requantize: params.allow_requantize,
        ..Options::plain(scheme(params.scheme))
    }
}

/// The products of rounding by what a `calibrate` stage sees.
fn products(checkpoints: &Checkpoints<'_>, stage: &Stage) -> Option<f64> {
    let params: Quantize = kind::typed(&stage.params).ok()?;
    let mut needs = stage.needs().map(|id| checkpoints.plan.stage(id));
    let calibration = needs.find(|need| need.kind == Kind::Calibrate)?;
    let samples: usize = kind::param(&calibration.params, "tokens")?;
    let budget = params.budget.unwrap_or(BUDGET);
    let llm = checkpoints.model(stage).ok()??.llm?;
    Some(rounding(&llm, method(params.method), budget, samples))
}

fn scheme(word: WeightScheme) -> Scheme {
    match word {
        WeightScheme::None => Scheme::None,
        WeightScheme::Int8 => Scheme::Int8,
        WeightScheme::Int8G32 => Scheme::Int8G32,
        WeightScheme::Int4 => Scheme::Int4,
        WeightScheme::Int4G32 => Scheme::Int4G32,
        WeightScheme::Int4G64 => Scheme::Int4G64,
        WeightScheme::Int4G128 => Scheme::Int4G128,
        WeightScheme::Int4G32Asym => Scheme::Int4G32Asym,
        WeightScheme::Int4G64Asym => Scheme::Int4G64Asym,
        WeightScheme::Int4G128Asym => Scheme::Int4G128Asym,
    }
}

fn method(word: RoundingMethod) -> Method {
    match word {
        RoundingMethod::Rtn => Method::Rtn,
        RoundingMethod::Mse => Method::Mse,
        RoundingMethod::Awq => Method::Awq,
        RoundingMethod::Gptq => Method::Gptq,
        RoundingMethod::GptqActOrder => Method::GptqActOrder,
        RoundingMethod::Best => Method::Best,
    }
}

pub(super) fn form(word: CheckpointFormat) -> QuantFormat {
    match word {
        CheckpointFormat::Smelt => QuantFormat::Smelt,
        CheckpointFormat::CompressedTensors => QuantFormat::Foreign(Format::CompressedTensors),
        CheckpointFormat::Awq => QuantFormat::Foreign(Format::Awq),
        CheckpointFormat::Gptq => QuantFormat::Foreign(Format::Gptq),
        CheckpointFormat::TensorRtLlm => QuantFormat::TensorRtLlm,
    }
}

#[cfg(test)]
mod tests {
    use smelt_model::quantize::BUDGET_MAX;
    use smelt_plan::kind::quantize;

    use super::*;

    #[test]
    fn the_plan_and_the_quantiser_know_the_same_words() {
        assert_eq!(WeightScheme::WORDS, Scheme::WORDS);
        assert_eq!(RoundingMethod::WORDS, Method::WORDS);
        assert_eq!(quantize::BUDGET_MAX, BUDGET_MAX as u64);
        for &word in WeightScheme::ALL {
            assert_eq!(scheme(word).name(), word.word());
        }
        for &word in RoundingMethod::ALL {
            assert_eq!(method(word).name(), word.word());
        }
        for &word in CheckpointFormat::ALL {
            assert_eq!(QuantFormat::parse(word.word()), Ok(form(word)));
        }
    }
}
