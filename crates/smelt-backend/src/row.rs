//! Opens an engine by what its heading says: a table of back ends, and the row that matches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::device::{choose, misfit};
use crate::grid::Grid;
use crate::heading::ENGINE_FILE;
use crate::{
    Decoder, Device, Graph, Heading, KvOptions, MemoryPlace, MemoryReport, OpenError, VisionEngine,
};

/// Graphs of one directory, with the size of pictures that each is for where there is a list of them.
pub type Graphs = Vec<(Option<Grid>, Box<dyn Graph>)>;

/// What opens a decoder.
type OpenDecoder = fn(&Path, KvOptions) -> Result<Box<dyn Decoder>, OpenError>;

/// What an engine becomes when it is opened.  Weights are mapped or uploaded then.
#[derive(Clone, Copy, Debug)]
pub enum Opens {
    /// A decoder.
    Decoder(OpenDecoder),
    /// Graphs.
    Graphs(fn(&Path) -> Result<Graphs, OpenError>),
}

/// A kind of engine that can be opened here.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What `engine.json` calls the kind.
    pub kind: &'static str,
    /// What `engine.json` calls the target.
    pub target: &'static str,
    /// What pipelines call the back end that builds it.
    pub backend: &'static str,
    /// The facts about a device on which what it builds depends, by the words of pipelines: none where it runs on any.
    /// They enter the keys of its stages, and what they were enters the heading of its engines.
    pub facts: &'static [&'static str],
    /// Whose memory its engines live in here: nothing of a device is opened for it.
    pub place: fn() -> MemoryPlace,
    /// What it says of that memory, before one is open; a device of its own is opened for it.
    pub memory: fn() -> MemoryReport,
    /// What opens it.
    pub opens: Opens,
}

/// The kinds of engines that can be opened, and the device that opens them.
#[derive(Clone, Copy, Debug)]
pub struct Backends {
    rows: &'static [Row],
    device: fn() -> Device,
    /// Whether engines are opened where they do not run.
    is_looking: bool,
}

impl Backends {
    /// Those of `rows`, on a device of which nothing is known.  Of two targets that both run, the first is the better one.
    pub const fn new(rows: &'static [Row]) -> Self {
        Self { rows, device: Device::default, is_looking: false }
    }

    /// The same on a device whose facts and memory `device` finds, which is asked where an engine depends on them.
    #[must_use]
    pub const fn on(self, device: fn() -> Device) -> Self {
        Self { device, ..self }
    }

    /// The same for who only looks at engines: those for other devices are opened too, and where several answer alike and
    /// this device runs none, the first is.
    #[must_use]
    pub const fn looking(self) -> Self {
        Self { is_looking: true, ..self }
    }

