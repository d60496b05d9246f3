//! `smelt fit`: what of a model a device can hold and do, before anything large is fetched.

use serde_json::{Value, json};
use smelt_fit::{
    DeviceProfile, FitLine, FitSettings, FitTable, Gpu, Instead, MeasuredAnswer, MeasuredCost,
    ModelFacts, Rate, RateBasis, Speed, WantedDevice, gpu_refusal, measured, table,
};
use smelt_hub::Address;
use smelt_model::quantize::Scheme;

use crate::cards::{CUDA, PROCESSORS};
use crate::console::{answer, tell};
use crate::device_profile;
use crate::exit::{Exit, Failed};
use crate::flags::{FitFlags, OverruleFlags};
use crate::model_facts::Headers;
use crate::model_name::{ModelName, ModelSource, Present};
use crate::paint::Paint;
use crate::shipped::{self, ShippedModel};
use crate::speeds;
use crate::table::{Table, bytes, seconds};

/// Other sizes of a family that are named.
const SIZES_MAX: usize = 4;
/// The columns of the table; of what a GPU holds itself, and of what engines are for, only devices with one have any.
const TARGET: &str = "Target";
const OF_GPU: &str = "GPU";
const COLUMNS: usize = 21;
const HEADER: [&str; COLUMNS] = [
    "",
    TARGET,
    "Decoder",
    "Vision",
    "Context",
    "Tiles",
    "KV",
    "Engines",
    "Disk",
    "Build",
    "Weights",
    "KV/token",
    "KV",
    "Working",
    "Pictures",
    "Serving",
    OF_GPU,
    "Photograph",
    "Tokens/s",
    "First token",
    "Accuracy cost",
];
/// Less is told in milliseconds: of a card's times nothing else would be left.
const TENTH_S: f64 = 0.1;
/// A comment's lines begin so, and what a shipped file says of sizes begins behind that.
const COMMENT: &str = "# ";
const SIZES: &str = "# Disk:";

pub(crate) fn run(flags: &FitFlags) -> Result<Exit, Failed> {
    let source = source(&flags.model)?;
    if let ModelSource::Package(choice) = &source {
        return packaged(choice.model, flags.json);
    }
    let device = device_profile::find(flags.for_device.as_deref(), flags.overrule.device)?;
    // Of another device nothing is measured here.
    let weighed = if flags.for_device.is_none() {
        weigh(source, &flags.overrule, || device_profile::measured(device), &speeds::read())
    } else {
        weigh(source, &flags.overrule, || device, &[])
    }?;
    if flags.json {
        answer(format_args!("{}\n", weighed.as_json()))?;
    } else {
        answer(weighed.rows())?;
        weighed.words(&flags.model, &flags.overrule).iter().for_each(tell);
    }
    Ok(if weighed.table.is_advised { Exit::Ok } else { Exit::DoesNotFit })
}

/// A model whose choices were weighed on a device.
pub(super) struct Weighed {
    pub(super) source: ModelSource,
    pub(super) headers: Headers,
    pub(super) facts: ModelFacts,
    device: DeviceProfile,
    pub(super) table: FitTable,
}

/// The model that `text` names; what is built of it is not meant.
pub(super) fn source(text: &str) -> Result<ModelSource, Failed> {
    match ModelName::read(text, &Present::of(text, &[]))? {
        ModelName::Model(source) => Ok(source),
        ModelName::Pipeline(_) => Err(Failed::usage(format!(
            "{text} is a pipeline, and a model is asked for; `smelt plan {text}` says what it builds and whether that fits"
        ))),
        ModelName::Deployment(_) | ModelName::Built(_) => Err(Failed::usage(format!(
            "{text} is built already, and a model is asked for; `smelt chat {text}` asks it"
        ))),
    }
}

