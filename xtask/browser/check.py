"""Looks at the page of a running server in a real browser, as people use it.

    python check.py http://127.0.0.1:8000 PICTURES

PICTURES is a directory with shapes-1.png, which the demo's model knows.  The server has the encoder of
conformance/encoder.toml besides.  Every check is a function of a page; the first that fails ends the run.
"""

import base64
import json
import pathlib
import sys
import time

from browser import answer, ask, chromium, visit

url, pictures = sys.argv[1], pathlib.Path(sys.argv[2])
SHAPES = pictures / "shapes-1.png"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
WIDE = "| a | b | c |\n|---|---|---|\n| " + " | ".join(["x" * 60] * 3) + " |\n\n```\n" + "y" * 400 + "\n```\n\n" + "z" * 400

# What each module's function makes of its arguments: module, function, arguments, result.
UNITS = [
    ("events", "cut", ["", ": tile 1\n\ndata: {}\n\ndata: [DO"], {"events": [{"comment": "tile 1"}, {"data": "{}"}], "rest": "data: [DO"}),
    ("events", "cut", ["data: [DO", "NE]\r\n\r\n"], {"events": [{"data": "[DONE]"}], "rest": ""}),
    ("events", "cut", ["", "event: x\ndata: 1\ndata: 2\n\n"], {"events": [{"data": "1\n2"}], "rest": ""}),
    ("conversation", "surplus", [[{"id": n, "at": n, "size": 10} for n in (1, 2, 3)], 1, {"conversations": 2, "characters": 99}], [2]),
    ("conversation", "surplus", [[{"id": n, "at": n, "size": 10} for n in (1, 2, 3)], 3, {"conversations": 9, "characters": 25}], [1]),
    ("conversation", "surplus", [[{"id": 1, "at": 1, "size": 10}], 1, {"conversations": 1, "characters": 5}], []),
    ("conversation", "title", [[{"question": {"text": "One\ntwo"}}]], "One"),
    ("conversation", "sentences", ["It is. And then", 0], "It is."),
    ("conversation", "sentences", ["It is 3.14", 0], ""),
    ("conversation", "sentences", ["It is. And then.\n", 6], " And then.\n"),
    ("conversation", "request", [
        [
            {"question": {"text": "a", "pictures": []}, "answer": {"text": "b"}},
            {"question": {"text": "lost", "pictures": []}, "answer": {"text": "", "wrong": "no"}},
            {"question": {"text": "c", "pictures": [{"url": "data:x"}]}, "answer": None},
        ],
        "m", {"temperature": "0.5", "tokens": "", "seed": " ", "detail": "low", "system": "be"},
    ], {
        "model": "m", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0.5,
        "messages": [
            {"role": "system", "content": "be"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}, {"type": "text", "text": "c"}]},
        ],
    }),
    ("conversation", "facts", [
        {"completion_tokens": 11, "prompt_tokens": 80, "prompt_tokens_details": {"image_tokens": 64, "cached_tokens": 0, "smaller_images": 1, "wished_image_tokens": 256}},
        {"first": 500, "last": 1500},
    ], "first token 0.50 s · 10.0 tokens/s · answer 11 tokens · prompt 80 (64 of pictures, shown smaller than for 256)"),
    ("vectors", "cosine", [[1, 0], [1, 1]], 0.7071067811865475),
    ("vectors", "cosine", [[0, 0], [1, 1]], 0),
    ("markdown", "safe", ["javascript:alert(1)"], None),
    ("markdown", "safe", ["JAVA\tSCRIPT:alert(1)"], None),
    ("markdown", "safe", ["data:text/html,x"], None),
    ("markdown", "safe", ["/relative"], None),
    ("markdown", "safe", ["https://a.example/b"], "https://a.example/b"),
]

