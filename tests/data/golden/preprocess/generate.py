"""Makes the golden tiles of InternVL's image preprocessing, and checks them.

Run from anywhere: `python generate.py`; it rewrites the PNG files, `preprocess.safetensors` and
`grids.json` beside itself, and `tests/data/picture.png`, in a second or two.

Made with Python 3.11, pillow 12.3.0, numpy 2.4.6, safetensors 0.8.0
(`pip install "pillow<13" numpy safetensors`). Pillow 13 turned the order of the two resize passes
for some shapes (python-pillow/Pillow#9549); the models were trained with the order before that.

Flow: drawn pictures -> the preprocessing of InternVL's model cards, on Pillow -> the same tiles
from `plain_resize`, integer arithmetic without Pillow, which must agree bit for bit.
"""

import json
import math
from pathlib import Path

import numpy as np
import PIL
from PIL import Image, ImageDraw
from safetensors.numpy import save_file

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent.parent / "picture.png"

TILE = 56
MIN_TILES = 1
MAX_TILES = 4
MEAN = np.array([0.485, 0.456, 0.406], np.float32)
STD = np.array([0.229, 0.224, 0.225], np.float32)

GRID_SIZES = [
    (1, 1), (30, 30), (56, 56), (79, 79), (80, 80), (112, 112), (120, 80), (60, 40), (80, 120),
    (100, 60), (37, 150), (300, 80), (1000, 10), (10, 1000), (125, 100), (70, 20), (140, 40),
    (448, 448), (633, 633), (634, 634), (897, 896), (640, 480), (480, 640), (1280, 720),
    (1920, 1080), (1080, 1920), (800, 600), (1000, 667), (672, 448), (448, 672), (1344, 448),
    (2000, 2000), (1568, 448), (3000, 500), (500, 3000), (1500, 1000), (4032, 3024), (317, 211),
]
"""Sizes for grids.json; squares around the area rule, ties between two ratios, common photos."""


def ratios(tiles_min: int, tiles_max: int) -> list[tuple[int, int]]:
    """Every grid (columns, rows) of tiles_min..=tiles_max tiles, by number of tiles."""
    grids = [
        (columns, rows)
        for columns in range(1, tiles_max + 1)
        for rows in range(1, tiles_max + 1)
        if tiles_min <= columns * rows <= tiles_max
    ]
    return sorted(grids, key=lambda grid: grid[0] * grid[1])


def choose_grid(width: int, height: int, tile: int, grids: list[tuple[int, int]]):
    """The grid nearest in width / height; on a tie the larger, if the picture fills half of it."""
    aspect = width / height
    best, best_distance = (1, 1), math.inf
    for columns, rows in grids:
        distance = abs(aspect - columns / rows)
        fills = width * height > 0.5 * tile * tile * columns * rows
        if distance < best_distance or (distance == best_distance and fills):
            best, best_distance = (columns, rows), distance
    return best


def order_matters(width: int, height: int, tile: int, grids: list[tuple[int, int]]) -> bool:
    """Whether grids of equal size would be chosen otherwise in another order.

    The reference sorts a Python set by size alone, so its order within a size is an accident.
    """
    turned = sorted(reversed(grids), key=lambda grid: grid[0] * grid[1])
    return choose_grid(width, height, tile, grids) != choose_grid(width, height, tile, turned)


def with_pillow(picture: Image.Image, width: int, height: int) -> np.ndarray:
    """[height, width, 3] bytes; bicubic is also what `resize` takes when it is told nothing."""
    return np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))


def tiles_of(picture: Image.Image, grid: tuple[int, int], resize) -> np.ndarray:
    """Bytes [tiles, TILE, TILE, 3], row by row, the thumbnail last if there are several."""
    columns, rows = grid
    large = resize(picture, columns * TILE, rows * TILE)
    tiles = [
        large[y * TILE : (y + 1) * TILE, x * TILE : (x + 1) * TILE]
        for y in range(rows)
        for x in range(columns)
    ]
    if len(tiles) > 1:
        tiles.append(resize(picture, TILE, TILE))
    return np.stack(tiles)


def normalise(tiles: np.ndarray) -> np.ndarray:
    """Bytes [n, S, S, 3] -> float32 [n, 3, S, S]; all in float32, in this order."""
    scaled = tiles.astype(np.float32) / np.float32(255)
    return np.ascontiguousarray(((scaled - MEAN) / STD).transpose(0, 3, 1, 2))


