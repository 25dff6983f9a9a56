"""A page in headless Chromium: a script is added to it, and what it finds is returned."""

import html
import json
import os
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

REQUIRED = "CI_CHROMIUM"  # set to "required", the absence of Chromium is a failure
_OFF = ("gpu", "quic", "background-networking", "component-update", "sync", "dev-shm-usage")
_FLAGS = ("--headless", "--no-sandbox", "--no-first-run", "--hide-scrollbars", *(f"--disable-{name}" for name in _OFF))

# Helpers for the script: `click`, `type`, `choose` and `drag` dispatch what a person's hand would.
_HELPERS = """
const wait = (ms) => new Promise((done) => setTimeout(done, ms));
const all = (selector) => [...document.querySelectorAll(selector)];
const texts = (selector) => all(selector).map((node) => node.textContent.trim());
const change = (node, value, name) => { node.value = value; node.dispatchEvent(new Event(name, { bubbles: true })); };
async function click(node) { node.focus(); node.click(); await wait(50); }
async function type(node, text) { change(node, text, "input"); await wait(300); }
async function choose(node, value) { change(node, value, "change"); await wait(50); }
async function drag(node, from, to) {
  const box = node.getBoundingClientRect(), half = [(from[0] + to[0]) / 2, (from[1] + to[1]) / 2];
  for (const [kind, [x, y]] of [["move", from], ["down", from], ["move", half], ["move", to], ["up", to]]) {
    const at = { bubbles: true, clientX: box.left + x, clientY: box.top + y, button: 0, buttons: 1, isPrimary: true };
    node.dispatchEvent(new PointerEvent("pointer" + kind, at));
    node.dispatchEvent(new MouseEvent("mouse" + kind, at));
    await wait(20);
  }
  await wait(100);
}
async function write(work) {
  const node = document.createElement("pre");
  node.id = "found";
  node.textContent = JSON.stringify(await work().catch((error) => ({ error: error.stack })));
  document.body.append(node);
}
"""


def chromium() -> str:
    """Return the path of Chromium; skip the test, or fail it where it is required, if there is none."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        assert os.environ.get(REQUIRED) != "required", "Chromium is not installed"
        pytest.skip("needs Chromium")
    return found


def with_script(page: str, script: str) -> str:
    """Return a page with a script of a test, which its policy allows like its own.

    Args:
        page: the page.
        script: the body of an async function, which returns what `run_script` will.
    """
    code = f"{{ {_HELPERS} write(async () => {{ {script} }}); }}"
    digest = b64encode(sha256(code.encode()).digest()).decode()
    assert page.count("script-src ") == 1
    page = page.replace("script-src ", f"script-src &#39;sha256-{digest}&#39; ")
    body, _, end = page.rpartition("</body>")  # ECharts has one, too
    return f"{body}<script>{code}</script></body>{end}"


def dump(address: str, profile: Path, milliseconds: int = 5000, size: str = "1400,1000") -> str:
    """Return the document of an address after a virtual time."""
    command = [chromium(), *_FLAGS, f"--user-data-dir={profile}", f"--window-size={size}"]
    command += [f"--virtual-time-budget={milliseconds}", "--dump-dom", address]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def found(document: str) -> Any:
    """Return what the script of `with_script` returned."""
    match = re.search(r'<pre id="found">(.*?)</pre>', document, re.S)
    assert match, "the script did not end"
    return json.loads(html.unescape(match.group(1)))


def run_script(page: str, script: str, folder: Path, size: str = "1400,1000") -> Any:
    """Run a script in a page as a file; return what it returns.

    Args:
        page: the page.
        script: see `with_script`.
        folder: an empty folder for the page and the browser's profile.
        size: width and height of the window.
    """
    file = folder / "tested.html"
    file.write_text(with_script(page, script), encoding="utf-8")
    for milliseconds in (5_000, 30_000, 120_000):  # on a busy machine, virtual time may end before the script does
        profile = folder / f"profile-{milliseconds}"  # a new one, because the page may have stored data before it ended
        document = dump(file.as_uri(), profile, milliseconds, size)
        if '<pre id="found">' in document:
            break
    result = found(document)
    assert not (isinstance(result, dict) and "error" in result), result
    return result