# Markdown, and the HTML of what the page shows for it.
SHOWN = [
    ("one\ntwo", "<p>one<br>two</p>"),
    ("**a *b* c** ***d*** __e__ ~~f~~", "<p><strong>a <em>b</em> c</strong> <strong><em>d</em></strong> <strong>e</strong> <del>f</del></p>"),
    ("2 * 3 * 4 snake_case_name **open", "<p>2 * 3 * 4 snake_case_name **open</p>"),
    ("`a*b*` ``c`d`` \\*e\\*", "<p><code>a*b*</code> <code>c`d</code> *e*</p>"),
    ("# A\n\n---\n> b\n> c", "<h3>A</h3><hr><blockquote><p>b<br>c</p></blockquote>"),
    ("- a\n- b\n  - c\n\n1. d\n2. e", "<ul><li><p>a</p></li><li><p>b</p><ul><li><p>c</p></li></ul></li></ul>"
     '<ol start="1"><li><p>d</p></li><li><p>e</p></li></ol>'),
    ("3. a\n\n   b", '<ol start="3"><li><p>a</p><p>b</p></li></ol>'),
    ("| a | b\\|c |\n|--|--|\n| 1 |", '<div class="table" tabindex="0" role="group" aria-label="Table"><table><thead><tr><th>a</th><th>b|c</th></tr>'
     "</thead><tbody><tr><td>1</td><td></td></tr></tbody></table></div>"),
    ("see [a](https://b.example/c_(d)), https://e.example/f.", '<p>see <a href="https://b.example/c_(d)" target="_blank" rel="noopener noreferrer">a</a>, '
     '<a href="https://e.example/f" target="_blank" rel="noopener noreferrer">https://e.example/f</a>.</p>'),
]

HOSTILE = [
    "<script>window.hit = 1</script>", "<img src=x onerror='window.hit = 1'>", "<svg onload=window.hit=1>",
    "[a](javascript:window.hit=1)", "[a](data:text/html,<script>window.hit=1</script>)", "<javascript:window.hit=1>",
    "![a](https://evil.example/pixel.png)", "[a](https://x.example/\" onmouseover=\"window.hit=1)", "https://x.example/\"onclick=\"window.hit=1",
    "```<b onclick=1>\n</code></pre><script>window.hit = 1</script>\n```", "| <script>window.hit = 1</script> |\n|---|\n| <img src=x onerror=window.hit=1> |",
    "# <iframe srcdoc='<script>parent.hit = 1</script>'>", "- <a href=javascript:window.hit=1>x</a>", "> <style>*{display:none}</style>",
    "&lt;script&gt;window.hit = 1&lt;/script&gt;", "\u202e<script>\u0000window.hit=1</script>",
]

# Texts on which careless readers take time that grows with the square of their length, or more.
SLOW = ["*" * 50_000, "**a " * 20_000, "[" * 50_000, "[a](" * 20_000, "`" * 25_000 + "a " + "`` " * 9_000, "> " * 20_000, "- " * 20_000, "_a" * 30_000,
        "|" * 50_000, "-" * 50_000 + "x", "\n" * 50_000, "#" * 50_000, "https://" * 9_000, " " * 50_000 + "x", "- a\n\n\n" * 9_000, "<" * 50_000]

RENDER = """async text => {
  const { show } = await import('/page/render.js');
  const place = document.createElement('div');
  document.body.append(place);
  const begun = performance.now();
  show(place, text);
  const shown = { html: place.innerHTML, text: place.textContent, ms: performance.now() - begun, hit: window.hit ?? null,
    names: [...place.querySelectorAll('*')].map(each => each.localName),
    attributes: [...place.querySelectorAll('*')].flatMap(each => each.getAttributeNames()),
    links: [...place.querySelectorAll('a')].map(each => each.protocol) };
  place.remove();
  return shown;
}"""


