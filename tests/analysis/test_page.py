"""The report in a real browser: drawn, hovered, read on a wide and a narrow screen; nothing in it runs or leaves."""

import numpy as np
import pytest

from analysis import made
from confident_decoding.analysis import plots
from confident_decoding.analysis.page import write_page
from confident_decoding.analysis.summary import summarise
from confident_decoding.analysis.texts import visible
from confident_decoding.analysis.trace import Trace, TraceWriter

EVIL = "<script>window.ran = 1</script><img src=x onerror='window.ran = 2'>"
VOCABULARY = 20_000


def spell(token):
    """A vocabulary with markup in it, and white space."""
    return {5: "</script>", 6: "\n", 7: " &amp;"}.get(token, f" w{token * 7919 % VOCABULARY}x")


def build(folder, lengths, candidates=20, window=10, vocabulary=VOCABULARY):
    """A page of made-up sequences, and those."""
    made_up = [made.sequence(n, candidates, seed=n + i, vocabulary=vocabulary) for i, n in enumerate(lengths)]
    writer = TraceWriter(folder / "trace.parquet", made.about(candidates, window, num_layers=30))
    for sequence in made_up:
        texts = [spell(token) for token in sequence.tokens.tolist()]
        texts[0] = EVIL
        writer.add(sequence, texts)
    writer.close()
    trace = Trace(folder / "trace.parquet")
    summary = summarise(trace, spell)
    prompts = {number: f"{EVIL} & question {number}" for number in range(len(lengths))}
    write_page(folder / "report.html", summary, trace, prompts, spell)
    return folder / "report.html", made_up, summary


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return build(tmp_path_factory.mktemp("page"), [60, 200, 20], vocabulary=300)


@pytest.fixture
def opened(browser, report):
    """``opened(width, **options)``: the report on such a screen; afterwards nothing may have gone wrong."""
    wrong, contexts = [], []

    def load(width, height=900, path=report[0], **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", lambda request: wrong.append(request.url) if not known(request.url) else None)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=yes]", timeout=20_000)
        return page

    def known(url):
        return url.startswith("data:image/svg+xml") or url.startswith("file:")

    yield load
    for context in contexts:
        context.close()
    assert wrong == []


def test_charts_are_drawn(opened):
    page = opened(1280)
    images = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.clientWidth])")
    assert len(images) == len(plots.CHARTS)
    assert all(complete and natural > 100 and shown > 200 for complete, natural, shown in images)


def test_the_main_figures_are_named(opened, report):
    found = opened(1280).evaluate("[...document.querySelectorAll('.figures div')].map(d => d.innerText.split('\\n'))")
    summary = report[2]
    shown = {name: value for name, value, _ in (line for line in found)}
    assert shown == {
        "tokens": "280",
        "not at final": f"{100 * summary['not_at_final']:.1f} %",
        "replaced": f"{100 * summary['replaced']:.1f} %",
        "mean depth": f"{summary['mean_depth']:.2f}",
        "extra projections": f"{summary['extra_projections']:.2f}",
        "entropy drop": f"{summary['entropy']['drop']:.3f}",
    }


def test_a_page_that_does_not_show_all_says_so(opened, tmp_path):
    made_up = [made.sequence(50, 6, tops=tops, seed=tops) for tops in (50, 10, 0)]
    writer = TraceWriter(tmp_path / "trace.parquet", made.about(6, 4))
    for sequence in made_up:
        writer.add(sequence, [spell(token) for token in sequence.tokens.tolist()])
    writer.close()
    trace = Trace(tmp_path / "trace.parquet")
    write_page(tmp_path / "report.html", summarise(trace, spell), trace, {}, spell)
    page = opened(1280, path=tmp_path / "report.html")
    assert page.locator(".answer .t").count() == 60
    assert page.locator("section:has(#text) > p").first.inner_text().startswith("The first 60 of 150 tokens. ")


