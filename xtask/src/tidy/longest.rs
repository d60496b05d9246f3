//! Prints the longest functions and files, as places to look.

use super::Source;

const SHOWN: usize = 10;

pub(super) fn print(sources: &[Source]) {
    let functions: Vec<(usize, String)> = sources.iter().flat_map(functions).collect();
    let mut lengths: Vec<usize> = functions.iter().map(|(length, _)| *length).collect();
    lengths.sort_unstable();
    let within = lengths.iter().filter(|&&length| length <= 70).count();
    println!(
        "{} functions: median {} lines, {} % within 70; the longest:",
        lengths.len(),
        lengths.get(lengths.len() / 2).unwrap_or(&0),
        within * 100 / lengths.len().max(1)
    );
    print_longest(functions);
    let files = sources.iter().map(|s| (s.text.lines().count(), s.path.display().to_string()));
    println!("{} files; the longest:", sources.len());
    print_longest(files.collect());
}

fn print_longest(mut things: Vec<(usize, String)>) {
    things.sort_by(|a, b| b.cmp(a));
    for (length, name) in things.iter().take(SHOWN) {
        println!("  {length:5}  {name}");
    }
}

/// Every function with a body, by the layout rustfmt gives: it ends at the first `}` that is
/// indented like its `fn`.
fn functions(source: &Source) -> Vec<(usize, String)> {
    let lines: Vec<&str> = source.text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let end = format!("{}}}", " ".repeat(indent));
        let ends_here = line.ends_with('}');
        let Some(length) = lines[at..].iter().position(|&line| line == end || ends_here) else {
            continue;
        };
        found.push((length + 1, format!("{name}  {}:{}", source.path.display(), at + 1)));
    }
    found
}

fn function_name(line: &str) -> Option<&str> {
    let words =
        ["pub ", "pub(crate) ", "pub(super) ", "const ", "async ", "unsafe ", "extern \"C\" "];
    let mut rest = line.trim_start();
    while let Some(word) = words.iter().find(|word| rest.starts_with(**word)) {
        rest = &rest[word.len()..];
    }
    let name = rest.strip_prefix("fn ")?;
    name.split(['(', '<']).next().filter(|_| !line.ends_with(';'))
}
