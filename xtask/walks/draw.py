"""Draws a picture that is busy everywhere: draw.py FILE WIDTH HEIGHT.

Waves of several lengths and directions, and grain from a small generator, so that no part of it is plain and
every machine draws the same bytes of pixels.  Needs the standard library alone.
"""

import math
import struct
import sys
import zlib


def rows(width, height):
    grain = 1
    for y in range(height):
        row = bytearray([0])  # no filter
        for x in range(width):
            grain = (grain * 1103515245 + 12345) & 0x7FFFFFFF
            noise = (grain >> 16) % 41 - 20
            for phase, (a, b) in enumerate(((17, 29), (41, 13), (7, 53))):
                wave = math.sin(x / a + phase) + math.sin(y / b - phase) + math.sin((x + y) / 97)
                row.append(max(0, min(255, int(128 + 36 * wave) + noise)))
        yield bytes(row)


def chunk(name, data):
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def main(path, width, height):
    width, height = int(width), int(height)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    with open(path, "wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        file.write(chunk(b"IHDR", header))
        file.write(chunk(b"IDAT", zlib.compress(b"".join(rows(width, height)), 1)))
        file.write(chunk(b"IEND", b""))


if __name__ == "__main__":
    main(*sys.argv[1:])
