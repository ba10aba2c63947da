"""Pages as parsers and browsers read them."""

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"]
_OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    *_QUIET,
    "--enable-logging=stderr",
    "--v=0",
]
_VOID = {"meta", "link", "img", "br", "input"}


class Page(HTMLParser):
    """Elements, visible text and script contents of a page; ``balanced`` while every end tag closes the last open."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.balanced = True
        self.text = ""
        self.style = ""
        self.scripts: list[str] = []
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self.balanced &= bool(self.open) and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        elif self.open and self.open[-1] == "style":
            self.style += data
        else:
            self.text += data

    def all(self, tag: str, **attributes: str) -> list[dict[str, str | None]]:
        return [found for name, found in self.elements if name == tag and attributes.items() <= {**found}.items()]

    def examples(self) -> list[dict[str, Any]]:
        pairs = zip(self.all("script"), self.scripts, strict=True)
        return [json.loads(text) for found, text in pairs if found.get("class") == "viewer-example"]


def hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def check_policy(page: Page) -> None:
    """Check that the policy of a page allows its style and its scripts, by their hashes, and nothing else."""
    (meta,) = page.all("meta", **{"http-equiv": "Content-Security-Policy"})
    policy = {name: sources for name, *sources in (part.split() for part in (meta["content"] or "").split(";"))}
    others = {"default-src": ["'none'"], "img-src": ["data:"], "base-uri": ["'none'"], "form-action": ["'none'"]}
    kinds = [attributes.get("type") for attributes in page.all("script")]
    running = [text for kind, text in zip(kinds, page.scripts, strict=True) if kind is None]
    assert running
    assert policy.pop("style-src") == [hash_source(page.style)]
    assert set(map(hash_source, running)) <= set(policy.pop("script-src"))
    assert policy == others
    # No hash allows these.
    names = {name for _, attributes in page.elements for name in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]


def in_browser(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that opens pages in Chromium."""
    reason = "needs Chromium, Chrome or chromium-browser on the path"
    return pytest.mark.slow(pytest.mark.skipif(_CHROMIUM is None, reason=reason)(test))


def browse(page: Path, script: str, *, window: str = "1300,900", fragment: str = "") -> tuple[str, str]:
    """Run a script at the end of a page, which the page's policy is made to allow.

    Returns:
        The page as the script left it, and what the browser logged.
    """
    text = page.read_text("utf-8")
    assert text.count("script-src ") == 1
    text = text.replace("script-src ", f"script-src {hash_source(script)} ")
    page.write_text(text.replace("</body>", f"<script>{script}</script></body>"), "utf-8")
    options = [f"--user-data-dir={page.parent / 'profile'}", f"--window-size={window}"]
    command = [_CHROMIUM, *_OPTIONS, *options, "--virtual-time-budget=20000", "--dump-dom", page.as_uri() + fragment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, done.stderr


def seen(page: Path, script: str, *, window: str = "1300,900", fragment: str = "") -> dict[str, Any]:
    """What a script that drives a page as a reader would leaves in ``document.body.dataset.seen``, as JSON."""
    left, log = browse(page, script, window=window, fragment=fragment)
    assert not re.search("CONSOLE|Uncaught", log), log
    (found,) = re.findall(r'data-seen="([^"]*)"', left)
    return dict(json.loads(html.unescape(found)))