def cubic(x: float) -> float:
    """Keys' cubic with a = -0.5, as Pillow has it."""
    a, x = -0.5, abs(x)
    if x < 1.0:
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    if x < 2.0:
        return (((x - 5) * x + 8) * x - 4) * a
    return 0.0


def taps(size_in: int, size_out: int) -> list[tuple[int, np.ndarray]]:
    """For each output pixel its first input pixel and the weights, in units of 2^-22.

    Shrinking widens the cubic by the factor, so that every input pixel counts.
    """
    scale = size_in / size_out
    stretch = max(scale, 1.0)
    out = []
    for index in range(size_out):
        centre = (index + 0.5) * scale
        first = max(int(centre - 2.0 * stretch + 0.5), 0)
        end = min(int(centre + 2.0 * stretch + 0.5), size_in)
        weights = [cubic((x - centre + 0.5) * (1.0 / stretch)) for x in range(first, end)]
        total = sum(weights)
        fixed = [int(math.copysign(0.5, w) + w / total * (1 << 22)) for w in weights]
        out.append((first, np.array(fixed, np.int64)))
    return out


def resample_rows(pixels: np.ndarray, size_out: int) -> np.ndarray:
    """Bytes [n, w, 3] -> bytes [n, size_out, 3]; rounded and clamped to bytes."""
    if pixels.shape[1] == size_out:
        return pixels
    out = np.empty((pixels.shape[0], size_out, 3), np.uint8)
    for index, (first, weights) in enumerate(taps(pixels.shape[1], size_out)):
        window = pixels[:, first : first + len(weights)].astype(np.int64)
        total = np.einsum("nwc,w->nc", window, weights) + (1 << 21)
        out[:, index] = np.clip(total >> 22, 0, 255)
    return out


def plain_resize(picture: Image.Image, width: int, height: int) -> np.ndarray:
    """What Pillow does to an RGB picture: along the rows first, bytes between the two passes."""
    wide = resample_rows(np.asarray(picture), width)
    return resample_rows(wide.transpose(1, 0, 2), height).transpose(1, 0, 2)


def gradient(width: int, height: int) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    planes = [40 + 200 * x, 30 + 190 * y, 220 - 180 * (x + y) / 2]
    return Image.fromarray(np.stack(planes, -1).astype(np.uint8))


def draw_shapes() -> Image.Image:
    picture = gradient(100, 60)
    draw = ImageDraw.Draw(picture)
    draw.ellipse((10, 10, 40, 40), fill=(230, 20, 20))
    draw.rectangle((55, 5, 90, 25), fill=(10, 30, 240))
    draw.polygon([(60, 55), (95, 55), (77, 30)], fill=(0, 190, 60))
    draw.line((0, 59, 99, 0), fill=(255, 255, 255), width=1)
    return picture


def draw_see_through() -> Image.Image:
    """RGBA: the reference throws the alpha away, it does not blend."""
    picture = gradient(56, 56)
    alpha = np.tile(np.linspace(0, 255, 56).astype(np.uint8), (56, 1))
    picture.putalpha(Image.fromarray(alpha))
    return picture


def draw_grey_tower() -> Image.Image:
    """One channel, black and white edges that make the cubic overshoot."""
    picture = Image.new("L", (37, 150), 128)
    draw = ImageDraw.Draw(picture)
    for step in range(10):
        draw.rectangle((3 + step, 15 * step, 33 - step, 15 * step + 7), fill=255 if step % 2 else 0)
    draw.ellipse((8, 60, 28, 140), outline=255, width=2)
    return picture