def test_a_page_that_shows_all_does_not_say_otherwise(opened):
    assert "The first" not in opened(1280).locator("section:has(#text) > p").first.inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_charts_are_those_of_the_colour_scheme(scheme, opened, report):
    page = opened(1280, color_scheme=scheme)
    shown = page.evaluate("[...document.images].map(i => i.currentSrc)")
    assert shown == [plots.data_uri(chart, report[2], scheme) for chart in plots.CHARTS]


def point_at(page, span):
    """Move the mouse onto a token (which may be broken over two lines)."""
    span.scroll_into_view_if_needed()
    page.mouse.move(*span.evaluate("e => { const r = e.getClientRects()[0]; return [r.x + r.width / 2, r.y + 8]; }"))


def panel_of(page):
    """The rows of the panel as ``[[depth, entropy, [[token, percent], ...]], ...]``; None while it is hidden."""
    if not page.is_visible("#panel"):
        return None
    return page.evaluate(
        "[...document.querySelectorAll('#panel tr')].slice(1).map(r => [r.cells[0].innerText, r.cells[1].innerText, "
        "[...r.querySelectorAll('.best')].map(b => [b.children[0].textContent, b.children[1].innerText])])"
    )


def expected_panel(sequence, i, window=10):
    seen = sequence.seen
    return [
        [
            str(d),
            f"{seen.entropies[i, d]:.3f}",
            [
                [visible(spell(int(token))), f"{100 * chance:.1f}"]
                for token, chance in zip(seen.top_tokens[i, d], seen.top_probabilities[i, d], strict=True)
            ],
        ]
        for d in range(window)
    ]


def close_to(found, expected):
    """Equal, but for numbers that were rounded twice."""
    assert found is not None
    for (d, h, best), (own_d, own_h, own_best) in zip(found, expected, strict=True):
        assert (d, [token for token, _ in best]) == (own_d, [token for token, _ in own_best])
        assert float(h) == pytest.approx(float(own_h), abs=0.0011)
        assert [float(x) for _, x in best] == pytest.approx([float(x) for _, x in own_best], abs=0.11)


