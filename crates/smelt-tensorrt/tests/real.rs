//! Parses and builds with TensorRT for RTX itself: what it takes, refuses, says on the way, and how it is ended.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use smelt_onnx::{ElementType, Graph};
use smelt_tensorrt::{BuildRequest, Failure, MemoryAsked, SessionError, Shapes, version};

use crate::graphs::{constant, int, model, node, product, value, written};
use crate::world::{World, golden};

pub(crate) fn request<'a>(onnx: &'a Path, plan: &'a Path) -> BuildRequest<'a> {
    BuildRequest {
        onnx,
        plan,
        target: Some(86),
        workspace_bytes: Some(256 << 20),
        level: Some(2),
        memory_bytes: Some(1 << 30),
        shapes: BTreeMap::new(),
    }
}

#[test]
fn a_detector_becomes_the_same_plan_twice_and_says_how_far_it_is() {
    let Some(world) = World::new() else { return };
    let of_file = version(&world.libraries.core).unwrap().unwrap();
    let onnx = golden("yolo-tiny/yolo.onnx");
    let mut made = Vec::new();
    for name in ["a.plan", "b.plan"] {
        // What a process built before shows in the next plan's bytes.
        let mut session = world.session();
        assert!(of_file.starts_with(&format!("{}.", session.version())), "{of_file}");
        let plan = world.file(name);
        let mut heard = Vec::new();
        let mut hear = |step: Option<smelt_tensorrt::Step<'_>>| {
            heard.extend(step.map(|step| (step.phase.to_owned(), step.done, step.all)));
            ControlFlow::Continue(())
        };
        let built = session.build(&request(&onnx, &plan), &mut hear).unwrap().unwrap();
        assert!(built.network.layers > 100 && built.steps > 100, "{built:?}");
        assert_eq!(built.network.inputs[0].sizes, [1, 3, 64, 96]);
        assert_eq!(built.network.inputs[0].dtype_word(), "f32");
        let outermost = &heard[0].0;
        let steps: Vec<_> = heard.iter().filter(|(phase, ..)| phase == outermost).collect();
        assert!(steps.len() > 3 && steps.iter().all(|(_, done, all)| done <= all), "{heard:?}");
        // It builds for a GPU that is not here, and asks none for memory.
        assert_eq!(built.memory, MemoryAsked::default());
        let bytes = fs::read(&plan).unwrap();
        assert_eq!(bytes.len() as u64, built.bytes);
        made.push(bytes);
    }
    assert!(made[0] == made[1], "two builds of one graph differ");
}

#[test]
fn sizes_that_vary_need_shapes_and_take_them() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let onnx = written(&product(ElementType::F32, ElementType::F32), &world.file("varying"));
    let plan = world.file("varying.plan");
    let mut go_on = |_: Option<smelt_tensorrt::Step<'_>>| ControlFlow::Continue(());
    let without = session.build(&request(&onnx, &plan), &mut go_on).unwrap().unwrap_err();
    assert!(
        matches!(&without, Failure::Builder { errors, .. } if !errors.is_empty()),
        "{without:?}"
    );
    let shapes = |sizes: [i64; 3]| {
        let [min, opt, max] = sizes.map(|size| vec![size, 8]);
        BTreeMap::from([("x".to_owned(), Shapes { min, opt, max })])
    };
    let falling = BuildRequest { shapes: shapes([4, 2, 1]), ..request(&onnx, &plan) };
    let refused = session.build(&falling, &mut go_on).unwrap().unwrap_err();
    assert!(matches!(&refused, Failure::Setting(_)), "{refused:?}");
    assert!(!plan.exists());
    let rising = BuildRequest { shapes: shapes([1, 2, 4]), ..request(&onnx, &plan) };
    let built = session.build(&rising, &mut go_on).unwrap().unwrap();
    assert_eq!(built.network.inputs[0].sizes, [-1, 8]);
}

#[test]
fn targets_that_it_does_not_have_are_refused_before_anything_is_built() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let (onnx, plan) = (golden("yolo-tiny/yolo.onnx"), world.file("no.plan"));
    for target in [87, 90, 0] {
        let request = BuildRequest { target: Some(target), ..request(&onnx, &plan) };
        let refused = session.build(&request, &mut |_| ControlFlow::Continue(())).unwrap();
        let Err(Failure::Setting(why)) = refused else { panic!("{target}: {refused:?}") };
        assert!(
            why.contains(&format!("sm{target}")) && why.contains("Compute capability"),
            "{why}"
        );
    }
    assert!(!plan.exists());
}

#[test]
fn what_cannot_be_written_leaves_no_plan() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let onnx = written(&product(ElementType::F32, ElementType::F32), &world.file("written"));
    let [min, opt, max] = [(); 3].map(|()| vec![1, 8]);
    let shapes = BTreeMap::from([("x".to_owned(), Shapes { min, opt, max })]);
    // Nobody's file is written over, and a full device says so.
    let taken = world.file("taken.plan");
    fs::write(&taken, "mine").unwrap();
    for plan in [&taken, &world.file("no/folder.plan")] {
        let request = BuildRequest { shapes: shapes.clone(), ..request(&onnx, plan) };
        let failed = session.build(&request, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(matches!(&failed, Err(Failure::Write(_))), "{failed:?}");
    }
    assert_eq!(fs::read_to_string(&taken).unwrap(), "mine");
}

