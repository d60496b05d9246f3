//! Finds the deployments that a store holds: what each is, and how it was built.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use smelt_plan::Digest;
use smelt_runtime::deployment::DEPLOYMENT_FILE;
use smelt_runtime::{score, upstream};
use smelt_store::{Inventory, OutputItem, RunId, Store, Wait};

use crate::exit::Failed;
use crate::load;

/// A deployment's own file is a page of JSON.
const SPEC_BYTES_MAX: u64 = 1 << 20;
/// Deployments that an error names.
const NAMED_MAX: usize = 4;
/// What nobody can ask does this.
const UNKNOWN: &str = "-";
/// What one does that another program's server answers.
pub(crate) const RELAYS: &str = "relays to another program's server";
/// Digits of a digest that tell deployments apart.
const DIGITS_MIN: usize = 4;

/// A deployment in the store.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Built {
    pub(crate) tree: Digest,
    pub(crate) dir: PathBuf,
    /// What it calls itself.
    pub(crate) model: String,
    /// What it does: `answers about pictures`, …
    pub(crate) kind: &'static str,
    /// Where its model is from, as a pipeline's `from` says it, as far as that is recorded.
    pub(crate) from: Option<String>,
    /// Of it and of the engines that it names.
    pub(crate) bytes: u64,
    /// When it was used last, in seconds of the Unix era, and for how long it was not, to about a day.
    pub(crate) used_s: i64,
    pub(crate) idle_ns: i64,
    /// Which run built it, as far as that is recorded.
    pub(crate) run: Option<RunId>,
    /// Its stage's name, and that of its pipeline.
    pub(crate) stage: String,
    pub(crate) pipeline: String,
    /// The pipeline's file, and what `--set` said.
    pub(crate) file: Option<PathBuf>,
    pub(crate) sets: Vec<String>,
}

/// All deployments of the store, those that were used last first.  A store that is not there has none; whoever looks
/// makes none.
pub(crate) fn all() -> Result<Vec<Built>, Failed> {
    let root = load::root()?;
    if !root.exists() {
        return Ok(Vec::new());
    }
    let mut inventory = Store::open_read_only(&root, Wait::Yes)?.inventory()?;
    inventory.outputs.sort_by_key(|output| std::cmp::Reverse((output.used_ns, output.tree)));
    let of = |output: &OutputItem| {
        let dir = root.join("out").join(output.tree.to_string());
        let spec = spec(&dir)?;
        Some(Built::of(output, &inventory, dir, &spec))
    };
    Ok(inventory.outputs.iter().filter_map(of).collect())
}

impl Built {
    fn of(output: &OutputItem, all: &Inventory, dir: PathBuf, spec: &Value) -> Self {
        let word = |name: &str| output.record[name].as_str();
        let command = &output.record["command"];
        let text = |name: &str| command[name].as_str();
        let file = text("dir").zip(text("pipeline"));
        let engines = all.outputs.iter().filter(|other| output.refers.contains(&other.tree));
        let sets = command["sets"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            tree: output.tree,
            model: spec["model"].as_str().unwrap_or("-").to_owned(),
            kind: kind(spec),
            from: word("from").map(str::to_owned),
            bytes: output.bytes + engines.map(|engine| engine.bytes).sum::<u64>(),
            used_s: output.used_ns / 1_000_000_000,
            idle_ns: all.now_ns.saturating_sub(output.used_ns),
            run: word("run").and_then(|run| run.parse().ok()),
            stage: word("stage").unwrap_or("-").to_owned(),
            pipeline: word("pipeline").unwrap_or("-").to_owned(),
            file: file.map(|(dir, file)| Path::new(dir).join(file)),
            sets: sets.map(str::to_owned).collect(),
            dir,
        }
    }

    /// What `smelt ls --json` says of it among `all`.
    pub(crate) fn as_json(&self, all: &[Built]) -> Value {
        json!({
            "name": self.tree.short(), "digest": self.tree, "path": self.dir,
            "model": self.model, "kind": self.kind, "from": self.from,
            "ask": [self.asked_by(), self.name(all)],
            "bytes": self.bytes, "used_s": self.used_s,
            "pipeline": self.pipeline, "stage": self.stage, "file": self.file, "sets": self.sets,
            "run": self.run.as_ref().map(RunId::as_str),
            "built": self.run.as_ref().map(|run| run.began().replace(' ', "T") + "Z"),
        })
    }