@pytest.mark.parametrize(("article", "token"), [(0, 0), (0, 17), (1, 5), (2, 19)])
def test_hovering_shows_the_candidates(article, token, opened, report):
    page = opened(1280)
    span = page.locator(".answer").nth(article).locator(".t").nth(token)
    assert panel_of(page) is None
    point_at(page, span)
    close_to(panel_of(page), expected_panel(report[1][article], token))
    box = page.locator("#panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 1280
    page.mouse.move(1270, 5)
    assert panel_of(page) is None


def test_an_entropy_that_is_no_number_is_said_to_be_none(opened, tmp_path):
    sequence = made.sequence(3, 6)
    sequence.seen.entropies[1, :3] = np.nan, np.inf, 1.5
    writer = TraceWriter(tmp_path / "trace.parquet", made.about(6, 4))
    writer.add(sequence, ["a", "b", "c"])
    writer.close()
    trace = Trace(tmp_path / "trace.parquet")
    write_page(tmp_path / "report.html", summarise(trace, spell), trace, {}, spell)
    page = opened(1280, path=tmp_path / "report.html")
    point_at(page, page.locator(".answer .t").nth(1))
    assert [row[1] for row in panel_of(page)][:3] == ["none", "none", "1.500"]


def test_title_says_what_replaces_what(opened, report):
    page, (_, sequences, _) = opened(1280), report
    replaced = page.locator(".answer .t.r").first
    number = page.evaluate("[...document.querySelectorAll('.answer .t')].findIndex(t => t.classList.contains('r'))")
    rows = np.concatenate([s.seen.entropies[:, :10] for s in sequences])
    best = np.concatenate([s.seen.best for s in sequences])[number]
    depth = 0
    while depth < 9 and rows[number, depth + 1] < rows[number, depth]:
        depth += 1
    point_at(page, replaced)
    title = page.locator("#panel h3").inner_text()
    assert title == f"depth {depth}: {visible(spell(best[depth]))} instead of {visible(spell(best[0]))}"


def test_a_click_keeps_and_escape_closes(opened, report):
    page = opened(1280)
    span = page.locator(".answer .t").nth(3)
    span.click(position={"x": 2, "y": 8})
    page.mouse.move(1270, 5)
    close_to(panel_of(page), expected_panel(report[1][0], 3))
    page.keyboard.press("Escape")
    assert panel_of(page) is None


def test_arrow_keys_walk_through_a_text(opened, report):
    page = opened(1280)
    page.locator(".answer").nth(1).focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    close_to(panel_of(page), expected_panel(report[1][1], 2))
    page.keyboard.press("ArrowLeft")
    close_to(panel_of(page), expected_panel(report[1][1], 1))


def test_a_tap_on_a_telephone_shows_them_in_reach(opened, report):
    page = opened(400, 800, has_touch=True, is_mobile=True, device_scale_factor=2)
    page.locator(".answer").nth(1).locator(".t").nth(30).tap(position={"x": 2, "y": 8})
    close_to(panel_of(page), expected_panel(report[1][1], 30))
    box = page.locator("#panel").bounding_box()
    assert (round(box["x"]), round(box["width"])) == (0, 400)
    assert box["height"] <= 0.5 * 800
    page.locator("h2#text").tap()
    assert panel_of(page) is None


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_is_wider_than_the_screen(width, opened):
    page = opened(width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    sizes = page.evaluate(
        "[...document.querySelectorAll('p, dt, dd, figcaption, td, th, .prompt, .t')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 12
    widest = page.evaluate("Math.max(...[...document.images].map(i => i.getBoundingClientRect().right))")
    assert widest <= width


CONTRASTS = """() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const paper = parse(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll(".legend .t")].map((span) => {
    const ink = light(parse(getComputedStyle(span).color)), over = parse(getComputedStyle(span).backgroundColor);
    const alpha = over.length > 3 ? over[3] : 1;
    const ground = light(over.slice(0, 3).map((v, i) => alpha * v + (1 - alpha) * paper[i]));
    return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_depth_can_be_read(scheme, opened):
    """The contrast of text and ground, as WCAG 2 computes it; 4.5 is its threshold for text."""
    contrasts = opened(1280, color_scheme=scheme).evaluate(CONTRASTS)
    assert len(contrasts) == 11
    assert min(contrasts) >= 4.5
    assert len(set(contrasts[:10])) == 10, "depths look alike"


def test_markup_in_prompts_and_answers_is_shown_and_does_not_run(opened, report):
    page = opened(1280)
    assert page.evaluate("window.ran") is None
    assert page.evaluate("document.scripts.length") == 2
    assert page.locator(".prompt").first.inner_text() == f"{EVIL} & question 0"
    assert page.locator(".answer .t").first.inner_text() == EVIL
    assert report[0].read_text().count("<script") == 2


def test_markup_would_not_run_even_if_it_were_let_through(browser, report, tmp_path):
    """The policy of the page allows one script, by its hash."""
    broken = tmp_path / "broken.html"
    broken.write_text(report[0].read_text().replace("<main>", "<main><script>document.title = 'ran'</script>"))
    with browser.new_page() as page:
        page.goto(broken.as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        assert page.evaluate("document.scripts.length") == 3
        assert page.title() != "ran"


@pytest.mark.parametrize(("window", "tokens"), [(10, 10_000), (20, 5_000), (30, 3_000)])
def test_the_tokens_that_are_shown_are_under_five_megabytes(opened, tmp_path, window, tokens):
    """As many as the command keeps in such a window; candidates that never agree are as bad as it gets."""
    path, sequences, _ = build(tmp_path, [500] * (tokens // 500), candidates=window, window=window)
    assert path.stat().st_size < 5e6
    page = opened(1280, path=path)
    assert page.locator(".answer .t").count() == tokens
    point_at(page, page.locator(".answer").last.locator(".t").last)
    if window == 10:
        close_to(panel_of(page), expected_panel(sequences[-1], 499))
