"""A folder of pages for any static host: the pages of runs and sweeps, and an index that names each by its answer.

    python -m tools.gallery <new folder> <run or sweep folder> ...

Serve it with ``python -m http.server -d <new folder>``, or publish it, e.g. as GitHub Pages.
"""

import html
import re
import shutil
import sys
from pathlib import Path

from bertsecrets.errors import UserError

_INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>bertsecrets: pages</title>
<style>body {{ font: 1rem/1.6 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto; padding: 0 1rem; color-scheme: light dark }}
small {{ opacity: 0.7 }}</style></head>
<body><h1>Pages of runs</h1><ul>
{items}
</ul></body></html>
"""


def build(folder: Path, sources: list[Path]) -> list[Path]:
    """Copy all pages below the sources into a new folder with an index.

    Returns:
        The copies, in the order of the index.

    Raises:
        UserError: If the folder exists, or a source holds no page.
    """
    if folder.exists():
        raise UserError(f"Folder '{folder}' exists already; name a new one.")
    pages = []
    for source in sources:
        below = sorted(source.rglob("*.html"))
        if not below:
            raise UserError(f"'{source}' holds no page; give the folder of a finished run or sweep.")
        pages += [(page, Path(source.resolve().name) / page.relative_to(source)) for page in below]
    items = []
    for page, place in pages:
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
        heading = re.search(r"<h1[^>]*>(.*?)</h1>", page.read_text("utf-8"), re.DOTALL)
        answer = " ".join(re.sub(r"<[^>]*>", "", heading[1]).split()) if heading else html.escape(page.stem)
        size = f"{page.stat().st_size / 1e6:.1f} MB"
        items.append(f'<li><a href="{html.escape(place.as_posix())}">{answer}</a> <small>{place}, {size}</small></li>')
    (folder / "index.html").write_text(_INDEX.format(items="\n".join(items)), "utf-8")
    return [folder / place for _, place in pages]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        written = build(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"{len(written)} pages: {sys.argv[1]}/index.html")
