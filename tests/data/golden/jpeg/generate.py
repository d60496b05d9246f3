"""Makes the JPEG files here and writes down what Pillow shows of them.

Needs Pillow, numpy, and `cjpeg` of libjpeg-turbo for what Pillow does not write: other samplings, scripts of scans.
Running it again gives the same files where both are of the same versions; `pixels.txt` is Pillow's in any case.
"""

import subprocess
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent
made = {}


def drawn(width, height, channels=3):
    """Slopes, an edge, stripes and noise."""
    random = np.random.default_rng(width * 1000 + height)
    y, x = np.mgrid[:height, :width]
    planes = []
    for channel in range(channels):
        plane = 120 + 90 * np.sin(x / (5 + 3 * channel) + y / 9) + 40 * ((x * 3 + y * 2 + 20 * channel) % 31 > 15)
        planes.append(plane + random.normal(0, 8, (height, width)))
    return np.stack(planes, -1).clip(0, 255).astype(np.uint8)


def picture(width, height, mode="RGB"):
    pixels = drawn(width, height, len(mode) if mode != "L" else 1)
    return Image.fromarray(pixels[..., 0] if mode == "L" else pixels, mode)


def pillow(name, image, **options):
    buffer = BytesIO()
    image.save(buffer, "JPEG", **options)
    made[name] = buffer.getvalue()


def cjpeg(name, image, *options, script=None):
    buffer = BytesIO()
    image.save(buffer, "PPM")
    arguments = ["cjpeg", *options]
    if script:
        path = Path("/tmp/scans.txt")
        path.write_text(script)
        arguments += ["-scans", str(path)]
    made[name] = subprocess.run(arguments, input=buffer.getvalue(), capture_output=True, check=True).stdout


def without(data, marker):
    """`data` without the segments behind `marker`."""
    at, out = 2, bytearray(data[:2])
    while data[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if data[at + 1] != marker:
            out += data[at:end]
        at = end
    return bytes(out + data[at:])


def before_scan(data, number):
    """`data` up to its scan of that number, counted from zero, and an end."""
    at = -1
    for _ in range(number + 1):
        at = data.index(b"\xff\xda", at + 1)
    return data[:at] + b"\xff\xd9"


# Samplings of Pillow, at sizes that fill their units and not; qualities.
for sampling, label in enumerate(["444", "422", "420"]):
    pillow(f"{label}", picture(48, 32), subsampling=sampling, quality=75)
    pillow(f"{label}-odd", picture(37, 29), subsampling=sampling, quality=92)
for width, height in [(1, 1), (2, 3), (3, 2), (5, 17), (17, 5)]:
    pillow(f"420-{width}x{height}", picture(width, height), subsampling=2, quality=85)
for quality in [1, 30, 100]:
    pillow(f"420-q{quality}", picture(33, 33), subsampling=2, quality=quality)
pillow("420-restarts", picture(50, 40), subsampling=2, restart_marker_blocks=3)
pillow("420-optimized", picture(41, 23), subsampling=2, optimize=True)
pillow("420-progressive", picture(41, 43), subsampling=2, progressive=True)
pillow("420-progressive-restarts", picture(41, 43), subsampling=2, progressive=True, restart_marker_rows=1)
pillow("grey", picture(19, 27, "L"))
pillow("grey-progressive", picture(19, 27, "L"), progressive=True)
pillow("rgb", picture(23, 21), keep_rgb=True)
pillow("cmyk", picture(21, 19, "CMYK"), quality=85)
pillow("cmyk-progressive", picture(21, 19, "CMYK"), progressive=True)

# Inks as brightness and differences: the last byte of Adobe's header says so.
inks = bytearray(made["cmyk"])
inks[inks.index(b"Adobe") + 11] = 2
made["ycck"] = bytes(inks)
made["cmyk-without-adobe"] = without(made["cmyk"], 0xEE)
made["rgb-by-names"] = without(made["rgb"], 0xEE)

# Samplings of libjpeg.
for sampling in ["1x2", "4x1", "1x4", "4x2", "2x4", "3x1", "1x3"]:
    cjpeg(f"sampling-{sampling}", picture(45, 39), "-sample", f"{sampling},1x1,1x1")
cjpeg("sampling-2x2-1x2-2x1", picture(45, 39), "-sample", "2x2,1x2,2x1")
cjpeg("sampling-4x4", picture(45, 39), "-sample", "4x4,1x1,1x1", script="0;\n1;\n2;\n")
cjpeg("sampling-1x1-2x2-2x2", picture(45, 39), "-sample", "1x1,2x2,2x2")
cjpeg("wide-scales", picture(30, 30), "-quality", "2", "-sample", "2x2")
cjpeg("scans-apart", picture(35, 21), "-sample", "2x2", script="0;\n1;\n2;\n")
cjpeg("scans-two", picture(35, 21), "-sample", "2x1", "-restart", "2B", script="0;\n1 2;\n")

# Of motion JPEG, whose frames have no lists of codes.
cjpeg("without-codes", picture(26, 22), "-sample", "2x2", "-quality", "80")
made["without-codes"] = without(made["without-codes"], 0xC4)

# Progressive files that end early: smoothed.
whole = made["420-progressive"]
for scans in [1, 3, 5, 8]:
    made[f"unfinished-{scans}"] = before_scan(whole, scans)
cjpeg("unfinished-rows", picture(70, 41), "-sample", "1x2", script="0 1 2: 0-0, 0, 1;\n0: 1-5, 0, 2;\n")

# Damaged, but shown.
flipped = bytearray(made["420-restarts"])
flipped[-90] ^= 0x10
made["damaged-bit"] = bytes(flipped)
marker = made["420-restarts"].index(b"\xff\xd1")
made["damaged-restart"] = made["420-restarts"][:marker] + made["420-restarts"][marker + 2 :]
made["damaged-end"] = made["420"][:-40] + b"\xff\xd9"
made["damaged-marker"] = made["420"][:-60] + b"\xff\xd5" + made["420"][-58:]

# Turned by tags and by XML.
exif = Image.Exif()
exif[0x0112] = 6
pillow("turned-exif", picture(24, 16), subsampling=2, exif=exif)
xml = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="8"/></x:xmpmeta>'
pillow("turned-xml", picture(24, 16), subsampling=2, xmp=xml)

lines = []
for name, data in sorted(made.items()):
    (HERE / f"{name}.jpg").write_bytes(data)
    image = ImageOps.exif_transpose(Image.open(HERE / f"{name}.jpg")).convert("RGB")
    lines.append(f"{name} {image.width} {image.height} {zlib.crc32(image.tobytes()):08x}\n")
(HERE / "pixels.txt").write_text("".join(lines))
