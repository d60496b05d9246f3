//! Holds smelt's own rules of TensorRT 10.3 to the parser of TensorRT for RTX, which is the same parser some years on:
//! on every golden graph, on random ones, and on goldens in which one thing was changed.
//!
//! Where both differ, a table says why; a row that nothing needs any more fails the test as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use smelt_model::checkpoint::Checkpoint;
use smelt_model::dtype::Dtype;
use smelt_model::export::{self, GRIDS_FILE, GridList, LlmInput};
use smelt_onnx::target::{Severity, Target, findings};
use smelt_onnx::{Attribute, AttributeValue, ElementType, Graph, Model, Node, ValueInfo, check};
use smelt_random::Random;
use smelt_tensorrt::Session;

use crate::graphs::{constant, int, model, node, value};
use crate::world::{World, golden};

/// Graphs of each made-up kind.
const RANDOM: u64 = 400;
const CHANGED: u64 = 400;

/// Why a graph that a rule refuses is taken by this parser.
const LATER: &[(&str, &str)] = &[
    ("opset", "RTX 1.7 reads sets beyond 20, which 10.3 was not made for"),
    ("operator", "RTX 1.7 has operators of later sets, such as Swish"),
    (
        "domain",
        "it goes by an operator's name alone, whosever it is: a Range of another domain is taken for ONNX's, and what it \
         computes may be another thing",
    ),
    (
        "dynamic-dims",
        "the parser takes sizes that vary anywhere; that towers are slow so is the builder's affair",
    ),
];

/// Why the parser refuses what no rule does, by a part of its words.
const BEYOND: &[(&str, &str)] = &[
    // The rules look at types, and at nodes one by one; they follow no shapes through a graph.
    ("Shape Error", "shapes that do not go together"),
    ("number of dimensions should remain the same", "shapes that do not go together"),
    ("but must match", "shapes that do not go together"),
    ("Axis must be in the range", "an axis that a shape does not have"),
    ("misaligns with the shape", "a list of axes that is longer than its shape"),
    // An operator that stands for another may have more inputs than it should; exporters write no such nodes.
    ("operator expects two inputs", "a node of too many inputs"),
];

/// Two judges, and where they differ.
struct Court<'a> {
    world: &'a World,
    session: Session,
    graphs: usize,
    refused: usize,
    used: BTreeSet<&'static str>,
    unexplained: BTreeMap<String, (usize, String)>,
}

impl<'a> Court<'a> {
    fn new(world: &'a World) -> Self {
        let session = world.session();
        let (used, unexplained) = Default::default();
        Self { world, session, graphs: 0, refused: 0, used, unexplained }
    }

    /// Has both judge the model in `file`; `name` is for who reads what went wrong.
    fn judge(&mut self, name: &str, model: &Model, file: &Path) {
        self.graphs += 1;
        let rules = findings(model, file, Target::TensorRt10_3).unwrap();
        let rules = rules.iter().filter(|finding| finding.severity == Severity::Error);
        let rules: BTreeSet<&str> = rules.map(|finding| finding.rule).collect();
        let theirs = match self.session.check(file) {
            Ok(answer) if answer.network.is_some() => None,
            Ok(answer) => {
                Some(answer.refusals.first().map(ToString::to_string).unwrap_or_default())
            }
            Err(ended) => {
                self.session = self.world.session();
                Some(ended.to_string())
            }
        };
        self.refused += usize::from(theirs.is_some());
        match (rules.is_empty(), theirs) {
            (true, Some(why)) => self.differ(BEYOND, &[why.as_str()], name),
            (false, None) => {
                let rules: Vec<&str> = rules.into_iter().collect();
                self.differ(LATER, &rules, name);
            }
            (true, None) | (false, Some(_)) => {}
        }
    }

    /// All that was said must be explained.
    fn differ(&mut self, table: &[(&'static str, &'static str)], said: &[&str], name: &str) {
        for words in said {
            match table.iter().find(|(part, _)| words.contains(part)) {
                Some((part, _)) => drop(self.used.insert(part)),
                None => {
                    let entry = self.unexplained.entry((*words).to_owned());
                    entry.or_insert((0, name.to_owned())).0 += 1;
                }
            }
        }
    }

