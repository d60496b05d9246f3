//! Opens an engine by what its heading says: a table of back ends, and the row that matches.

use std::path::Path;

use crate::grid::Grid;
use crate::heading::ENGINE_FILE;
use crate::{Decoder, Graph, Heading, KvOptions, OpenError, VisionEngine};

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
    /// What opens it.
    pub opens: Opens,
}

/// The kinds of engines that can be opened.
#[derive(Clone, Copy, Debug)]
pub struct Backends(pub &'static [Row]);

impl Backends {
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
        let Heading { kind, target, .. } = Heading::read(dir)?;
        if let Some(row) = self.0.iter().find(|row| row.kind == kind && row.target == target) {
            return Ok(row);
        }
        let mut of_kind =
            self.0.iter().filter(|row| row.kind == kind).map(|row| row.target).peekable();
        if of_kind.peek().is_none() {
            return Err(other(dir, &kind, wanted));
        }
        let known: Vec<String> = of_kind.map(|target| format!("{target:?}")).collect();
        let problem = format!("target {target:?} is not {}", known.join(" or "));
        Err(OpenError::NotAnEngine { path: dir.join(ENGINE_FILE), problem })
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
