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

#[test]
fn a_file_of_signatures_may_be_as_large_as_our_own() {
    assert!(BUILT_IN.len() as u64 <= FILE_BYTES_MAX);
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
            "tool-rejected onnx-import",
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

/// The signatures that a line hits, whatever their rank.
fn hits(line: &str) -> String {
    let signatures = Signatures::built_in();
    let ids = signatures.set.matches(line).into_iter().map(|at| signatures.all[at].id.as_str());
    ids.collect::<Vec<_>>().join(" ")
}

/// open-mmlab/mmdeploy#1063: the parser goes on to look among plugins.
#[test]
fn an_operator_that_a_plugin_may_have_is_no_failure() {
    let line =
        "[I] [TRT] No importer registered for op: TRTBatchedNMS. Attempting to import as plugin.";
    assert_eq!(hits(line), "");
    assert_eq!(hits("ERROR: No importer registered for op: TRTBatchedNMS"), "onnx-import");
}

/// Lines from users' reports, each named above the signature that it is of.
#[test]
fn what_users_report_is_understood() {
    let rows = [
        // ultralytics#16449
        (
            "Serialization assertion plan->header.magicTag == rt::kPLAN_MAGIC_TAG failed.",
            "tool-rejected engine-header",
        ),
        // triple-mu/YOLOv8-TensorRT#142
        (
            "[08/24/2023-13:26:11] [TRT] [E] 1: [stdArchiveReader.cpp::nvinfer1::rt::StdArchiveReader::StdArchiveReader::30] Error Code 1: Serialization (Serialization assertion magicTagRead == kMAGIC_TAG failed.Magic tag does not match)\n\
             [08/24/2023-13:26:11] [TRT] [E] 4: [runtime.cpp::nvinfer1::Runtime::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)",
            "tool-rejected engine-header",
        ),
        // NVIDIA/TensorRT#1384
        (
            "coreReadArchive.cpp (31) - Serialization Error in verifyHeader: 0 (Magic tag does not match)\n\
             INVALID_STATE: std::exception\nINVALID_CONFIG: Deserialize the cuda engine failed.",
            "tool-rejected engine-header",
        ),
        // NVIDIA/TensorRT#2105
        (
            "[06/29/2022-16:20:45] [TRT] [E] 1: [stdArchiveReader.cpp::StdArchiveReader::35] Error Code 1: Serialization (Serialization assertion safeVersionRead == safeSerializationVersion failed.Version tag does not match. Note: Current Version: 0, Serialized Engine Version: 43)\n\
             [06/29/2022-16:20:45] [TRT] [E] 4: [runtime.cpp::deserializeCudaEngine::50] Error Code 4: Internal Error (Engine deserialization failed.)",
            "tool-rejected engine-version",
        ),
        // yuvraj108c/ComfyUI-Dwpose-Tensorrt#5
        (
            "[E] IRuntime::deserializeCudaEngine: Error Code 1: Serialization (Serialization assertion stdVersionRead == kSERIALIZATION_VERSION failed.Version tag does not match. Note: Current Version: 237, Serialized Engine Version: 239)",
            "tool-rejected engine-version",
        ),
        // wayyeah/PointPillarTensorRT-ROS#7
        (
            "trt_infer: 6: The engine plan file is generated on an incompatible device, expecting compute 7.2 got compute 8.7, please rebuild.\n\
             trt_infer: 4: [runtime.cpp::deserializeCudaEngine::65] Error Code 4: Internal Error (Engine deserialization failed.)",
            "tool-rejected engine-device",
        ),
        // NVIDIA/TensorRT#4832
        (
            "Error Code 9: ... [type.cpp:186: infer_type] Could not infer output types for operation:",
            "tool-rejected type-inference",
        ),
        // TensorRT-LLM#54
        (
            "[10/21/2023-07:49:30] [TRT] [E] 9: Skipping tactic0x0000000000000000 due to exception PLUGIN_V2 operation not supported within this graph.\n\
             [10/21/2023-07:49:30] [TRT] [E] 10: Could not find any implementation for node {ForeignNode[GPTLMHeadModel/layers/0/attention/qkv/CONSTANT_1 + GPTLMHeadModel/layers/0/attention/qkv/SHUFFLE_0...GPTLMHeadModel/layers/0/attention/PLUGIN_V2_GPTAttention_0]}.\n\
             [10/21/2023-07:49:30] [TRT-LLM] [E] Engine building failed, please check the error log.",
            "tool-rejected no-implementation-of-type",
        ),
        // ELS-RD/transformer-deploy#43
        (
            "[01/14/2022-11:18:37] [TRT] [W] Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32 or Bool.\n\
             [01/14/2022-11:18:37] [TRT] [E] 4: [standardEngineBuilder.cpp::initCalibrationParams::1402] Error Code 4: Internal Error (Calibration failure occurred with no scaling factors detected. This could be due to no int8 calibrator or insufficient custom scales for network layers. Please see int8 sample to setup calibration correctly.)\n\
             [01/14/2022-11:18:37] [TRT] [E] 2: [builder.cpp::buildSerializedNetwork::609] Error Code 2: Internal Error (Assertion enginePtr != nullptr failed. )",
            "tool-rejected int8-no-scales",
        ),
        // NVIDIA/Model-Optimizer#70
        (
            "[09/11/2024-21:49:27] [E] Error[9]: IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Networks with FP8 Q/DQ layers require hardware with FP8 support.)\n\
             [09/11/2024-21:49:27] [E] Engine could not be created from network\n\
             [09/11/2024-21:49:27] [E] Building engine failed\n\
             [09/11/2024-21:49:27] [E] Failed to create engine from model or file.\n\
             [09/11/2024-21:49:27] [E] Engine set up failed",
            "tool-rejected precision-hardware",
        ),
        // TensorRT-LLM#1428
        (
            "[04/09/2024-16:26:41] [TRT] [E] 9: [standardEngineBuilder.cpp::buildEngine::2266] Error Code 9: Internal Error (Networks with FP8 precision require hardware with FP8 support.)\n\
             [04/09/2024-16:26:41] [TRT-LLM] [E] Engine building failed, please check the error log.",
            "tool-rejected precision-hardware",
        ),
        // NVIDIA/TensorRT#3157
        (
            "[standardEngineBuilder.cpp::buildEngine::2072] Error Code 9: Internal Error (Networks with QuantizeLayer/DequantizeLayer layers require hardware with Int8 support.)",
            "tool-rejected precision-hardware",
        ),
        // TensorRT-Edge-LLM#89
        (
            "[07:48:03.546] [ERROR] [TensorRT] IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (INT8 and FP8 mixed precision is allowed only when building network with kSTRONGLY_TYPED mode on Blackwell+ platforms.)\n\
             [07:48:03.546] [ERROR] [builderUtils.cpp:313:buildAndSerializeEngine] Failed to build serialized engine\n\
             [07:48:04.430] [ERROR] [llm_build.cpp:242:main] Failed to build LLM engine.",
            "tool-rejected precision-mixed",
        ),
        (
            "[07:48:03.546] [ERROR] [builderUtils.cpp:313:buildAndSerializeEngine] Failed to build serialized engine",
            "tool-rejected builder-generic",
        ),
        // TensorRT-LLM#582
        (
            "[12/06/2023-05:15:03] [TRT] [E] 9: [pluginV2Builder.cpp::reportPluginError::24] Error Code 9: Internal Error (LLaMAForCausalLM/layers/0/attention/PLUGIN_V2_GPTAttention_0: could not find any supported formats consistent with input/output data types)\n\
             [12/06/2023-05:15:03] [TRT-LLM] [E] Engine building failed, please check the error log.\n\
             AssertionError: Failed to build engine for rank 0",
            "tool-rejected plugin-types",
        ),
        // NVIDIA/TensorRT#149
        (
            "[E] [TRT] Cuda initialization failure with error 100. Please check cuda installation: http://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html.",
            "tool-rejected cuda-init",
        ),
        (
            "[E] [TRT] Cuda initialization failure with error 2. Please check cuda installation:  http://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html.",
            "device-memory cuda-init-memory",
        ),
        // wang-xinyu/tensorrtx#901
        (
            "pycuda._driver.LogicError: cuInit failed: forward compatibility was attempted on non supported HW",
            "tool-rejected cuda-init",
        ),
        // NVIDIA/TensorRT#2879
        (
            "[04/15/2023-04:37:46] [W] [TRT] CUDA initialization failure with error: 35. Please check your CUDA installation:  http://docs.nvidia.com/cuda/cuda-installation-guide-linux/index.html",
            "tool-rejected cuda-driver",
        ),
        // NVIDIA/TensorRT#2793
        ("CUDA initialization failure with error: 222.", "tool-rejected cuda-driver"),
        // NVIDIA-AI-IOT/torch2trt#711
        (
            "Error Code 1: Cuda Runtime (CUDA driver version is insufficient for CUDA runtime version)",
            "tool-rejected cuda-driver",
        ),
        // NVIDIA/TensorRT#3826
        (
            "[04/25/2024-15:52:54] [TRT] [E] 1: [caskUtils.cpp::nvinfer1::rt::task::trtSmToCask::193] Error Code 1: Internal Error (Unsupported SM: 0x601)",
            "tool-rejected gpu-unsupported",
        ),
        // NVIDIA/TensorRT#2332
        (
            "ERROR: ../rtSafe/cuda/caskUtils.cpp (80) - Assertion Error in trtSmToCask: 0 (Unsupported SM.)",
            "tool-rejected gpu-unsupported",
        ),
        // NVIDIA/TensorRT#1035
        (
            "[01/29/2021-10:26:48] [F] [TRT] Assertion failed: (smVersion < SM_VERSION_A100) && \"SM version not supported in this NVRTC version\"",
            "tool-rejected gpu-unsupported",
        ),
        // DDTRobot/tita_rl_sim2sim2real#7
        (
            "[07/19/2025-23:34:55] [E] Error[9]: IBuilder::buildSerializedNetwork: Error Code 9: API Usage Error (Target GPU SM 120 is not supported by this TensorRT release.)\n\
             [07/19/2025-23:34:55] [E] Engine could not be created from network",
            "tool-rejected gpu-unsupported",
        ),
        // NVIDIA/TensorRT-RTX#33
        (
            "MyelinCheckException: hfc.cpp:120: CHECK(false) failed. target_sm '110' does not have arch kind assigned.",
            "tool-rejected rtx-target",
        ),
        // NVIDIA/TensorRT-RTX#20
        (
            "Internal Error: MyelinCheckException: cudnn_graph_utils.h:379: CHECK(false) failed. cuDNN graph compilation failed.",
            "tool-rejected myelin-check",
        ),
        // NVIDIA/TensorRT#3061
        (
            "Unable to open library: libnvinfer_plugin.so.8 due to libcublas.so.11: cannot open shared object file: No such file or directory",
            "tool-rejected library-missing",
        ),
        // NVIDIA/TensorRT#3402
        (
            "[10/25/2023-11:34:04] [E] Uncaught exception detected: Unable to open library: libnvinfer_plugin.so.8 due to /home/cwang/work/depend/TensorRT-8.6.0.12/targets/x86_64-linux-gnu/lib/libnvinfer_plugin.so.8: file too short",
            "tool-rejected library-missing",
        ),
        // yeyupiaoling/Whisper-Finetune#16
        (
            "Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot open shared object file: No such file or directory\n\
             Please make sure libcudnn_ops_infer.so.8 is in your library path!\nAborted",
            "tool-rejected library-missing",
        ),
        // Isaac-GR00T#380
        (
            "[09/23/2025-16:41:15] [E] Error[4]: IBuilder::buildSerializedNetworkToStream: Error Code 4: API Usage Error (Dimension mismatch for tensor vit_embeds and profile 0. At dimension axis 1, profile has min=256, opt=512, max=512 but tensor has 256. In validate at optimizer/api/network.cpp:3788)",
            "tool-rejected profile-sizes",
        ),
        // TensorRT-LLM#1109
        (
            "RuntimeError: Provided tensor names are different from those expected by the engine.",
            "tool-rejected tensor-names",
        ),
        // TensorRT-LLM#4253
        (
            "[TensorRT-LLM][WARNING] Have not found any valid GEMM config for shape (m=1, n=768, k=2048). Will try to use default or fail at runtime",
            "",
        ),
        (
            "  what():  [TensorRT-LLM][ERROR] Assertion failed: MOE GEMM1 Config is not set (/builds/ftp/internalcutlasskernels/cpp/tensorrt_llm/kernels/internal_cutlass_kernels/src/moe_gemm/moe_kernels.cu:2684)",
            "tool-rejected gemm-missing",
        ),
        // TensorRT-LLM#1792
        (
            "  what():  [TensorRT-LLM][ERROR] Assertion failed: No valid weight only groupwise GEMM tactic(It is usually caused by the failure to execute all candidate configurations of the CUTLASS kernel, please pay attention to the warning information when building the engine.)",
            "tool-rejected gemm-missing",
        ),
        // TensorRT-Edge-LLM#210
        (
            "[E] Error Code: 2: int4_groupwise_gemm_v2_4: Failed to enqueue status -1\n\
             [E] [inline single-rank] handleRequest failed: Failed to execute base model for prefill step.",
            "tool-rejected edgellm-int4",
        ),
    ];
    for (log, expect) in rows {
        assert_eq!(found(log), expect, "{log}");
    }
    // NVIDIA/TensorRT#1326, whose graph builds where its inputs are not of INT8.
    let line = "[TensorRT] WARNING: Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32.";
    assert_eq!((found(line), hits(line)), (String::new(), "int8-no-calibrator".to_owned()));
}

#[test]
fn what_a_dla_refuses_is_told_from_what_it_leaves_to_the_gpu() {
    let warnings = [
        // ultralytics#23488
        (
            "[01/29/2026-15:42:39] [TRT] [W] Layer '/model.23/Slice_1' (SLICE): Unsupported on DLA. Switching this layer's device type to GPU.",
            "dla-fallback",
        ),
        // ultralytics#18012
        (
            "[12/04/2024-11:57:45] [TRT] [W] Validation failed for DLA layer: /model.10/m/m.0/attn/Reshape. Switching to GPU fallback.",
            "dla-fallback",
        ),
        // marcoslucianops/DeepStream-Yolo#27
        (
            "WARNING: [TRT]: Default DLA is enabled but layer leaky_1 is not supported on DLA, falling back to GPU.",
            "dla-fallback",
        ),
        (
            "WARNING: [TRT]: DLA supports only 8 subgraphs per DLA core. Switching to GPU for layer conv_6",
            "dla-subgraphs",
        ),
        // NVIDIA/TensorRT#2318
        (
            "[W] [TRT] setDefaultDeviceType was called but no layer in the network can run on DLA.",
            "dla-fallback",
        ),
        (
            "[W] [TRT] DLA LAYER: Batch size (combined volume except for CHW dimensions) 128 for layer EltWise multiplication in likelihood calculation exceeds max batch size allowed of 32.",
            "dla-batch",
        ),
        // onnx/tensorflow-onnx#1632
        (
            "[W] [TRT] DLA Layer shuffle_netv2/shufflenet_stage_2/shufflenet_unit1_11/activation_32/Relu does not support dynamic shapes in any dimension.",
            "dla-shapes",
        ),
        // open-mmlab/mmdeploy#1063
        (
            "[09/17/2022-14:19:24] [TRT] [W] DLA requests all profiles have same min, max, and opt value. All dla layers are falling back to GPU",
            "dla-shapes",
        ),
    ];
    for (line, id) in warnings {
        assert_eq!((found(line).as_str(), hits(line).as_str()), ("", id), "{line}");
    }
    let causes = [
        (
            "[E] Error[1]: Unexpected exception KTM assertion failure:\n    /_src/externals/ktm/src/caskTimingModels/convolutionTimingModel.cpp:65  shader != nullptr\n\
             [I] Created engine with size: 0 MiB\n[E] Assertion failure: false && \"Attempting to access an empty engine!\"",
            "kernel-timing-model",
        ),
        (
            "[E] Error[3]: IDequantizeLayer::setPrecision: A DequantizeLayer can only run in\n    kINT8/kFP8/kFP4/kINT4 precision\n[E] Failed to parse onnx file",
            "scales-of-bias",
        ),
        (
            "[E] Static model does not take explicit shapes since the shape of inference tensors will be determined by the model itself\n\
             [E] Network And Config setup failed\n[E] Building engine failed",
            "shapes-of-fixed",
        ),
        (
            "[E] Cannot find input tensor with name \"image\" in the network inputs! Please make sure the input tensor names are correct.",
            "shapes-of-nothing",
        ),
        ("[11/27/2026-10:00:00] [E] Unknown option: --workspace 512", "option-unknown"),
        // NVIDIA-ISAAC-ROS/isaac_ros_depth_segmentation#12
        ("Cannot create DLA engine, 0 not available", "dla-absent"),
        // NVIDIA-AI-IOT/trt_pose_hand#19
        (
            "[TRT] [E] 3: [builderConfig.cpp::canRunOnDLA::382] Error Code 3: API Usage Error (Parameter check failed at: optimizer/api/builderConfig.cpp::canRunOnDLA::382, condition: dlaEngineCount > 0",
            "dla-absent",
        ),
        // NVIDIA/TensorRT#2426
        (
            "ERROR: [Torch-TensorRT TorchScript Conversion Context] - 1: [nvdlaUtils.cpp::submit::198] Error Code 1: DLA (Failure to submit program to DLA engine.)\n\
             ERROR: [Torch-TensorRT TorchScript Conversion Context] - 2: [builder.cpp::buildSerializedNetwork::620] Error Code 2: Internal Error (Assertion engine != nullptr failed. )",
            "dla-program",
        ),
        // NVIDIA/TensorRT#2252
        (
            "NVMEDIA_DLA :  528, ERROR: load from memory failed.\n\
             [E] [TRT] dla/dlaUtils.cpp (171) - DLA Error in deserialize: 7 (Failure to load program.)",
            "dla-program",
        ),
        // NVIDIA/TensorRT#828
        (
            "[09/29/2020-17:08:38] [E] [TRT] ../builder/cudnnBuilder2.cpp (1757) - Assertion Error in operator(): 0 (et.region->getType() == RegionType::kNVM)\n\
             [09/29/2020-17:08:38] [E] Engine creation failed\n[09/29/2020-17:08:38] [E] Engine set up failed",
            "dla-assertion",
        ),
        // NVIDIA/TensorRT#2307
        (
            "[01/01/1970-02:48:31] [E] Error[2]: [nvmediaTensorCache.cpp::registerTensor::80] Error Code 2: Internal Error (Assertion nbTensors <= capacity() failed. Found a case where the cache is too small.)\n\
             [01/01/1970-02:48:31] [E] Engine could not be created from network",
            "dla-assertion",
        ),
        // NVIDIA/TensorRT#4165
        (
            "09/27/2024-17:35:27] [E] Error[2]: [foreignNode.cpp::determineCandidateForeignNodes::895] Error Code 2: Internal Error (Safety certified DLA should only have one graph for the whole network.)\n\
             [09/27/2024-17:35:27] [E] Engine could not be created from network\n\
             [09/27/2024-17:35:27] [E] Building engine failed",
            "dla-standalone",
        ),
        // NVIDIA-AI-IOT/cuDLA-samples#34
        (
            "[04/22/2024-19:51:27] [E] Error[2]: [nvmRegionOptimizer.cpp::forceToUseNvmIO::175] Error Code 2: Internal Error (Assertion std::all_of(a->consumers.begin(), a->consumers.end(), [](Node* n) { return isDLA(n->backend); }) failed. )",
            "dla-standalone",
        ),
    ];
    for (log, id) in causes {
        assert_eq!(found(log), format!("tool-rejected {id}"), "{log}");
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
    assert_eq!(found(log), "tool-rejected onnx-import", "it got over the refusal");
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
    assert_eq!(find("Failed to parse onnx file"), None, "replaced as a whole");
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
