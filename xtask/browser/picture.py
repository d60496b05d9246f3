"""Makes the picture of the README: the page answering a question about the demo's picture.

    python picture.py http://127.0.0.1:8000 SHAPES OUT
"""

import sys

from browser import answer, ask, chromium, visit

url, shapes, out = sys.argv[1:]

with chromium() as browser, visit(browser, url, viewport={"width": 1100, "height": 640}, color_scheme="light") as page:
    page.locator("#file").set_input_files(shapes)
    page.locator("#pictures span", has_text="tokens").wait_for()
    page.get_by_label("Question").fill("What is left of the red circle?")
    ask(page, page.get_by_role("button", name="Send").click)
    said = answer(page)
    assert said == "a blue circle", said
    page.mouse.click(700, 450)
    page.screenshot(path=out)
