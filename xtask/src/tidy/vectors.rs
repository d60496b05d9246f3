//! Finds arithmetic on vectors that is called as a function: a part of a kernel that the compiler did not inline to where the
//! vectors are enabled.  It computes the same, several times as slowly, so no other check sees it.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What kernels do to numbers, of all that processors can.
const ARITHMETIC: [&str; 7] =
    ["add_ps", "sub_ps", "mul_ps", "div_ps", "min_ps", "max_ps", "fmadd_ps"];

/// Before them in the names of functions.
const WIDTHS: [&str; 2] = ["_mm256_", "_mm512_"];

/// In the functions of a program.
pub(super) fn check(program: &Path) -> Result<Vec<String>> {
    let output = Command::new("nm").arg("-C").arg(program).output().context("cannot start nm")?;
    ensure!(output.status.success(), "nm: {}", String::from_utf8_lossy(&output.stderr).trim_end());
    let symbols = String::from_utf8_lossy(&output.stdout);
    ensure!(symbols.contains("smelt::main"), "{} has no names of functions", program.display());
    Ok(findings(&symbols))
}

/// Of the lines of `nm -C`: an address, a letter, a name.
fn findings(symbols: &str) -> Vec<String> {
    let names = symbols.lines().filter_map(|line| line.rsplit("::").next());
    let called = names.filter(|name| {
        WIDTHS.iter().any(|width| {
            name.strip_prefix(width).is_some_and(|operation| ARITHMETIC.contains(&operation))
        })
    });
    called
        .map(|name| {
            format!("{name} is called as a function: give what calls it in a kernel #[inline(always)], or make its closure a loop")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_that_is_called_is_found() {
        let line = |name: &str| format!("0000000001262de0 t {name}\n");
        let loads = line("core::core_arch::x86::avx::_mm256_loadu_si256") + &line("smelt::main");
        assert_eq!(findings(&loads), [""; 0]);
        let found = findings(&(loads + &line("core::core_arch::x86::avx512f::_mm512_mul_ps")));
        assert!(found.len() == 1 && found[0].starts_with("_mm512_mul_ps "), "{found:?}");
    }
}
