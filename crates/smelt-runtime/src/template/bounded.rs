//! Renders templates within bounds of depth, memory and time, whoever wrote them.
//!
//! A model comes with its template, so nobody may have read it.  The library counts steps (fuel), but a step may double a
//! text.  So the instructions of a parsed template are looked at once more: before each step that can make more of what it is
//! given the sizes are checked, and behind it what it made is counted.  Knows nothing of chats.

use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::thread;

use minijinja::machinery::{
    Instruction, Instructions, Token, eval, get_compiled_template, make_string_output, tokenize,
};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Object, Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State};

/// The longest template.  Real ones stay below 32 KiB, and what the library folds of a long sum takes the square of its length.
pub(super) const SOURCE_BYTES_MAX: usize = 64 << 10;

/// Steps one rendering may take: real ones need some thousands, and a loop that never ends stops here within a second.
const FUEL: u64 = 1_000_000;

/// What all texts and lists that a rendering makes may have together, in bytes.  Real ones make some ten times the prompt.
const MADE_MAX: u64 = 64 << 20;

/// Bytes that a place of a list counts for.
const PLACE_BYTES: u64 = 32;

/// How deep lists and dictionaries may be nested where they are written, searched or compared.
const NESTED_MAX: u32 = 64;

/// The most words and signs of a tag.  The library nests and folds as many of them as there are, which takes the square of
/// their number; real tags have some hundred at most.
const TAG_TOKENS_MAX: usize = 2000;

/// The largest number that a filter is given which makes as much text or as many places.
const WIDTH_MAX: u64 = 1000;

/// What the library's parser and its drop need of the stack for each byte of a template, at most: an operator is a byte, and
/// takes some hundreds in either.
const STACK_PER_BYTE: usize = 2 << 10;

/// What a rendering needs of the stack, at most: nesting a value once more takes some nine steps, and dropping it some hundred
/// bytes.  Nothing of it is touched by templates that nest little.
const STACK_BYTES: usize = 128 << 20;

/// Names that no template can say of the checks.
const CHECK: &str = "!check";
const COUNT: &str = "!count";

/// Filters and methods whose work does not grow with what their value holds.
const SHALLOW: [&str; 24] = [
    "length",
    "count",
    "chain",
    "first",
    "trim",
    "upper",
    "lower",
    "capitalize",
    "title",
    "default",
    "d",
    "safe",
    "int",
    "float",
    "bool",
    "abs",
    "round",
    "items",
    "get",
    "keys",
    "values",
    "strip",
    "startswith",
    "endswith",
];

/// Those that make as much as a number says.
const WIDE: [&str; 8] =
    ["indent", "batch", "slice", "tojson", "map", "center", "format", "truncate"];

/// What a rendering has made so far.
#[derive(Default)]
struct Made(u64);

/// Sets up steps and checks of `environment`.
pub(super) fn set_up(environment: &mut Environment<'_>) {
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(emit);
    environment.add_global(CHECK, Value::from_object(Check));
    environment.add_global(COUNT, Value::from_object(Count));
}

/// Adds a template.
///
/// # Errors
/// What is wrong with it.
pub(super) fn add(
    environment: &mut Environment<'static>,
    name: &'static str,
    source: String,
) -> Result<(), Error> {
    if source.len() > SOURCE_BYTES_MAX {
        return Err(refused(format!(
            "the template has more than the {SOURCE_BYTES_MAX} bytes allowed"
        )));
    }
    check_tags(&source, environment.syntax().clone())?;
    deep((64 << 10) + source.len() * STACK_PER_BYTE, || {
        environment.add_template_owned(name, source)?;
        let template = environment.get_template(name)?;
        let compiled = get_compiled_template(&template);
        let parts = compiled.blocks.values().chain([&compiled.instructions]);
        parts.map(bounded).try_for_each(|part| part.map(drop))
    })
}

/// Whether no tag is longer than any is, or makes much of what the library folds before anything can be counted.
fn check_tags(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    let (mut tokens, mut times, mut largest) = (0, 0, 0);
    for token in tokenize(source, false, syntax) {
        tokens += 1;
        match token?.0 {
            Token::VariableStart | Token::BlockStart | Token::TemplateData(_) => {
                (tokens, times, largest) = (0, 0, 0)
            }
            Token::Mul => times += 1,
            // A power beside a product counts as one that is too large.
            Token::Pow => largest = u128::MAX,
            Token::Int(number) => largest = largest.max(number.into()),
            Token::Int128(number) => largest = largest.max(*number),
            _ => {}
        }
        if tokens > TAG_TOKENS_MAX {
            return Err(refused(format!("a tag has more than {TAG_TOKENS_MAX} words and signs")));
        }
        if times > 1 || times == 1 && largest > WIDTH_MAX.into() {
            return Err(refused(format!(
                "a tag multiplies more than once, or by more than {WIDTH_MAX}"
            )));
        }
    }
    Ok(())
}

