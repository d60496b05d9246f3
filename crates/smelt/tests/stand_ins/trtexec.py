#!/usr/bin/python3
"""Stands in for trtexec of TensorRT 10.3, where there is no GPU: a specification that can be run.

It takes what the real one takes and refuses what that refuses, in its words and with its exit codes.  Each rule names where it
is read: a file of github.com/NVIDIA/TensorRT at v10.3.0 below samples/, or a thread.  It proves that smelt asks rightly and
reads answers rightly; it proves nothing of a plan, which is a header and noise.

Beside it may lie a file `mode` with words: what goes wrong, and what the machine is (`gpu=8.6`, `dla=2`, `version=110000`).
"""

import os
import signal
import struct
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
try:
    MODE = dict((word.partition("=")[::2]) for word in open(os.path.join(HERE, "mode")).read().split())
except FileNotFoundError:
    MODE = {}
VERSION = MODE.get("version", "100300")
COMMAND = " ".join(sys.argv)

# common/sampleOptions.cpp, the options that building takes; `False` are those that take no value.
OPTIONS = {
    "--onnx": True, "--saveEngine": True, "--loadEngine": True, "--timingCacheFile": True, "--memPoolSize": True,
    "--builderOptimizationLevel": True, "--maxAuxStreams": True, "--tacticSources": True, "--inputIOFormats": True,
    "--outputIOFormats": True, "--minShapes": True, "--optShapes": True, "--maxShapes": True, "--useDLACore": True,
    "--avgTiming": True, "--calib": True, "--plugins": True, "--staticPlugins": True, "--skipInference": False,
    "--fp16": False, "--bf16": False, "--int8": False, "--fp8": False, "--best": False, "--stronglyTyped": False,
    "--allowGPUFallback": False, "--verbose": False, "--noTF32": False,
}
# The same file of v11.0, which has them no more.
GONE = {"110000": {"--fp16", "--bf16", "--int8", "--fp8", "--best", "--calib"}}
# The same file, stringToValue<DataType> and <TensorFormats>.
DATA_TYPES = {"fp32", "fp16", "bf16", "int8", "fp8", "int32", "int64", "bool", "uint8", "int4"}
FORMATS = {"chw", "chw2", "chw4", "hwc8", "chw16", "chw32", "dhwc8", "cdhw32", "hwc", "dhwc", "dla_linear", "dla_hwc4"}
# The same file, BuildOptions::parse.
POOLS = {"workspace", "dlaSRAM", "dlaLocalDRAM", "dlaGlobalDRAM", "tacticSharedMem"}
SOURCES = {"CUBLAS", "CUBLASLT", "CUBLAS_LT", "CUDNN", "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS"}
UNITS = {"B": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def log(severity, text):
    print(f"[11/27/2026-10:00:00] [{severity}] {text}", flush=True)


def mark(word):
    # common/logging.h, reportTestResult.
    print(f"&&&& {word} TensorRT.trtexec [TensorRT v{VERSION}] # {COMMAND}", flush=True)


def fail(*errors):
    for error in errors:
        log("E", error)
    mark("FAILED")
    sys.exit(1)


class Invalid(Exception):
    pass


def split(text, separator):
    # common/sampleUtils.cpp, splitToStringVec: quotes do not hide a separator.
    return text.split(separator) if text else []


def name_and_value(text):
    # splitNameAndValue.
    quoted = text.split("'")
    if len(quoted) == 3:
        return quoted[0] + quoted[1], quoted[2][1:]
    if len(quoted) != 1:
        raise Invalid(f"Found invalid number of 's when parsing {text}. Expected: 2, received: {len(quoted) - 1}.")
    name, _, value = text.rpartition(":")
    return name, value


def shapes(text):
    found = {}
    for part in split(text, ","):
        name, dims = name_and_value(part)
        try:
            found[name] = [int(size) for size in split(dims, "x")]
        except ValueError:
            raise Invalid("stoi conversion failure: failed to parse minShapes/optShapes/maxShapes. "
                          "Please double check your input string.")
    return found


def check_formats(text):
    for part in split(text, ","):
        if ":" not in part:
            raise Invalid(f"Invalid IOFormat {part}")
        kind, form = part.split(":", 1)
        if kind not in DATA_TYPES:
            raise Invalid(f"Invalid DataType {kind}")
        for one in form.split("+"):
            if one not in FORMATS:
                raise Invalid(f"Invalid TensorFormat {one}")


def check_pools(text):
    for part in split(text, ","):
        pool, size = name_and_value(part)
        unit = size[-1:].upper()
        number = size[:-1] if not unit.isdigit() else size
        if not unit.isdigit() and unit not in UNITS:
            raise Invalid(f"Error parsing \"{size}\": invalid unit specifier '{unit}'. "
                          "conversion failure: failed to parse --memPoolSize. Please double check your input string.")
        try:
            if float(number) < 0:
                raise Invalid(f"Negative memory pool size: {size}")
        except ValueError:
            # std::stod takes the digits in front and lets the rest be; this is stricter.
            raise Invalid("stod conversion failure: failed to parse --memPoolSize. Please double check your input string.")
        if pool not in POOLS:
            raise Invalid(f"Unknown memory pool: {pool}")


def check_sources(text):
    on, off = set(), set()
    for part in split(text, ","):
        if part[:1] not in "+-":
            raise Invalid("Tactic source must be prefixed with + or -, indicating whether it should be enabled or disabled "
                          "respectively.")
        name = part[1:].upper()
        if name not in SOURCES:
            raise Invalid(f"Unknown tactic source: {name}")
        (on if part[0] == "+" else off).add(name)
        if on & off:
            raise Invalid(f"Cannot enable and disable {name}")


def parse(arguments):
    known = {name: value for name, value in OPTIONS.items() if name not in GONE.get(VERSION, set())}
    given, unknown = {}, []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name not in known:
            unknown.append(f"Unknown option: {name} {value}")
        elif name in given:
            # BuildOptions::parse: "Multiple --minShapes/…"; of all others the second is left and so unknown.
            unknown.append(f"Unknown option: {name} {value}")
        else:
            given[name] = value
    for name, check in [("--inputIOFormats", check_formats), ("--outputIOFormats", check_formats),
                        ("--memPoolSize", check_pools), ("--tacticSources", check_sources)]:
        check(given.get(name, ""))
    for flag in ("--minShapes", "--optShapes", "--maxShapes"):
        shapes(given.get(flag, ""))
    if "--int8" in given and "--fp8" in given:
        raise Invalid("Invalid usage, fp8 and int8 aren't allowed to be enabled together.")
    if "--loadEngine" in given and "--saveEngine" in given:
        raise Invalid("Incompatible load and save engine options selected")
    if "--onnx" not in given and "--loadEngine" not in given:
        raise Invalid("Model missing or format not recognized")
    if unknown:
        raise Invalid("\n".join(unknown))
    return given


# onnx.proto3: as much as names, types and sizes of inputs and the operators take.
def fields(data):
    at = 0

    def varint():
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint()
        elif kind == 2:
            length = varint()
            if at + length > len(data):
                raise ValueError("cut")
            yield tag >> 3, data[at:at + length]
            at += length
        else:
            size = {1: 8, 5: 4}[kind]
            yield tag >> 3, data[at:at + size]
            at += size


def of(data, number):
    return [value for field, value in fields(data) if field == number]


def read_model(path):
    data = memoryview(open(path, "rb").read())
    graph = of(data, 7)[0]
    inits = {bytes(of(tensor, 8)[0]).decode() for tensor in of(graph, 5) if of(tensor, 8)}
    inputs = {}
    for value in of(graph, 11):
        name = bytes(of(value, 1)[0]).decode()
        tensor = of(of(value, 2)[0], 1)[0]
        dims = []
        for dim in of(of(tensor, 2)[0], 1) if of(tensor, 2) else []:
            size = of(dim, 1)
            dims.append(size[0] if size else -1)
        if name not in inits:
            inputs[name] = dims
    operators = [bytes(of(node, 4)[0]).decode() for node in of(graph, 1)]
    values = list(inputs) + [bytes(name).decode() for node in of(graph, 1) for name in of(node, 2)]
    return inputs, operators, values


def profile(given, inputs):
    """common/sampleEngines.cpp, setupNetworkAndConfig."""
    all_shapes = {flag: shapes(given.get(flag, "")) for flag in ("--minShapes", "--optShapes", "--maxShapes")}
    setup = "Network And Config setup failed", "Building engine failed", "Failed to create engine from model or file.", \
        "Engine set up failed"
    for named in all_shapes.values():
        for name in named:
            if name not in inputs:
                fail(f'Cannot find input tensor with name "{name}" in the network inputs! '
                     "Please make sure the input tensor names are correct.", *setup)
    for name, dims in inputs.items():
        if -1 not in dims:
            continue
        least, likely, most = (named.get(name) for named in all_shapes.values())
        if likely is None:
            log("W", f"Dynamic dimensions required for input: {name}, but no shapes were provided. "
                     "Automatically overriding shape to: " + "x".join(str(max(size, 1)) for size in dims))
            continue
        for selector, sizes in (("MIN", least), ("OPT", likely), ("MAX", most)):
            fits = len(sizes) == len(dims) and all(size in (-1, own) for own, size in zip(sizes, dims))
            if not fits:
                fail(f"[TRT] IOptimizationProfile::setDimensions: Error Code 3: API Usage Error (dimensions of {name})",
                     f"Error in set dimensions to profile {selector}", *setup)
        if not all(low <= middle <= high for low, middle, high in zip(least, likely, most)):
            fail("[TRT] Error Code 4: Condition min <= opt <= max violated", "Required optimization profile is invalid", *setup)
    if all(-1 not in dims for dims in inputs.values()) and any(all_shapes.values()):
        fail("Static model does not take explicit shapes since the shape of inference tensors will be determined by the "
             "model itself", *setup)


def accelerator(given, operators):
    core = int(given.get("--useDLACore", -1))
    if core < 0:
        return
    # sampleEngines.cpp; Orin Nano has no core (Jetson Orin Nano's data sheet).
    if core >= int(MODE.get("dla", "0")):
        fail(f"Cannot create DLA engine, {core} not available", "Network And Config setup failed", "Building engine failed",
             "Failed to create engine from model or file.", "Engine set up failed")
    on_dla = [] if "fell-back" in MODE else operators[:1]
    log("I", "[TRT] ---------- Layers Running on DLA ----------")
    for operator in on_dla:
        log("I", "[TRT] [DlaLayer] {ForeignNode[" + operator + "]}")
    log("I", "[TRT] ---------- Layers Running on GPU ----------")
    for operator in operators[len(on_dla):]:
        log("I", f"[TRT] [GpuLayer] {operator.upper()}: {operator}")


def calibrate(given, operators, values):
    """common/sampleEngines.cpp, setupNetworkAndConfig and RndInt8Calibrator; the cache is as sampleINT8's README has it."""
    scaled = {"QuantizeLinear", "DequantizeLinear"} & set(operators)
    if "--int8" not in given or scaled:
        return
    cache = given.get("--calib")
    if cache is None:
        # setTensorDynamicRange: the same made-up range for every tensor, so that the speed at least is true.
        log("W", "[TRT] Calibrator is not being used. Users must provide dynamic range for all tensors that are not Int32 or Bool.")
        return
    try:
        head, *lines = open(cache).read().splitlines()
    except OSError:
        # Stricter than the program: it calibrates with random numbers where there is no such file, and says nothing.
        fail(f"the calibration cache {cache} cannot be read")
    log("I", "[TRT] Reading Calibration Cache for calibrator: EntropyCalibration2")
    if head != f"TRT-{VERSION}-EntropyCalibration2":
        # Stricter as well: it goes on with random numbers.
        fail("[TRT] Calibration table does not match calibrator algorithm type.")
    scales = {}
    for line in lines:
        name, _, bits = line.rpartition(": ")
        scales[name] = struct.unpack(">f", bytes.fromhex(bits))[0]
        if not (name and 0 < scales[name] < float("inf")):
            fail(f"[TRT] the scale of {name} is {scales[name]}")
    log("I", "[TRT] Generated calibration scales using calibration cache. Make sure that calibration cache has latest scales.")
    for name in values:
        if name not in scales:
            log("W", f"[TRT] Missing scale and zero-point for tensor {name}, expect fall back to non-int8 implementation for any "
                     "layer consuming or producing given tensor")


def build(given):
    inputs, operators, values = read(given["--onnx"])
    profile(given, inputs)
    calibrate(given, operators, values)
    accelerator(given, operators)
    warm = False
    cache = given.get("--timingCacheFile")
    if cache and os.path.exists(cache):
        warm = open(cache, "rb").read().startswith(b"timing")
        log("I", f"Loaded {os.path.getsize(cache)} bytes of timing cache from {cache}")
    if "killed" in MODE:
        os.kill(os.getpid(), signal.SIGKILL)
    if "no-memory" in MODE:
        # TensorRT#4360 and the notes of hokwangchoi/jetson-orin-nano-benchmarks.
        log("W", "[TRT] Tactic Device request: 622MB Available: 300MB. Device memory is insufficient to use tactic.")
        fail("[TRT] Error Code 10: Internal Error (Could not find any implementation for node {ForeignNode[/lm_head/MatMul]}.)",
             "Engine could not be created from network", "Building engine failed",
             "Failed to create engine from model or file.", "Engine set up failed")
    if "noise" in MODE:
        sys.stdout.write("x" * 5_000_000)
    # A plan of TensorRT begins so; what comes behind says nothing of its length.
    plan = b"ptrt" + bytes(20) + (b"warm" if warm else b"cold") * 500_000
    log("I", "Engine built in 9.1 sec.")
    log("I", f"Created engine with size: {len(plan) / (1 << 20):.6g} MiB")
    if cache:
        # common/common.h, updateTimingCacheFile: only behind a build that went well, and what was measured before stays.
        # common/fileLock.cpp: the lock lies beside it and is not removed.
        open(cache + ".lock", "wb").close()
        before = open(cache, "rb").read() if os.path.exists(cache) else b"timing"
        if os.path.exists(cache) and not os.stat(cache).st_mode & 0o200:
            # Root may write it all the same, and users of boards are not root.
            log("W", f"Could not write timing cache to: {cache}")
        else:
            with open(cache, "wb") as file:
                file.write(before + bytes(1000))
    return plan


def read(path):
    # onnx-tensorrt's parser, and modelToNetwork.
    tail = "Failed to parse onnx file", "Parsing model failed", "Failed to create engine from model or file.", \
        "Engine set up failed"
    try:
        return read_model(path)
    except FileNotFoundError:
        fail(f"[TRT] Could not open file {path}", *tail)
    except (IndexError, KeyError, ValueError):
        fail(f"[TRT] ModelImporter.cpp:688: Failed to parse ONNX model from file: {path}!", *tail)


def save(path, plan):
    if "short" in MODE:
        plan = plan[:-4096]
    if "nothing" not in MODE:
        try:
            with open(path, "wb") as file:
                file.write(plan)
        except OSError:
            fail("Saving engine to file failed.", "Engine set up failed")
    if "late" in MODE:
        # A child that keeps the output and writes when everybody thinks that all is done.
        script = f"import time; time.sleep(30); open({path!r}, 'wb').write(b'late')"
        subprocess.Popen([sys.executable, "-c", script])


def main():
    mark("RUNNING")
    if "silent" in MODE:
        sys.exit(0)
    try:
        given = parse(sys.argv[1:])
    except Invalid as invalid:
        # trtexec.cpp: the help comes first.
        print("=== Model Options ===\n  --onnx=<file>               ONNX model")
        fail(*str(invalid).split("\n"))
    log("I", "=== Device Information ===")
    log("I", "Selected Device: Orin")
    log("I", f"Compute Capability: {MODE.get('gpu', '8.7')}")
    log("I", "TensorRT version: 10.3.0")
    if "slow" in MODE:
        time.sleep(60)
    plan = build(given)
    save(given["--saveEngine"], plan)
    if "fails-after" in MODE:
        # Without --skipInference it goes on, and may fail behind a good plan.
        fail("Inference failed")
    if "--skipInference" not in given:
        log("I", "Engine deserialized in 0.2 sec.")
    else:
        log("I", "Skipped inference phase since --skipInference is added.")
    if "unsaid" not in MODE:
        mark("PASSED")


if __name__ == "__main__":
    main()
