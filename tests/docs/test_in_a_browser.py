"""The site in headless Chromium, on a wide and a narrow screen: nothing is cut off, missing or asked of others."""

import functools
import http.server
import subprocess
import sys
import threading

import pytest
from docs.blocks import ROOT

PAGES = sorted(path.stem for path in (ROOT / "docs").glob("*.md"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Its address."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(folder)]
    env = {"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, check=True)

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read(name, width, site, browser):
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, wrong = context.new_page(), []
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith((site, "data:")) else None
    )
    answer = page.goto(f"{site}/" if name == "index" else f"{site}/{name}/", wait_until="networkidle")
    assert answer.ok
    assert len(page.locator("article").inner_text()) > 500
    # Tables and code scroll by themselves; the page must not.
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    outside = """[...document.querySelectorAll("article p, article li, article h1, article h2, article img")]
        .filter(e => e.checkVisibility() && !e.closest("table, .md-typeset__scrollwrap, pre"))
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML.slice(0, 200))"""
    assert page.evaluate(outside) == []
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    images = page.evaluate(
        "[...document.querySelectorAll('article img')].map(i => [i.src, i.complete && i.naturalWidth > 0])"
    )
    assert [source for source, shown in images if not shown] == []
    assert wrong == []
    context.close()