    /// Every fact about a device on which engines of some back end depend.
    pub fn facts(self) -> BTreeSet<&'static str> {
        self.rows.iter().flat_map(|row| row.facts).copied().collect()
    }

    /// The facts on which stages depend whose back end pipelines call so; none of a word that no row has.
    pub fn facts_of(self, backend: &str) -> BTreeSet<&'static str> {
        let own = self.rows.iter().filter(|row| row.backend == backend);
        own.flat_map(|row| row.facts).copied().collect()
    }

    /// Of engines that answer alike, in the directories that `file` names, the one that this device runs best.  An only
    /// one is not looked at.
    ///
    /// # Errors
    /// When a heading cannot be read, or this device runs none of them.
    pub fn choose<'a>(self, file: &Path, dirs: &'a [PathBuf]) -> Result<&'a Path, OpenError> {
        if let [dir] = dirs {
            return Ok(dir);
        }
        let headings = dirs.iter().map(|dir| Heading::read(dir)).collect::<Result<Vec<_>, _>>()?;
        let at = match choose(&headings, &self.device()) {
            Err(_) if self.is_looking => Ok(0),
            at => at,
        };
        Ok(&dirs[at.map_err(|why| OpenError::NoEngine { path: file.to_owned(), why })?])
    }

    /// Whether the engine in `dir` is one that this device runs.
    ///
    /// # Errors
    /// When its heading cannot be read.
    pub fn runs(self, dir: &Path) -> Result<bool, OpenError> {
        let heading = Heading::read(dir)?;
        Ok(Self { is_looking: false, ..self }.fits(dir, &heading).is_ok())
    }

    /// What runs here: the targets that the device says, or where it says none those of the rows in their order.
    fn device(self) -> Device {
        let known = (self.device)();
        if !known.targets.is_empty() {
            return known;
        }
        let mut targets: Vec<String> = Vec::new();
        for row in self.rows {
            if !targets.iter().any(|target| target == row.target) {
                targets.push(row.target.to_owned());
            }
        }
        Device { targets, ..known }
    }

    /// Whose memory the engine in `dir` will live in.
    ///
    /// # Errors
    /// When the directory holds no engine of a back end that is known.
    pub fn place(self, dir: &Path) -> Result<MemoryPlace, OpenError> {
        Ok((self.row(dir, "engine")?.place)())
    }

    /// The memory that the engine in `dir` will live in, as its back end sees it before it is open.
    ///
    /// # Errors
    /// When the directory holds no engine of a back end that is known.
    pub fn memory(self, dir: &Path) -> Result<MemoryReport, OpenError> {
        Ok((self.row(dir, "engine")?.memory)())
    }

    /// Opens the decoder in `dir`, with keys and values kept as `kv` says.
    ///
    /// # Errors
    /// When the directory holds no decoder of a back end that is known, or its parts disagree.
    pub fn decoder(self, dir: &Path, kv: KvOptions) -> Result<Box<dyn Decoder>, OpenError> {
        match self.row(dir, "llm")? {
            Row { opens: Opens::Decoder(open), .. } => open(dir, kv),
            Row { kind, .. } => Err(other(dir, kind, "llm")),
        }
    }

    /// Opens the graphs in `dir`.
    ///
    /// # Errors
    /// When the directory holds no graphs of a back end that is known, or their parts disagree.
    pub fn graphs(self, dir: &Path) -> Result<Graphs, OpenError> {
        match self.row(dir, "graph")? {
            Row { opens: Opens::Graphs(open), .. } => open(dir),
            Row { kind, .. } => Err(other(dir, kind, "graph")),
        }
    }

    /// Opens the only graph in `dir`.
    ///
    /// # Errors
    /// As [`Self::graphs`], and when there are several.
    pub fn graph(self, dir: &Path) -> Result<Box<dyn Graph>, OpenError> {
        only_graph(dir, self.graphs(dir)?, |graph, purpose, problem| graph.unfit(purpose, problem))
    }

    /// Opens the vision engines in `dir`, one for each size of pictures.
    ///
    /// # Errors
    /// As [`Self::graphs`], and when one is not from pictures to tokens.
    pub fn vision(self, dir: &Path) -> Result<Vec<VisionEngine>, OpenError> {
        let graphs = self.graphs(dir)?.into_iter();
        graphs.map(|(grid, graph)| VisionEngine::new(graph, grid)).collect()
    }

    /// The row of the engine in `dir`; `wanted` is the kind that messages name.
    fn row(self, dir: &Path, wanted: &'static str) -> Result<&'static Row, OpenError> {
        let heading = Heading::read(dir)?;
        let Heading { kind, target, .. } = &heading;
        if let Some(row) = self.rows.iter().find(|row| row.kind == kind && row.target == target) {
            return self.fits(dir, &heading).map(|()| row);
        }
        let mut of_kind =
            self.rows.iter().filter(|row| row.kind == kind).map(|row| row.target).peekable();
        if of_kind.peek().is_none() {
            return Err(other(dir, kind, wanted));
        }
        let known: Vec<String> = of_kind.map(|target| format!("{target:?}")).collect();
        let problem = format!("target {target:?} is not {}", known.join(" or "));
        Err(OpenError::NotAnEngine { path: dir.join(ENGINE_FILE), problem })
    }

    /// Whether this device is one that the engine in `dir` was built for; nothing is asked of it where that runs on any.
    fn fits(self, dir: &Path, heading: &Heading) -> Result<(), OpenError> {
        let is_for_any = heading.device.is_empty() && heading.device_bytes.is_none();
        if is_for_any || self.is_looking {
            return Ok(());
        }
        let other = |why| Err(OpenError::OtherDevice { path: dir.join(ENGINE_FILE), why });
        let device = self.device();
        if !device.targets.contains(&heading.target) {
            let runs = device.targets.join(", ");
            return other(format!("it is for {}, and this device runs {runs}", heading.target));
        }
        misfit(heading, &device).map_or(Ok(()), other)
    }
}

