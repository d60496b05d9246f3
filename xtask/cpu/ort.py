"""ONNX Runtime's side of `cargo xtask bench cpu`: one measured run a process.

    ort.py ONNX_DIR THREADS RUNS

Does what `bench_cpu graph` does: the same picture, once to warm up and RUNS times by the clock.
Prints one line of JSON, times in seconds; `idle_rss_mib` is what Python and its modules take before
a graph is there.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime


def rss_mib(field):
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith(field))
    return int(line.split()[1]) / 1024


def main():
    folder, threads, runs = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    idle = rss_mib("VmRSS")
    begin = time.perf_counter()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", options, providers=["CPUExecutionProvider"]
    )
    load_s = time.perf_counter() - begin
    (pixels,) = session.get_inputs()
    shape = [dim if isinstance(dim, int) else 1 for dim in pixels.shape]
    ramp = np.arange(np.prod(shape), dtype=np.int64) % 251
    feed = {pixels.name: (ramp.astype(np.float32) / np.float32(62.5) - 2).reshape(shape)}
    times = []
    for _ in range(runs + 1):
        begin = time.perf_counter()
        outputs = session.run(None, feed)
        times.append(time.perf_counter() - begin)
    first = [float(number) for number in outputs[0].reshape(-1)[:4]]
    print(
        json.dumps({"load_s": load_s, "run_s": times[1:], "first": first, "idle_rss_mib": idle})
    )


main()
