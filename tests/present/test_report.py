import base64
import re
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from browser import Page, browse, check_policy, in_browser, seen
from matplotlib.figure import Figure

from bertsecrets.present.figures.grids import heatmap
from bertsecrets.present.report.content import (
    FigureBlock,
    HeadColumn,
    HeadHistory,
    HeadsTogether,
    HeadViewer,
    NextStep,
    Report,
    Section,
    Table,
    ViewerExample,
    joined,
)
from bertsecrets.present.report.page import save_figures, write_report

HOSTILE = ["<s>", "</script>", "<!--", "&amp;", "'\"", "\u2028", "naïve", "</s>"]


def attention(tokens: int, layers: int = 2, heads: int = 3, seed: int = 0) -> np.ndarray:
    logits = 3 * np.random.default_rng(seed).normal(size=(layers, heads, tokens, tokens)).astype(np.float32)
    weight_LHQK = np.exp(logits)
    return weight_LHQK / weight_LHQK.sum(-1, keepdims=True)


def example(name: str, tokens: list[str], **size: int) -> ViewerExample:
    stages = [("pre-trained", attention(len(tokens), **size)), ("step 63", attention(len(tokens), seed=1, **size))]
    return ViewerExample(name, tokens, stages)


def block(cells: int = 4, alt: str = "A heatmap") -> FigureBlock:
    value_LH = np.random.default_rng(0).uniform(size=(cells, cells))
    return FigureBlock("name", heatmap(value_LH, title="t", unit="u", count=1), "A caption", alt)


