//! Does on the host what each kernel does, sum for sum, for a device that needs no GPU.
//!
//! A chain of products of 16 columns is added up as tensor cores may: exactly, and rounded once where it joins the chain.
//! All other sums have the kernels' own order.

mod attention;
mod choose;
mod graph;
mod halves;
mod product;
mod rows;

use std::sync::Arc;

use super::form::WeightForm;
use super::source::{KernelSet, graph_head};
use super::table;
use super::{
    attention as launches, choose as choices, graph as graphs, product as products,
    rows as row_launches,
};
use crate::recording::{Astray, HostKernel, RecordingDriver, TwinMemory};
use crate::{Arg, DeviceAddress, Launch};

/// What a kernel does that hangs on nothing but what it is given.
type PlainKernel = fn(&mut TwinMemory, &Launch) -> Result<(), Astray>;

/// Lets a device that needs no GPU do the work of all kernels of a set.
pub fn teach(driver: &RecordingDriver, set: &KernelSet) {
    set.forms.iter().for_each(|form| teach_products(driver, *form));
    let head = set.head;
    let plain: [(_, PlainKernel); 9] = [
        (row_launches::EMBED_ROWS, rows::embed),
        (row_launches::SCATTER_ROWS, rows::scatter),
        (row_launches::NORM_ROWS, rows::norm),
        (row_launches::SWIGLU_ROWS, rows::swiglu),
        (row_launches::REORDER_COLUMNS, rows::reorder),
        (row_launches::GROUP_SUMS, rows::group_sums),
        (row_launches::ROTATIONS, rows::rotations),
        (choices::ADJUST, choose::adjust),
        (choices::LARGEST, choose::nothing),
    ];
    for (function, kernel) in plain {
        driver.teach(function, Arc::new(kernel));
    }
    driver.teach(choices::WEIGH, Arc::new(choose::nothing));
    driver.teach(choices::PICK, Arc::new(choose::pick));
    let keep = move |memory: &mut TwinMemory, launch: &Launch| rows::keep(memory, launch, head);
    driver.teach(row_launches::ROTATE_AND_KEEP, Arc::new(keep));
    let prompt =
        move |memory: &mut TwinMemory, launch: &Launch| attention::prompt(memory, launch, head);
    driver.teach(launches::ATTEND_PROMPT, Arc::new(prompt));
    let pages =
        move |memory: &mut TwinMemory, launch: &Launch| attention::pages(memory, launch, head);
    driver.teach(launches::ATTEND_PAGES, Arc::new(pages));
    let join =
        move |memory: &mut TwinMemory, launch: &Launch| attention::join(memory, launch, head);
    driver.teach(launches::JOIN_PAGES, Arc::new(join));
    let together =
        move |memory: &mut TwinMemory, launch: &Launch| attention::together(memory, launch, head);
    driver.teach(launches::ATTEND_TOGETHER, Arc::new(together));
}

fn teach_products(driver: &RecordingDriver, form: WeightForm) {
    for function in products::functions(form) {
        let is_widen = function == table::widen(form);
        let kernel: HostKernel = if is_widen {
            Arc::new(move |memory, launch| product::widen(memory, launch, form))
        } else {
            Arc::new(move |memory, launch| product::multiply(memory, launch, form))
        };
        driver.teach(function, kernel);
    }
}

/// The same of the kernels of a graph whose heads have up to `head` numbers.
pub fn teach_graph(driver: &RecordingDriver, head: usize) {
    teach_products(driver, WeightForm::OF_GRAPHS);
    let plain: [(_, PlainKernel); 4] = [
        (graphs::PACK_HALVES, graph::pack),
        (graphs::NORM_NUMBERS, graph::norm),
        (graphs::MAP_NUMBERS, graph::map),
        (graphs::GATHER_NUMBERS, graph::gather),
    ];
    for (function, kernel) in plain {
        driver.teach(function, Arc::new(kernel));
    }
    let head = graph_head(head);
    let arrange =
        move |memory: &mut TwinMemory, launch: &Launch| graph::arrange(memory, launch, head);
    driver.teach(graphs::ARRANGE_HEADS, Arc::new(arrange));
    for function in [graphs::ATTEND_ALL, graphs::ATTEND_MASKED] {
        driver.teach(function, Arc::new(graph::attend));
    }
}

/// What a launch is given, by place.
#[derive(Clone, Copy)]
struct Given<'a>(&'a [Arg]);

impl<'a> Given<'a> {
    fn of(launch: &'a Launch) -> Self {
        Self(launch.args.args())
    }

    fn address(self, at: usize) -> DeviceAddress {
        match self.0[at] {
            Arg::Address(address) => address,
            other => panic!("argument {at} is {other:?}, no address"),
        }
    }

    /// The address, if it is one.
    fn some(self, at: usize) -> Option<DeviceAddress> {
        Some(self.address(at)).filter(|address| !address.is_null())
    }

    fn count(self, at: usize) -> usize {
        match self.0[at] {
            Arg::U32(number) => number as usize,
            other => panic!("argument {at} is {other:?}, no count"),
        }
    }

    fn float(self, at: usize) -> f32 {
        match self.0[at] {
            Arg::F32(number) => number,
            other => panic!("argument {at} is {other:?}, no float"),
        }
    }

    fn wide(self, at: usize) -> u64 {
        match self.0[at] {
            Arg::U64(number) => number,
            other => panic!("argument {at} is {other:?}, no wide number"),
        }
    }
}

/// The address of number `index`, of four bytes each.
fn number_at(base: DeviceAddress, index: usize) -> DeviceAddress {
    base.offset(index as u64 * 4)
}