    /// The command that asks it.
    pub(crate) fn asked_by(&self) -> &'static str {
        asked_by(self.kind)
    }

    /// What it is asked by: its model's name, where that means it among `all`.
    pub(crate) fn name(&self, all: &[Built]) -> String {
        match named(all, &self.model) {
            Ok(Some(built)) if built.tree == self.tree => self.model.clone(),
            _ => self.tree.short(),
        }
    }

    /// Its digest, and what tells it from others of its name.
    fn told_apart(&self) -> String {
        let how = self.settings();
        let from = self.from.iter().cloned();
        let how = from.chain((!how.is_empty()).then(|| format!("built with {how}")));
        let how: Vec<String> = how.collect();
        match how.is_empty() {
            true => self.tree.short(),
            false => format!("{} ({})", self.tree.short(), how.join(", ")),
        }
    }

    /// The stage and the settings of the pipeline that it was built of.
    fn recipe(&self) -> (&Option<PathBuf>, &str, &str, &[String]) {
        (&self.file, &self.pipeline, &self.stage, &self.sets)
    }

    /// `--set model=… --set …`; empty where nothing was set.
    pub(crate) fn settings(&self) -> String {
        load::settings(&self.sets)
    }
}

/// What the deployment in `dir` does, where its file tells.
pub(crate) fn does(dir: &Path) -> Option<&'static str> {
    Some(kind(&spec(dir)?)).filter(|does| *does != UNKNOWN)
}

/// The deployment's own file, where `dir` has one that can be read.
fn spec(dir: &Path) -> Option<Value> {
    let path = dir.join(DEPLOYMENT_FILE);
    let text = load::read_within(&path, "the deployment", SPEC_BYTES_MAX).ok()?;
    serde_json::from_str(&text).ok()
}

/// The command that asks a deployment that does this.
pub(crate) fn asked_by(does: &str) -> &'static str {
    match does.split(' ').next() {
        Some("embeds") => "embed",
        Some("scores") => "rerank",
        Some("classifies" | "relays") => "serve",
        _ => "chat",
    }
}

/// What a deployment does, by what its file names.
fn kind(spec: &Value) -> &'static str {
    // One engine has a name, several for several devices have a list.
    let has = |name: &str| !spec[name].is_null();
    if spec["family"] == score::FAMILY {
        let classifies = spec["labels"].as_array().is_some_and(|labels| !labels.is_empty());
        return if classifies { "classifies texts" } else { "scores pairs of texts" };
    }
    if spec["family"] == upstream::FAMILY {
        return RELAYS;
    }
    match (has("encoder"), has("vision"), has("llm")) {
        (true, _, _) => "embeds texts",
        (_, true, _) => "answers about pictures and texts",
        (_, _, true) => "answers texts",
        _ => UNKNOWN,
    }
}

/// The deployments that somebody means by a digest's first digits or by a model's name; where there are none, by a
/// pipeline's name or a model's in other letters.
pub(crate) fn meant<'a>(all: &'a [Built], text: &str) -> Vec<&'a Built> {
    let is_digits = text.len() >= DIGITS_MIN && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_it = |built: &&Built| {
        built.model == text || is_digits && built.tree.to_string().starts_with(text)
    };
    let is_like_it =
        |built: &&Built| built.pipeline == text || built.model.eq_ignore_ascii_case(text);
    let exact: Vec<&Built> = all.iter().filter(is_it).collect();
    if exact.is_empty() { all.iter().filter(is_like_it).collect() } else { exact }
}

/// Whether they are one deployment: made of one stage of one pipeline with the same settings, as that was changed.
pub(crate) fn are_one(several: &[&Built]) -> bool {
    several.windows(2).all(|pair| pair[0].recipe() == pair[1].recipe())
}

/// The deployment that somebody means by `text`, as [`meant`] finds it; of one that was built again the one that was
/// used last.
///
/// # Errors
/// Where several are meant.
pub(crate) fn named<'a>(all: &'a [Built], text: &str) -> Result<Option<&'a Built>, Failed> {
    only(&meant(all, text), text)
}

/// The one of those that are meant by `text`, as [`named`] has it.
///
/// # Errors
/// Where there are several.
pub(crate) fn only<'a>(meant: &[&'a Built], text: &str) -> Result<Option<&'a Built>, Failed> {
    if are_one(meant) {
        return Ok(meant.first().copied());
    }
    let names: Vec<String> = meant.iter().map(|built| built.told_apart()).collect();
    Err(Failed::usage(format!(
        "{text} may be any of {}; name one of them, `smelt ls` tells them apart",
        names.join(", ")
    )))
}

/// The deployments that were built of a pipeline's file.
pub(crate) fn of_file<'a>(all: &'a [Built], file: &Path) -> Vec<&'a Built> {
    let absolute = |file: &Path| std::path::absolute(file).ok();
    let Some(file) = absolute(file) else { return Vec::new() };
    let is_own = |built: &&Built| built.file.as_deref().and_then(absolute).as_ref() == Some(&file);
    all.iter().filter(is_own).collect()
}