    fn close(self) {
        let Self { graphs, refused, used, unexplained, .. } = self;
        eprintln!("{graphs} graphs, of which TensorRT for RTX refuses {refused}");
        assert!(unexplained.is_empty(), "the rules and the parser differ: {unexplained:#?}");
        let rows = LATER.iter().chain(BEYOND).map(|(part, _)| *part);
        let unused: Vec<&str> = rows.filter(|part| !used.contains(part)).collect();
        assert!(unused.is_empty(), "nothing needs these rows any more: {unused:?}");
        assert!(
            refused * 10 > graphs && refused * 10 < graphs * 9,
            "{refused} of {graphs} refused"
        );
    }
}

#[test]
fn the_rules_and_the_parser_differ_where_it_is_known_why() {
    let Some(world) = World::new() else { return };
    let mut court = Court::new(&world);
    let goldens = goldens(&world.file("goldens"));
    assert!(goldens.len() >= 60, "{} golden graphs", goldens.len());
    for (name, file) in &goldens {
        court.judge(name, &Model::read(file).unwrap(), file);
    }
    random(&mut court, &world.file("random"));
    changed(&mut court, &goldens);
    court.close();
}

/// Every graph that is exported of a golden checkpoint, in every float type, and those that lie there.
fn goldens(folder: &Path) -> Vec<(String, PathBuf)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(golden("")).unwrap().flatten() {
        let places = [entry.path(), entry.path().join("checkpoint")];
        let name = entry.file_name().into_string().unwrap();
        let onnx = fs::read_dir(entry.path()).into_iter().flatten().flatten();
        let onnx = onnx
            .map(|file| file.path())
            .filter(|file| file.extension().is_some_and(|e| e == "onnx"));
        found.extend(onnx.map(|file| (name.clone(), file)));
        for checkpoint in places.iter().filter_map(|place| Checkpoint::open(place).ok()) {
            for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
                for part in 0..4 {
                    let out = folder.join(format!("{name}-{dtype}-{part}"));
                    found.extend(
                        exported(&checkpoint, dtype, part, &out)
                            .into_iter()
                            .map(|file| (format!("{name} {dtype} part {part}"), file)),
                    );
                }
            }
        }
    }
    found.sort();
    found
}

/// The graphs of a part, where the checkpoint has it.
fn exported(checkpoint: &Checkpoint, dtype: Dtype, part: usize, out: &Path) -> Vec<PathBuf> {
    let quiet = &mut |_: &str| {};
    let made = match part {
        0 => export::vision(checkpoint, dtype, out, quiet),
        1 => export::llm(checkpoint, dtype, LlmInput::usual(checkpoint.model()), out, quiet),
        2 => export::encoder(checkpoint, dtype, out, quiet),
        _ => export::classifier(checkpoint, dtype, out, quiet),
    };
    if made.is_err() {
        return Vec::new();
    }
    if !out.join(GRIDS_FILE).exists() {
        return vec![out.join("model.onnx")];
    }
    // Sizes of pictures differ in numbers alone.
    let list = GridList::read(out).unwrap();
    list.grids.iter().take(1).map(|(_, file)| out.join(file)).collect()
}

/// Sizes of every value of a random graph.
const SIZES: [usize; 2] = [2, 8];

