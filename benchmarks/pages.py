"""Words, screens, figures and size of pages, in headless Chromium in a window of 1300 x 800.

    python benchmarks/pages.py --page before/run=<folder>/report.html --page after/run=<folder>/report.html \
        --out benchmarks/results/pages.json

The pages of benchmarks/results/pages.json are those of

    python train.py -m seed=1,2 data.limit_train=160 data.limit_eval=100 trainer.max_epochs=1 sweep.paper=true

Folded sections stay folded. A page is named <version>/<kind>; results of other pages in the file are kept.
"""

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from html import unescape
from pathlib import Path
from typing import Any

_PROBE = """
const drawn = [...document.querySelectorAll("img, canvas, svg")].filter((one) => {
  const box = one.getBoundingClientRect();
  return box.width >= 120 && box.height >= 80 && !one.parentElement.closest("svg") && one.checkVisibility();
});
document.body.dataset.seen = JSON.stringify({
  words: document.body.innerText.trim().split(/\\s+/).length,
  screens: Math.round(10 * document.documentElement.scrollHeight / 800) / 10,
  figures: drawn.length,
});
"""


def measured(page: Path) -> dict[str, Any]:
    """What a reader sees of a page before unfolding anything, and its size in megabytes."""
    text = page.read_text("utf-8")
    # A page's policy allows its own scripts only; the copy that is opened here has none.
    open_text = re.sub(r"<meta[^>]*Content-Security-Policy[^>]*>", "", text)
    script = f"<script>addEventListener('load', () => setTimeout(() => {{{_PROBE}}}, 1500));</script></body>"
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / page.name
        copy.write_text(open_text.replace("</body>", script), "utf-8")
        browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium-browser"
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        options += ["--window-size=1300,800", "--virtual-time-budget=6000", "--dump-dom", copy.as_uri()]
        done = subprocess.run([browser, *options], capture_output=True, text=True, check=True, timeout=300)
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    if seen is None:
        raise SystemExit(f"{page} showed nothing; open it in a browser.")
    return {**json.loads(unescape(seen[1])), "megabytes": round(page.stat().st_size / 1e6, 2)}


def main() -> None:
    """Measure the pages named on the command line, print a table and store it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", action="append", required=True, help="<version>/<kind>=<file>")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(arguments.out.read_text("utf-8")) if arguments.out.exists() else {}
    for named in arguments.page:
        name, _, file = named.partition("=")
        version, _, kind = name.partition("/")
        results.setdefault(kind, {})[version] = measured(Path(file))
        print(name, results[kind][version])
    arguments.out.write_text(json.dumps(results, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
