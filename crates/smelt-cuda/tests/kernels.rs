//! Every kernel of every form, compiled for every target without a GPU, and what each takes held to a table.
//!
//! `UPDATE=1 cargo xtask soak kernels` writes the tables anew; who changes it reads the difference: a kernel that takes more
//! registers runs in fewer blocks at once.  Spills fail the compiling itself.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;

use smelt_backend::KvType;
use smelt_cuda::CudaTarget;
use smelt_cuda::kernels::form::WeightForm;
use smelt_cuda::kernels::page::HeadShape;
use smelt_cuda::kernels::source::{KernelSet, graph_source, source};
use smelt_cuda::nvrtc::{self, Source};

const TABLE: &str = include_str!("data/kernels.txt");
/// What the lines of the table were compiled from.
const COMPILED: &str = include_str!("data/compiled.txt");
/// So many groups of each target are compiled whether they changed or not: a compiler that is broken is seen.
const AGAIN: usize = 1;

/// The heads of shipped families, and the smallest of all.
const HEADS: [HeadShape; 6] = [
    HeadShape { dim: 128, kind: KvType::F16 },
    HeadShape { dim: 128, kind: KvType::Int8 },
    HeadShape { dim: 64, kind: KvType::F16 },
    HeadShape { dim: 64, kind: KvType::Int8 },
    HeadShape { dim: 16, kind: KvType::F16 },
    HeadShape { dim: 16, kind: KvType::Int8 },
];

/// Heads of the towers of shipped families, the largest that a graph may have, and the smallest of all.
const GRAPH_HEADS: [usize; 5] = [64, 72, 80, 128, 16];

/// The kernels that graphs have beside products.
const OF_GRAPHS: [&str; 7] = [
    "pack_halves",
    "norm_numbers",
    "arrange_heads",
    "attend_all",
    "attend_masked",
    "map_numbers",
    "gather_numbers",
];

/// Kernels with an array on the stack: the rest of a large angle by pi is taken digit by digit, once a position or where a
/// graph takes sines.
const ON_STACK: [&str; 2] = ["rotations", "map_numbers"];

/// Where compiled kernels are kept by content between runs.
fn kept() -> Option<PathBuf> {
    std::env::var_os("SMELT_KEPT_KERNELS").map(PathBuf::from)
}

/// Forms that are compiled at once: each set has the kernels of heads besides.
const AT_ONCE: usize = 6;

/// Kernels that are compiled together.
struct KernelGroup {
    name: String,
    source: Source,
    /// Whether a kernel's line is of this group: some are compiled with every group, and have theirs once.
    is_own: Box<dyn Fn(&str) -> bool + Send + Sync>,
}

impl KernelGroup {
    fn new(
        name: String,
        text: String,
        is_own: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let source = Source { name: format!("{name}.cu"), text, defines: Vec::new() };
        Self { name, source, is_own: Box::new(is_own) }
    }

    fn of_heads(head: HeadShape) -> Self {
        let set = KernelSet { forms: Vec::new(), head };
        let name = format!("heads of {} in {}", head.dim, head.kind.word());
        Self::new(name, source(&set), |_| true)
    }

    fn of_forms(forms: &'static [WeightForm]) -> Self {
        let set = KernelSet { forms: forms.to_vec(), head: HEADS[0] };
        let is_of =
            |kernel: &str, form: &WeightForm| kernel.starts_with(&format!("{}_", form.name));
        let name = format!("{} to {}", forms[0].name, forms[forms.len() - 1].name);
        Self::new(name, source(&set), move |kernel| forms.iter().any(|form| is_of(kernel, form)))
    }

    fn of_graphs(head: usize) -> Self {
        let name = format!("graphs with heads of {head}");
        // Their products are the same whatever heads there are.
        let has_products = head == GRAPH_HEADS[0];
        let is_product = |kernel: &str| kernel.starts_with(WeightForm::OF_GRAPHS.name);
        Self::new(name, graph_source(head), move |kernel| {
            OF_GRAPHS.contains(&kernel) || has_products && is_product(kernel)
        })
    }

    /// The line that says what its kernels' lines were compiled from.
    fn compiled_from(&self, target: CudaTarget) -> String {
        let content = nvrtc::content_name(&self.source, target);
        format!("{}{content}\n", self.start(target))
    }