/// Operators from floats to floats of the same sizes.
const OF_FLOATS: [&str; 26] = [
    "Abs",
    "Neg",
    "Exp",
    "Sqrt",
    "Erf",
    "Sigmoid",
    "Tanh",
    "Relu",
    "Softmax",
    "LeakyRelu",
    "Elu",
    "Floor",
    "Ceil",
    "Round",
    "Softplus",
    "HardSwish",
    "Identity",
    "LogSoftmax",
    "Hardmax",
    "Reciprocal",
    "Sin",
    "Cosh",
    "Sign",
    "Selu",
    "Det",
    "Swish",
];
/// Operators of two equal types.
const OF_TWO: [&str; 8] = ["Add", "Sub", "Mul", "Div", "Min", "Max", "Pow", "Mod"];
/// The same, to truths.
const COMPARING: [&str; 4] = ["Equal", "Less", "Greater", "LessOrEqual"];
/// Operators whose results depend on data, or are in no table.
const ODD: [&str; 4] = ["NonZero", "Unique", "Bernoulli", "CumProd"];
const TYPES: [ElementType; 13] = {
    use ElementType::*;
    [F32, F16, Bf16, F64, I8, I16, I32, I64, U8, U16, U32, U64, Bool]
};
/// Types that most graphs are of.
const USUAL: [ElementType; 5] =
    [ElementType::F32, ElementType::F16, ElementType::Bf16, ElementType::I32, ElementType::I64];

/// Graphs of a few nodes, of any types and sets.
fn random(court: &mut Court<'_>, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    let mut sound = 0;
    for seed in 1..=RANDOM {
        let model = random_model(&mut Random::new(seed));
        if check(&model, folder).is_err() {
            continue;
        }
        sound += 1;
        let name = format!("random-{seed}.onnx");
        model.write_as(folder, &name).unwrap();
        court.judge(&format!("{name}: {}", told(&model)), &model, &folder.join(&name));
    }
    assert!(sound * 2 > RANDOM, "{sound} of {RANDOM} are sound");
}

fn told(model: &Model) -> String {
    let type_of = |info: &ValueInfo| format!("{}: {}", info.name, info.dtype);
    let inputs: Vec<String> = model.graph.inputs.iter().map(type_of).collect();
    let nodes = model.graph.nodes.iter();
    let nodes: Vec<String> =
        nodes.map(|node| format!("{}({})", node.op, node.inputs.join(","))).collect();
    format!("set {} {} | {}", model.opset, inputs.join(", "), nodes.join(" "))
}

/// Values, by name and type, that nodes may read.
struct Making {
    values: Vec<(String, ElementType)>,
    graph: Graph,
}

impl Making {
    fn pick(
        &self,
        random: &mut Random,
        fit: impl Fn(ElementType) -> bool,
    ) -> Option<(String, ElementType)> {
        let fit: Vec<_> = self.values.iter().filter(|(_, dtype)| fit(*dtype)).collect();
        (!fit.is_empty()).then(|| fit[random.below(fit.len())].clone())
    }

    fn add(&mut self, op: &str, inputs: &[&str], dtype: ElementType) -> &mut Node {
        let name = format!("v{}", self.values.len() + self.graph.nodes.len());
        self.values.push((name.clone(), dtype));
        self.graph.nodes.push(node(op, inputs, &name));
        self.graph.nodes.last_mut().unwrap()
    }
}

fn random_model(random: &mut Random) -> Model {
    let mut making =
        Making { values: Vec::new(), graph: Graph { name: "g".to_owned(), ..Graph::default() } };
    for at in 0..2 {
        let dtype = USUAL[random.below(USUAL.len())];
        let name = format!("x{at}");
        making.graph.inputs.push(value(&name, dtype, &SIZES));
        making.values.push((name, dtype));
    }
    for _ in 0..2 + random.below(4) {
        step(&mut making, random);
    }
    let (last, dtype) = making.values.last().unwrap().clone();
    making.graph.outputs.push(ValueInfo { dims: None, ..value(&last, dtype, &[]) });
    model([11, 13, 14, 16, 17, 18, 19, 20, 21, 22][random.below(10)], making.graph)
}