/// Weighs the choices of a model that are left open, on a device that is asked for when the model is known.
pub(super) fn weigh(
    source: ModelSource,
    overrule: &OverruleFlags,
    device: impl FnOnce() -> DeviceProfile,
    history: &[MeasuredAnswer],
) -> Result<Weighed, Failed> {
    let headers = Headers::of(&source)?;
    let mut wanted = overrule.wanted();
    let mut wants = overrule.precision.as_ref().map(|precision| precision.scheme);
    // A pipeline of the table that was named by its precision is meant with that.
    if let (None, Some(precision)) = (wants, named_precision(&source)) {
        wants = Some(precision);
        wanted.scheme = Some(precision.name().to_owned());
    }
    let facts = headers.facts(&source.word(), wants)?;
    check_context(&facts, wanted.context)?;
    let device = device();
    if let (WantedDevice::Gpu, Some(why)) = (wanted.device, gpu_refusal(&facts, &device, &wanted)) {
        return Err(Failed::new(Exit::DoesNotFit, format!("--device {}: {why}", overrule.device)));
    }
    let table = table(&facts, &device, &wanted, history);
    Ok(Weighed { source, headers, facts, device, table })
}

/// The scheme of the shipped pipeline that was named.
fn named_precision(source: &ModelSource) -> Option<Scheme> {
    let pipeline = source.choice()?.pipeline?;
    let (_, precision) = pipeline.parts();
    match precision? {
        "int8" => Some(Scheme::Int8),
        "int4" => scheme_in(pipeline.text),
        _ => Some(Scheme::None),
    }
}

/// The scheme that a pipeline's text names first.
fn scheme_in(text: &str) -> Option<Scheme> {
    let line = text.lines().find_map(|line| line.strip_prefix("scheme = \""))?;
    Scheme::parse(line.split('"').next()?)
}

fn check_context(facts: &ModelFacts, context: Option<usize>) -> Result<(), Failed> {
    match context.filter(|context| *context > facts.positions) {
        Some(_) if facts.decoders.is_empty() => Err(Failed::usage(format!(
            "{} is an encoder and has no context; leave out --context",
            facts.name
        ))),
        Some(context) => Err(Failed::usage(format!(
            "--context {context} is more than the {} positions of {}",
            facts.positions, facts.name
        ))),
        None => Ok(()),
    }
}

/// What the file of a shipped model says of it that a program fetches.
fn packaged(model: &ShippedModel, is_json: bool) -> Result<Exit, Failed> {
    let said = sizes_said(model);
    if is_json {
        let document = json!({ "model": model.name, "from": Value::Null, "said": said });
        answer(format_args!("{document}\n"))?;
    } else {
        answer(format_args!("{}: {said}\n", model.name))?;
        tell(format_args!("build it with: smelt build {}", model.name));
    }
    Ok(Exit::Ok)
}

/// The comment of a shipped pipeline on what it takes.
fn sizes_said(model: &ShippedModel) -> String {
    let text = model.pipelines.first().map_or("", |pipeline| pipeline.text);
    let lines = text.lines().skip_while(|line| !line.starts_with(SIZES));
    let lines = lines.map_while(|line| line.strip_prefix(COMMENT));
    lines.collect::<Vec<_>>().join(" ")
}

impl Weighed {
    /// What was weighed, as programs read it.
    fn as_json(&self) -> Value {
        let FitTable { budget_bytes, lines, is_advised, why, instead, .. } = &self.table;
        let lines: Vec<Value> = lines.iter().map(|line| self.line_as_json(line)).collect();
        let mut document = json!({
            "model": self.facts.name, "from": self.source.from(), "family": self.facts.family,
            "device": self.device, "budget_bytes": budget_bytes,
            "fits": is_advised, "why": why,
            "advised": is_advised.then(|| lines.first()).flatten(),
            "lines": lines, "instead": instead, "other_sizes": self.other_sizes(),
        });
        if let Some(bytes) = self.table.gpu_budget_bytes {
            document["gpu_budget_bytes"] = json!(bytes);
        }
        if let Some(why) = &self.table.without_gpu {
            document["without_gpu"] = json!(why);
        }
        document
    }

    fn line_as_json(&self, line: &FitLine) -> Value {
        let mut document = json!(line);
        document["accuracy_cost"] = json!(self.cost(line));
        document
    }