def full_report(*examples: ViewerExample) -> Report:
    return Report(
        title="Drift <b>of</b> heads",
        subtitle="run a & b",
        facts=[("model", "bert"), ("n", "408")],
        notes=["One run was left out."],
        sections=[
            Section(
                "Scores",
                ["Layer 11 changed most </script><script>alert(1)</script>."],
                ["A paragraph."],
                [Table(["metric", "value"], [["accuracy", "0.863"], ["r", "–"]], "T")],
            ),
            Section("Heads & maps", figures=[block(), block(alt='6 < 7 "quoted"')]),
            *([Section("Maps of examples", viewer=HeadViewer(examples, (1, 2)))] if examples else []),
        ],
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("report") / "report.html"
    write_report(path, full_report(example("hostile </script>", HOSTILE), example("plain", ["a", "b", "c"])))
    return Page(path)


def test_every_element_is_closed_and_nothing_hostile_became_one(page: Page) -> None:
    assert page.balanced
    assert not page.open
    assert not page.all("b")
    assert not page.all("s")
    assert "alert(1)" not in "".join(page.scripts)
    assert "Layer 11 changed most </script><script>alert(1)</script>." in page.text
    assert "Drift <b>of</b> heads" in page.text


def test_answer_notes_and_a_figure_stand_at_the_top(page: Page) -> None:
    top = page.text[: page.text.index("Scores")]
    assert top.index("Layer 11 changed most") < top.index("One run was left out.") < top.index("A caption")
    # Once as the answer, once in its section, and once as what a closed section says.
    assert page.text.count("Layer 11 changed most") == 3
    assert "A paragraph." not in top
    # The figure does not appear again in its section.
    assert len(page.all("img")) == 2


def test_nothing_is_fetched_from_anywhere(page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href", "srcset", "data", "action"):
            value = attributes.get(name) or ""
            assert value == "" or value.startswith(("data:", "#")), value
    assert "{" in page.style
    assert not re.search(r"url\(|@import", page.style)
    code = page.scripts[-1]
    assert not re.search(r"https?:|fetch\(|XMLHttpRequest|import\(", code)


def test_the_policy_allows_the_own_style_and_scripts_only(page: Page, tmp_path: Path) -> None:
    check_policy(page)
    joint = HeadsTogether([HeadColumn("a", "A", "b", "b", np.ones((1, 1)))])
    viewer = HeadViewer([example("one", ["a", "b"])])
    figures = [block(), FigureBlock("wide", heatmap(np.ones((2, 30)), title="t", unit="u", count=1), "", "")]
    write_report(tmp_path / "all", Report("t", sections=[Section("s", figures=figures, joint=joint, viewer=viewer)]))
    whole = Page(tmp_path / "all")
    check_policy(whole)
    # Each figure has a width of its own without a style attribute.
    widths = [int(image["width"] or 0) for image in whole.all("img")]
    assert len(set(widths)) == 2
    for width in widths:
        assert whole.all("div", **{"class": f"plot w{width}"})
        assert f".w{width} {{ --natural: {width}px; }}" in whole.style


def test_every_section_is_folded_under_its_title(page: Page) -> None:
    folds = page.all("details", **{"class": "fold"})
    assert [fold["id"] for fold in folds] == ["section-1", "section-2", "viewer"]
    assert not any("open" in fold for fold in folds)
    assert "Heads & maps" in page.text
    # A section with nothing but the page's viewer has no heading of its own.
    assert "Maps of examples" not in page.text


def test_figures_carry_their_alternative_text_and_size(page: Page) -> None:
    images = page.all("img")
    assert [image["alt"] for image in images] == ["A heatmap", '6 < 7 "quoted"']
    for image in images:
        kind, content = (image["src"] or "").split(",", 1)
        assert kind in ("data:image/svg+xml;base64", "data:image/webp;base64")
        assert base64.b64decode(content)[:4] in (b"<?xm", b"RIFF")
        assert int(image["width"] or 0) > 200
    assert len(page.all("figcaption")) == 2 + 3


def test_columns_of_numbers_are_flush_right(page: Page) -> None:
    assert [cell.get("class") for cell in page.all("td")] == ["short", "number", "short", "number"]


def test_viewer_payload_is_the_attention_within_one_255th(page: Page) -> None:
    first, second = page.examples()
    assert first["tokens"] == HOSTILE
    assert first["name"] == "hostile </script>"
    assert second["tokens"] == ["a", "b", "c"]
    original = example("hostile </script>", HOSTILE)
    for stored, (name, weight_LHQK) in zip(first["stages"], original.stages, strict=True):
        assert stored["name"] == name
        for layer, packed in enumerate(stored["layers"]):
            weight_HQK = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8)
            restored_HQK = (weight_HQK.reshape(first["heads"], len(HOSTILE), len(HOSTILE)) / first["levels"]) ** 2
            np.testing.assert_allclose(restored_HQK, np.asarray(weight_LHQK)[layer], atol=1 / 255)
    (viewer,) = page.all("div", **{"class": "viewer"})
    assert (viewer["data-layer"], viewer["data-head"]) == ("1", "2")
    assert page.all("noscript")


def test_a_table_can_be_folded_and_link_its_rows(tmp_path: Path) -> None:
    rows = [["one", "1"], ["two", "2"]]
    tables = [
        Table(["run", "n"], rows, "Runs", links=["a%20b/r.html", ""]),
        Table(["x", "y"], rows, "More", folded=True),
    ]
    write_report(tmp_path / "r.html", Report("t", sections=[Section("s", tables=tables)]))
    page = Page(tmp_path / "r.html")
    assert page.balanced
    assert [link["href"] for link in page.all("a")] == ["a%20b/r.html"]
    assert len(page.all("table")) == 2
    (summary,) = re.findall(r"<details>\s*<summary>(.*?)</summary>", (tmp_path / "r.html").read_text("utf-8"))
    assert summary == "More"


def test_a_table_refuses_rows_and_links_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="1 links for 2 rows"):
        Table(["run", "n"], [["one", "1"], ["two", "2"]], "Runs", links=["a"])
    with pytest.raises(ValueError, match="3 cells under 2 headings"):
        Table(["a", "b"], [["1", "2", "3"]])


def test_next_steps_are_given_or_are_the_commands_of_sections() -> None:
    sections = [Section("a", commands=["one", "two"]), Section("b", commands=["three", "four"])]
    assert [(step.settles, step.command) for step in Report("t", sections=sections).next_steps] == [
        ("a", "one"),
        ("b", "three"),
        ("a", "two"),
    ]
    told = replace(sections[0], tables=[Table(["x"], [["1"]])])
    assert [step.command for step in Report("t", sections=[told, sections[1]]).next_steps] == ["three", "one", "four"]
    # A command that would fill two sections stands once.
    both = [*sections, Section("c", commands=["one"])]
    assert Report("t", sections=both).next_steps[0] == NextStep("a; c", "one")
    asked = [Section(title, commands=["one"]) for title in ("Which?", "How?")]
    assert Report("t", sections=asked).next_steps == [NextStep("Which? How?", "one")]
    step = NextStep("Which?", "command", "a minute")
    assert Report("t", sections=sections, steps=[step]).next_steps == [step]


