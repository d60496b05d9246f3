"""Does the front half's work as a careful Python script would: no torch, no onnx.

    rival.py vision CHECKPOINT OUT                InternVL3's tower as ONNX in f16
    rival.py rtn CHECKPOINT OUT int8|int4-g128    its decoder in integers, its head in int8
    rival.py split-head MODEL OUT PARTS [consume]
"""

import os
import sys


def main(what, source, out, *rest):
    os.mkdir(out)
    if what == "split-head":
        import split  # needs no numpy, whose import alone costs 0.2 s

        return split.split_head(source, out, int(rest[0]), "consume" in rest)
    import streams

    works = {"vision": streams.export_vision, "rtn": streams.quantize}
    if what not in works:
        sys.exit(__doc__)
    works[what](source, out, *rest)


main(*sys.argv[1:])
