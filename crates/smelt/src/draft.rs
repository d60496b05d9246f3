//! Writes a pipeline for a model and its settings, as a person would: commented, with params where somebody may turn.
//!
//! Settings in, text out.  Keys of stages cover no limits and no retries, so those follow from sizes here.

use std::fmt::Write as _;

use smelt_backend::KvType;
use smelt_fit::FitLine;
use smelt_model::grid::Grid;
use smelt_model::quantize::Method;

use crate::cards::PROCESSORS;
use crate::table::bytes;

/// How a pipeline that was written by `smelt init` remembers the command that writes it again.
const COMMAND: &str = "# smelt init ";
/// Answers at once, and frames of a clip, where nobody says otherwise.
const SLOTS: usize = 8;
const FRAMES: usize = 32;
/// The context that engines are built for where nobody says otherwise; of a model with fewer positions it would be refused.
const BUILT_FOR: usize = 1024;
/// What a stage may hold, in GiB, beside what it is forecast to hold.
const SPARE_GIB: u64 = 1;

/// A pipeline that is to be written.
pub(crate) struct Draft<'a> {
    /// What follows `smelt init`: the model, and what was overruled.
    pub(crate) command: String,
    /// The pipeline's name.
    pub(crate) name: String,
    /// What the deployment calls its model.
    pub(crate) model: String,
    /// Where its checkpoint comes from, as `from` says it.
    pub(crate) from: String,
    /// What is made of it.
    pub(crate) shape: Shape,
    /// The longest sequence that its decoder is for.
    pub(crate) positions: usize,
    /// The settings, and what they take.
    pub(crate) line: &'a FitLine,
    /// What whoever serves it may take, as it was typed; nothing where nobody said.
    pub(crate) memory: Option<String>,
    /// Why these, in a sentence.
    pub(crate) why: String,
}

/// What is made of a checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Shape {
    /// A model that sees; with sizes of pictures where its tower takes any.
    Sees(Option<Vec<Grid>>),
    /// A model of text.
    Speaks,
    /// An encoder of texts.
    Embeds,
    /// A cross-encoder, which scores pairs of texts.
    Scores,
}

/// What a pipeline's text says was typed behind `smelt init` to write it; nothing where a person wrote it.
pub(crate) fn command_of(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix(COMMAND))
}

/// A pipeline that a person wrote, marked as what `smelt init` with `command` behind it has written.
pub(crate) fn as_by(command: &str, text: &str) -> String {
    format!("{COMMAND}{command}\n{text}")
}