/// The text of the template `name` over `root`.
///
/// # Errors
/// What the template says, or which bound it meets.
pub(super) fn render(
    environment: &Environment<'_>,
    name: &str,
    root: Value,
) -> Result<String, Error> {
    deep(STACK_BYTES, || {
        let template = environment.get_template(name)?;
        let compiled = get_compiled_template(&template);
        let blocks = compiled.blocks.iter().map(|(name, part)| Ok((*name, bounded(part)?)));
        let (blocks, instructions) =
            (blocks.collect::<Result<_, Error>>()?, bounded(&compiled.instructions)?);
        let mut text = String::new();
        let mut out = make_string_output(&mut text);
        eval(environment, &instructions, root, &blocks, &mut out, AutoEscape::None)?;
        drop(out);
        Ok(text)
    })
}

/// Does `work` with a stack of so many bytes.
fn deep<T: Send>(bytes: usize, work: impl FnOnce() -> Result<T, Error> + Send) -> Result<T, Error> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(bytes).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| refused(format!("no thread for it: {error}")))?;
        thread.join().unwrap_or_else(|_| Err(refused("the template broke its renderer".to_owned())))
    })
}

/// The same instructions with checks between them.
fn bounded<'s>(from: &Instructions<'s>) -> Result<Instructions<'s>, Error> {
    let all = || (0..).map_while(|at| Some((at, from.get(at)?)));
    // Where each instruction is among the new ones.
    let mut places = vec![0];
    for (_, instruction) in all() {
        places.push(places[places.len() - 1] + checked(instruction)?.len() as u32);
    }
    let mut to = Instructions::new(from.name(), from.source());
    for (at, instruction) in all() {
        for new in checked(instruction)? {
            let new = jumping(new, &places);
            match (from.get_span(at), from.get_line(at)) {
                (Some(span), _) => to.add_with_span(new, span),
                (None, line) => to.add_with_line(new, line.unwrap_or_default() as u16),
            };
        }
    }
    Ok(to)
}

/// An instruction with its target moved.
fn jumping<'s>(instruction: Instruction<'s>, places: &[u32]) -> Instruction<'s> {
    let to = |at: u32| places[at as usize];
    match instruction {
        Instruction::Iterate(at) => Instruction::Iterate(to(at)),
        Instruction::Jump(at) => Instruction::Jump(to(at)),
        Instruction::JumpIfFalse(at) => Instruction::JumpIfFalse(to(at)),
        Instruction::JumpIfFalseOrPop(at) => Instruction::JumpIfFalseOrPop(to(at)),
        Instruction::JumpIfTrueOrPop(at) => Instruction::JumpIfTrueOrPop(to(at)),
        Instruction::BuildMacro(name, at, flags) => Instruction::BuildMacro(name, to(at), flags),
        other => other,
    }
}

/// An instruction between its checks.
fn checked<'s>(instruction: &Instruction<'s>) -> Result<Vec<Instruction<'s>>, Error> {
    use Instruction as I;
    let call = |name, count| I::CallFunction(name, Some(count));
    // The check takes the values and the name, and gives the values back as a list.
    let check = |name: &str, count: u16| {
        [I::LoadConst(Value::from(name)), call(CHECK, count + 1), I::UnpackList(count.into())]
    };
    let same = instruction.clone();
    let around = |name: &str, count: u16| {
        let [load, check, unpack] = check(name, count);
        vec![load, check, unpack, same.clone(), call(COUNT, 1)]
    };
    Ok(match instruction {
        I::EmitRaw(text) => {
            vec![I::LoadConst(Value::from_safe_string((*text).to_owned())), I::Emit]
        }
        I::StringConcat => around("~", 2),
        I::Add => around("+", 2),
        I::Mul => around("*", 2),
        I::Eq | I::Ne | I::Gt | I::Gte | I::Lt | I::Lte | I::In | I::CompareAndPreserve(_) => {
            let [load, check, unpack] = check("in", 2);
            vec![load, check, unpack, same]
        }
        I::ApplyFilter(name, Some(count), _) | I::CallMethod(name, Some(count)) => {
            around(name, *count)
        }
        I::ApplyFilter(_, None, _) | I::CallMethod(_, None) => {
            return Err(refused("lists of arguments are not spread here".to_owned()));
        }
        I::CallFunction(..) | I::CallObject(_) | I::Slice => vec![same, call(COUNT, 1)],
        I::Include(_) | I::LoadBlocks => {
            return Err(refused("a chat template stands alone and loads no other".to_owned()));
        }
        _ => vec![same],
    })
}