    /// A line for each kernel that is its own: registers, bytes of stack and of shared memory that it declares.
    fn lines(&self, target: CudaTarget) -> String {
        let compiled = nvrtc::compile(&self.source, target, kept().as_deref());
        let compiled = compiled.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(compiled.cubin.sm, target.sm());
        let (mut lines, start) = (String::new(), self.start(target));
        let own = compiled.cubin.kernels.iter().filter(|(kernel, _)| (self.is_own)(kernel));
        for (kernel, facts) in own {
            let (registers, stack, shared) =
                (facts.registers, facts.stack_bytes, facts.shared_bytes);
            writeln!(lines, "{start}{kernel} | {registers} | {stack} | {shared}").unwrap();
        }
        lines
    }

    /// How its lines start.
    fn start(&self, target: CudaTarget) -> String {
        format!("{} | {} | ", target.word(), self.name)
    }

    /// Its lines in the table.
    fn expect(&self, target: CudaTarget) -> String {
        let start = self.start(target);
        let own = TABLE.lines().filter(|line| line.starts_with(&start));
        own.map(|line| format!("{line}\n")).collect()
    }
}

/// All that there is to compile.
fn groups() -> Vec<KernelGroup> {
    let heads = HEADS.into_iter().map(KernelGroup::of_heads);
    let forms = WeightForm::ALL.chunks(AT_ONCE).map(KernelGroup::of_forms);
    let graphs = GRAPH_HEADS.into_iter().map(KernelGroup::of_graphs);
    heads.chain(forms).chain(graphs).collect()
}

/// What `of` makes of each target, at once.
fn each<T: Send>(targets: &[CudaTarget], of: impl Fn(CudaTarget) -> T + Sync) -> Vec<T> {
    let of = &of;
    thread::scope(|scope| {
        let all: Vec<_> = targets.iter().map(|&target| scope.spawn(move || of(target))).collect();
        all.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// What compiled before from the same text by the same compiler is compiled again by a soak alone.
#[test]
fn every_kernel_compiles_for_every_target_and_takes_what_the_table_says() {
    let (here, groups) = (super::nvrtc::here().collect::<Vec<_>>(), groups());
    if std::env::var_os("UPDATE").is_some() && here.len() == CudaTarget::ALL.len() {
        return update(&groups);
    }
    let is_soak = std::env::var_os("SMELT_SOAK").is_some();
    each(&here, |target| {
        let is_known = |group: &&KernelGroup| COMPILED.contains(&group.compiled_from(target));
        let (known, changed): (Vec<_>, Vec<_>) = groups.iter().partition(is_known);
        let again = if is_soak { known.len() } else { AGAIN.min(known.len()) };
        for group in known[..again].iter().chain(&changed) {
            assert_eq!(group.lines(target), group.expect(target));
        }
        println!(
            "{}: {} of {} groups compiled, the others held before with the same text",
            target.word(),
            again + changed.len(),
            groups.len(),
        );
        let names: Vec<_> = changed.iter().map(|group| &group.name).collect();
        assert!(names.is_empty(), "they hold, and UPDATE=1 writes down from what: {names:?}");
    });
}

/// Writes both tables anew.
fn update(groups: &[KernelGroup]) {
    let lines = |of: &(dyn Fn(&KernelGroup, CudaTarget) -> String + Sync)| -> String {
        let of_target = |target| groups.iter().map(|group| of(group, target)).collect::<String>();
        each(&CudaTarget::ALL, of_target).concat()
    };
    let kernels = "# target | set | kernel | registers | bytes of stack | bytes of shared memory\n";
    let kernels = kernels.to_owned() + &lines(&|group, target| group.lines(target));
    let compiled = "# target | set | digest of all that it was compiled from\n";
    let compiled = compiled.to_owned() + &lines(&|group, target| group.compiled_from(target));
    for (name, text) in [("kernels.txt", kernels), ("compiled.txt", compiled)] {
        let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
        std::fs::write(path, text).unwrap();
    }
}

#[test]
fn no_kernel_keeps_numbers_on_its_stack_or_takes_more_registers_than_a_thread_has() {
    let rows = TABLE.lines().filter(|line| !line.starts_with('#'));
    let mut count = 0;
    for row in rows {
        let fields: Vec<&str> = row.split(" | ").collect();
        let [target, _, kernel, registers, stack, shared] = fields[..] else {
            panic!("{row:?} is no row");
        };
        let number = |text: &str| text.parse::<u32>().unwrap();
        assert!(CudaTarget::parse(target).is_some(), "{row}");
        assert!(number(registers) <= 255, "{row}");
        assert!(number(stack) == 0 || ON_STACK.contains(&kernel), "{row}");
        assert!(number(shared) <= 48 << 10, "{row}");
        count += 1;
    }
    assert!(count > 3 * WeightForm::ALL.len() * 8, "{count} kernels");
}
