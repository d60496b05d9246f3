use super::*;

use FailureClass::*;

/// What the built-in signatures find in a log, as `class id size`.
fn found(log: &str) -> String {
    let finding = Signatures::built_in().find(log.lines());
    finding.map_or_else(String::new, |finding| {
        let size = finding.size_bytes.map_or(String::new(), |bytes| format!(" {bytes}"));
        format!("{} {}{size}", finding.class.name(), finding.id)
    })
}

/// Lines as the tools print them, one row for each signature of a known failure.
#[test]
fn what_tools_say_is_understood() {
    let rows = [
        (
            "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0",
            "device-memory nvmap-enomem",
        ),
        (
            "[ERROR] CUDA error 2 for 622329856-byte allocation",
            "device-memory cuda-allocation 622329856",
        ),
        (
            "NvMapMemAllocInternalTagged: 1075072515 error 12\nNvMapMemHandleAlloc: error 0\n\
             [ERROR] CUDA error 2 for 622329856-byte allocation\n\
             [ERROR] Could not find any implementation for node {ForeignNode[/Unsqueeze_1.../lm_head/MatMul]}.\n\
             [ERROR] Engine could not be created from network",
            "no-tactic no-implementation 622329856",
        ),
        (
            "[W] [TRT] Tactic Device request: 4229MB Available: 2658MB. Device memory is insufficient to use tactic.\n\
             [E] Error[10]: Could not find any implementation for node {ForeignNode[a...b]}.",
            "no-tactic no-implementation 4434427904",
        ),
        (
            "[W] [TRT] Tactic Device request: 4229MB Available: 2658MB. Device memory is insufficient to use tactic.",
            "",
        ),
        (
            "Skipping tactic 3 due to insuficient memory on requested size of 4230 detected for tactic 4.",
            "",
        ),
        (
            "[W] Skipping tactic 5 due to insufficient memory on requested size of 4230 detected for tactic 4.",
            "",
        ),
        ("[TRT] Skipping tactic 0 due to kernel UNSUPPORTED_STATE", ""),
        (
            "[E] 10: Could not find any implementation for node {ForeignNode[x]}.",
            "no-tactic no-implementation",
        ),
        (
            "[E] no tactics to implement operation: conv of int64\n[E] Could not find any implementation for node c.",
            "tool-rejected no-implementation-of-type",
        ),
        (
            "Skipping tactic 0x0000000000000000 due to Myelin error: autotuning: CUDA error 3 allocating 268435456-byte buffer",
            "device-memory myelin-allocation",
        ),
        (
            "[E] [virtualMemoryBuffer.cpp::resizePhysical::145] Error Code 2: OutOfMemory (no further information)",
            "device-memory trt-out-of-memory",
        ),
        ("[virtualMemoryBuffer.cpp::resizePhysical::145] it", "device-memory trt-physical"),
        (
            "Requested amount of GPU memory (17179869184 bytes) could not be allocated.",
            "device-memory trt-requested 17179869184",
        ),
        ("&&&& FAILED_ALLOCATION: std::bad_alloc", "memory-limit host-allocation"),
        (
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "memory-limit host-allocation",
        ),
        ("LLVM ERROR: out of memory", "memory-limit host-allocation"),
        (
            "sh: line 1: 4711 Killed                  trtexec --onnx=m.onnx",
            "killed-externally shell-killed",
        ),
        ("Killed", "killed-externally shell-killed"),
        (
            "[ 12.3] cma: cma_alloc: reserved: alloc failed, req-size: 2048 pages, ret: -12",
            "cma-exhausted cma-alloc 8388608",
        ),
        (
            "[ 12.3] cma: __cma_alloc: linux,cma: alloc failed, req-size: 1 pages, ret: -12",
            "cma-exhausted cma-alloc 4096",
        ),
        ("cma: Failed to reserve 2000 MiB", ""),
        (
            "RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at \"/pytorch/c10/cuda/CUDACachingAllocator.cpp\":1016",
            "device-memory torch-masked",
        ),
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 594.00 MiB.",
            "device-memory torch-cuda",
        ),
        (
            "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1024.00 MiB on device 0: cudaMalloc failed: out of memory",
            "device-memory llama-cuda-malloc",
        ),
        ("error: unable to allocate CUDA0 buffer", "device-memory llama-cuda-malloc"),
        (
            "CUDA error: out of memory\n  current device: 0, in function alloc: cuMemAddressReserve(&addr, 0)",
            "tool-rejected vmm-reserve",
        ),
        (
            "[E] [TRT] ModelImporter.cpp:949: ERROR: No importer registered for op: Gemma",
            "tool-rejected onnx-parse",
        ),
        ("[E] Failed to parse onnx file", "tool-rejected onnx-parse"),
        ("[E] Parsing model failed", "tool-rejected onnx-parse"),
        ("Failed to parse ONNX file: m.onnx", "tool-rejected onnx-parse"),
        (
            "Cannot open plugin library: libNvInfer_edgellm_plugin.so",
            "tool-rejected plugin-missing",
        ),
        ("ONNX model version 0.5 is no longer supported", "tool-rejected version-skew"),
        ("Model version 0.7 does not match runtime version 0.8", "tool-rejected version-skew"),
        ("config.json not found in onnx directory", "tool-rejected missing-side-file"),
        ("Failed to copy tokenizer file", "tool-rejected missing-side-file"),
        ("Failed to copy embedding.safetensors", "tool-rejected missing-side-file"),
        ("maxImageTokens must be divisible by 256 for InternVL", "tool-rejected bad-shapes"),
        ("maxImageTokensPerImage must be greater than min", "tool-rejected bad-shapes"),
        ("Error: Condition min <= opt <= max violated", "tool-rejected bad-shapes"),
        ("setOptimizationProfile: 1 is not valid", "tool-rejected bad-shapes"),
        ("Build mode does not match config", "tool-rejected bad-role"),
        ("Invalid engine_role", "tool-rejected bad-role"),
        ("Unsupported model type: minicpm", "tool-rejected bad-model-type"),
        (
            "[E] Engine could not be created from network\n[E] Building engine failed",
            "tool-rejected trt-generic",
        ),
        (
            "[E] Failed to create engine from model or file.\n[E] Engine set up failed",
            "tool-rejected trt-generic",
        ),
        ("[E] Saving engine to file failed.\n[E] Engine set up failed", "disk-full disk-full"),
        ("Failed to write engine to file: e.plan", "disk-full disk-full"),
        ("cp: error writing 'o': No space left on device", "disk-full disk-full"),
        ("cp: error reading 'i': Input/output error", "disk-error disk-error"),
        ("read /x: input/output error", "disk-error disk-error"),
        ("[W] Using an engine plan file across different models of devices is not recommended", ""),
        (
            "[E] 1: [stdArchiveReader.cpp::StdArchiveReader::32] Error Code 1: Serialization (Serialization assertion stdVersionRead == serializationVersion failed.)",
            "tool-rejected engine-version",
        ),
        (
            "The engine plan file is not compatible with this version of TensorRT",
            "tool-rejected engine-version",
        ),
        ("No safetensors files found in m", "tool-rejected input-format"),
        ("[W] Was not able to infer a kOPT value for tensor x", ""),
    ];
    for (log, expect) in rows {
        assert_eq!(found(log), expect, "{log}");
    }
}

