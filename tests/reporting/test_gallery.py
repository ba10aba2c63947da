"""The folder of pages that a static host serves."""

import re
from pathlib import Path

import pytest

from bertsecrets.errors import UserError
from tools.gallery import build


def test_every_page_is_copied_and_named_by_its_answer(tmp_path: Path) -> None:
    for name, heading in (("run one", "63 of 72 heads &lt;can&gt; be <b>spared</b>"), ("two", "Nothing\n  is needed")):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "report.html").write_text(f"<h1 id='x'>{heading}</h1>", "utf-8")
    copies = build(tmp_path / "site", [tmp_path / "run one", tmp_path / "two"])
    index = (tmp_path / "site" / "index.html").read_text("utf-8")
    links = re.findall(r'<a href="([^"]*)">([^<]*)</a>', index)
    assert [answer for _, answer in links] == ["63 of 72 heads &lt;can&gt; be spared", "Nothing is needed"]
    assert [tmp_path / "site" / link for link, _ in links] == copies
    assert all(copy.read_text("utf-8").startswith("<h1") for copy in copies)


def test_a_folder_that_exists_and_one_without_pages_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="exists already"):
        build(tmp_path / "empty", [])
    with pytest.raises(UserError, match="holds no page"):
        build(tmp_path / "site", [tmp_path / "empty"])
    assert not (tmp_path / "site").exists()
