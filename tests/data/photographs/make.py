"""Makes the pictures of this folder, which Rust's encoders cannot write: python make.py (Pillow 13)."""

from PIL import Image


def picture(width, height):
    """Slopes and stripes, so that every block holds something."""
    rgb = Image.new("RGB", (width, height))
    rgb.putdata(
        [
            (x * 255 // width, y * 255 // height, 255 if (x // 7 + y // 5) % 2 else 40)
            for y in range(height)
            for x in range(width)
        ]
    )
    return rgb


picture(97, 61).convert("CMYK").save("cmyk.jpg", quality=85)
picture(160, 120).save("progressive.jpg", quality=80, progressive=True, subsampling="4:2:0")
picture(120, 90).quantize(16).save("palette.gif")