    fn cost(&self, line: &FitLine) -> Option<MeasuredCost> {
        let (scheme, method) = (line.settings.scheme.as_deref()?, line.settings.method?);
        measured(&self.facts.family, scheme, method)
    }

    /// What was weighed, as people read it: the advised line first, then such as differ from it in one setting.
    fn rows(&self) -> Table {
        let shown = HEADER.map(|column| self.shows(column));
        let mut rows = Table::new(&those(shown, HEADER));
        for (at, line) in self.table.lines.iter().enumerate() {
            rows.row(those(shown, self.cells(at, line)));
            if !line.fits {
                rows.paint(0, Paint::Bad);
            }
        }
        rows
    }

    /// Whether a column says anything: some are of devices with a GPU alone.
    fn shows(&self, column: &str) -> bool {
        let mut lines = self.table.lines.iter();
        match column {
            TARGET => lines.any(|line| line.settings.target.is_some()),
            OF_GPU => lines.any(|line| line.gpu_bytes.is_some()),
            _ => true,
        }
    }

    fn cells(&self, at: usize, line: &FitLine) -> [String; COLUMNS] {
        let settings = &line.settings;
        let number = |number: Option<usize>| number.map_or_else(dash, |number| number.to_string());
        let size = |size: u64| if size == 0 { dash() } else { bytes(size) };
        let mark = match (line.fits, at) {
            (false, _) => "too large",
            (true, 0) => "advised",
            (true, _) => "fits",
        };
        let decoder = match (&settings.scheme, settings.method) {
            (Some(scheme), Some(method)) if method != "rtn" => format!("{scheme} ({method})"),
            (Some(scheme), _) => scheme.clone(),
            (None, _) => dash(),
        };
        let is_decoder = settings.scheme.is_some();
        [
            mark.to_owned(),
            settings.target.clone().unwrap_or_else(dash),
            decoder,
            settings.vision.unwrap_or("-").to_owned(),
            number(settings.context),
            number(settings.tiles),
            settings.kv.unwrap_or("-").to_owned(),
            bytes(line.engines_bytes),
            bytes(line.disk_bytes),
            bytes(line.building_bytes),
            bytes(line.weights_bytes),
            size(line.kv_token_bytes),
            size(line.kv_bytes),
            size(line.working_bytes),
            size(line.pictures_bytes),
            bytes(line.serving_bytes),
            line.gpu_bytes.map_or_else(dash, bytes),
            number(line.image_tokens),
            rate(line.speed).filter(|_| is_decoder).unwrap_or_else(dash),
            first_token(line).filter(|_| is_decoder).unwrap_or_else(dash),
            self.accuracy(line),
        ]
    }

    fn accuracy(&self, line: &FitLine) -> String {
        match (self.cost(line), line.settings.scheme.as_deref()) {
            (Some(cost), _) => format!("{} nats ({})", cost.kl_nats, cost.of),
            (None, None | Some("none")) => "none".to_owned(),
            (None, Some(_)) => "not measured".to_owned(),
        }
    }

    /// Lines under the table: the device, the reason, what would do, what to do next.
    fn words(&self, text: &str, overrule: &OverruleFlags) -> Vec<String> {
        let mut words = vec![self.device_words()];
        words.push(match self.table.is_advised {
            true => format!("advised: the first line, since {}", self.table.why),
            false => self.table.why.clone(),
        });
        words.extend(self.table.without_gpu.clone());
        words.extend(self.instead());
        if self.table.is_advised {
            let flags = overrule.words();
            words.push(format!("build it with: smelt build {text}{flags}"));
        }
        words
    }

