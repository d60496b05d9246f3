//! Makes variants of stages: `matrix` of a stage, and of all that need it.
//!
//! An axis is a list of values for the field of its name, or a table of named variants, each a
//! table of keys that replace the stage's own.  `quant` with the axis `scheme = ["int8", "none"]`
//! becomes `quant.int8` and `quant.none`; a stage that needs `quant` becomes as many, unless it
//! names one of them, or in a list all of them as `quant.*`.  Nothing but names and keys is known
//! here; the stages are read one by one elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::DeValue;

use super::table::{Item, Table};
use super::{InputRef, InputSpec, PipelineError, StageSpec};
use crate::name::StageName;

/// Every variant is built on its own; a sweep of more is a slip.
pub const VARIANTS_MAX: usize = 1024;

/// Keys that replace a stage's own.
pub(super) type Overlay<'a> = Vec<(&'a str, &'a Spanned<DeValue<'a>>)>;

/// One way in which variants differ.
struct Axis<'a> {
    /// The stage that declares it.
    stage: String,
    name: String,
    /// Names of variants, and what they replace.
    values: Vec<(String, Overlay<'a>)>,
}

/// Which value of which axis, by positions: the axis among all, the value in the axis.
pub(super) type Choice = Vec<(usize, usize)>;

/// The axes of a file, and which stages follow which.
#[derive(Default)]
pub(super) struct Matrix<'a> {
    axes: Vec<Axis<'a>>,
    /// By stage, the axes it varies in, in the order of its name's parts.
    follows: BTreeMap<String, Vec<usize>>,
}

/// What `${variant}` and `${variant.AXIS}` stand for in one stage.
pub(super) struct Variant {
    /// The parts of the name, joined as in the name.
    name: String,
    /// `None` while it is not known yet.
    by_axis: Option<BTreeMap<String, String>>,
}

impl Default for Variant {
    /// A stage without variants.
    fn default() -> Self {
        Self { name: String::new(), by_axis: Some(BTreeMap::new()) }
    }
}

impl<'a> Matrix<'a> {
    /// Reads the axes of one stage.
    pub(super) fn declare(
        &mut self,
        stage: &str,
        table: Table<'a>,
    ) -> Result<Vec<usize>, PipelineError> {
        let mut items = table.items();
        items.sort_by_key(|(offset, _)| *offset);
        if items.is_empty() {
            return Err(table.error(format!("the matrix of stage \"{stage}\" has no axis")));
        }
        let mut own = Vec::new();
        for (_, item) in items {
            own.push(self.axes.len());
            let values = if item.value.is_table() { named(&item)? } else { listed(&item)? };
            self.axes.push(Axis { stage: stage.to_owned(), name: item.key.to_owned(), values });
        }
        Ok(own)
    }

    /// Whether no stage has variants.
    pub(super) fn is_empty(&self) -> bool {
        self.axes.is_empty()
    }

    /// Every choice over the axes, the last axis changing fastest.
    pub(super) fn choices(&self, axes: &[usize]) -> Option<Vec<Choice>> {
        let count = axes.iter().try_fold(1_usize, |count, &axis| {
            count.checked_mul(self.axes[axis].values.len()).filter(|&count| count <= VARIANTS_MAX)
        })?;
        let mut choices = vec![Choice::with_capacity(axes.len())];
        choices.reserve(count);
        for &axis in axes {
            let longer = |choice: &Choice| {
                let choice = choice.clone();
                (0..self.axes[axis].values.len()).map(move |value| {
                    let mut choice = choice.clone();
                    choice.push((axis, value));
                    choice
                })
            };
            choices = choices.iter().flat_map(longer).collect();
        }
        Some(choices)
    }

