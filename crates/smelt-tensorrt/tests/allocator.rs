//! Counts and refuses memory, with a device that is made up.  The real builder for other GPUs asks for none.

use std::process::Command;

use tempfile::TempDir;

#[test]
fn memory_is_counted_and_refused_over_the_limit() {
    let folder = TempDir::new().unwrap();
    let program = folder.path().join("allocator");
    let root = env!("CARGO_MANIFEST_DIR");
    let compiled = Command::new("c++")
        .args(["-std=c++17", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(format!("{root}/tests/allocator.cpp"))
        .arg(format!("-I{root}/loader"))
        .args(["-ldl", "-pthread"])
        .output()
        .unwrap();
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(program).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let refusals: Vec<&str> = said.lines().filter(|line| line.contains("memory-refused")).collect();
    assert_eq!(refusals.len(), 67, "64 over the limit, of 1000, are told, then 3 of other kinds");
    assert!(refusals[0].contains("\"bytes\":60,\"held\":50,\"by\":\"limit\""), "{}", refusals[0]);
}
