"""Makes the cubins of facts.cu and what ptxas says of them: python3 facts.py LIBNVRTC SM...

Run once with NVRTC 12.6 for 87 and 90, and once with 13.0 for 110, whose cubins have another header.
"""

import ctypes
import pathlib
import sys

HERE = pathlib.Path(__file__).parent


def said(lib, program, size, get):
    count = ctypes.c_size_t()
    assert size(program, ctypes.byref(count)) == 0
    text = ctypes.create_string_buffer(count.value)
    assert get(program, text) == 0
    return text.raw


def compile_for(lib, sm):
    program = ctypes.c_void_p()
    source = (HERE / "facts.cu").read_bytes()
    assert lib.nvrtcCreateProgram(ctypes.byref(program), source, b"facts.cu", 0, None, None) == 0
    options = [b"--gpu-architecture=sm_%d" % sm, b"--ptxas-options=-v"]
    given = (ctypes.c_char_p * len(options))(*options)
    assert lib.nvrtcCompileProgram(program, len(options), given) == 0
    log = said(lib, program, lib.nvrtcGetProgramLogSize, lib.nvrtcGetProgramLog)
    cubin = said(lib, program, lib.nvrtcGetCUBINSize, lib.nvrtcGetCUBIN)
    (HERE / f"facts.sm{sm}.log").write_text(log.rstrip(b"\0").decode())
    (HERE / f"facts.sm{sm}.cubin").write_bytes(cubin)


library = pathlib.Path(sys.argv[1])
for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
    ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
for sm in sys.argv[2:]:
    compile_for(ctypes.CDLL(str(library)), int(sm))
