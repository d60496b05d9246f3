//! Cuts real plans, and looks at what is left.

use std::fs;
use std::ops::ControlFlow;

use smelt_exec::file_fault;
use smelt_onnx::ElementType;
use smelt_plan::validity::{FileFormat, Validity};

use crate::graphs::{product, written};
use crate::real::request;
use crate::world::{World, golden};

/// A plan is looked at wherever it may have stopped growing: pages are what disks write.
const EVERY_BYTES: usize = 4096;

#[test]
fn a_plan_that_was_cut_at_any_page_is_refused_and_a_whole_one_is_not() {
    let Some(world) = World::new() else { return };
    let mut session = world.session();
    let plan = world.file("whole.plan");
    let onnx = golden("yolo-tiny/yolo.onnx");
    let built = session.build(&request(&onnx, &plan), &mut |_| ControlFlow::Continue(()));
    let built = built.unwrap().unwrap();
    let form = Validity { form: FileFormat::Plan, bytes_min: 1 };
    assert_eq!(file_fault(&plan, &form), None);
    let file = fs::OpenOptions::new().write(true).open(&plan).unwrap();
    let whole = built.bytes as usize;
    for length in (0..whole).step_by(EVERY_BYTES).chain([whole - 1]).rev() {
        file.set_len(length as u64).unwrap();
        let fault = file_fault(&plan, &form).unwrap();
        assert!(!fault.contains('\n') && !fault.is_empty(), "{length}: {fault}");
    }
    // A graph is none.
    let graph = written(&product(ElementType::F32, ElementType::F32), &world.file("graph"));
    assert!(file_fault(&graph, &form).unwrap().contains("does not begin as a plan"));
}