    /// The keys that `stage` itself replaces under a choice.
    pub(super) fn overlay(&self, stage: &str, choice: &Choice) -> Overlay<'a> {
        let own = choice.iter().filter(|(axis, _)| self.axes[*axis].stage == stage);
        own.flat_map(|&(axis, value)| self.axes[axis].values[value].1.iter().copied()).collect()
    }

    pub(super) fn variant(&self, choice: &Choice) -> Variant {
        let words = choice.iter().map(|&(axis, value)| {
            (self.axes[axis].name.clone(), self.axes[axis].values[value].0.clone())
        });
        let by_axis: Vec<(String, String)> = words.collect();
        let parts: Vec<&str> = by_axis.iter().map(|(_, word)| word.as_str()).collect();
        let name = parts.join(".");
        Variant { name, by_axis: Some(by_axis.into_iter().collect()) }
    }

    /// The axes of `stage`, once [`Matrix::follow`] has found them.
    pub(super) fn axes_of(&self, stage: &str) -> &[usize] {
        self.follows.get(stage).map_or(&[], Vec::as_slice)
    }

    /// Finds which axes each stage follows: those of all it needs, then its own.  `needs` are the
    /// stages each names; a circle is left to the plan, which names it.
    pub(super) fn follow(
        &mut self,
        own: &BTreeMap<String, Vec<usize>>,
        needs: &BTreeMap<String, Vec<String>>,
    ) {
        let mut under_way = BTreeSet::new();
        for stage in needs.keys() {
            self.follow_one(stage, own, needs, &mut under_way);
        }
    }

    fn follow_one(
        &mut self,
        stage: &str,
        own: &BTreeMap<String, Vec<usize>>,
        needs: &BTreeMap<String, Vec<String>>,
        under_way: &mut BTreeSet<String>,
    ) {
        // An explicit stack: a chain of a hundred thousand stages must not end ours.
        let mut stack = vec![(stage.to_owned(), false)];
        while let Some((stage, is_ready)) = stack.pop() {
            if self.follows.contains_key(&stage) {
                continue;
            }
            let needed = needs.get(&stage).map_or(&[][..], Vec::as_slice);
            if !is_ready && under_way.insert(stage.clone()) {
                stack.push((stage, true));
                stack.extend(needed.iter().map(|need| (need.clone(), false)));
                continue;
            }
            if !is_ready {
                continue;
            }
            let mut axes: Vec<usize> = Vec::new();
            let inherited = needed.iter().flat_map(|need| self.axes_of(need)).copied();
            let all = inherited.chain(own.get(&stage).into_iter().flatten().copied());
            all.for_each(|axis| {
                if !axes.contains(&axis) {
                    axes.push(axis)
                }
            });
            self.follows.insert(stage, axes);
        }
    }

    /// The name of `stage` under a choice.
    pub(super) fn name(&self, stage: &str, choice: &Choice) -> String {
        let mut name = stage.to_owned();
        for axis in self.axes_of(stage) {
            if let Some((axis, value)) = choice.iter().find(|(chosen, _)| chosen == axis) {
                name.push('.');
                name.push_str(&self.axes[*axis].values[*value].0);
            }
        }
        name
    }

    /// Turns the names of base stages into those of their variants.
    pub(super) fn resolve(
        &self,
        spec: &mut StageSpec,
        choice: &Choice,
        error: &dyn Fn(crate::text::SourceLocation, String) -> PipelineError,
    ) -> Result<(), PipelineError> {
        let mut inputs = Vec::with_capacity(spec.inputs.len());
        for input in std::mem::take(&mut spec.inputs) {
            let InputRef::Stage(written) = &input.from else {
                inputs.push(input);
                continue;
            };
            let bad = |bad: crate::name::BadStageName| error(input.place, bad.to_string());
            let variants = match written.as_str().strip_suffix(".*") {
                Some(base) if self.axes_of(base).is_empty() => {
                    let message = format!("stage \"{base}\" has no variants");
                    return Err(error(input.place, message));
                }
                Some(base) => {
                    let all = self.choices(self.axes_of(base)).unwrap_or_default();
                    all.iter().map(|choice| self.name(base, choice)).collect()
                }
                None => vec![self.name(written.as_str(), choice)],
            };
            let is_one = variants.len() == 1 && !written.as_str().ends_with(".*");
            for name in variants {
                let from = InputRef::Stage(StageName::parse(&name).map_err(bad)?);
                let known_as = (is_one && name != written.as_str()).then(|| written.clone());
                inputs.push(InputSpec { from, known_as, ..input.clone() });
            }
        }
        spec.inputs = inputs;
        Ok(())
    }

    /// Why a stage cannot vary in all of these.
    pub(super) fn too_many(&self, stage: &str, axes: &[usize]) -> String {
        let sizes = axes.iter().map(|&axis| {
            let Axis { stage, name, values } = &self.axes[axis];
            format!("{} of {stage}.{name}", values.len())
        });
        let sizes: Vec<_> = sizes.collect();
        let product = sizes.join(" times ");
        format!("stage \"{stage}\" would have more than {VARIANTS_MAX} variants: {product}")
    }
}

