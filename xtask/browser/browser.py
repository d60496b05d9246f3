"""Opens the page of a server in Debian's Chromium."""

import contextlib
import shutil

from playwright.sync_api import sync_playwright

FLAGS = ["--disable-gpu", "--disable-dev-shm-usage", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
DESKTOP = {"width": 1100, "height": 760}


@contextlib.contextmanager
def chromium():
    path = shutil.which("chromium")
    assert path, "this needs chromium; it is a Debian package"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS, chromium_sandbox=False)
        yield browser
        browser.close()


@contextlib.contextmanager
def visit(browser, url, **context):
    """A page in a profile of its own, loaded; what its console complains of fails."""
    own = browser.new_context(**{"viewport": DESKTOP, "base_url": url, **context})
    page = own.new_page()
    page.set_default_timeout(20_000)
    page.complaints = []
    page.on("pageerror", lambda error: page.complaints.append(str(error)))
    page.on("console", lambda said: said.type == "error" and page.complaints.append(said.text))
    page.goto("/")
    page.locator("#meter", has_text="running").wait_for()
    yield page
    assert not page.complaints, page.complaints
    own.close()


def answer(page, turn=-1):
    """The text of a turn's answer, when it is complete."""
    page.locator("#stop").wait_for(state="hidden")
    # It may be shown a moment later.
    return page.locator(".answer .text").nth(turn).inner_text().strip()


def ask(page, act):
    """Does what makes the page ask, and waits until it has; gives what was asked."""
    with page.expect_request("**/chat/completions") as asked:
        act()
    return asked.value.post_data_json
