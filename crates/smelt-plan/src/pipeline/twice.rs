//! Names a key that a file has twice, which the TOML reader finds and does not name.

/// What the reader says of it.
const SAYS: &str = "duplicate key";

/// What is wrong at `span` of `text`, of which the reader says `message`: the key, and on which line it
/// stands already.  `None` where the reader says something else.
pub(super) fn named(text: &str, span: std::ops::Range<usize>, message: &str) -> Option<String> {
    if !message.starts_with(SAYS) {
        return None;
    }
    let key = text.get(span.clone())?.trim().trim_matches(['"', '\'', '[', ']']);
    if key.is_empty() {
        return None;
    }
    Some(match earlier(text, span.start, key) {
        Some(line) => format!("\"{key}\" is given twice, on line {line} too; keep one of them"),
        None => format!("\"{key}\" is given twice; keep one of them"),
    })
}

/// The line, from 1, on which the key at `offset` stands for the first time; of a key, in its own table.
fn earlier(text: &str, offset: usize, key: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = text.get(..offset)?.matches('\n').count();
    let header = lines.get(at)?.split_once(']').filter(|(own, _)| own.starts_with('['));
    if let Some((header, _)) = header {
        let is_same = |line: &&str| line.split_once(']').is_some_and(|(other, _)| other == header);
        return lines[..at].iter().position(is_same).map(|line| line + 1);
    }
    let is_same = |line: &&str| {
        let own = line.split_once('=').map_or("", |(own, _)| own.trim());
        own.trim_matches(['"', '\'']) == key
    };
    let own = lines[..at].iter().rposition(|line| line.starts_with('[')).unwrap_or(0);
    lines[own..at].iter().position(is_same).map(|line| own + line + 1)
}