/// Whether what is to be made of the values before the last, which is the name of the step, is small; gives them back.
#[derive(Debug)]
struct Check;

impl Object for Check {
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, values: &[Value]) -> Result<Value, Error> {
        let Some((name, values)) = values.split_last() else { return Ok(Value::from(())) };
        let left = MADE_MAX - state.get_or_insert_extension(Made::default()).0;
        if most(name.as_str().unwrap_or_default(), values)? > left {
            return Err(too_much());
        }
        Ok(Value::from_iter(values.iter().rev().cloned()))
    }
}

/// Counts a value and gives it back.
#[derive(Debug)]
struct Count;

impl Object for Count {
    fn call(self: &Arc<Self>, state: &mut State<'_, '_>, values: &[Value]) -> Result<Value, Error> {
        let value = values.first().cloned().unwrap_or_default();
        count(state, shallow(&value))?;
        Ok(value)
    }
}

/// The most bytes that a step can make of its values.
fn most(name: &str, values: &[Value]) -> Result<u64, Error> {
    let Some((first, others)) = values.split_first() else { return Ok(0) };
    if SHALLOW.contains(&name) {
        return Ok(values.iter().map(shallow).sum());
    }
    // Texts and lists are joined without a look at what they hold.
    let size = |value: &Value| match name {
        "+" | "*" => Ok(shallow(value)),
        _ => size(value, NESTED_MAX),
    };
    let mut all = size(first)?;
    let mut times = 1;
    for other in others {
        let other_size = size(other)?;
        all = all.saturating_add(other_size);
        // Every character may be replaced or joined by another text, every place be given a filter's argument.
        if ["replace", "join", "map"].contains(&name) {
            times = other_size.saturating_add(1).max(times);
        }
        let number = other.as_i64().or_else(|| width(other));
        match number {
            Some(number) if name == "*" => times = times.max(number.max(0) as u64),
            Some(number) if WIDE.contains(&name) => {
                if number.unsigned_abs() > WIDTH_MAX && name != "truncate" {
                    return Err(too_much());
                }
                if name != "truncate" {
                    times = times.saturating_mul(number.unsigned_abs() + 1);
                }
            }
            _ => {}
        }
    }
    if name == "*" {
        // Either may be the number.
        times = times.max(first.as_i64().unwrap_or_default().max(0) as u64);
        let is_number = |value: &Value| value.kind() == ValueKind::Number;
        return Ok(if values.iter().all(is_number) { 0 } else { all.saturating_mul(times) });
    }
    if name == "format" && first.as_str().is_some_and(has_long_number) {
        return Err(too_much());
    }
    Ok(all.saturating_mul(times))
}

/// The largest number among named arguments.
fn width(value: &Value) -> Option<i64> {
    if value.kind() != ValueKind::Map {
        return None;
    }
    let names = value.try_iter().ok()?;
    names.filter_map(|name| value.get_item(&name).ok()?.as_i64()).max()
}

/// Whether `text` holds a number of more than three digits.
fn has_long_number(text: &str) -> bool {
    text.as_bytes().windows(4).any(|four| four.iter().all(u8::is_ascii_digit))
}

/// Bytes of a value without those of what it holds.
fn shallow(value: &Value) -> u64 {
    match value.as_str() {
        Some(text) => text.len() as u64,
        None => value.len().unwrap_or_default() as u64 * PLACE_BYTES,
    }
}

/// Bytes of a value with all that it holds, as often as it holds it; no further than to the limit.
fn size(value: &Value, nested: u32) -> Result<u64, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.len() as u64);
    }
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(PLACE_BYTES);
    }
    if nested == 0 {
        return Err(refused(format!("values are nested more than {NESTED_MAX} deep")));
    }
    let mut all = PLACE_BYTES;
    for item in value.try_iter()? {
        let held = match value.kind() {
            ValueKind::Map => size(&value.get_item(&item)?, nested - 1)?,
            _ => 0,
        };
        all = all.saturating_add(PLACE_BYTES + held + size(&item, nested - 1)?);
        if all > MADE_MAX {
            return Err(too_much());
        }
    }
    Ok(all)
}