def pure_parts_do_as_they_say(page):
    for module, function, arguments, wanted in UNITS:
        call = "async ([module, name, given]) => { const all = await import(`/page/${module}.js`); return all[name](...given); }"
        found = page.evaluate(call, [module, function, arguments])
        assert found == wanted, (module, function, arguments, found)
    text = "# HELP a b\n# TYPE a gauge\nsmelt_a{m=\"x y\"} 1\nsmelt_a{m=\"z\"} 2\nsmelt_b 1e9\n"
    found = page.evaluate("async text => [...(await import('/page/metrics.js')).parse(text)]", text)
    assert found == [["smelt_a", 3], ["smelt_b", 1e9]], found


def markdown_is_shown(page):
    for text, wanted in SHOWN:
        found = page.evaluate(RENDER, text)["html"]
        assert found == wanted, (text, found)


def hostile_answers_stay_text(page):
    allowed = {"p", "br", "strong", "em", "del", "code", "pre", "a", "div", "span", "button", "ul", "ol", "li", "h3", "blockquote",
               "table", "thead", "tbody", "tr", "th", "td", "hr"}
    harmless = {"href", "target", "rel", "class", "tabindex", "role", "aria-label", "start", "type"}
    for text in HOSTILE:
        found = page.evaluate(RENDER, text)
        assert set(found["names"]) <= allowed and set(found["attributes"]) <= harmless, (text, found)
        assert found["hit"] is None and set(found["links"]) <= {"http:", "https:"}, (text, found)
    assert "<script>window.hit = 1</script>" in page.evaluate(RENDER, HOSTILE[0])["text"]
    # And if it ever were HTML, the browser refuses.
    refused = page.evaluate("() => { try { document.createElement('p').innerHTML = 'x'; return false; } catch { return true; } }")
    assert refused and len(page.complaints) == 1, page.complaints
    page.complaints.clear()


def long_answers_take_no_time(page):
    for text in SLOW:
        ms = page.evaluate(RENDER, text)["ms"]
        assert ms < 2_000, (text[:20], ms)


def what_is_shown_already_stays(page):
    kept = page.evaluate("""async () => {
      const { show } = await import('/page/render.js');
      const place = document.createElement('div');
      show(place, 'one\\n\\n```js\\nlet');
      const [first, code] = place.children;
      show(place, 'one\\n\\n```js\\nlet a = 1');
      const isGrown = code.isConnected === first.isConnected && place.children[1] === code && code.textContent.includes('let a = 1');
      show(place, 'one\\n\\n```js\\nlet a = 1\\n```\\n\\n- x');
      return isGrown && place.children[0] === first && place.children.length === 3;
    }""")
    assert kept


def two_turns_with_a_picture(page):
    question = page.get_by_label("Question")
    page.locator("#file").set_input_files(SHAPES)
    page.locator("#pictures span", has_text="tokens").wait_for()
    assert page.locator("#pictures img").get_attribute("alt").startswith("shapes-1.png, "), "a picture has a text"
    question.fill("What is left of the red circle?")
    ask(page, lambda: question.press("Enter"))
    assert answer(page) == "a blue circle", answer(page)
    assert "of pictures" in page.locator(".facts").inner_text()
    question.fill("How many circles are there?")
    asked = ask(page, page.get_by_role("button", name="Send").click)["messages"]
    second = answer(page)
    roles = [message["role"] for message in asked]
    assert second and roles == ["user", "assistant", "user"], (second, roles)
    assert asked[1]["content"] == "a blue circle"
    again = ask(page, page.get_by_role("button", name="Ask again").click)
    assert answer(page) == second and len(again["messages"]) == 3
    page.get_by_role("button", name="Edit question").click()
    question.fill("What is right of the blue circle?")
    ask(page, lambda: question.press("Enter"))
    answer(page)
    assert page.locator("article").count() == 2, "an edited question takes the place of the old one"
    page.reload()
    page.get_by_role("button", name="What is left of the red circle?", exact=True).click()
    assert answer(page, 0) == "a blue circle" and page.locator(".shown img").count() == 1
    page.get_by_role("button", name="New conversation").click()
    assert page.locator("article").count() == 0
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Delete all").click()
    page.locator("#kept li").wait_for(state="detached")


