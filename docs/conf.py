"""Configuration of the documentation site.

sphinx-build -W docs <folder>
NOTEBOOKS=force sphinx-build -W docs <folder>      # runs the tutorials again instead of showing their stored outputs;
minutes BERTSECRETS_URL=https://github.com/<owner>/<name>/blob/main sphinx-build ...      # with links that open the
tutorials in Colab
"""

import json
import os
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.errors import SphinxError

import bertsecrets

_DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(_DOCS), str(_DOCS.parent)]
import fills  # noqa: E402
import reference_pages  # noqa: E402

reference_pages.write(_DOCS)
# Sphinx reads nothing outside its folder, so notebooks, the READMEs of the tools and CONTRIBUTING.md are copied into
# it; their links to the docs are one folder shorter there.
_COPIES = {"notebooks": "tutorials", "tools": "tools"}
for _folder, _name in _COPIES.items():
    _other = shutil.ignore_patterns("*.py", "*.safetensors", "*.csv", "*.json", "__pycache__", "tests")
    shutil.copytree(_DOCS.parent / _folder, _DOCS / _name, ignore=_other, dirs_exist_ok=True)
    for _page in (*(_DOCS / _name).rglob("*.ipynb"), *(_DOCS / _name).rglob("*.md")):
        _page.write_text(_page.read_text("utf-8").replace("../docs/", "../"), "utf-8")
_ADDRESS = os.environ.get("BERTSECRETS_URL", "").rstrip("/")
if _ADDRESS.startswith("https://github.com/"):
    _COLAB = _ADDRESS.replace("https://github.com/", "https://colab.research.google.com/github/")
    for _page in (_DOCS / "tutorials").glob("*.ipynb"):
        _notebook = json.loads(_page.read_text("utf-8"))
        _notebook["cells"][0]["source"].append(f"\n\n[Open in Colab]({_COLAB}/notebooks/{_page.name})")
        _page.write_text(json.dumps(_notebook), "utf-8")
_CONTRIBUTING = (_DOCS.parent / "CONTRIBUTING.md").read_text("utf-8")
(_DOCS / "contributing.md").write_text(
    _CONTRIBUTING.replace("](bertsecrets/", "](../bertsecrets/").replace("](docs/", "]("), "utf-8"
)


def setup(app: Sphinx) -> None:
    """Fill pages from stored results, and turn links that lead out of the docs' folder into links to the copies."""

    def fill(app: Sphinx, name: str, source: list[str]) -> None:
        if Path(app.env.doc2path(name)).parent == _DOCS:
            try:
                text = fills.filled(source[0])
            except ValueError as error:
                raise SphinxError(f"{name}: {error}") from None
            # A filled page is made again where the results have changed.
            sources = (fills.__file__, fills.COVERAGE, *fills.RESULTS.glob("*.json")) if text != source[0] else ()
            for path in sources:
                app.env.note_dependency(str(path))
            source[0] = text
        source[0] = source[0].replace("](../tools/", "](tools/").replace("](../notebooks/", "](tutorials/")
        source[0] = source[0].replace("](../CONTRIBUTING.md", "](contributing.md")

    app.connect("source-read", fill)


project = "bertsecrets"
author = "The bertsecrets authors"
copyright = author
version = release = bertsecrets.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "myst_nb",
]
exclude_patterns = ["_build"]
html_theme = "pydata_sphinx_theme"
html_title = "bertsecrets"
html_theme_options = {"show_prev_next": False, "secondary_sidebar_items": ["page-toc"]}
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
# A test runs the notebooks and compares what they answer with the stored outputs, which an ordinary build shows.
nb_execution_mode = os.environ.get("NOTEBOOKS", "off")
nb_execution_timeout = 900
nb_execution_raise_on_error = True

napoleon_custom_sections = [("Modes", "params_style")]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Documented names of other libraries are not linked: building needs no network.
autodoc_inherit_docstrings = False
suppress_warnings = ["mystnb.unknown_mime_type"]
