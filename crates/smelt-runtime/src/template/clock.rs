//! Writes a moment the way Python's `strftime` does, in UTC and English.
//!
//! Chat templates put today's date into system messages.  Reads no clock.

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAY_S: u64 = 86_400;

/// `format` with the moment `now_s`, in seconds since 1970, in place of its `%` letters.
///
/// Letters that chat templates do not use stay as they are.
pub(super) fn strftime(format: &str, now_s: u64) -> String {
    let (year, month, day) = date(now_s / DAY_S);
    let (hour, minute, second) = (now_s / 3600 % 24, now_s / 60 % 60, now_s % 60);
    let weekday = DAYS[((now_s / DAY_S + 4) % 7) as usize];
    let name = MONTHS[month as usize - 1];
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('Y') => out += &year.to_string(),
            Some('y') => out += &format!("{:02}", year % 100),
            Some('m') => out += &format!("{month:02}"),
            Some('d') => out += &format!("{day:02}"),
            Some('H') => out += &format!("{hour:02}"),
            Some('M') => out += &format!("{minute:02}"),
            Some('S') => out += &format!("{second:02}"),
            Some('B') => out += name,
            Some('b') => out += &name[..3],
            Some('A') => out += weekday,
            Some('a') => out += &weekday[..3],
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

/// Year, month and day of a day counted from 1970-01-01, by walking years and months.
fn date(days: u64) -> (u64, u64, u64) {
    // The calendar repeats every 400 years of 146097 days.
    let (mut year, mut left) = (1970 + days / 146_097 * 400, days % 146_097);
    while left >= year_days(year) {
        left -= year_days(year);
        year += 1;
    }
    let mut month = 1;
    while left >= month_days(year, month) {
        left -= month_days(year, month);
        month += 1;
    }
    (year, month, left + 1)
}

fn year_days(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn month_days(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(now_s: u64, expect: &str) {
        assert_eq!(strftime("%A %a %d %B %b %Y %y %m %H:%M:%S %% %q %", now_s), expect);
    }

    #[test]
    fn moments_are_written_as_python_writes_them() {
        check(0, "Thursday Thu 01 January Jan 1970 70 01 00:00:00 % %q %");
        check(951_782_399, "Monday Mon 28 February Feb 2000 00 02 23:59:59 % %q %");
        check(951_782_400, "Tuesday Tue 29 February Feb 2000 00 02 00:00:00 % %q %");
        check(4_107_542_400, "Monday Mon 01 March Mar 2100 00 03 00:00:00 % %q %");
        check(12_622_780_800, "Thursday Thu 01 January Jan 2370 70 01 00:00:00 % %q %");
    }
}