GIVE = """([name, type, bytes, kind]) => {
  const files = new DataTransfer();
  files.items.add(new File([Uint8Array.from(atob(bytes), c => c.charCodeAt(0))], name, { type }));
  const event = kind === 'paste' ? new ClipboardEvent('paste', { clipboardData: files, bubbles: true, cancelable: true })
    : new DragEvent('drop', { dataTransfer: files, bubbles: true, cancelable: true });
  document.getElementById('question').dispatchEvent(event);
}"""


def pictures_are_pasted_dropped_and_taken(page):
    shapes = base64.b64encode(SHAPES.read_bytes()).decode()
    for at, kind in enumerate(["paste", "drop"]):
        page.evaluate(GIVE, ["some.png", "image/png", shapes, kind])
        page.locator("#pictures li").nth(at).wait_for()
    page.evaluate(GIVE, ["notes.txt", "text/plain", "aGk=", "drop"])
    page.get_by_role("alert").get_by_text("notes.txt is no picture").wait_for()
    page.evaluate(GIVE, ["broken.png", "image/png", "aGk=", "paste"])
    page.get_by_role("alert").get_by_text("broken.png is no picture").wait_for()
    page.get_by_role("button", name="Camera").click()
    page.get_by_role("button", name="Take the picture").click()
    page.locator("#pictures li").nth(2).wait_for()
    for left in [2, 1, 0]:
        page.locator("#pictures button").first.click()
        assert page.locator("#pictures li").count() == left


def the_keyboard_is_enough(page):
    assert page.evaluate("document.activeElement.id") == "question", "what is written first has the focus"
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.get_by_label("Question").input_value() == "one\ntwo"
    # An answer that never comes, until Escape.
    page.evaluate("() => { window.fetch = (_, { signal }) => new Promise((_, failed) => signal?.addEventListener('abort', () => failed(signal.reason))); }")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Stop").wait_for()
    page.keyboard.press("Escape")
    page.locator(".facts", has_text="stopped").wait_for()
    # It is kept a moment later.
    page.locator("#kept li").wait_for()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.slice(0, 20)"))
    # As it reads: the header, what is kept, the turns, the form.
    begin = reached.index("model")
    order = [reached.index(each, begin) for each in ["model", "fresh", "one", "Ask again", "question", "add", "take", "send", "Settings"]]
    assert order == sorted(order), reached


def everything_has_a_name(page):
    page.locator("#file").set_input_files(SHAPES)
    page.get_by_label("Question").fill("What is left of the red circle?")
    ask(page, lambda: page.get_by_label("Question").press("Enter"))
    answer(page)
    page.locator("#file").set_input_files(SHAPES)
    page.locator("#settings summary").click()
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    named = {"button", "textbox", "combobox", "spinbutton", "link", "image", "img", "dialog", "navigation", "log", "region", "disclosuretriangle"}
    found = [node for node in nodes if not node["ignored"] and node["role"]["value"].lower() in named]
    nameless = [node for node in found if not node.get("name", {}).get("value", "").strip()]
    assert len(found) > 15 and not nameless, nameless
    assert "blue circle" in page.locator("#announced").inner_text(), "an answer is told to who hears"


def it_fits_a_phone(page):
    page.evaluate("""async text => {
      const { showAll } = await import('/page/turns.js');
      const picture = { url: 'data:image/png;base64,', name: 'p', width: 1, height: 1 };
      showAll([{ question: { text: 'q'.repeat(300), pictures: [picture] }, answer: { text, thought: 't'.repeat(300), facts: 'f', wrong: 'w'.repeat(300) } }], {});
    }""", WIDE)
    page.locator("#file").set_input_files([SHAPES] * 5)
    page.locator("#settings summary").click()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= 360, f"{width} pixels on a screen of 360"
    page.get_by_role("button", name="History").click()
    assert page.get_by_role("navigation").is_visible() and not page.get_by_label("Question").is_visible()
    page.get_by_role("button", name="History").click()
    page.get_by_label("Question").fill("one")
    page.get_by_label("Question").press("Enter")
    assert page.get_by_label("Question").input_value() == "one\n", "there a button sends"