fn count(state: &mut State<'_, '_>, bytes: u64) -> Result<(), Error> {
    let made = state.get_or_insert_extension(Made::default());
    made.0 = made.0.saturating_add(bytes);
    if made.0 > MADE_MAX { Err(too_much()) } else { Ok(()) }
}

/// Writes a value to the prompt or into a text.
fn emit(out: &mut Output<'_>, state: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if let Some(text) = value.as_str() {
        count(state, text.len() as u64)?;
        return Ok(out.write_str(text)?);
    }
    size(value, NESTED_MAX)?;
    let mut counted = Counted { out, bytes: 0 };
    let written = write!(counted, "{value}");
    let bytes = counted.bytes;
    count(state, bytes)?;
    Ok(written?)
}

/// A writer that ends where the limit is met.
struct Counted<'a, 'o> {
    out: &'a mut Output<'o>,
    bytes: u64,
}

impl fmt::Write for Counted<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.bytes += text.len() as u64;
        if self.bytes > MADE_MAX { Err(fmt::Error) } else { self.out.write_str(text) }
    }
}

fn too_much() -> Error {
    refused(format!("it makes texts and lists of more than {} MiB", MADE_MAX >> 20))
}

fn refused(why: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, why)
}

#[cfg(test)]
mod tests {
    use minijinja::context;

    use super::*;