    fn device_words(&self) -> String {
        let DeviceProfile { name, memory_bytes, swap_bytes, cores, .. } = &self.device;
        let mut text = format!("{name}: {} of memory", bytes(*memory_bytes));
        if *swap_bytes > 0 {
            text.push_str(&format!(", {} of swap", bytes(*swap_bytes)));
        }
        if *cores > 0 {
            text.push_str(&format!(", {cores} cores"));
        }
        let rate = self.device.memory_rate;
        let rate = rate.map(|rate| {
            format!(", {:.0} GB/s from memory ({})", rate.per_second / 1e9, rate.basis.word())
        });
        text.push_str(&rate.unwrap_or_default());
        text.push_str(&self.device.gpu.as_ref().map(gpu_words).unwrap_or_default());
        let speed = self.table.lines.first().and_then(|line| line.speed);
        text.push_str(match speed {
            Some(Speed { basis: RateBasis::Measured, .. }) => {
                "; times of the first line were measured"
            }
            Some(Speed { basis: RateBasis::Projected, .. }) => {
                "; times on the GPU are projected: smelt ran on none of this kind yet"
            }
            Some(_) => "; times are estimated from these",
            None => "; how fast it is, is not known",
        });
        text
    }

    /// What would have to change where nothing fits.
    pub(super) fn instead(&self) -> Vec<String> {
        let mut words: Vec<String> =
            self.table.instead.iter().map(|change| self.change(change)).collect();
        let sizes = self.other_sizes();
        if !self.table.is_advised && !sizes.is_empty() {
            words.push(format!("other sizes of it that smelt knows: {}", sizes.join(", ")));
        }
        words
    }

    fn change(&self, change: &Instead) -> String {
        match change {
            Instead::Settings { line } => {
                let settings = &line.settings;
                let first = &self.table.lines[0].settings;
                let flag = |name: &str, value: Option<String>, own: Option<String>| {
                    let value = value.filter(|value| Some(value) != own.as_ref());
                    value.map(|value| format!("--{name} {value}"))
                };
                let word = |word: Option<&str>| word.map(str::to_owned);
                let count = |number: Option<usize>| number.map(|number| number.to_string());
                let flags = [
                    flag("device", word(Some(device(settings))), word(Some(device(first)))),
                    flag("precision", settings.scheme.clone(), first.scheme.clone()),
                    flag("context", count(settings.context), count(first.context)),
                    flag("tiles", count(settings.tiles), count(first.tiles)),
                    flag("kv", word(settings.kv), word(first.kv)),
                ];
                let flags: Vec<String> = flags.into_iter().flatten().collect();
                format!("it fits with {}: {}", flags.join(" "), bytes(line.serving_bytes))
            }
            Instead::Memory { memory_bytes } => {
                format!("it takes a device with {} of memory", bytes(*memory_bytes))
            }
        }
    }

    /// Models of the table of the same maker whose names begin as this one's does.
    fn other_sizes(&self) -> Vec<&'static str> {
        let ModelSource::Hub(address, _) = &self.source else { return Vec::new() };
        let line = |address: &Address| {
            let whole = address.repo.as_str();
            whole.split_once('-').map_or(whole, |(line, _)| line).to_owned()
        };
        let is_of_line = |model: &&ShippedModel| {
            let other = model.address.as_ref();
            other.is_some_and(|other| other != address && line(other) == line(address))
        };
        let models = shipped::models().iter().filter(is_of_line);
        models.map(|model| model.name).take(SIZES_MAX).collect()
    }
}

/// Those of a row's cells whose columns are shown.
fn those<T>(shown: [bool; COLUMNS], cells: [T; COLUMNS]) -> Vec<T> {
    let cells = cells.into_iter().zip(shown).filter(|(_, is_shown)| *is_shown);
    cells.map(|(cell, _)| cell).collect()
}

fn dash() -> String {
    "-".to_owned()
}

/// A GPU, behind what is said of its device.
fn gpu_words(gpu: &Gpu) -> String {
    let Gpu { name, sm, multiprocessors, memory_bytes, unified, .. } = gpu;
    let mut text = format!("; GPU {name}, sm_{sm}");
    if let Some(count) = multiprocessors {
        text.push_str(&format!(", {count} multiprocessors"));
    }
    match (unified, memory_bytes) {
        (true, _) => text.push_str(", in the same memory"),
        (false, 0) => {}
        (false, own) => text.push_str(&format!(", {} of its own", bytes(*own))),
    }
    if let (false, Some(Rate { per_second, basis })) = (unified, gpu.memory_rate) {
        text.push_str(&format!(" at {:.0} GB/s ({})", per_second / 1e9, basis.word()));
    }
    text
}

