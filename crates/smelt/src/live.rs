//! Keeps some lines at the foot of a terminal and rewrites them in place.
//!
//! Knows nothing of stages.  What goes to the terminal is decided in plain functions: text to text.

use std::os::fd::AsFd;

use unicode_width::UnicodeWidthChar;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// Of a terminal that does not tell its size.
const USUAL: Size = Size { columns: 80, rows: 24 };

impl Size {
    /// Of the terminal that an output leads to.
    pub(crate) fn of(output: &impl AsFd) -> Self {
        terminal_size::terminal_size_of(output).map_or(USUAL, |(columns, rows)| Self {
            columns: columns.0.into(),
            rows: rows.0.into(),
        })
    }
}

/// What stands at the foot of the terminal now.
#[derive(Debug, Default)]
pub(crate) struct Foot {
    /// How many lines; the cursor is at the end of the last.
    drawn: usize,
}

impl Foot {
    /// What to write so that `lines` stand there instead.
    pub(crate) fn draw(&mut self, lines: &[String], size: Size) -> String {
        let shown = fitting(lines, size);
        let text = self.clear() + &shown.join("\r\n");
        self.drawn = shown.len();
        text
    }

    /// What to write so that nothing stands there and the cursor is where it began.
    pub(crate) fn clear(&mut self) -> String {
        match std::mem::take(&mut self.drawn) {
            0 => String::new(),
            1 => "\r\x1b[J".to_owned(),
            drawn => format!("\r\x1b[{}A\x1b[J", drawn - 1),
        }
    }
}

/// The lines that fit; a terminal that is too low hears how many do not.
fn fitting(lines: &[String], size: Size) -> Vec<String> {
    // The last column stays free, since some terminals wrap when it is written; a row stays for
    // what happened last.
    let columns = size.columns.saturating_sub(1).max(1);
    let rows = size.rows.saturating_sub(1).max(1);
    if lines.len() <= rows {
        return lines.iter().map(|line| cut(line, columns)).collect();
    }
    let more = format!("… and {} more", lines.len() - (rows - 1));
    let first = lines.iter().take(rows - 1);
    first.map(|line| cut(line, columns)).chain([cut(&more, columns)]).collect()
}

/// As much of the text as fits so many columns; East Asian letters take two.
fn cut(text: &str, columns: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= columns
    };
    text.chars().filter(|c| !c.is_control()).take_while(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_columns_not_letters() {
        let check = |text: &str, columns, expect: &str| assert_eq!(cut(text, columns), expect);
        check("abc", 3, "abc");
        check("abcd", 3, "abc");
        check("模型加载", 5, "模型");
        check("a\u{1b}[2Jb\r\n", 9, "a[2Jb");
        check("e\u{301}tude", 2, "e\u{301}t");
    }

    fn lines(count: usize) -> Vec<String> {
        (0..count).map(|n| n.to_string()).collect()
    }

    #[test]
    fn a_low_terminal_hears_how_many_there_are() {
        let fit = |count, rows| fitting(&lines(count), Size { columns: 80, rows });
        assert_eq!(fit(2, 24), ["0", "1"]);
        assert_eq!(fit(3, 4), ["0", "1", "2"]);
        assert_eq!(fit(4, 4), ["0", "1", "… and 2 more"]);
        assert_eq!(fit(4, 0), ["… and 4 more"]);
    }

    /// What a terminal shows after `parts`.
    fn screen(parts: &[String], size: Size) -> Vec<String> {
        let [rows, columns] =
            [size.rows, size.columns].map(|n| std::num::NonZero::new(n as u16).unwrap());
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parts.iter().for_each(|part| parser.process(part.as_bytes()));
        let screen = parser.screen();
        assert!((0..size.rows as u16).all(|row| !screen.row_wrapped(row)), "a line is too wide");
        screen.contents().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_foot_is_rewritten_in_place() {
        let size = Size { columns: 10, rows: 5 };
        let mut foot = Foot::default();
        let long = vec!["模型加载模型加载".to_owned(), "x".repeat(30)];
        let mut parts = vec!["before\r\n".to_owned(), foot.draw(&lines(3), size)];
        parts.push(foot.draw(&long, size));
        assert_eq!(screen(&parts, size), ["before", "模型加载", "xxxxxxxxx"]);
        parts.extend([foot.clear(), "event\r\n".to_owned(), foot.draw(&lines(1), size)]);
        assert_eq!(screen(&parts, size), ["before", "event", "0"]);
        parts.extend([foot.clear(), foot.clear()]);
        assert_eq!(screen(&parts, size), ["before", "event"]);
    }
}