def refusals_are_told_where_they_happen(page):
    page.locator("#settings summary").click()
    page.get_by_label("Temperature").fill("7")
    page.get_by_label("Question").fill("What?")
    page.get_by_role("button", name="Send").click()
    page.locator(".wrong", has_text="temperature").wait_for()
    assert any("400" in each for each in page.complaints)
    page.complaints.clear()


SLOW_MS = 500
SLOW_BODIES = """() => {
  const json = Response.prototype.json;
  Response.prototype.json = async function () { await new Promise(done => setTimeout(done, %d)); return json.call(this); };
}""" % SLOW_MS


def a_key_is_asked_for(page):
    refused = []

    def guard(route):
        # The page looks at the models on its own: the question is refused first.
        is_asked = "/chat/" in route.request.url or refused
        if not is_asked or route.request.headers.get("authorization") == "Bearer right":
            return route.continue_()
        refused.append(route.request.url)
        route.fulfill(status=401, json={"error": {"message": "a key is missing", "code": "invalid_api_key"}})

    page.get_by_label("Question").fill("What?")
    page.route("**/v1/**", guard)
    page.evaluate(SLOW_BODIES)
    with page.expect_response(lambda response: response.status == 401 and "/v1/models" in response.url):
        page.get_by_role("button", name="Send").click()
        page.locator(".wrong", has_text="a key is missing").wait_for()
    # What refuses the models is still read while the key is given: it does not ask for one again.
    page.get_by_label("Key", exact=True).fill("right")
    page.keyboard.press("Enter")
    page.wait_for_timeout(SLOW_MS + 200)
    page.get_by_role("button", name="Ask again").click()
    page.locator(".facts", has_text="prompt").wait_for()
    page.complaints.clear()