impl Draft<'_> {
    /// The pipeline's text.
    pub(crate) fn text(&self) -> String {
        let stages = match &self.shape {
            Shape::Sees(grids) => {
                let mut stages = self.vision(grids.as_deref());
                stages.extend(self.decoder());
                stages
            }
            Shape::Speaks => self.decoder(),
            Shape::Embeds => self.encoder("encoder"),
            Shape::Scores => self.encoder("classifier"),
        };
        let blocks = [self.head(), self.params(), CHECKPOINT.to_owned()];
        let blocks: Vec<String> = blocks.into_iter().chain(stages).collect();
        blocks.join("\n")
    }

    fn sees(&self) -> bool {
        matches!(self.shape, Shape::Sees(_))
    }

    /// Whether its tower takes a number of tiles.
    fn tiles(&self) -> Option<usize> {
        self.line.settings.tiles.filter(|_| self.sees())
    }

    /// How keys and values are kept, where that is not how they are kept anyway.
    fn kv(&self) -> Option<&'static str> {
        self.line.settings.kv.filter(|kv| *kv != KvType::default().word())
    }

    /// What its engines are built for, where that is not processors.
    fn target(&self) -> Option<&str> {
        self.line.settings.target.as_deref().filter(|target| *target != PROCESSORS)
    }

    /// What a stage of an engine says of that.
    fn for_target(&self) -> &'static str {
        self.target().map_or("", |_| "target = \"${target}\"\n")
    }

    /// Whether a stage rounds its weights.
    fn rounds(&self) -> bool {
        self.line.settings.method.is_some()
    }

    fn is_calibrated(&self) -> bool {
        let method = self.line.settings.method.and_then(Method::parse);
        method.is_some_and(Method::needs_calibration)
    }

    fn head(&self) -> String {
        let FitLine { engines_bytes, disk_bytes, building_bytes, serving_bytes, .. } = *self.line;
        let [engines, disk, building, serving] =
            [engines_bytes, disk_bytes, building_bytes, serving_bytes].map(bytes);
        let own = self.line.gpu_bytes.map_or_else(String::new, |own| {
            format!("# On the GPU: {}, in a full context.\n", bytes(own))
        });
        let mut text = format!(
            "# {}, written by the command below; it is yours to edit, and is never overwritten.\n{COMMAND}{}\n#\n# Why so: {}.\n# Disk: {engines} of engines, {disk} with what they are made of.  Memory: {building} while it is built, {serving} while it\n# answers in a full context.\n{own}",
            self.name, self.command, self.why
        );
        if let Some(tokens) = self.line.image_tokens {
            let _ = writeln!(text, "# A 4:3 photograph has {tokens} image tokens.");
        }
        let _ = write!(
            text,
            "#\n#   smelt run {0}.toml\nsmelt = 1\nname = {1}\n",
            self.name,
            quoted(&self.name)
        );
        text
    }

    fn params(&self) -> String {
        let mut text = String::new();
        if self.line.settings.context.is_some() || self.held().next().is_some() {
            text.push_str("# Limits of serving: no engine is built anew where they change, and flags of chat and serve go before them.\n");
        }
        let _ = write!(text, "[params]\nmodel = {}\n", quoted(&self.from));
        if let Some(context) = self.line.settings.context {
            let _ = writeln!(text, "max_seq_len = {context}");
        }
        if let Some(tiles) = self.tiles() {
            let _ = writeln!(text, "tiles = {tiles}");
        }
        if self.line.settings.context.is_some() {
            let _ = writeln!(text, "slots = {SLOTS}");
        }
        for (name, word) in self.held() {
            let _ = writeln!(text, "{name} = {}", quoted(word));
        }
        if self.sees() {
            let _ = writeln!(text, "frames = {FRAMES}");
        }
        if let Some(target) = self.target() {
            let _ = writeln!(
                text,
                "# What runs the engines: cpu, or GPUs of one capability, which docs/pipeline.md lists.\ntarget = {}",
                quoted(target)
            );
        }
        text
    }

    /// What holds who serves it, where anything does.
    fn held(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let held = [("kv", self.kv()), ("memory", self.memory.as_deref())];
        held.into_iter().filter_map(|(name, word)| Some((name, word?)))
    }

    /// What the stage of a deployment says of that.
    fn holding(&self) -> String {
        self.held().map(|(name, _)| format!("{name} = \"${{{name}}}\"\n")).collect()
    }

    /// The tower: its graph, and the engine of that.
    fn vision(&self, grids: Option<&[Grid]>) -> Vec<String> {
        let grids = grids.map_or_else(String::new, |grids| {
            let grids: Vec<String> = grids.iter().map(|grid| quoted(&grid.to_string())).collect();
            format!(
                "# Each size is an engine for pictures of that shape, all over one file of weights.\ngrids = [{}]\n",
                grids.join(", ")
            )
        });
        // Towers for GPUs keep halves, and have no precision to choose.
        let how = match self.target() {
            Some(_) => self.for_target().to_owned(),
            None => format!("precision = \"{}\"\n", self.line.settings.vision.unwrap_or("int8")),
        };
        let limit = gib(self.line.working_bytes).max(2);
        vec![
            format!(
                "[stage.vision-onnx]\nkind = \"onnx-export\"\ncheckpoint = \"checkpoint\"\npart = \"vision\"\ndtype = \"f16\"\n{grids}limits = {{ memory = \"512MiB\", timeout = \"30m\" }}\n"
            ),
            format!(
                "[stage.vision-engine]\nkind = \"engine-build\"\nonnx = \"vision-onnx\"\n{how}limits = {{ memory = \"{limit}GiB\", timeout = \"1h\" }}\n{}",
                retry("vision-engine")
            ),
        ]
    }

    /// The decoder: rounded where it is, its engine, the deployment behind the comparison of weights, and what the
    /// reference says.
    fn decoder(&self) -> Vec<String> {
        let vision = if self.sees() { "vision = \"vision-engine\"\n" } else { "" };
        let rounded = if self.rounds() { "llm-quant" } else { "checkpoint" };
        let weights = if self.rounds() { "weights = \"llm-quant\"\n" } else { "" };
        let engine = gib(self.line.engines_bytes);
        let built_for = match self.positions {
            few @ 0..BUILT_FOR => format!("max-seq-len = {few}\n"),
            _ => String::new(),
        };
        let mut stages = Vec::new();
        if self.is_calibrated() {
            stages.push(format!(
                "# What the decoder's layers are fed: texts{} that smelt carries.\n[stage.calibration]\nkind = \"calibrate\"\ncheckpoint = \"checkpoint\"\n{vision}limits = {{ memory = \"1GiB\", timeout = \"8h\" }}\n",
                if self.sees() { " and pictures" } else { "" }
            ));
        }
        if self.rounds() {
            stages.push(self.quantize());
        }
        stages.push(format!(
            "[stage.llm-engine]\nkind = \"llm-engine-build\"\n{}checkpoint = \"{rounded}\"\n{built_for}limits = {{ memory = \"{}GiB\", timeout = \"1h\" }}\n{}",
            self.for_target(),
            engine.max(3),
            retry("llm-engine")
        ));
        let engines = format!("{vision}llm = \"llm-engine\"\nagainst = \"checkpoint\"\n{weights}");
        stages.push(format!(
            "# Every weight.\n[stage.weights]\nkind = \"verify\"\n{engines}weights-only = true\nlimits = {{ memory = \"1GiB\", timeout = \"8h\" }}\n"
        ));
        stages.push(self.deployment(vision, engine));
        stages.push(format!(
            "# What it computes is held against the reference behind the deployment, which may be asked meanwhile.\n[stage.verify]\nkind = \"verify\"\n{engines}compared = \"weights\"\nlimits = {{ memory = \"{}GiB\", timeout = \"8h\" }}\n",
            (engine + SPARE_GIB).max(4)
        ));
        stages
    }

    fn quantize(&self) -> String {
        let scheme = self.line.settings.scheme.as_deref().unwrap_or("none");
        let method = match self.line.settings.method {
            None | Some("rtn") => String::new(),
            Some(method) => format!("method = \"{method}\"\n"),
        };
        let calibration = if self.is_calibrated() { "calibration = \"calibration\"\n" } else { "" };
        format!(
            "[stage.llm-quant]\nkind = \"quantize\"\ncheckpoint = \"checkpoint\"\nscheme = \"{scheme}\"\n{method}{calibration}limits = {{ memory = \"1GiB\", timeout = \"8h\" }}\n"
        )
    }

    fn deployment(&self, vision: &str, engine: u64) -> String {
        let mut text = format!(
            "[stage.deployment]\nkind = \"deployment\"\nmodel = {}\ncheckpoint = \"checkpoint\"\n{vision}llm = \"llm-engine\"\nverified = \"weights\"\nmax-seq-len = \"${{max_seq_len}}\"\nslots = \"${{slots}}\"\n",
            quoted(&self.model)
        );
        if self.sees() {
            text.push_str("frames = \"${frames}\"\n");
        }
        if self.tiles().is_some() {
            text.push_str("tiles = \"${tiles}\"\n");
        }
        text += &self.holding();
        let _ = write!(
            text,
            "# It opens and maps all engines, and steps once.\nlimits = {{ memory = \"{}GiB\", timeout = \"1h\" }}\n",
            (engine + SPARE_GIB).max(2)
        );
        text
    }

    /// An encoder of texts, or with its classification head: graph, engine, deployment.
    fn encoder(&self, part: &str) -> Vec<String> {
        vec![
            format!(
                "[stage.{part}-onnx]\nkind = \"onnx-export\"\ncheckpoint = \"checkpoint\"\npart = \"{part}\"\ndtype = \"f32\"\n"
            ),
            format!(
                "[stage.{part}-engine]\nkind = \"engine-build\"\nonnx = \"{part}-onnx\"\n{}",
                self.for_target()
            ),
            format!(
                "[stage.deployment]\nkind = \"deployment\"\nmodel = {}\ncheckpoint = \"checkpoint\"\nencoder = \"{part}-engine\"\n{}",
                quoted(&self.model),
                self.holding()
            ),
        ]
    }
}