/// What `--device` calls what runs the engines of these settings.
fn device(settings: &FitSettings) -> &'static str {
    match settings.target.as_deref() {
        None | Some(PROCESSORS) => PROCESSORS,
        Some(_) => CUDA,
    }
}

fn rate(speed: Option<Speed>) -> Option<String> {
    let speed = speed?;
    Some(format!("{}{:.0}", about(speed), speed.tokens_per_s?))
}

fn first_token(line: &FitLine) -> Option<String> {
    let speed = line.speed?;
    let is_on_gpu = device(&line.settings) == CUDA;
    let time = match speed.first_token_s? {
        short @ ..TENTH_S if is_on_gpu => format!("{:.0} ms", short * 1e3),
        long => seconds(long),
    };
    Some(format!("{}{time}", about(speed)))
}

/// What stands before a time that nobody measured.
fn about(speed: Speed) -> &'static str {
    match speed.basis {
        RateBasis::Measured => "",
        RateBasis::Projected => "projected ",
        RateBasis::Estimated | RateBasis::Stated => "about ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weighed(text: &str, device: &str, overrule: &OverruleFlags) -> Weighed {
        let device = DeviceProfile::named(device).unwrap();
        weigh(source(text).unwrap(), overrule, || device, &[]).unwrap()
    }

    #[test]
    fn a_table_has_the_advised_line_first_and_says_why() {
        let weighed = weighed("synthetic:internvl3-1b", "orin-nano-8gb", &OverruleFlags::default());
        let text = weighed.rows().to_string();
        let second = text.lines().nth(1).unwrap();
        assert!(second.starts_with("advised") && second.contains("int8"), "{text}");
        let words = weighed.words("internvl3-1b", &OverruleFlags::default()).join("\n");
        assert!(words.contains("6 cores, 68 GB/s from memory (by its maker's figures)"), "{words}");
        assert!(words.contains("advised: the first line, since it holds"), "{words}");
        assert!(words.ends_with("build it with: smelt build internvl3-1b"), "{words}");
        let document = weighed.as_json();
        assert_eq!(document["advised"], document["lines"][0]);
        assert_eq!(document["lines"][0]["scheme"], "int8");
        assert_eq!(document["lines"][0]["accuracy_cost"]["kl_nats"], 0.000_004);
    }

    #[test]
    fn what_does_not_fit_is_told_with_what_would() {
        let overrule = OverruleFlags::default();
        let weighed = weighed("synthetic:qwen2_5_vl-3b", "1GB", &overrule);
        assert!(!weighed.table.is_advised);
        let words = weighed.words("m", &overrule).join("\n");
        assert!(words.contains("nothing fits: the smallest choice holds"), "{words}");
        assert!(words.contains("it takes a device with "), "{words}");
        assert!(!words.contains("smelt build"), "{words}");
    }

    #[test]
    fn files_of_models_that_programs_fetch_say_what_they_take() {
        for model in shipped::models().iter().filter(|model| model.address.is_none()) {
            let said = sizes_said(model);
            assert!(said.starts_with("Disk: ") && said.contains("Memory: "), "{said}");
            assert!(!said.contains('#'), "{said}");
        }
    }

    #[test]
    fn what_is_no_model_is_told_with_the_command_that_is_meant() {
        let error = |text: &str| source(text).unwrap_err().to_string();
        assert!(error("p.toml").contains("`smelt plan p.toml`"));
        assert!(error("intrnvl3-1b").contains("there is internvl3-1b"));
    }

    #[test]
    fn a_pipeline_of_the_table_is_meant_with_its_precision() {
        let scheme = |text: &str| named_precision(&source(text).unwrap()).map(|it| it.name());
        assert_eq!(scheme("internvl3-1b-int4"), Some("int4-g128"));
        assert_eq!(scheme("smolvlm2-500m-int4"), Some("int4-g32"));
        assert_eq!(scheme("internvl3-2b-int8"), Some("int8"));
        assert_eq!(scheme("internvl3-1b-bf16"), Some("none"));
        assert_eq!(scheme("internvl3-1b"), None);
    }
}
