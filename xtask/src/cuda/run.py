#!/usr/bin/env python3
"""Tries the CUDA back end on the card of this machine: kernels, engines, then both under compute-sanitizer.

Needs the driver and python3.  Prints a table, and ends with 1 where a row of it did not hold.

    python3 run.py [--quick] [--only NAME]...
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
# Tests that need a card are ignored elsewhere, and have this in their names.
NEEDS_CARD = ["--ignored", "on_a_card", "--nocapture", "--test-threads", "1"]
# What a sanitizer runs through takes 10 to 100 times as long: one small engine and the smallest shapes.
SANITIZED = ["--ignored", "on_a_card::small", "--nocapture", "--test-threads", "1"]
# racecheck knows no barrier in shared memory that counts copied bytes, and takes each stage that is read behind one for a race.
SANITIZERS = {"memcheck": [], "racecheck": ["--skip", "on_a_card::small::prompts"], "initcheck": []}
# Images without a link to the driver keep it here.
DRIVER_FOLDERS = ["/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu/tegra"]
SECONDS_MAX = 1800


def sanitizer():
    """The compute-sanitizer of this machine, if it has one."""
    found = shutil.which("compute-sanitizer")
    folders = sorted(pathlib.Path("/usr/local").glob("cuda*/bin/compute-sanitizer"))
    folders += sorted(pathlib.Path("/usr/local").glob("cuda*/compute-sanitizer/compute-sanitizer"))
    return found or next((str(path) for path in folders if path.exists()), None)


def environment():
    """That of the tests: where engines and kernels lie, and where the driver may be."""
    env = dict(os.environ, SMELT_CUDA_ENGINES=str(HERE / "engines"), SMELT_KEPT_KERNELS=str(HERE / "kernels"))
    folders = [env.get("LD_LIBRARY_PATH", "")] + DRIVER_FOLDERS
    env["LD_LIBRARY_PATH"] = ":".join(folder for folder in folders if folder)
    return env


def rows(quick):
    """What is run: a name and a command each."""
    programs = sorted((HERE / "bin").iterdir())
    yield from ((program.name, [str(program), *NEEDS_CARD]) for program in programs)
    tool = sanitizer()
    if quick or tool is None:
        return
    for kind, more in SANITIZERS.items():
        for program in programs:
            command = [tool, "--tool", kind, "--error-exitcode", "9", str(program), *SANITIZED, *more]
            yield f"{kind} {program.name}", command


def run(command):
    """Whether a command held, what it said, and the seconds it took."""
    begin = time.monotonic()
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX)
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        code, text = "late", f"{late.stdout or ''}{late.stderr or ''}"
    return code, text, time.monotonic() - begin


def verdict(code, text):
    """A word for how a row ended: tests that did not run did not hold."""
    if code != 0:
        return f"FAILED ({code})"
    ran = sum(int(line.split()[3]) for line in text.splitlines() if line.startswith("test result:"))
    return "held" if ran else "NO TESTS"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="without sanitizers")
    parser.add_argument("--only", action="append", help="rows whose names hold this")
    asked = parser.parse_args()
    card = run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]) if shutil.which("nvidia-smi") else None
    print(f"card: {card[1].strip() if card else 'unknown, no nvidia-smi'}", flush=True)
    if not asked.quick and sanitizer() is None:
        print("no compute-sanitizer on this machine: its rows are left out", flush=True)
    table, texts = [], []
    for name, command in rows(asked.quick):
        if asked.only and not any(word in name for word in asked.only):
            continue
        code, text, seconds = run(command)
        word = verdict(code, text)
        print(f"{name:24} {word:12} {seconds:7.1f} s", flush=True)
        table.append(word)
        texts.append(f"==== {name}\n{text}")
        if word != "held":
            print("\n".join(text.splitlines()[-60:]), flush=True)
    log = pathlib.Path(os.environ.get("OUT", HERE)) / "run.log"
    log.write_text("\n".join(texts))
    print(f"all that was said: {log}")
    return 0 if table and all(word == "held" for word in table) else 1


if __name__ == "__main__":
    sys.exit(main())
