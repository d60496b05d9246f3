//! Loads libraries that are not what they should be.  They are stand-ins: each does one thing wrong that a vendor's
//! library may, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use smelt_tensorrt::{Libraries, Loader, Session, SessionError};

use crate::world::loader;

/// What both libraries give out, for one to take away from or change.
const ENTRY_POINTS: &str = r#"
    #include <unistd.h>
    #include <cstdlib>
    extern "C" int getInferLibVersion() { return VERSION; }
    extern "C" int getNvOnnxParserVersion() { return 200; }
    extern "C" void* createNvOnnxParser_INTERNAL(void*, void*, int) { return nullptr; }
"#;

fn library(folder: &Path, version: u32, builder: &str) -> Libraries {
    let (source, made) = (folder.join("library.cpp"), folder.join("library.so"));
    fs::write(&source, format!("{ENTRY_POINTS}{builder}")).unwrap();
    let status = Command::new("c++")
        .args(["-shared", "-fPIC", "-o"])
        .args([&made, &source])
        .arg(format!("-DVERSION={version}"))
        .status();
    assert!(status.unwrap().success());
    Libraries { core: made.clone(), parser: made }
}

fn opened(version: u32, builder: &str) -> (Result<Session, SessionError>, tempfile::TempDir) {
    let (scratch, loader) = loader();
    let libraries = library(scratch.path(), version, builder);
    (Session::open(&loader, &libraries), scratch)
}

const BUILDER: &str = "extern \"C\" void* createInferBuilder_INTERNAL";

#[test]
fn a_version_whose_interface_is_not_known_is_refused_before_anything_is_called() {
    let crashes = format!("{BUILDER}(void*, int) {{ abort(); }}");
    // The row ends with the last version whose headers were read; TensorRT for RTX 1.4 has other places.
    for version in [10_400, 10_800, 20_000, 100_300, 120_000] {
        let (refused, _scratch) = opened(version, &crashes);
        let Err(SessionError::Library { why, .. }) = refused else { panic!("{refused:?}") };
        assert!(why.contains("none whose interface is known"), "{why}");
    }
}

#[test]
fn a_library_that_is_another_is_refused() {
    let (refused, _scratch) = opened(10_701, "");
    let Err(SessionError::Library { why, .. }) = refused else { panic!("{refused:?}") };
    assert!(why.contains("entry points"), "{why}");
    let (_scratch, loader) = loader();
    let nowhere = PathBuf::from("/nowhere/libtensorrt_rtx.so.1");
    let libraries = Libraries { core: nowhere.clone(), parser: nowhere };
    let refused = Session::open(&loader, &libraries).unwrap_err().to_string();
    assert!(refused.starts_with("/nowhere/libtensorrt_rtx.so.1 cannot be used"), "{refused}");
}

/// What it does when it is asked for a builder, and what is said of that.
#[test]
fn libraries_that_end_make_noise_or_give_nothing_are_told_apart() {
    let check = |body: &str, words: &[&str]| {
        let (opened, _scratch) = opened(10_701, &format!("{BUILDER}(void*, int) {{ {body} }}"));
        // A builder is made as soon as the library is loaded; what it does there shows at the first request.
        let mut session = opened.unwrap();
        let ended = session.check(Path::new("/nowhere.onnx")).unwrap_err();
        let said = ended.to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    };
    check("abort();", &["SIGABRT"]);
    check("*(volatile int*)8 = 1; return nullptr;", &["SIGSEGV"]);
    check("write(2, \"no card\\n\", 8); _exit(7);", &["exit status: 7", "no card"]);
    check("return nullptr;", &["no builder"]);
    // Megabytes to the output that events go to do not come between them.
    let noise = "for (int i = 0; i < 100000; ++i) if (write(1, \"0123456789abcdefghijklmnop\", 26) < 0) break; abort();";
    check(noise, &["SIGABRT", "klmnop"]);
}

#[test]
fn without_a_compiler_there_is_a_line_that_says_the_cure() {
    let folder = tempfile::tempdir().unwrap();
    let none = Loader::compile(folder.path(), folder.path().as_os_str()).unwrap_err().to_string();
    assert!(none.contains("apt install g++"), "{none}");
    let compiler = folder.path().join("c++");
    fs::write(&compiler, "#!/bin/sh\necho 'no such standard' >&2\nexit 1\n").unwrap();
    let executable = Command::new("chmod").arg("+x").arg(&compiler).status();
    assert!(executable.unwrap().success());
    let refused =
        Loader::compile(folder.path(), folder.path().as_os_str()).unwrap_err().to_string();
    assert!(
        refused.contains("does not compile") && refused.contains("no such standard"),
        "{refused}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "what was compiled is left");
}