def test_a_page_without_viewer_has_the_script_of_the_frame_alone(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", full_report())
    (script,) = Page(tmp_path / "r.html").scripts
    assert "beforeprint" in script


def test_an_almost_empty_report_is_a_page(tmp_path: Path) -> None:
    write_report(tmp_path / "r.html", Report("Only a title"))
    bare = Page(tmp_path / "r.html")
    assert bare.balanced
    assert "Only a title" in bare.text
    assert not bare.all("details")


@pytest.mark.slow
def test_large_viewers_lose_their_last_examples(tmp_path: Path) -> None:
    tokens = ["[CLS]", *[f"token{i}" for i in range(126)], "[SEP]"]
    examples = [example(f"example {i}", tokens, layers=12, heads=12) for i in range(4)]
    path = tmp_path / "r.html"
    small = example("small", HOSTILE)
    write_report(path, full_report(small, *examples))
    assert path.stat().st_size <= 3_000_000
    page = Page(path)
    assert [kept["name"] for kept in page.examples()] == ["small", "example 0"]
    assert "holds 2 of 5 examples" in page.text
    assert [image["alt"] for image in page.all("img")] == ["A heatmap", '6 < 7 "quoted"']


def test_sparse_maps_of_full_size_fit(tmp_path: Path) -> None:
    tokens = ["[CLS]", *["word"] * 126, "[SEP]"]
    weight_LHQK = np.zeros((12, 12, 128, 128), np.float32)
    weight_LHQK[..., -1] = 1
    kept = ViewerExample("vertical", tokens, [("a", weight_LHQK), ("b", weight_LHQK)])
    path = tmp_path / "r.html"
    write_report(path, full_report(*[kept] * 4))
    assert path.stat().st_size <= 3_000_000
    assert len(Page(path).examples()) == 4


def test_large_figures_become_coarser_and_the_page_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsecrets.present.report.page.MAX_BYTES", 400_000)
    path = tmp_path / "r.html"
    write_report(path, Report("Big", sections=[Section("s", figures=[block(12), block(12)])]))
    page = Page(path)
    assert path.stat().st_size <= 400_000
    assert len(page.all("img")) == 2
    assert all((image["src"] or "").startswith("data:image/webp") for image in page.all("img"))
    assert re.search(r"drawn at (110|80|60) dots per inch", page.text)


@pytest.mark.slow
def test_figures_that_never_fit_are_left_out_from_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bertsecrets.present.report.page.MAX_BYTES", 70_000)
    path = tmp_path / "r.html"
    write_report(path, Report("Big", sections=[Section("s", figures=[block(2), *[block(12, alt="gone")] * 3])]))
    page = Page(path)
    assert path.stat().st_size <= 70_000
    assert page.all("img", alt="A heatmap")
    assert "Left out for size: gone" in page.text
    assert re.search(r"\d of 4 figures did not fit", page.text)


def test_a_failed_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.html"
    write_report(path, Report("Old"))

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(RuntimeError):
        write_report(path, Report("New"))
    assert "Old" in Page(path).text
    assert [each.name for each in tmp_path.iterdir()] == ["r.html"]


def test_a_section_is_followed_by_its_parts() -> None:
    inner = Section("c", parts=[Section("d")])
    whole = joined([Section("a", parts=[Section("b")]), inner])
    assert [section.title for section in whole.flat()] == ["a", "b", "c", "d"]
    assert joined([]) is None


def test_a_report_collects_from_its_sections() -> None:
    viewers = [HeadViewer([example(name, ["a", "b"])]) for name in ("first", "second")]
    sections = [
        Section("a", ["one", "two"], figures=[block(2)]),
        Section("b", viewer=viewers[0]),
        Section("c", ["three"], figures=[block(2), block(2)], viewer=viewers[1]),
    ]
    report = Report("t", sections=sections, notes=["note"])
    assert report.lead == ["note", "one", "two", "three"]
    assert report.figures == [sections[0].figures[0], *sections[2].figures]
    assert report.viewer is viewers[0]
    assert [section.title for section in report.headed] == ["a", "c"]


@in_browser
def test_a_browser_runs_and_applies_nothing_that_was_put_into_a_page(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, full_report())
    foreign = (
        "<script>document.body.dataset.ran = 1</script><em style='position: fixed'></em><style>em { position: "
        "fixed }</style>"
    )
    path.write_text(path.read_text("utf-8").replace("</header>", f"</header>{foreign}"), "utf-8")
    left, log = browse(path, "document.body.dataset.left = getComputedStyle(document.querySelector('em')).position;")
    assert log.count("violates the following Content Security Policy directive") == 3, log
    assert 'data-left="static"' in left
    assert "data-ran" not in left.split("<script>document.body.dataset.ran")[0]


SLIDER = """
const viewer = document.querySelector(".viewer");
const until = async (test) => { while (!test()) await new Promise((done) => setTimeout(done, 20)); };
const moment = () => viewer.querySelector("[data-moment]").textContent;
const readout = () => viewer.querySelector(".readout").textContent;
const press = (key) =>
  viewer.querySelector("canvas[data-map=after]").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
(async () => {
  await until(() => viewer.dataset.state === "drawn");
  const seen = { last: moment() };
  seen.examples = [...viewer.querySelector("[data-pick=example]").options].map((option) => option.text);
  const slider = viewer.querySelector("[data-slider]");
  seen.max = slider.max;
  slider.value = "1";
  slider.dispatchEvent(new Event("input"));
  await until(() => moment() !== seen.last);
  press("ArrowDown"); press("ArrowRight"); press("ArrowRight");
  [seen.middle, seen.readout, seen.after] = [moment(), readout(), viewer.querySelector("[data-pick=after]").value];
  const colour = viewer.querySelector("[data-pick=colour]");
  colour.value = "h0";
  colour.dispatchEvent(new Event("change"));
  await until(() => viewer.dataset.gridState?.endsWith("h0"));
  seen.cell = viewer.querySelector("[data-grid] button[data-layer='1'][data-head='2']").title;
  seen.overflow = document.documentElement.scrollWidth > window.innerWidth;
  document.body.dataset.seen = JSON.stringify(seen);
})();
"""


@in_browser
def test_the_viewer_shows_weights_and_drift_of_a_step(tmp_path: Path) -> None:
    stages = [(name, attention(len(HOSTILE), seed=seed)) for seed, name in enumerate(("before", "step 5", "step 9"))]
    drift = {"step 5": np.arange(6.0).reshape(2, 3) / 10, "step 9": np.full((2, 3), 0.9)}
    examples = [ViewerExample("hostile </script>", HOSTILE, stages), example("plain", ["a", "b"])]
    viewer = HeadViewer(examples, (1, 2), histories=[HeadHistory("Drift", drift)])
    path = tmp_path / "report.html"
    write_report(path, Report("Browser", sections=[Section("Maps", viewer=viewer)]))
    found = seen(path, SLIDER, window="500,900")
    before, after = ((np.rint(np.sqrt(np.asarray(stages[at][1])[1, 2, 1, 2]) * 255) / 255) ** 2 for at in (0, 1))
    assert f"{before:.3f} before, {after:.3f} after" in found.pop("readout")
    assert found == {
        "last": "step 9 \u00b7 Drift 0.9",
        "middle": "step 5 \u00b7 Drift 0.5",
        "max": "2",
        "after": "1",
        "cell": "layer 1 \u00b7 head 2: 0.5",
        "examples": ["hostile </script>", "plain"],
        "overflow": False,
    }


def cells_of(page: Page) -> list[dict[str, str | None]]:
    return page.all("button", **{"class": "cells"})


def test_heatmaps_open_heads_where_there_is_a_viewer(tmp_path: Path) -> None:
    section = Section("s", figures=[block()])
    for name, report, pages in (
        ("none", Report("t", sections=[section]), []),
        ("elsewhere", Report("t", sections=[section], maps="../run/report.html"), ["../run/report.html"]),
        ("own", Report("t", sections=[section, Section("", viewer=HeadViewer([example("e", ["a", "b"])]))]), [""]),
    ):
        write_report(tmp_path / name, report)
        page = Page(tmp_path / name)
        assert page.balanced
        assert [cells["data-page"] for cells in cells_of(page)] == pages
        assert all((cells["data-layers"], cells["data-heads"]) == ("4", "4") for cells in cells_of(page))


CELLS_PROBE = """
const viewer = document.querySelector(".viewer");
const seen = {};
const place = () => ["layer", "head"].map((name) => viewer.querySelector(`select[data-pick=${name}]`).value).join(".");
const until = async (test) => { while (!test()) await new Promise((done) => setTimeout(done, 20)); };
const [heatmap, own] = [document.querySelector(".picture"), document.querySelector(".cells")];
const at = (layer, head) => {
  const box = own.getBoundingClientRect();
  return { clientX: box.left + ((head + 0.5) / 3) * box.width, clientY: box.top + ((layer + 0.5) / 2) * box.height };
};
const act = (type, options) => own.dispatchEvent(new PointerEvent(type, { bubbles: true, detail: 1, ...options }));
(async () => {
  act("pointermove", at(1, 2)); seen.hover = own.title;
  const mark = own.querySelector("i");
  seen.mark = [mark.offsetLeft / own.offsetWidth, mark.offsetTop / own.offsetHeight].map((x) => Math.round(100 * x));
  act("click", at(0, 2));
  await until(() => viewer.dataset.state === "drawn");
  seen.click = place(); seen.address = location.hash;
  seen.top = Math.round(Math.abs(viewer.getBoundingClientRect().top)) < 5;
  window.scrollTo(0, 0);
  act("click", at(0, 2));
  seen.again = Math.round(Math.abs(viewer.getBoundingClientRect().top)) < 5;
  const select = viewer.querySelector("select[data-pick=example]");
  [select.value] = ["1"]; select.dispatchEvent(new Event("change"));
  own.focus();
  for (const key of ["ArrowDown", "ArrowLeft", "ArrowDown"]) {
    own.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  }
  seen.label = own.getAttribute("aria-label");
  own.dispatchEvent(new PointerEvent("click", { bubbles: true, detail: 0 }));
  await until(() => place() === "1.1");
  seen.example = select.value;
  const row = document.querySelector('.joint tr[data-layer="1"][data-head="0"] a');
  row.click();
  await until(() => place() === "1.0");
  seen.row = place();
  history.back();
  await until(() => place() === "1.1");
  seen.back = location.hash;
  const colour = viewer.querySelector("select[data-pick=colour]");
  [colour.value] = ["0"]; colour.dispatchEvent(new Event("change"));
  const shade = (head) => {
    const button = viewer.querySelector(`[data-grid] button[data-layer="0"][data-head="${head}"]`);
    return getComputedStyle(button).backgroundColor.match(/\\d+/g).map(Number);
  };
  await until(() => viewer.querySelectorAll("[data-grid] canvas").length === 0);
  [seen.loss, seen.half, seen.none] = [shade(0), shade(1), shade(2)];
  seen.ends = [...viewer.querySelectorAll("[data-legend] span")].map((end) => end.textContent);
  seen.overflow = document.documentElement.scrollWidth > window.innerWidth;
  document.body.dataset.seen = JSON.stringify(seen);
})();
"""


@in_browser
@pytest.mark.parametrize("width", [390, 1900])
def test_a_reader_opens_heads_from_heatmaps(tmp_path: Path, width: int) -> None:
    value_LH = np.arange(6.0).reshape(2, 3)
    figure = FigureBlock("name", heatmap(value_LH, title="t", unit="u", count=1), "A caption", "A heatmap")
    effect_LH = np.array([[-0.4, -0.2, 0.0], [np.nan, 0.0, 0.0]])
    joint = HeadsTogether([HeadColumn("a", "A", "b", "b", effect_LH, effects=True)])
    viewer = HeadViewer([example("one", ["a", "b", "c"]), example("two", ["d", "e"])])
    sections = [Section("s", figures=[figure, block()], joint=joint), Section("", viewer=viewer)]
    path = tmp_path / "report.html"
    write_report(path, Report("Browser", sections=sections))
    found = seen(path, CELLS_PROBE, window=f"{width},900")
    # Effects are drawn from white to dark red.
    loss, half, none = (found.pop(name) for name in ("loss", "half", "none"))
    # Offsets are whole pixels, of a figure that is small on a phone.
    assert found.pop("mark") == pytest.approx([67, 50], abs=1)
    assert min(none) > 250
    assert sum(loss) < sum(half) < sum(none)
    assert loss[0] > max(loss[1:])
    assert found == {
        "ends": ["\N{MINUS SIGN}0.4", "0"],
        "hover": "layer 1 · head 2",
        "click": "0.2",
        "address": "#l00h02",
        "top": True,
        "again": True,
        "label": "layer 1 · head 1; arrow keys choose a head of this heatmap, Enter opens it",
        "example": "1",
        "row": "1.0",
        "back": "#l01h01",
        "overflow": False,
    }


def test_a_page_without_a_figure_shows_its_first_section(tmp_path: Path) -> None:
    table = Table(["a"], [["1"]])
    sections = [Section("one", tables=[table]), Section("two", tables=[table])]
    write_report(tmp_path / "r.html", Report("t", sections=sections))
    folds = Page(tmp_path / "r.html").all("details", **{"class": "fold"})
    assert ["open" in fold for fold in folds] == [True, False]


def test_a_figure_is_drawn_once_when_somebody_looks(tmp_path: Path) -> None:
    drawn: list[Figure] = []

    def draw() -> Figure:
        drawn.append(heatmap(np.eye(2), title="t", unit="u", count=1))
        return drawn[-1]

    figure = FigureBlock("name", draw, "", "")
    Report("A page", sections=[Section("A section", figures=[figure])])
    assert not drawn
    save_figures([figure], tmp_path)
    write_report(tmp_path / "report.html", Report("A page", sections=[Section("A section", figures=[figure])]))
    assert len(drawn) == 1
    assert figure.figure is drawn[0]