#[test]
fn the_number_of_an_ioctl_is_never_a_size() {
    for line in [
        "NvMapMemAllocInternalTagged: 1075072515 error 12",
        "NvMapMemAllocInternalTagged: 1075072515 error 12 for 1 byte",
    ] {
        let finding = Signatures::built_in().find([line].into_iter()).unwrap();
        assert_eq!((finding.class, finding.size_bytes), (DeviceMemory, None));
    }
}

#[test]
fn the_last_cause_decides() {
    let log =
        "NvMapMemAllocInternalTagged: 1075072515 error 12\n[E] No importer registered for op: X";
    assert_eq!(found(log), "tool-rejected onnx-parse", "it got over the refusal");
    let log = "CUDA error 2 for 5-byte allocation\nBuilding engine failed";
    assert_eq!(found(log), "device-memory cuda-allocation 5", "a trace is no cause");
    assert_eq!(found("all is well"), "");
}

#[test]
fn users_add_and_replace() {
    let text = "[[signature]]\nid = \"mine\"\npattern = 'arena of (\\d+)k is full'\nclass = \"device-memory\"\n\
                size = 1\nunit = 1024\nmeans = \"m\"\nremedy = \"r\"\n\
                [[signature]]\nid = \"onnx-parse\"\npattern = 'Parsing model failed'\nclass = \"no-tactic\"\n\
                means = \"m\"\nremedy = \"r\"\n";
    let signatures = Signatures::with("s.toml", text).unwrap();
    let find = |line: &str| signatures.find([line].into_iter());
    let mine = find("arena of 12k is full").unwrap();
    assert_eq!((mine.class, mine.size_bytes), (DeviceMemory, Some(12 << 10)));
    assert_eq!(find("Parsing model failed").unwrap().class, NoTactic);
    assert_eq!(find("Invalid engine_role").unwrap().class, ToolRejected, "others stay");
    assert_eq!(find("No importer registered for op: X"), None, "replaced as a whole");
}