/// What there is instead of a deployment that is not there, and how to ask it; of the same pipeline's
/// file, if there is any.  Empty where there is nothing.
pub(crate) fn instead(all: &[Built], file: &Path) -> String {
    let own = of_file(all, file);
    let shown = if own.is_empty() { all.iter().collect() } else { own };
    let name = |built: &&Built| {
        let how = built.settings();
        let how = if how.is_empty() { String::new() } else { format!(", built with {how}") };
        format!("{} ({}{how})", built.tree.short(), built.model)
    };
    let names: Vec<String> = shown.iter().take(NAMED_MAX).map(name).collect();
    match names.len() {
        0 => String::new(),
        _ => format!(
            "; there are deployments to name instead: {}; `smelt ls` lists them",
            names.join(", ")
        ),
    }
}

/// A deployment of that name, of which nothing else is known.
#[cfg(test)]
pub(crate) fn of_model(model: &str, tree: Digest) -> Built {
    Built {
        tree,
        dir: PathBuf::from("out").join(tree.to_string()),
        model: model.to_owned(),
        kind: "-",
        from: None,
        bytes: 0,
        used_s: 0,
        idle_ns: 0,
        run: None,
        stage: String::new(),
        pipeline: String::new(),
        file: Some("/home/p.toml".into()),
        sets: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(first: u8, model: &str, sets: &[&str]) -> Built {
        let sets = sets.iter().map(|&set| set.to_owned()).collect();
        Built { sets, ..of_model(model, Digest::from_bytes([first; 32])) }
    }

    #[test]
    fn a_deployment_is_meant_by_digits_or_by_its_model() {
        let all =
            [built(0xab, "eyes", &[]), built(0xac, "ears", &[]), built(0xff, "ears", &["n=1"])];
        let of = |text: &str| named(&all, text).map(|built| built.map(|built| built.tree));
        assert_eq!(of("abab").unwrap(), Some(all[0].tree));
        assert_eq!(of("eyes").unwrap(), Some(all[0].tree));
        assert_eq!(of("aba").unwrap(), None, "too few digits");
        assert_eq!(of("nose").unwrap(), None);
        let error = of("ears").unwrap_err().to_string();
        let both = "acacacacacacacac, ffffffffffffffff (built with --set n=1)";
        assert!(error.starts_with(&format!("ears may be any of {both}; ")), "{error}");
    }

    #[test]
    fn what_was_built_again_is_one_and_exact_names_go_first() {
        let again = [built(1, "eyes", &["n=1"]), built(2, "eyes", &["n=1"])];
        assert_eq!(named(&again, "eyes").unwrap().unwrap().tree, again[0].tree);
        assert_eq!(again.each_ref().map(|built| built.name(&again)), ["eyes", "0202020202020202"]);
        let of_file = |first, model, pipeline: &str| Built {
            pipeline: pipeline.to_owned(),
            file: Some(format!("/home/{pipeline}.toml").into()),
            ..built(first, model, &[])
        };
        let all = [of_file(1, "eyes", "eyes-int8"), of_file(2, "eyes", "eyes-int4")];
        let of = |text: &str| named(&all, text).unwrap().map(|built| built.tree);
        assert_eq!((of("eyes-int4"), of("eyes-int8")), (Some(all[1].tree), Some(all[0].tree)));
        assert!(named(&all, "eyes").is_err() && named(&all, "Eyes").is_err());
        let other = [of_file(1, "Eyes", "one"), of_file(2, "eyes", "two")];
        assert_eq!(named(&other, "Eyes").unwrap().unwrap().tree, other[0].tree);
        assert_eq!(named(&other[..1], "eyes").unwrap().unwrap().tree, other[0].tree);
    }

    #[test]
    fn what_is_there_is_named_with_how_it_was_built() {
        let other = Built { file: Some("/home/q.toml".into()), ..built(2, "other", &[]) };
        let all = [built(1, "eyes", &["model=path:x", "n=1"]), other];
        let text = instead(&all, Path::new("/home/p.toml"));
        let expect =
            "instead: 0101010101010101 (eyes, built with --set model=path:x --set n=1); `smelt";
        assert!(text.contains(expect), "{text}");
        let text = instead(&all, Path::new("/home/r.toml"));
        assert!(
            text.contains("0101010101010101 (eyes") && text.contains("0202020202020202 (other)"),
            "{text}"
        );
        assert_eq!(instead(&[], Path::new("p.toml")), "");
    }
}
