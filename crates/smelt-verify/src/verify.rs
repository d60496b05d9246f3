//! A verification, from what is asked to what is found.

use smelt_backend::Witness;
use smelt_deploy::DeployError;
use smelt_deploy::text_files::TextFiles;

use crate::bounds::Finding;
use crate::compute::compute;
use crate::costs::costs_of;
use crate::course::Course;
use crate::golden;
use crate::parties::Parties;
use crate::record::{Record, compared};
use crate::verification::{Device, Verification};
use crate::weights::Weights;

/// Verifies, tells `say` how far it has come, and leaves `verify.json`, also of engines that are not as they should be.  Of
/// files that `witness` knows the digests are not computed again.
///
/// # Errors
/// The first thing that is wrong with the engines; or why nothing could be said of them.
pub fn verify(
    asked: &Verification<'_>,
    device: &Device<'_>,
    witness: &mut dyn Witness,
    say: &dyn Fn(&str),
) -> Result<(), DeployError> {
    let out = asked.out;
    let mut parties = Parties::open(asked, device, witness, say)?;
    let mut record = Record::new(asked.half()?);
    let course = &mut Course::new(costs_of(&parties, asked), say);
    match asked.compared {
        Some(dir) => {
            record.weights = compared(dir, record.half.as_ref())?;
            // The tower's weights are a part without work, as are the decoder's.
            course.passes_over();
        }
        None => record.weights = parties.compare_weights(course)?,
    }
    for weights in &record.weights {
        course.say(&weights.line());
    }
    record.conclude(out, course, record.weights.iter().filter_map(Weights::complaint))?;
    if asked.weights_only {
        return record.write(out);
    }

    let texts = TextFiles::of(&parties.against, out, say)?;
    compute(&mut parties, texts.dir(), &mut record, course)?;
    let wrong = record.findings.iter().filter_map(Finding::complaint);
    let wrong: Vec<String> = wrong.collect();
    let hint = record.weights.iter().find_map(|weights| weights.elsewhere().first());
    let hint = hint.map(|name| format!("; no node reads {name}")).unwrap_or_default();
    record.conclude(out, course, wrong.into_iter().map(|wrong| wrong + &hint))?;

    if let Some(folder) = asked.prompts {
        course.goes_on("golden prompts");
        let complaints =
            golden::ask(asked, parties, texts.dir(), (folder, course), &mut record.prompts)?;
        record.conclude(out, course, complaints)?;
    }
    record.write(out)
}