/// The only graph of those in `dir`; `unfit` makes the refusal of one that is not.
///
/// # Errors
/// When there are several, or none.
pub fn only_graph<G>(
    dir: &Path,
    mut graphs: Vec<(Option<Grid>, G)>,
    unfit: impl FnOnce(&G, &'static str, String) -> OpenError,
) -> Result<G, OpenError> {
    match graphs.pop() {
        Some((_, graph)) if graphs.is_empty() => Ok(graph),
        Some((_, graph)) => {
            let count = graphs.len() + 1;
            Err(unfit(&graph, "one graph", format!("it has one for each of {count} grids")))
        }
        None => Err(OpenError::Damaged {
            path: dir.join(ENGINE_FILE),
            problem: "it lists no grid".to_owned(),
        }),
    }
}

/// The refusal of an engine that is of another kind.
fn other(dir: &Path, found: &str, wanted: &'static str) -> OpenError {
    OpenError::OtherKind { path: dir.join(ENGINE_FILE), found: found.to_owned(), wanted }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn nothing(_: &Path) -> Result<Graphs, OpenError> {
        Ok(Vec::new())
    }

    const fn row(target: &'static str, facts: &'static [&'static str]) -> Row {
        let opens = Opens::Graphs(nothing);
        Row {
            kind: "graph",
            target,
            backend: target,
            facts,
            place: || MemoryPlace::Host,
            memory: || MemoryReport::HOST,
            opens,
        }
    }

    /// What a back end for GPUs says of 16 GiB, of which 4 are free.
    fn gpu() -> MemoryReport {
        MemoryReport {
            place: MemoryPlace::Device,
            total_bytes: Some(16 << 30),
            free_bytes: Some(4 << 30),
            largest_bytes: None,
            own_bytes: 0,
            locked_bytes: 0,
        }
    }

    /// Made-up back ends: a vendor's, one of ours for GPUs, and the processor's.
    const MADE_UP: &[Row] = &[
        row("tensorrt", &["sm", "tensorrt", "cuda", "gpu-driver"]),
        Row { place: || MemoryPlace::Device, memory: gpu, ..row("cuda", &["sm", "nvcc"]) },
        row("cpu", &[]),
    ];
    const ROWS: Backends = Backends::new(MADE_UP);

    fn orin() -> Device {
        let facts = [("sm", "87"), ("tensorrt", "10.3.0")];
        let facts = facts.map(|(fact, value)| (fact.to_owned(), value.to_owned())).into();
        Device { facts, memory_bytes: Some(8 << 30), ..Device::default() }
    }

    /// An engine's directory of which there is the heading alone.
    fn engine(folder: &Path, name: &str, target: &str, more: &str) -> PathBuf {
        let dir = folder.join(name);
        fs::create_dir(&dir).unwrap();
        let text =
            format!("{{\"format\": 1, \"kind\": \"graph\", \"target\": \"{target}\"{more}}}");
        fs::write(dir.join(ENGINE_FILE), text).unwrap();
        dir
    }

    #[test]
    fn each_back_end_says_what_it_depends_on() {
        assert_eq!(ROWS.facts_of("cpu"), BTreeSet::new());
        assert_eq!(ROWS.facts_of("cuda"), BTreeSet::from(["nvcc", "sm"]));
        assert_eq!(ROWS.facts_of("none of them"), BTreeSet::new());
        assert_eq!(ROWS.facts().len(), 5, "each once");
    }

    #[test]
    fn a_device_opens_the_engine_that_was_built_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let engine = |name, target, more| engine(folder.path(), name, target, more);
        let cpu = engine("a", "cpu", "");
        let trt =
            engine("b", "tensorrt", ", \"device\": {\"sm\": \"87\", \"tensorrt\": \"10.3.0\"}");
        let newer = engine("c", "tensorrt", ", \"device\": {\"tensorrt\": \"10.7.0\"}");
        let large = engine("d", "cuda", ", \"device_bytes\": 17179869184");
        let file = Path::new("deployment.json");
        let chosen = |backends: Backends, dirs: &[&PathBuf]| {
            let dirs: Vec<PathBuf> = dirs.iter().map(|dir| (*dir).clone()).collect();
            backends.choose(file, &dirs).map(Path::to_owned).map_err(|error| error.to_string())
        };
        let on_orin = ROWS.on(orin);
        assert_eq!(chosen(on_orin, &[&cpu, &newer, &large, &trt]), Ok(trt.clone()));
        assert_eq!(chosen(on_orin, &[&newer, &large, &cpu]), Ok(cpu.clone()));
        assert_eq!(chosen(ROWS, &[&trt, &cpu]), Ok(cpu.clone()), "nothing is known of the device");
        let error = chosen(on_orin, &[&newer, &large]).unwrap_err();
        assert!(error.starts_with("deployment.json: no engine fits this device (tensorrt: it"));
        assert_eq!(chosen(on_orin, &[&newer]), Ok(newer.clone()), "who opens it is told");
        let refused = on_orin.graphs(&newer).unwrap_err().to_string();
        let words = "c/engine.json is no engine for this device: it wants tensorrt 10.7.0, here 10.3.0; build it here";
        assert!(refused.ends_with(words), "{refused}");
        assert!(on_orin.graphs(&trt).is_ok() && on_orin.graphs(&large).is_err());
    }

    #[test]
    fn a_device_may_say_itself_what_runs_there() {
        fn without_gpu() -> Device {
            Device { targets: vec!["cpu".to_owned()], ..orin() }
        }
        let folder = tempfile::tempdir().unwrap();
        let gpu = engine(folder.path(), "a", "cuda", ", \"device\": {\"sm\": \"87\"}");
        let cpu = engine(folder.path(), "b", "cpu", "");
        let (backends, dirs) = (ROWS.on(without_gpu), [gpu.clone(), cpu.clone()]);
        assert_eq!(backends.choose(Path::new("d"), &dirs).unwrap(), cpu);
        let refused = backends.graphs(&gpu).unwrap_err().to_string();
        let words = "it is for cuda, and this device runs cpu; build it here";
        assert!(refused.ends_with(words), "{refused}");
        assert!(ROWS.on(orin).graphs(&gpu).is_ok());
        let looking = backends.looking();
        assert!(looking.graphs(&gpu).is_ok(), "who looks runs nothing");
        assert!(!looking.runs(&gpu).unwrap() && looking.runs(&cpu).unwrap());
        assert_eq!(looking.choose(Path::new("d"), &dirs).unwrap(), cpu);
        let gpus = [gpu.clone(), gpu];
        assert!(backends.choose(Path::new("d"), &gpus).is_err());
        assert_eq!(looking.choose(Path::new("d"), &gpus).unwrap(), gpus[0]);
    }

    #[test]
    fn who_runs_on_any_device_asks_nothing_of_it() {
        fn unasked() -> Device {
            panic!("an engine for processors depends on no device")
        }
        let folder = tempfile::tempdir().unwrap();
        let cpu = engine(folder.path(), "a", "cpu", "");
        let backends = ROWS.on(unasked);
        let dirs = [cpu.clone()];
        assert_eq!(backends.choose(Path::new("d"), &dirs).unwrap(), cpu);
        assert!(backends.graphs(&cpu).is_ok());
        assert!(matches!(backends.graph(&cpu), Err(OpenError::Damaged { .. })));
    }

    #[test]
    fn a_back_end_is_asked_of_memory_before_its_engine_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let cpu = engine(folder.path(), "a", "cpu", "");
        let cuda = engine(folder.path(), "b", "cuda", "");
        let other = engine(folder.path(), "c", "rknn", "");
        assert_eq!(ROWS.memory(&cpu).unwrap(), MemoryReport::HOST);
        assert_eq!(ROWS.memory(&cuda).unwrap(), gpu());
        assert!(ROWS.memory(&other).is_err() && ROWS.memory(folder.path()).is_err());
        for engine in [&cpu, &cuda] {
            assert_eq!(ROWS.place(engine).unwrap(), ROWS.memory(engine).unwrap().place);
        }
        assert!(ROWS.place(&other).is_err());
    }
}