const CHECKPOINT: &str = "[stage.checkpoint]\nkind = \"source\"\nfrom = \"${model}\"\n";

/// What an engine's stage does before it is tried once more.
fn retry(stage: &str) -> String {
    format!(
        "[stage.{stage}.retry]\nsettle = \"60s\"\ndrop-caches = true\ntemporary-swap = \"4GiB\"\n"
    )
}

/// A text as TOML has it: JSON's escapes are among TOML's.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whole GiB that hold so many bytes.
fn gib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 30)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use smelt_fit::{DeviceProfile, FitLine, Gpu, Wanted, table};
    use smelt_model::quantize::Scheme;
    use smelt_plan::pipeline::Overrides;
    use smelt_plan::{Digest, Pipeline, Plan};

    use super::*;
    use crate::model_facts::{Headers, shape};
    use crate::model_name::ModelSource;
    use crate::{pins, shipped};

    /// The key of every stage of a pipeline, by name.
    fn keys(text: &str) -> BTreeMap<String, Digest> {
        let pipeline = Pipeline::parse("p.toml", text, &Overrides::default()).unwrap();
        let plan = Plan::build(&pipeline, &pins::none(&pipeline)).unwrap();
        plan.stages().map(|(_, stage)| (stage.name.to_string(), stage.recipe_key)).collect()
    }

    /// The line that a device of 64 GB is advised for the synthetic model with that scheme.
    fn line(name: &'static str, scheme: Option<&str>) -> (FitLine, Shape) {
        line_on(DeviceProfile::named("64GB").unwrap(), name, scheme)
    }

    /// The same of a device with a GPU for which engines are built.
    fn line_on_gpu(name: &'static str, scheme: Option<&str>) -> (FitLine, Shape) {
        let orin = DeviceProfile::named("agx-orin-64gb").unwrap();
        let target = Some("cuda-sm87".to_owned());
        let gpu = orin.gpu.map(|gpu| Gpu { target, ..gpu });
        line_on(DeviceProfile { gpu, ..orin }, name, scheme)
    }

    fn line_on(
        device: DeviceProfile,
        name: &'static str,
        scheme: Option<&str>,
    ) -> (FitLine, Shape) {
        let headers = Headers::of(&ModelSource::Synthetic(name)).unwrap();
        let wants = scheme.and_then(Scheme::parse);
        let facts = headers.facts(name, wants).unwrap();
        let wanted = Wanted { scheme: scheme.map(str::to_owned), ..Wanted::default() };
        let table = table(&facts, &device, &wanted, &[]);
        (table.lines[0].clone(), shape(&headers.checkpoint))
    }

    fn drafted(model: &str, from: &str, (line, shape): (&FitLine, Shape)) -> String {
        let (command, name) = (format!("{model} --context 4096"), model.to_owned());
        let (model, from, why) = (model.to_owned(), from.to_owned(), "it fits".to_owned());
        let (positions, memory) = (BUILT_FOR, None);
        Draft { command, name, model, from, shape, positions, line, memory, why }.text()
    }

    /// A pipeline of the same settings that was written by hand has the same stages with the same keys.
    #[track_caller]
    fn check(pipeline: &str, synthetic: &'static str, scheme: Option<&str>) {
        check_as(pipeline, line(synthetic, scheme), str::to_owned);
    }

    /// The same for a GPU, of a pipeline that says so of its decoder and, as a tower's stage is edited, of that.
    #[track_caller]
    fn check_on_gpu(pipeline: &str, synthetic: &'static str, scheme: Option<&str>) {
        check_as(pipeline, line_on_gpu(synthetic, scheme), |by_hand| {
            let target = "target = \"cuda-sm87\"";
            let tower = by_hand.replace("precision = \"int8\"", target);
            let all = tower.replace("target = \"cpu\"", target);
            all.replace("\"classifier-onnx\"\n", &format!("\"classifier-onnx\"\n{target}\n"))
        });
    }

    #[track_caller]
    fn check_as(pipeline: &str, (line, shape): (FitLine, Shape), edited: fn(&str) -> String) {
        let by_hand = shipped::PIPELINES.iter().find(|by_hand| by_hand.name == pipeline).unwrap();
        let models = shipped::models().iter();
        let model = models.clone().find(|model| model.pipelines.contains(&by_hand)).unwrap();
        let address = model.address.as_ref().unwrap();
        let from = format!("hf:{}", address.repo.as_str());
        let ours = drafted(&model.deployment, &from, (&line, shape));
        assert_eq!(keys(&ours), keys(&edited(by_hand.text)), "{pipeline}:\n{ours}");
    }

    #[test]
    fn what_is_drafted_is_what_was_written_by_hand() {
        check("internvl3-1b-int8", "internvl3-1b", None);
        check("internvl3-1b-int4", "internvl3-1b", Some("int4-g128"));
        check("internvl3-2b-int8", "internvl3-2b", Some("int8"));
        check("internvl3-2b-int4", "internvl3-2b", Some("int4-g128"));
        check("internvl3_5-1b-int8", "internvl3_5-1b", None);
        check("qwen2-vl-2b-int4", "qwen2_vl-2b", Some("int4-g128"));
        check("qwen2_5-vl-3b-int4", "qwen2_5_vl-3b", Some("int4-g128"));
        check("qwen3-vl-2b-int8", "qwen3_vl-2b", None);
        check("qwen3-vl-2b-int4", "qwen3_vl-2b", Some("int4-g128"));
        check("smolvlm2-256m-int8", "smolvlm-256m", None);
        check("smolvlm2-500m-int4", "smolvlm-500m", Some("int4-g32"));
        check("reranker", "ms-marco-minilm-l6", None);
    }

    #[test]
    fn what_is_drafted_for_a_gpu_is_what_was_written_by_hand() {
        check_on_gpu("internvl3-1b-int8", "internvl3-1b", None);
        check_on_gpu("internvl3-2b-int4", "internvl3-2b", Some("int4-g128"));
        check_on_gpu("qwen3-vl-2b-int8", "qwen3_vl-2b", None);
        check_on_gpu("smolvlm2-500m-int4", "smolvlm-500m", Some("int4-g32"));
        check_on_gpu("reranker", "ms-marco-minilm-l6", None);
    }

    #[test]
    fn the_command_that_writes_it_again_is_in_it() {
        let (line, shape) = line("internvl3-tiny", None);
        let text = drafted("m", "synthetic:internvl3-tiny", (&line, shape));
        assert_eq!(command_of(&text), Some("m --context 4096"));
        assert_eq!(command_of("smelt = 1\n# by hand\n"), None);
    }

    #[test]
    fn an_engine_is_built_for_no_more_than_its_model_has() {
        let (line, shape) = line("internvl3-tiny", None);
        let engine = |positions| {
            let [command, name, model, why] = ["m"; 4].map(str::to_owned);
            let (from, shape) = ("synthetic:internvl3-tiny".to_owned(), shape.clone());
            let line = &line;
            let memory = None;
            let draft = Draft { command, name, model, from, shape, positions, line, memory, why };
            let pipeline = Pipeline::parse("p.toml", &draft.text(), &Overrides::default()).unwrap();
            let mut stages = pipeline.stages.into_iter();
            stages.find(|stage| stage.name.as_str() == "llm-engine").unwrap().params
        };
        let built_for = |positions| engine(positions)["max-seq-len"].as_u64();
        assert_eq!([256, 1023, 1024, 32768].map(built_for), [256, 1023, 1024, 1024].map(Some));
    }

    #[test]
    fn what_holds_who_serves_it_is_written_where_it_is_not_so_anyway() {
        let (line, shape) = line("internvl3-tiny", None);
        let text = |kv, memory: Option<&str>| {
            let mut line = line.clone();
            line.settings.kv = Some(kv);
            let shape = shape.clone();
            let [command, name, model, why] = ["m"; 4].map(str::to_owned);
            let (from, memory) = ("synthetic:internvl3-tiny".to_owned(), memory.map(str::to_owned));
            let (positions, line) = (BUILT_FOR, &line);
            Draft { command, name, model, from, shape, positions, line, memory, why }.text()
        };
        let usual = text("f16", None);
        assert!(!usual.contains("kv") && !usual.contains("\nmemory"), "{usual}");
        let held = text("int8", Some("3GiB"));
        let pipeline = Pipeline::parse("p.toml", &held, &Overrides::default()).unwrap();
        let stages = pipeline.stages.iter();
        let deployment = stages.clone().find(|stage| stage.name.as_str() == "deployment").unwrap();
        assert_eq!(deployment.params["kv"], "int8");
        assert_eq!(deployment.params["memory"], 3_u64 << 30);
        assert_eq!(keys(&held)["llm-engine"], keys(&usual)["llm-engine"], "no engine is anew");
        assert_ne!(keys(&held)["deployment"], keys(&usual)["deployment"]);
    }

    #[test]
    fn every_synthetic_model_has_a_pipeline_that_is_read() {
        for name in smelt_model::synthetic::names() {
            let (line, shape) = line(name, None);
            let text = drafted(name, &format!("synthetic:{name}"), (&line, shape));
            assert!(keys(&text).contains_key("deployment"), "{name}");
        }
    }

    #[test]
    fn names_and_paths_are_quoted() {
        let (line, _) = line("internvl3-tiny", None);
        let odd = "a \"b\" \\ c";
        let text = drafted(odd, "path:/x \"y\"", (&line, Shape::Speaks));
        let pipeline = Pipeline::parse("p.toml", &text, &Overrides::default()).unwrap();
        assert_eq!(pipeline.name, odd);
        assert_eq!(pipeline.paths().into_iter().collect::<Vec<_>>(), ["/x \"y\""]);
    }
}