#[test]
fn what_is_no_file_of_signatures_is_refused_in_a_line() {
    let entry = |more: &str| {
        format!(
            "[[signature]]\nid = \"x\"\nclass = \"thrash\"\nmeans = \"m\"\nremedy = \"r\"\n{more}\n"
        )
    };
    let check = |text: &str, words: &str| {
        let error = Signatures::with("s.toml", text).err().unwrap().to_string();
        assert!(error.starts_with("s.toml: ") && error.contains(words), "{error}");
        assert!(!error.contains('\n'), "{error}");
    };
    check("[[signature]]\nid = 3", "line 2");
    check(&entry("pattern = '('"), "unclosed group");
    check(&entry("pattern = 'a*'"), "matches an empty line");
    check(&entry("pattern = 'a'\nsize = 1"), "no group");
    check(&entry("pattern = 'a'\nafter = [\"nobody\"]"), "no signature \"nobody\"");
    check(&entry("pattern = 'a'\ncolour = 1"), "colour");
    check(&entry("pattern = 'a'\nclass = \"x\""), "");
    check(&[entry("pattern = 'a'"), entry("pattern = 'b'")].concat(), "two signatures");
    check(&entry("pattern = 'a{1000}{1000}'"), "exceeds size limit");
}

#[test]
fn what_stands_beyond_reason_in_a_line_is_not_read() {
    let long = format!("{}Parsing model failed", "x".repeat(5000));
    assert_eq!(found(&long), "");
    let huge = "CUDA error 2 for 99999999999999999999999-byte allocation";
    assert_eq!(found(huge), "device-memory cuda-allocation", "no such size");
}

#[test]
fn there_are_a_thousand_signatures_at_most() {
    let many = |count: usize| {
        let entry = |at| {
            format!(
                "[[signature]]\nid = \"{at}\"\npattern = 'a'\nclass = \"thrash\"\nmeans = \"m\"\nremedy = \"r\"\n"
            )
        };
        let text: String = (0..count).map(entry).collect();
        parse("s.toml", &text).map(|all| all.len()).map_err(|error| error.message)
    };
    assert_eq!(many(SIGNATURES_MAX), Ok(SIGNATURES_MAX));
    assert_eq!(many(SIGNATURES_MAX + 1), Err("more than 1000 signatures".to_owned()));
}