/// One more node, or none where nothing fits it.
fn step(making: &mut Making, random: &mut Random) {
    let is_float = |dtype: ElementType| dtype.is_float();
    match random.below(12) {
        0..4 => {
            let Some((x, dtype)) = making.pick(random, is_float) else { return };
            making.add(OF_FLOATS[random.below(OF_FLOATS.len())], &[&x], dtype);
        }
        4..7 => {
            let Some((x, dtype)) = making.pick(random, |dtype| dtype != ElementType::Bool) else {
                return;
            };
            // Now and then of two types, as nobody may.
            let mixes = random.below(5) == 0;
            let Some((y, _)) = making.pick(random, |other| mixes || other == dtype) else { return };
            let op = OF_TWO[random.below(OF_TWO.len())];
            let made = making.add(op, &[&x, &y], dtype);
            // Of floats it is another function.
            if op == "Mod" && dtype.is_float() {
                made.attributes.push(int("fmod", 1));
            }
        }
        7 => {
            let Some((x, dtype)) = making.pick(random, |dtype| dtype != ElementType::Bool) else {
                return;
            };
            let Some((y, _)) = making.pick(random, |other| other == dtype) else { return };
            making.add(COMPARING[random.below(COMPARING.len())], &[&x, &y], ElementType::Bool);
        }
        8..10 => {
            let (x, _) = making.pick(random, |_| true).unwrap();
            let to = TYPES[random.below(TYPES.len())];
            making.add("Cast", &[&x], to).attributes.push(int("to", i64::from(to.number())));
        }
        10 => {
            let Some((x, dtype)) = making.pick(random, is_float) else { return };
            let weight = if random.below(4) == 0 { ElementType::F32 } else { dtype };
            let name = format!("w{}", making.graph.nodes.len());
            making.graph.initializers.push(constant(&name, weight, &[8, 8], 0));
            making.add("MatMul", &[&x, &name], dtype);
        }
        _ => {
            let Some((x, dtype)) = making.pick(random, is_float) else { return };
            making.add(ODD[random.below(ODD.len())], &[&x], dtype);
        }
    }
}

/// Goldens in which one thing is another.
fn changed(court: &mut Court<'_>, goldens: &[(String, PathBuf)]) {
    let mut sound = 0;
    for seed in 1..=CHANGED {
        let mut random = Random::new(seed);
        let (name, file) = &goldens[random.below(goldens.len())];
        let mut model = Model::read(file).unwrap();
        let what = change(&mut model, &mut random);
        let folder = file.parent().unwrap();
        // What was found lies among what is under version control.
        if folder.starts_with(golden("")) || check(&model, folder).is_err() {
            continue;
        }
        sound += 1;
        let changed = format!("changed-{seed}.onnx");
        model.write_as(folder, &changed).unwrap();
        court.judge(&format!("{name}, {seed}: {what}"), &model, &folder.join(&changed));
        fs::remove_file(folder.join(&changed)).unwrap();
    }
    assert!(sound * 2 > CHANGED, "{sound} of {CHANGED} are sound");
}

fn change(model: &mut Model, random: &mut Random) -> String {
    let at = random.below(model.graph.nodes.len());
    let inputs = model.graph.inputs.len();
    let node = &mut model.graph.nodes[at];
    let was = node.op.clone();
    match random.below(6) {
        0 => {
            let like: &[&str] = if node.inputs.len() == 1 { &OF_FLOATS } else { &OF_TWO };
            node.op = like[random.below(like.len())].to_owned();
            format!("{was} is {}", node.op)
        }
        1 => {
            node.domain = "com.example".to_owned();
            model.other_opsets.push(("com.example".to_owned(), 1));
            format!("{was} is somebody's")
        }
        2 => {
            model.opset = [13, 15, 16, 18, 20, 21, 22][random.below(7)];
            format!("set {}", model.opset)
        }
        3 => {
            let input = &mut model.graph.inputs[random.below(inputs)];
            input.dtype = TYPES[random.below(TYPES.len())];
            format!("input {} is {}", input.name, input.dtype)
        }
        4 => {
            let input = &mut model.graph.inputs[random.below(inputs)];
            input.dims = None;
            format!("input {} has no shape", input.name)
        }
        _ => {
            let numbers =
                node.attributes.iter_mut().find_map(|Attribute { name, value }| match value {
                    AttributeValue::Int(number) => Some((name.clone(), number)),
                    _ => None,
                });
            match numbers {
                Some((name, number)) => {
                    *number = [0, 1, -1, 2, 7][random.below(5)];
                    format!("{was}: {name} is {number}")
                }
                None => "nothing".to_owned(),
            }
        }
    }
}