def thinking_and_hostile_answers_are_shown(page):
    events = [{"choices": [{"delta": {"reasoning_content": "hm"}}]}, {"choices": [{"delta": {"content": "<img src=x onerror=window.hit=1> **b**"}}]}]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
    page.route("**/v1/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    page.get_by_label("Question").fill("What?")
    ask(page, lambda: page.get_by_label("Question").press("Enter"))
    assert answer(page) == "<img src=x onerror=window.hit=1> b"
    page.get_by_text("What it thought").click()
    page.get_by_text("hm", exact=True).wait_for()
    assert page.locator(".answer img").count() == 0 and page.evaluate("window.hit ?? null") is None


def an_encoder_has_a_form_of_its_own(page):
    page.get_by_label("Model").select_option("letters")
    page.get_by_label("Texts, one a line").fill("abc\nabc\nxyz")
    assert not page.get_by_label("Question").is_visible()
    page.get_by_role("button", name="Embed").click()
    page.locator("#vectors h2", has_text="Cosine similarity").wait_for()
    rows = page.locator("#vectors table").nth(1).locator("tbody tr")
    first = [float(text) for text in rows.nth(0).locator("td").all_inner_texts()]
    assert first[:2] == [1, 1] and first[2] < 1, first
    assert "3 vectors of" in page.locator("#vectors").inner_text()
    page.get_by_label("Model").select_option("shapes-vl")
    page.get_by_label("Question").wait_for()


def a_cross_encoder_has_a_form_of_its_own(page):
    page.get_by_label("Model").select_option("ranks")
    page.get_by_label("What is asked").fill("ab")
    page.get_by_label("What may answer it, one a line").fill("xyz\nab\n\nabc")
    assert not page.get_by_label("Question").is_visible() and not page.get_by_label("Texts, one a line").is_visible()
    page.get_by_role("button", name="Rank").click()
    page.locator("#ranks h2", has_text="Ranking").wait_for()
    cells = page.locator("#ranks tbody td").all_inner_texts()
    scores = [float(text) for text in cells[::2]]
    assert sorted(cells[1::2]) == ["ab", "abc", "xyz"] and scores == sorted(scores, reverse=True), cells
    page.get_by_label("What may answer it, one a line").fill("")
    page.get_by_role("button", name="Rank").click()
    page.locator("#ranking [role=alert]", has_text="documents").wait_for()
    assert any("400" in each for each in page.complaints)
    page.complaints.clear()


def a_classifier_has_a_form_of_its_own(page):
    page.get_by_label("Model").select_option("labels")
    page.get_by_label("What is classified").fill("two circles")
    assert not page.get_by_label("Question").is_visible() and not page.get_by_label("What is asked").is_visible()
    page.get_by_role("button", name="Classify").click()
    page.locator("#labels h2", has_text="Labels").wait_for()
    told = page.locator("#labels li").all_inner_texts()
    scores = [float(text.split()[-1]) for text in told]
    assert len(told) == 3 and scores == sorted(scores, reverse=True) and abs(sum(scores) - 1) < 1e-3, told
    bars = page.locator("#labels meter").evaluate_all("all => all.map(one => one.value)")
    assert all(abs(bar - score) < 1e-4 for bar, score in zip(bars, scores)), bars
    page.get_by_label("What is classified").fill("")
    page.get_by_role("button", name="Classify").click()
    page.locator("#classifying [role=alert]", has_text="inputs").wait_for()
    assert any("400" in each for each in page.complaints)
    page.complaints.clear()


def text_is_legible(page):
    ratios = page.evaluate("""() => {
      const root = getComputedStyle(document.documentElement);
      const light = name => {
        const hex = root.getPropertyValue(name).trim().slice(1).replace(/^(.)(.)(.)$/, '$1$1$2$2$3$3');
        const part = at => { const v = parseInt(hex.slice(at, at + 2), 16) / 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
        return 0.2126 * part(0) + 0.7152 * part(2) + 0.0722 * part(4);
      };
      const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
      const inks = ['--ink', '--soft', '--accent', '--bad'], grounds = ['--ground', '--sheet'];
      return [...inks.flatMap(ink => grounds.map(ground => [ink, ground])), ['--ink', '--tint'], ['--on-accent', '--accent']].map(([a, b]) => [a, b, ratio(a, b)]);
    }""")
    poor = [each for each in ratios if each[2] < 4.5]
    assert not poor, poor


CHECKS = [
    (pure_parts_do_as_they_say, {}), (markdown_is_shown, {}), (hostile_answers_stay_text, {}), (long_answers_take_no_time, {}),
    (what_is_shown_already_stays, {}), (two_turns_with_a_picture, {}), (pictures_are_pasted_dropped_and_taken, {"permissions": ["camera"]}),
    (the_keyboard_is_enough, {}), (everything_has_a_name, {}), (it_fits_a_phone, PHONE), (refusals_are_told_where_they_happen, {}),
    (a_key_is_asked_for, {}), (thinking_and_hostile_answers_are_shown, {}), (an_encoder_has_a_form_of_its_own, {}),
    (a_cross_encoder_has_a_form_of_its_own, {}), (a_classifier_has_a_form_of_its_own, {}),
    (text_is_legible, {"color_scheme": "light"}), (text_is_legible, {"color_scheme": "dark"}),
]

begun = time.monotonic()
with chromium() as browser:
    for check, context in CHECKS:
        try:
            with visit(browser, url, **context) as page:
                check(page)
        except Exception as error:
            sys.exit(f"browser: {check.__name__}: {error}")
print(f"browser: {len(CHECKS)} checks of the page, {time.monotonic() - begun:.0f} s")
