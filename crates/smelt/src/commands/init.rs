//! `smelt init`: writes the pipeline that `smelt fit` advises for a model, with comments.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::fit::{self, Weighed};
use crate::console::{answer, tell};
use crate::device_profile;
use crate::draft::{self, Draft};
use crate::exit::{Exit, Failed};
use crate::flags::{InitFlags, OverruleFlags};
use crate::model_facts;
use crate::model_name::{ModelSource, ShippedChoice};

pub(crate) fn run(flags: &InitFlags) -> Result<Exit, Failed> {
    let source = fit::source(&flags.model)?;
    let file = file_of(&source, flags.out.as_deref());
    // Before a hub is asked for anything.
    if file.exists() {
        return Err(there_already(&file));
    }
    let (text, weighed) = drafted(source, &flags.overrule, flags.for_device.as_deref(), &file)?;
    write(&file, &text)?;
    answer(format_args!("{}\n", file.display()))?;
    weighed.and_then(|weighed| weighed.table.without_gpu).iter().for_each(tell);
    tell(format_args!("look at it, then: smelt plan {0}, smelt run {0}", file.display()));
    Ok(Exit::Ok)
}

/// The file of a model's pipeline: the one that is named, else one of the model's name, here.
pub(super) fn file_of(source: &ModelSource, out: Option<&Path>) -> PathBuf {
    let name = || source.choice().map_or_else(|| source.word(), |choice| choice.name().to_owned());
    out.map_or_else(|| PathBuf::from(format!("{}.toml", name())), Path::to_owned)
}

/// The text of the pipeline for a model, and what it was weighed by; nothing of the latter where the pipeline is a
/// shipped one that was written by hand.
///
/// # Errors
/// Where nothing fits the device, with what would.
pub(super) fn drafted(
    source: ModelSource,
    overrule: &OverruleFlags,
    device: Option<&str>,
    file: &Path,
) -> Result<(String, Option<Weighed>), Failed> {
    if let ModelSource::Package(choice) = source {
        return packaged(choice, overrule).map(|text| (text, None));
    }
    let device = device_profile::find(device, overrule.device)?;
    let weighed = fit::weigh(source, overrule, || device, &[])?;
    if !weighed.table.is_advised {
        return Err(does_not_fit(&weighed));
    }
    let text = text_of(&weighed, overrule, file)?;
    Ok((text, Some(weighed)))
}

fn text_of(weighed: &Weighed, overrule: &OverruleFlags, file: &Path) -> Result<String, Failed> {
    let Weighed { source, headers, facts, table, .. } = weighed;
    let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let draft = Draft {
        command: format!("{}{}", canonical(source), overrule.words()),
        model: source.word(),
        from: from_beside(source, file)?,
        shape: model_facts::shape(&headers.checkpoint),
        positions: facts.positions,
        line: &table.lines[0],
        memory: overrule.memory.as_ref().map(|memory| memory.word.clone()),
        why: table.why.clone(),
        name,
    };
    Ok(draft.text())
}

/// A model as it is written down: one word for all that people call it.
pub(super) fn canonical(source: &ModelSource) -> String {
    match (source.choice().map(ShippedChoice::name), source.from()) {
        (Some(name), _) => name.to_owned(),
        (None, Some(from)) => from,
        (None, None) => source.word(),
    }
}

/// Where the checkpoint is, as a pipeline in `file` says it: its paths begin in its folder.
fn from_beside(source: &ModelSource, file: &Path) -> Result<String, Failed> {
    let from = || source.from().unwrap_or_default();
    let ModelSource::Path(path) = source else { return Ok(from()) };
    let is_here = file.parent().is_none_or(|folder| folder.as_os_str().is_empty());
    if is_here || path.is_absolute() {
        return Ok(from());
    }
    let absolute = std::path::absolute(path).map_err(|error| {
        Failed::usage(format!("cannot tell where {} is: {error}", path.display()))
    })?;
    Ok(format!("path:{}", absolute.display()))
}

/// The shipped pipeline of a model that a program fetches: what it holds is known to who wrote it.
fn packaged(choice: ShippedChoice, overrule: &OverruleFlags) -> Result<String, Failed> {
    let words = overrule.words();
    if !words.is_empty() {
        return Err(Failed::usage(format!(
            "{} has a pipeline of its own, which{words} would change; write it without, and edit it",
            choice.model.name
        )));
    }
    let pipeline = choice.pipeline.or(choice.model.pipelines.first().copied());
    let text = pipeline.map(|pipeline| pipeline.text).unwrap_or_default();
    Ok(draft::as_by(choice.model.name, text))
}

/// Why nothing is written for a device, in one line with what would do.
fn does_not_fit(weighed: &Weighed) -> Failed {
    let mut words = vec![weighed.table.why.clone()];
    words.extend(weighed.instead());
    Failed::new(Exit::DoesNotFit, words.join("; "))
}

pub(super) fn there_already(file: &Path) -> Failed {
    let file = file.display();
    Failed::usage(format!(
        "{file} is there already, and is not overwritten; remove it, or name another by --out FILE"
    ))
}

/// Writes a file that is not there.
pub(super) fn write(file: &Path, text: &str) -> Result<(), Failed> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::AlreadyExists => there_already(file),
        _ => Failed::new(
            Exit::StageFailed,
            format!("cannot write {}: {error}; name another place by --out FILE", file.display()),
        ),
    };
    let mut opened = OpenOptions::new().write(true).create_new(true).open(file).map_err(failed)?;
    let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
    written.map_err(|error| {
        // Half a pipeline would be taken for one that somebody wrote.
        let _ = fs::remove_file(file);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_called_as_its_model() {
        let file = |text: &str| file_of(&fit::source(text).unwrap(), None);
        assert_eq!(file("InternVL3-1B"), Path::new("internvl3-1b.toml"));
        assert_eq!(file("internvl3-1b-int4"), Path::new("internvl3-1b-int4.toml"));
        assert_eq!(file("synthetic:qwen2_vl-tiny"), Path::new("qwen2_vl-tiny.toml"));
        assert_eq!(file("smollm2"), Path::new("smollm2.toml"));
        let source = fit::source("smollm2").unwrap();
        assert_eq!(file_of(&source, Some(Path::new("x/y.toml"))), Path::new("x/y.toml"));
    }

    #[test]
    fn a_model_is_written_down_by_one_word() {
        let word = |text: &str| canonical(&fit::source(text).unwrap());
        for text in ["internvl3-1b", "InternVL3-1B", "hf:OpenGVLab/InternVL3-1B"] {
            assert_eq!(word(text), "internvl3-1b");
        }
        assert_eq!(word("internvl3-1b-int4"), "internvl3-1b-int4");
        assert_eq!(word("Org/Model@v1"), "hf:Org/Model@v1");
        assert_eq!(word("smollm2"), "smollm2");
    }

    #[test]
    fn what_is_there_is_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.toml");
        write(&file, "one").unwrap();
        let error = write(&file, "two").unwrap_err();
        assert!(error.to_string().contains("is there already"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        let nowhere = write(&folder.path().join("x/m.toml"), "one").unwrap_err();
        assert!(nowhere.to_string().contains("--out FILE"), "{nowhere}");
    }
}
