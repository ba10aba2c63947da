"""Configuration of the documentation site: sphinx-build -W docs <folder>."""

import shutil
from pathlib import Path

import bertsecrets

_DOCS = Path(__file__).resolve().parent
# Sphinx reads nothing outside its folder; links from a notebook to the docs are one folder shorter there.
shutil.copytree(_DOCS.parent / "notebooks", _DOCS / "tutorials", dirs_exist_ok=True)
for _notebook in (_DOCS / "tutorials").glob("*.ipynb"):
    _notebook.write_text(_notebook.read_text("utf-8").replace("../docs/", "../"), "utf-8")

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

myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4
# The notebooks hold their outputs; a test runs them.
nb_execution_mode = "off"

napoleon_custom_sections = [("Modes", "params_style")]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
# Documented names of other libraries are not linked: building needs no network.
autodoc_inherit_docstrings = False
suppress_warnings = ["mystnb.unknown_mime_type"]