    fn rendered(source: &str) -> Result<String, String> {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        set_up(&mut environment);
        add(&mut environment, "t", source.to_owned()).map_err(|error| error.to_string())?;
        let messages = ["Hello", "a\nb"].map(|content| context! { role => "user", content });
        render(&environment, "t", context! { messages }).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(source: &str, expect: &str) {
        assert_eq!(rendered(source).as_deref(), Ok(expect));
    }

    #[test]
    fn templates_that_make_little_are_rendered_as_ever() {
        check(
            "a{% for m in messages %}<{{ m['content'].strip() + '\n' }}>{% endfor %}",
            "a<Hello\n><a\nb\n>",
        );
        check(
            "{{ 1 + 2 * 3 }}{{ [1,2] + [3] }}{{ 'a' ~ 1 ~ none }}{{ 'ab' * 2 }}",
            "7[1, 2, 3]a1Noneabab",
        );
        check(
            "{% macro f(x, y=2) %}[{{ x }}:{{ y }}]{% endmacro %}{{ f(1) }}{{ f(3, y=4) }}",
            "[1:2][3:4]",
        );
        check(
            "{% set x %}c{% for i in range(2) %}{{ i }}{% endfor %}{% endset %}{{ x|upper }}",
            "C01",
        );
        check(
            "{{ 1 < 2 < 3 }}{{ 'a' in 'abc' }}{{ {'a': 1}['a'] }}{{ 'x' if false else 'z' }}",
            "TrueTrue1z",
        );
        check(
            "{% if 1 and not 2 or 3 %}y{% else %}n{% endif %}{% if messages|length > 9 %}!{% endif %}",
            "y",
        );
        check(
            "{{ messages[1:][0].content.split('\n')[-1] }}{{ messages|map(attribute='role')|join(', ') }}",
            "buser, user",
        );
        check(
            "{% for i in [[1,[2]],3] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}",
            "(1(2))3",
        );
        check(
            "{% block a %}x{{ 'y' ~ 'z' }}{% endblock %}{% filter upper %}ab{% endfilter %}{% for x in [] %}{% else %}-{% endfor %}",
            "xyzAB-",
        );
        check(
            "{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
            "4",
        );
        check(
            "{{ 'a-b'|replace('-', '+') }}{{ 'x\ny'|indent(2) }}{{ 'ab'.replace('a', 'c').upper() }}",
            "a+bx\n  yCB",
        );
    }

    /// A loop that makes `step` of `ns.s` many times.
    fn repeated(begin: &str, step: &str) -> String {
        format!(
            "{{% set ns = namespace(s={begin}) %}}{{% for i in range(999) %}}{{% set ns.s = {step} %}}{{% endfor %}}x"
        )
    }

    #[test]
    fn texts_and_lists_do_not_grow_without_end() {
        let refused = |source: &str| {
            let error = rendered(source).unwrap_err();
            assert!(error.contains("64 MiB") || error.contains("nested"), "{source}: {error}");
        };
        for step in [
            "ns.s ~ ns.s",
            "ns.s + ns.s",
            "ns.s * 9",
            "ns.s|replace('x', 'xx')",
            "ns.s.replace('x', 'xx')",
            "[ns.s, ns.s]|join",
        ] {
            refused(&repeated("'x'", step));
        }
        for step in ["ns.s + ns.s", "ns.s|chain(ns.s)", "ns.s|list + ns.s|list", "ns.s * 2"] {
            refused(&repeated("[1]", step));
        }
        for end in [
            "{{ ns.s }}",
            "{{ ns.s|string }}",
            "{{ ns.s == [ns.s] }}",
            "{{ 5 in ns.s }}",
            "{{ ns.s|sort }}",
        ] {
            refused(&(repeated("[1]", "[ns.s, ns.s]") + end));
        }
        let kept = "{% set ns = namespace(l=[]) %}{% set s = ',' * 1000 %}{% for i in range(90000) %}{% set ns.l = [ns.l, STEP] %}{% endfor %}";
        for step in ["s.split(',')", "s|list", "s ~ i", "range(999)|list", "s[1:]", "s.upper()"] {
            refused(&kept.replace("STEP", step));
        }
        for call in [
            "|indent(100000)",
            "|indent(width=100000)",
            "|batch(4000000, 1)",
            "|slice(4000000)",
            "|format('%99999s')",
            ".join(range(90000))",
        ] {
            refused(&format!("{{% set s = '%99999s\n' * 999 %}}{{% set t = s{call} %}}"));
        }
        refused(&format!("{{% for a in range(99999) %}}{}{{% endfor %}}", "x".repeat(9999)));
        refused(&format!(
            "{{% set y %}}{{% for a in range(99999) %}}{}{{% endfor %}}{{% endset %}}",
            "x".repeat(9999)
        ));
    }

    #[test]
    fn tags_are_not_longer_or_deeper_than_any_is() {
        let long = [
            ("not ", ""),
            ("-", ""),
            ("- ", ""),
            ("", ".a"),
            ("", "[0]"),
            ("", "()"),
            ("", "|e"),
            ("", "+a"),
            ("a if a else ", ""),
        ];
        for (before, behind) in long {
            let source = format!("{{{{ {}a{} }}}}", before.repeat(5000), behind.repeat(5000));
            let error = rendered(&source).unwrap_err();
            assert!(error.contains("words and signs"), "{before}{behind}: {error}");
            // What is allowed fits on the stack.
            _ = rendered(&format!("{{{{ {}a{} }}}}", before.repeat(600), behind.repeat(600)));
        }
        assert!(rendered(&"{% if a %}".repeat(5000)).unwrap_err().contains("recursion"));
        let many = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(5000));
        assert_eq!(rendered(&many).as_deref(), Ok(""));
        assert!(rendered(&"x".repeat(SOURCE_BYTES_MAX + 1)).unwrap_err().contains("bytes"));
        for folded in ["'a' * 99999999", "'a' * 999 * 999", "'a' * 10 ** 8"] {
            assert!(
                rendered(&format!("{{{{ {folded} }}}}")).unwrap_err().contains("multiplies"),
                "{folded}"
            );
        }
    }

    #[test]
    fn values_may_be_nested_but_not_written() {
        let nested = "{% set ns = namespace(s=1) %}{% for i in range(40000) %}{% set ns.s = STEP %}{% endfor %}";
        for step in ["[ns.s]", "{'a': ns.s}", "namespace(a=ns.s)", "(ns.s,)"] {
            let nested = nested.replace("STEP", step);
            assert_eq!(rendered(&nested).as_deref(), Ok(""), "{step}");
            let written = rendered(&(nested + "{{ ns.s }}"));
            assert!(
                written.is_err_and(|error| error.contains("nested")) || step.starts_with("name"),
                "{step}"
            );
        }
        assert!(
            rendered("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}")
                .unwrap_err()
                .contains("recursion")
        );
    }

    #[test]
    fn templates_load_no_others_and_spread_no_lists() {
        for source in ["{% include 't' %}", "{% extends 't' %}", "{% import 't' as x %}"] {
            assert!(rendered(source).unwrap_err().contains("stands alone"), "{source}");
        }
        assert!(rendered("{{ 'a'.replace(*['a', 'b']) }}").unwrap_err().contains("not spread"));
    }
}