impl Variant {
    /// While it is only asked what a stage needs, every word will do.
    pub(super) fn unknown() -> Self {
        Self { name: "variant".to_owned(), by_axis: None }
    }

    /// What `${variant}` (`rest` is empty) or `${variant.AXIS}` stands for.
    pub(super) fn word(&self, rest: &str) -> Result<&str, String> {
        let Some(by_axis) = &self.by_axis else { return Ok(&self.name) };
        if rest.is_empty() && !by_axis.is_empty() {
            return Ok(&self.name);
        }
        let found = rest.strip_prefix('.').and_then(|axis| by_axis.get(axis));
        found.map(String::as_str).ok_or_else(|| {
            let axes: Vec<_> = by_axis.keys().map(|axis| format!("${{variant.{axis}}}")).collect();
            let hint = match axes.is_empty() {
                true => "neither it nor a stage it needs has a matrix".to_owned(),
                false => format!("it has ${{variant}}, {}", axes.join(", ")),
            };
            format!("this stage has no ${{variant{rest}}}; {hint}")
        })
    }
}

/// `scheme = ["int8", "none"]`: the values of the field of that name, which are their own names.
fn listed<'a>(item: &Item<'a>) -> Result<Vec<(String, Overlay<'a>)>, PipelineError> {
    let list = item.spans()?;
    let mut values = Vec::with_capacity(list.len());
    for value in list {
        let word = match value.get_ref() {
            DeValue::String(text) => text.as_ref().to_owned(),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Boolean(truth) => truth.to_string(),
            _ => String::new(),
        };
        let offset = value.span().start;
        check(item, &word, offset, &values)?;
        values.push((word, vec![(item.key, value)]));
    }
    not_empty(item, values)
}

/// `fast = { scheme = "int4-g128", method = "mse" }`: what the variant replaces.
fn named<'a>(item: &Item<'a>) -> Result<Vec<(String, Overlay<'a>)>, PipelineError> {
    let mut variants = item.table()?.items();
    variants.sort_by_key(|(offset, _)| *offset);
    let mut values = Vec::with_capacity(variants.len());
    for (offset, variant) in variants {
        check(item, variant.key, offset, &values)?;
        let table = variant.table()?;
        for taken in ["kind", "matrix"] {
            if let Some(item) = table.get(taken) {
                return Err(item.error(format!("a variant cannot have a \"{taken}\" of its own")));
            }
        }
        values.push((variant.key.to_owned(), table.spans()));
    }
    not_empty(item, values)
}

fn not_empty<'a>(
    item: &Item<'_>,
    values: Vec<(String, Overlay<'a>)>,
) -> Result<Vec<(String, Overlay<'a>)>, PipelineError> {
    if values.is_empty() {
        return Err(item.error(format!("the axis \"{}\" has no values", item.key)));
    }
    Ok(values)
}

/// A value's name is a part of stage names.
fn check(
    item: &Item<'_>,
    word: &str,
    offset: usize,
    before: &[(String, Overlay<'_>)],
) -> Result<(), PipelineError> {
    let fail = |message: String| Err(item.source.error(offset, message));
    if word.contains('.') || StageName::parse(word).is_err() {
        return fail(format!(
            "\"{word}\" cannot be part of a stage's name; name the value: {} = {{ NAME = {{ {} = … }} }}",
            item.key, item.key
        ));
    }
    if before.iter().any(|(name, _)| name == word) {
        return fail(format!("\"{word}\" is there twice"));
    }
    Ok(())
}
