//! Reads what the compiler says: its first error, and what would make kernels slow unseen.

/// Longest part of a log that a message quotes.
const QUOTED_MAX: usize = 300;

/// The first line that names an error, or the first of all.
pub(super) fn first_error(log: &str) -> String {
    let lines = || log.lines().map(str::trim).filter(|line| !line.is_empty());
    let found = lines().find(|line| line.contains("error")).or_else(|| lines().next());
    found.unwrap_or("it does not say why").chars().take(QUOTED_MAX).collect()
}

/// What a log tells of kernels that compiled badly: `wgmma` that was serialised (C75xx), registers that were spilled.
pub(super) fn slowness(log: &str) -> Option<String> {
    let is_serialised = |line: &&str| {
        line.split(|c: char| !c.is_alphanumeric()).any(|word| {
            word.strip_prefix("C75").is_some_and(|rest| {
                rest.len() == 2 && rest.bytes().all(|byte| byte.is_ascii_digit())
            })
        })
    };
    if let Some(line) = log.lines().find(is_serialised) {
        return Some(line.trim().chars().take(QUOTED_MAX).collect());
    }
    let mut kernel = "";
    for line in log.lines() {
        if let Some(rest) = line.split("Function properties for ").nth(1) {
            kernel = rest.trim();
        }
        if let Some(bytes) = spilled(line) {
            return Some(format!("{kernel} spills {bytes} bytes of registers"));
        }
    }
    None
}

/// Bytes that a line says are spilled, where there are some.
fn spilled(line: &str) -> Option<u32> {
    let before = line.split(" bytes spill stores").next().filter(|before| *before != line)?;
    before.split_whitespace().last()?.parse().ok().filter(|&bytes| bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spills_are_told_with_the_kernel() {
        let log = include_str!("../../tests/data/facts.sm87.log");
        let said = slowness(log).unwrap();
        assert!(said.starts_with("spilling spills 1") && said.ends_with(" bytes of registers"));
        let sound: Vec<&str> = log.lines().filter(|line| spilled(line).is_none()).collect();
        assert_eq!(slowness(&sound.join("\n")), None);
    }

    #[test]
    fn serialised_products_are_told() {
        let line = "ptxas info    : (C7515) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources";
        assert_eq!(slowness(&format!("ptxas info    : 0 bytes gmem\n{line}\n")).unwrap(), line);
        assert_eq!(slowness("ptxas info    : (C6515) and C75 and AC7515x\n"), None);
    }

    #[test]
    fn the_first_error_is_quoted() {
        let log =
            "a.cu(3): warning #177-D: unused\n\na.cu(7): error: identifier \"x\" is undefined\n";
        assert_eq!(first_error(log), "a.cu(7): error: identifier \"x\" is undefined");
        assert_eq!(first_error(""), "it does not say why");
    }
}