/// The refusals that were met by hand (1.7.1), each with TensorRT's reason.
#[test]
fn refusals_name_their_node_its_operator_and_the_reason() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let mut check = |name: &str, model: &smelt_onnx::Model, expect: Option<(&str, &str)>| {
        let onnx = written(model, &world.file("graph"));
        let answer = session.check(&onnx).unwrap();
        assert_eq!(answer.network.is_none(), expect.is_some(), "{name}: {answer:?}");
        if let (Some(first), Some((operator, words))) = (answer.refusals.first(), expect) {
            assert!(first.operator == operator && first.words().contains(words), "{name}: {first}");
            assert!(!first.remedy().is_empty(), "{name}: {first}");
        }
        if let Some(first) = answer.refusals.first() {
            assert!(first.node >= 0 && first.to_string().contains(&first.operator), "{first}");
        }
    };
    use ElementType::{F16, F32, I4};
    check("plain", &product(F32, F32), None);
    check("mixed", &product(F16, F32), Some(("MatMul", "must have same input types")));
    let mut custom = product(F32, F32);
    custom.graph.nodes[0].op = "AttentionPlugin".to_owned();
    custom.graph.nodes[0].domain = "trt_edgellm".to_owned();
    custom.other_opsets.push(("trt_edgellm".to_owned(), 1));
    check("plugin", &custom, Some(("AttentionPlugin", "Plugin not found")));
    for (name, zero, expect) in
        [("symmetric", None, None), ("asymmetric", Some(0x11), Some(("DequantizeLinear", "zero")))]
    {
        check(name, &four_bits(zero), expect);
    }

    /// A product with a weight of 4 bits.
    fn four_bits(zero: Option<u8>) -> smelt_onnx::Model {
        let inputs: &[&str] = if zero.is_some() { &["q", "s", "z"] } else { &["q", "s"] };
        let mut dequantize = node("DequantizeLinear", inputs, "d");
        dequantize.attributes = vec![int("axis", 0), int("block_size", 8)];
        let mut initializers = vec![constant("q", I4, &[8, 8], 0), constant("s", F16, &[1, 8], 0)];
        initializers.extend(zero.map(|byte| constant("z", I4, &[1, 8], byte)));
        let graph = Graph {
            name: "g".to_owned(),
            inputs: vec![value("x", F16, &[2, 8])],
            outputs: vec![value("y", F16, &[2, 8])],
            nodes: vec![dequantize, node("MatMul", &["x", "d"], "y")],
            initializers,
        };
        model(21, graph)
    }
}

#[test]
fn what_is_no_graph_is_refused_and_the_next_one_is_not() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let garbage = world.file("garbage.onnx");
    fs::write(&garbage, [0xFF; 4096]).unwrap();
    let no_text = Path::new(std::ffi::OsStr::from_bytes(b"/nowhere/\xff.onnx"));
    for file in [garbage.as_path(), Path::new("/nowhere/at/all.onnx"), no_text] {
        let answer = session.check(file).unwrap();
        assert!(answer.network.is_none() && !answer.refusals.is_empty(), "{answer:?}");
    }
    let answer = session.check(&golden("yolo-tiny/yolo.onnx")).unwrap();
    assert!(answer.network.is_some(), "{answer:?}");
}

#[test]
fn a_build_ends_when_it_is_told_to_and_the_next_one_goes_on() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let (onnx, plan) = (golden("yolo-tiny/yolo.onnx"), world.file("cancelled.plan"));
    let mut at_once = |step: Option<smelt_tensorrt::Step<'_>>| match step {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    };
    let begin = Instant::now();
    let ended = session.build(&request(&onnx, &plan), &mut at_once).unwrap();
    assert_eq!(ended, Err(Failure::Cancelled));
    assert!(begin.elapsed() < Duration::from_secs(10) && !plan.exists());
    let built = session.build(&request(&onnx, &plan), &mut |_| ControlFlow::Continue(()));
    assert!(built.unwrap().is_ok(), "a session goes on after a build that was told to end");
}

#[test]
fn a_child_that_is_killed_is_told_from_one_that_refuses() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let (onnx, plan) = (golden("yolo-tiny/yolo.onnx"), world.file("killed.plan"));
    let child = session.process().to_string();
    let mut kill = |step: Option<smelt_tensorrt::Step<'_>>| {
        if step.is_some() {
            let _ = Command::new("kill").args(["-KILL", &child]).status();
        }
        ControlFlow::Continue(())
    };
    let ended = session.build(&request(&onnx, &plan), &mut kill).unwrap_err();
    assert!(matches!(&ended, SessionError::Ended { .. }), "{ended}");
    assert!(ended.to_string().contains("SIGKILL"), "{ended}");
    assert!(!plan.exists());
    // Nobody answers any more, whatever is asked.
    assert!(matches!(session.check(&onnx), Err(SessionError::Ended { .. })));
}

#[test]
fn a_child_ends_with_who_asked() {
    let Some(world) = World::new() else { return };
    let session = world.session();
    let child = session.process();
    drop(session);
    assert!(!Path::new(&format!("/proc/{child}")).exists(), "a session's child outlives it");

    // Whoever dies without a word closes the pipe, in the middle of a build too.
    let mut alone = Command::new(world.loader.program())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pipe = alone.stdin.take().unwrap();
    let (core, parser) = (&world.libraries.core, &world.libraries.parser);
    let (onnx, plan) = (golden("yolo-tiny/yolo.onnx"), world.file("alone.plan"));
    let lines = [
        format!("{{\"library\":{core:?},\"parser\":{parser:?}}}"),
        format!("{{\"do\":\"build\",\"onnx\":{onnx:?},\"plan\":{plan:?},\"target\":86}}"),
    ];
    lines.iter().for_each(|line| writeln!(pipe, "{line}").unwrap());
    drop(pipe);
    let begin = Instant::now();
    while alone.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < Duration::from_secs(30), "it goes on without anybody");
        std::thread::sleep(Duration::from_millis(10));
    }
}