def draw_lettering() -> Image.Image:
    """Strokes like small print, and noise."""
    random = np.random.RandomState(7)
    picture = Image.new("RGB", (300, 80), (250, 248, 240))
    draw = ImageDraw.Draw(picture)
    for line in range(5):
        x = 6
        while x < 285:
            top, wide = 6 + 15 * line, int(random.randint(3, 8))
            ink = tuple(int(v) for v in random.randint(0, 90, 3))
            draw.line((x, top, x + wide, top + 9), fill=ink)
            draw.arc((x, top, x + wide, top + 9), 0, int(random.randint(90, 360)), fill=ink)
            x += wide + int(random.choice([2, 2, 2, 7]))
    noisy = np.asarray(picture).astype(np.int16) + random.randint(-12, 13, (80, 300, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


PICTURES = {
    "shapes-100x60": draw_shapes,
    "see-through-56x56": draw_see_through,
    "grey-tower-37x150": draw_grey_tower,
    "lettering-300x80": draw_lettering,
}


def draw_demo() -> Image.Image:
    """A friendly picture for first tries: four shapes on a plain ground, 320 x 240."""
    scale = 4
    picture = Image.new("RGB", (320 * scale, 240 * scale), (246, 240, 226))
    draw = ImageDraw.Draw(picture)

    def box(*corners):
        return [corner * scale for corner in corners]

    def star(x: int, y: int, radius: int) -> list[tuple[float, float]]:
        turns = [math.pi * (k / 5 - 0.5) for k in range(10)]
        radii = [radius if k % 2 == 0 else radius * 0.42 for k in range(10)]
        return [
            ((x + r * math.cos(t)) * scale, (y + r * math.sin(t)) * scale)
            for r, t in zip(radii, turns)
        ]

    draw.ellipse(box(28, 34, 128, 134), fill=(214, 64, 56))
    draw.rectangle(box(182, 28, 288, 104), fill=(48, 104, 186))
    draw.polygon(box(40, 214, 166, 214, 103, 148), fill=(70, 158, 92))
    draw.polygon(star(236, 166, 52), fill=(242, 182, 50))
    return picture.resize((320, 240), Image.Resampling.LANCZOS)


def golden_picture(name: str, picture: Image.Image) -> tuple[dict, np.ndarray]:
    """The entry of grids.json and the tensor of one picture, read back from its file."""
    file = f"{name}.png"
    picture.save(HERE / file, optimize=True)
    picture = Image.open(HERE / file).convert("RGBA")
    # Transparency lies on white, as the processors of transformers have it since 5.
    white = Image.new("RGBA", picture.size, (255, 255, 255, 255))
    rgb = Image.alpha_composite(white, picture).convert("RGB")
    grids = ratios(MIN_TILES, MAX_TILES)
    grid = choose_grid(*rgb.size, TILE, grids)
    assert not order_matters(*rgb.size, TILE, grids)
    tiles = tiles_of(rgb, grid, with_pillow)
    same = (tiles == tiles_of(rgb, grid, plain_resize)).all()
    assert same, f"{name}: pillow {PIL.__version__} resizes otherwise, use one below 13"
    entry = {
        "file": file,
        "tensor": name,
        "width": rgb.width,
        "height": rgb.height,
        "grid": list(grid),
        "tiles": len(tiles),
    }
    return entry, normalise(tiles)


def grid_table() -> list[dict]:
    """The grid for many sizes, for our tile and for the real model's."""
    table = []
    for tile, tiles_max in ((TILE, MAX_TILES), (448, 6), (448, 12)):
        grids = ratios(MIN_TILES, tiles_max)
        for width, height in GRID_SIZES:
            assert not order_matters(width, height, tile, grids), (width, height)
            grid = choose_grid(width, height, tile, grids)
            table.append(
                {
                    "width": width,
                    "height": height,
                    "tile": tile,
                    "min_tiles": MIN_TILES,
                    "max_tiles": tiles_max,
                    "grid": list(grid),
                }
            )
    return table


def one_row_each(entries: list[dict]) -> str:
    return ",\n".join("    " + json.dumps(entry) for entry in entries)


def main():
    entries, tensors = [], {}
    for name, draw in PICTURES.items():
        entry, tensors[name] = golden_picture(name, draw())
        entries.append(entry)
        print(f"{name}: grid {entry['grid']}, {entry['tiles']} tiles")
    save_file(tensors, HERE / "preprocess.safetensors")
    settings = json.dumps(
        {"tile": TILE, "min_tiles": MIN_TILES, "max_tiles": MAX_TILES, "use_thumbnail": True}
    )
    (HERE / "grids.json").write_text(
        f'{{\n  "settings": {settings},\n  "pictures": [\n{one_row_each(entries)}\n  ],\n'
        f'  "grids": [\n{one_row_each(grid_table())}\n  ]\n}}\n'
    )
    draw_demo().save(DEMO, optimize=True)
    print(f"{DEMO.name}: {DEMO.stat().st_size} bytes")


if __name__ == "__main__":
    main()
