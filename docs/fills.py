"""Fill the pages of the documentation from benchmarks/results when the site is built.

A line ``<!-- fill: name | argument | ... -->`` of a page becomes the table or figure that `FILLS` makes of stored
results, and ``{{ kind ~ ... }}`` in a line becomes one number of `NUMBERS`. What a page names and nobody knows ends the
build with one sentence; what is known but not stored is said in its place.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import jmespath
import yaml

from benchmarks import base_size, disabling_modes, procedures, pruning_scores, scale, screened, shrink, tasks
from benchmarks.jobs import ROOT
from benchmarks.papers import PAGES, QUESTION_SEEDS, SEEDS_OF, TASKS, UNTRAINED
from bertsecrets.papers.names import page_files
from bertsecrets.papers.statements.judge import UNTOLD, VERDICTS, expected_false, tallied
from bertsecrets.papers.statements.statement import Statement, read_statements
from bertsecrets.papers.statements.test import interval_in_words
from bertsecrets.results.formatting import MISSING, number, with_limits
from bertsecrets.results.scores import LEVEL
from bertsecrets.results.verdicts import WORDS
from tools import versions
from tools.planted import __main__ as planted

RESULTS = ROOT / "benchmarks" / "results"
COVERAGE = ROOT / "benchmarks" / "coverage.yaml"
FIGURES = Path(__file__).resolve().parent / "figures" / "made"
LEDGER = "statements.md#verdicts"
"""Where the numbers of statements stand."""
BLOCKED = {
    "mpnet-sst2-sep": "MPNet on SST-2",
    **{f"mpnet-control-none-{seed}-blocked": f"MPNet on MRPC, seed {seed}" for seed in QUESTION_SEEDS},
    **{f"control-none-{seed}-questions": f"MiniLM on MRPC, seed {seed}" for seed in QUESTION_SEEDS},
}
"""Runs with blocked attention that stand beside each other."""
MADE_SECTIONS = {
    "kovaleva2019": ("Section 5: shared heads",),
    "questions": ("All questions",),
    "mrpc": ("Drift of attention", "Heads: disabling", "Layers: disabling"),
}
"""Sections that code makes, which no page's file names, by the first word of the page."""
NOT_STORED = "(not stored)"
"""In place of a number whose table, row or column is missing."""
_FOLDED = 16
"""Rows from which a table is folded."""
_FILL = re.compile(r"^<!-- fill: (.+?) -->$", re.MULTILINE)
_NUMBER = re.compile(r"\{\{ (.+?) \}\}")


@cache
def stored(name: str) -> Any:
    """A file of stored results."""
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        names = ", ".join(sorted(path.stem for path in RESULTS.glob("*.json")))
        raise ValueError(f"There are no stored results '{name}'; valid names: {names}.")
    return json.loads(path.read_text("utf-8"))


def filled(text: str) -> str:
    """A page with its tables, figures and numbers.

    Raises:
        ValueError: If it asks for something that nobody knows.
    """
    text = _FILL.sub(lambda match: _made(FILLS, match[1].split(" | ")), text)
    return _NUMBER.sub(lambda match: _made(NUMBERS, match[1].split(" ~ ")), text)


def _made(makers: Mapping[str, Callable[..., str]], parts: Sequence[str]) -> str:
    name, *arguments = parts
    if name not in makers:
        raise ValueError(f"Nothing fills '{name}' ({' | '.join(parts)}); valid names: {', '.join(makers)}.")
    return makers[name](*arguments)


# Tables of the papers' pages, and others with a caption.


def all_tables() -> list[Any]:
    """Every stored table with page, section, caption, header and rows, those made of other stored numbers too."""
    papers = stored("papers")
    correlation = "Spearman's ρ of the effects of {} heads (95 % interval)"
    rows: dict[tuple[str, str, str], tuple[list[str], list[list[str]]]] = {
        ("kovaleva2019", "Section 5: shared heads", "Agreement of two tasks on which heads matter"): (
            ["task", "and", correlation.format(72)],
            [
                [*pair.split(", "), _ranks(rho)]
                for pair, rho in papers.get("shared_heads", {}).get("minilm", {}).items()
            ],
        ),
        (
            "kovaleva2019 mpnet",
            "Section 4.6, figure 8: what happens when a head is disabled?",
            "Agreement with figure 8",
        ): (
            ["task", correlation.format(144), "of their means by layer"],
            [
                [task, _ranks(ranks["heads"]), _ranks(ranks["layers"])]
                for task, ranks in papers.get("figure_8", {}).items()
            ],
        ),
        (
            "clark2019 mpnet",
            "Section 3.2: is attention to [SEP] a no-op?",
            "[SEP] blocked in all heads at once, by training",
        ): (
            ["model", "examples", "blocked", "change of accuracy, points", "verdict"],
            [
                [BLOCKED[name], f"{of['examples']:,}", f"{row['direction']} [SEP]", _change(row), WORDS[row["verdict"]]]
                for name in BLOCKED
                if (of := papers.get("blocking", {}).get(name)) is not None
                for row in of["rows"]
            ],
        ),
    }
    derived = [
        {"page": page, "section": section, "caption": caption, "header": header, "rows": cells}
        for (page, section, caption), (header, cells) in rows.items()
        if cells
    ]
    return [*papers["tables"], *derived, *stored("tables")]


def _change(row: Mapping[str, Any]) -> str:
    return with_limits(100 * row["delta"], 100 * row["low"], 100 * row["high"], 1, signed=True)


def _ranks(interval: Sequence[float]) -> str:
    rho, low, high = interval
    return with_limits(rho, low, high, 2)


def tables(page: str, section: str) -> str:
    """The tables of a section of a page: statements with their verdicts first, then numbers beside the published ones.

    Args:
        page: One of `PAGES`, or the name of a page whose tables lie in tables.json.
        section: The beginning of the section's title.
    """
    pages = [*PAGES, SEEDS_OF, *dict.fromkeys(table["page"] for table in stored("tables"))]
    if page not in pages:
        raise ValueError(f"'{page}' is no page with stored tables; valid names: {', '.join(pages)}.")
    base = page.partition(" ")[0]
    titles = {table["section"] for table in all_tables() if table["page"].partition(" ")[0] == base} | _titles(base)
    if not any(title.startswith(section) for title in titles):
        raise ValueError(f"'{page}' has no section '{section}'; valid names: {'; '.join(sorted(titles))}.")
    chosen = [table for table in all_tables() if table["page"] == page and table["section"].startswith(section)]
    if not chosen:
        return f"*Not stored: {page}, {section}. `python -m benchmarks.papers` makes it.*"
    return "\n\n".join(map(_shown, chosen))


def _titles(page: str) -> set[str]:
    """The titles of the sections of a paper's page, stored or not."""
    files = page_files()
    sections = yaml.safe_load(Path(files[page]).read_text("utf-8"))["sections"] if page in files else []
    return {*(section["title"] for section in sections), *MADE_SECTIONS.get(page, ())}


def _shown(table: Mapping[str, Any]) -> str:
    """A table under its caption, with what it is of; folded if it is long."""
    told = "seed" in table["header"] or "n = " in table["caption"]
    sets = "" if told else sample(table)
    name = "Evaluation sets (seeds)" if "(" in sets else "Evaluation set"
    caption = f"{table['caption'] or table['section']}.{f' {name}: {sets}.' if sets else ''}"
    text = markdown(table["header"], table["rows"])
    if len(table["rows"]) < _FOLDED:
        return f"*{caption}*\n\n{text}"
    return f"<details><summary>{caption} ({len(table['rows'])} rows)</summary>\n\n{text}\n\n</details>"


def sample(table: Mapping[str, Any]) -> str:
    """Evaluation sets of the tasks that a table names, with seeds of the trainings: ``rte 277 (1 to 3 seeds), ud_ewt
    2,001``.

    Models before fine-tuning have no seed. Sizes and seeds are those of the finished runs of the table's page; where
    some trainings have more seeds than others, the fewest and the most.
    """
    words = set(re.findall(r"\w+", " ".join([table["caption"], *chain(*table["rows"])])))
    trainings: dict[tuple[str, int], Counter[str]] = {}
    for name, score in stored("papers").get("scores", {}).items():
        if any(fnmatch(name, pattern) for pattern in PAGES.get(table["page"], ())):
            task = next(TASKS[part] for part in name.split("-") if part in TASKS)
            training, _, seed = name.rpartition("-")
            trainings.setdefault((task, score["count"]), Counter()).update([training] if seed.isdigit() else [])
    parts = []
    for (task, count), seeds in trainings.items():
        fewest, most = min(seeds.values(), default=1), max(seeds.values(), default=1)
        of_seeds = f" ({most})" if fewest == most else f" ({fewest} to {most} seeds)"
        parts += [f"{task} {count:,}{'' if task in UNTRAINED.values() else of_seeds}"] if task in words else []
    return ", ".join(parts)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, without the columns that no row fills."""
    kept = [column for column, cells in enumerate(zip(*rows, strict=True)) if set(cells) != {MISSING}]
    lines = [[row[column].replace("|", r"\|") for column in kept] for row in [header, *rows]]
    lines.insert(1, ["---"] * len(kept))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


# The ledger of statements.


def ledger(part: str) -> str:
    """A part of the ledger: its ``runs``, its ``tally``, its ``statements``, or those ``not judged``."""
    parts = {"runs": _runs, "tally": _tally, "statements": _statements, "not judged": _not_judged}
    if part not in parts:
        raise ValueError(f"The ledger has no part '{part}'; valid names: {', '.join(parts)}.")
    return parts[part](stored("statements"))


def _runs(ledger: Mapping[str, Any]) -> str:
    rows = []
    for model in ledger["models"]:
        evaluate, train = (str(model[key] or "all") for key in ("limit_eval", "limit_train"))
        seeds = ", ".join(map(str, model["seeds"])) or MISSING
        examples = f"{train}, {evaluate}" if model["seeds"] else evaluate
        rows.append([model["model"], model["weights"], model["task"], seeds, examples])
    return markdown(["model", "weights", "task", "seeds", "examples (to train, to evaluate)"], rows)


def _tally(ledger: Mapping[str, Any]) -> str:
    statements = {statement.name: statement for statement in read_statements()}
    verdicts = [(result["verdict"], bool(statements[name].one_sided)) for name, result in ledger["statements"].items()]
    cells = [
        (cell["p_corrected"], cell["seeds"] > 1)
        for result in ledger["statements"].values()
        for cell in result["subjects"].values()
        if cell["p_corrected"] is not None
    ]
    return f"{tallied(verdicts)} {expected_false(cells)}"


def _statements(ledger: Mapping[str, Any]) -> str:
    statements = {statement.name: statement for statement in read_statements()}
    rows = [
        _statement_row(statements[name], result)
        for name, result in sorted(ledger["statements"].items())
        if result["subjects"]
    ]
    return markdown(["statement", "verdict", "here (95 % interval; seeds)", "published", "source"], rows)


def _statement_row(statement: Statement, result: Mapping[str, Any]) -> list[str]:
    by_verdict: dict[str, list[str]] = {}
    numbers = []
    for subject, cell in result["subjects"].items():
        by_verdict.setdefault(f"{cell['verdict']}{_why_open(statement, cell)}", []).append(subject)
        numbers.append(f"{subject}: {_interval(cell)}; {cell['seeds']}")
    numbers.append(f"threshold: {statement.test.condition}")
    ordered = sorted(by_verdict, key=lambda words: VERDICTS.index(words.partition(" (")[0]))
    verdict = "; ".join(f"{words} ({', '.join(by_verdict[words])})" for words in ordered)
    words = f"{statement.statement} (`{statement.name}`)<br>{statement.words}"
    return [
        *(words, verdict if len(by_verdict) > 1 else ordered[0]),
        *("<br>".join(numbers), statement.published, statement.source),
    ]


def _interval(cell: Mapping[str, Any]) -> str:
    return interval_in_words(*(float("nan") if cell[key] is None else cell[key] for key in ("value", "low", "high")))


def _why_open(statement: Statement, cell: Mapping[str, Any]) -> str:
    """Why a number significantly above or below the threshold settles nothing, as the end of a verdict; else empty."""
    if cell["verdict"] != UNTOLD or cell["p_corrected"] is None or cell["p_corrected"] > LEVEL:
        return ""
    side = "above" if cell["value"] > statement.test.threshold else "below"
    # On the stated side only noise leaves a doubt.
    doubt = "noise lowers rank correlations" if statement.test.holds(cell["value"]) else statement.one_sided
    return f" ({side} the threshold, but {doubt[:1].lower()}{doubt[1:].removesuffix('.')})"


def _not_judged(ledger: Mapping[str, Any]) -> str:
    names: dict[str, list[str]] = {}
    for name, result in sorted(ledger["statements"].items()):
        if not result["subjects"]:
            names.setdefault(result["reason"].removesuffix("."), []).append(f"`{name}`")
    return "\n".join(f"- {reason}: {', '.join(some)}" for reason, some in sorted(names.items()))


# What of the papers can be run.


def coverage_rows() -> Iterator[tuple[str, dict[str, str]]]:
    """Each paper with each of its rows in coverage.yaml."""
    for part in yaml.safe_load(COVERAGE.read_text("utf-8")):
        for row in part["rows"]:
            yield part["paper"], row


def coverage() -> str:
    """A table for each paper: items, commands, stored numbers beside the published ones, and what is missing."""
    header = ("", "item, command, runs", "here", "paper", "not done, or different")
    papers: dict[str, list[list[str]]] = {}
    for paper, row in coverage_rows():
        item = f"[{row['item']}]({row['page']})" if row["page"] else row["item"]
        command = f"`{row['command']}`" if row["command"] else ""
        about = "<br>".join(filter(None, (item, command, row["models"])))
        ours = filled(row["ours"])
        if "{{ statement" in row["ours"] and not row["page"].startswith(LEDGER):
            ours += f" ([ledger]({LEDGER}))"
        cells = [row["id"], about, ours, row["theirs"], filled(row["gap"])]
        papers.setdefault(paper, []).append(cells)
    return "\n\n".join(f"## {paper}\n\n{markdown(header, rows)}" for paper, rows in papers.items())


def minutes() -> str:
    """Minutes of the runs: a row for each pattern of a page that fits a stored run not counted above."""
    rows, above = [], set[str]()
    for pattern in dict.fromkeys(chain(*PAGES.values())):
        took = {name: time for name, time in stored("papers").get("minutes", {}).items() if fnmatch(name, pattern)}
        if not took.keys() <= above:
            above |= took.keys()
            low, high = round(min(took.values())), round(max(took.values()))
            limits = f" ({len(took)} runs: {low} to {high})" if low < high else ""
            rows.append([f"`{pattern}`", f"{round(median(took.values()))}{limits}"])
    return markdown(["runs", "minutes"], rows)


# Single numbers.


def stored_number(name: str, query: str, form: str) -> str:
    """One or several stored numbers by a JMESPath query; the format ``points`` multiplies by 100."""
    value = jmespath.search(query, stored(name))
    values = value if isinstance(value, list) and value else [value]
    if any(isinstance(one, bool) or not isinstance(one, int | float) for one in values):
        raise ValueError(f"'{query}' gives {value!r} in {name}.json; expected a number, or a list of them.")
    return ", ".join(
        number(100 * one, 1) if form == "points" else format(one, form).replace("-", "−") for one in values
    )


def statement_number(name: str, subject: str) -> str:
    """The number of a statement with its interval, of the model that ``subject`` is the beginning of."""
    results = stored("statements")["statements"]
    if name not in results:
        raise ValueError(f"There is no statement '{name}' in the stored ledger.")
    cells = [cell for key, cell in results[name]["subjects"].items() if key.startswith(subject)]
    if len(cells) != 1:
        raise ValueError(f"'{name}' has {len(cells)} numbers of a model '{subject}'; expected one.")
    return _interval(cells[0])


def table_cell(page: str, caption: str, where: str, column: str) -> str:
    """A cell of a stored table, of the row that begins as ``column=value; ...`` says, or is so where a ``$`` ends
    it.
    """
    if page not in (*PAGES, SEEDS_OF):
        raise ValueError(f"'{page}' is no page with stored tables; valid names: {', '.join((*PAGES, SEEDS_OF))}.")
    wanted = [pair.partition("=")[::2] for pair in where.split("; ")]
    cells = []
    for table in all_tables():
        if table["page"] == page and table["caption"].startswith(caption):
            for row in table["rows"]:
                named = dict(zip(table["header"], row, strict=True))
                if column in named and all(f"{named.get(key)}$".startswith(value) for key, value in wanted):
                    cells.append(named[column])
    if len(cells) > 1:
        raise ValueError(f"'{where}' fits {len(cells)} rows of '{caption}' of '{page}'; expected one.")
    return cells[0] if cells else NOT_STORED


# Benchmarks.


def figure(name: str, alt: str) -> str:
    """A figure, drawn from stored results into the folder of figures that the build makes."""
    figures: dict[str, Callable[[], Any]] = {
        "scale": lambda: scale.draw(stored("scale")),
        "tasks": lambda: tasks.effects_figure(stored("tasks")),
        "shrink": lambda: shrink.speed_figure(stored("shrink")),
        "pruning curves": lambda: pruning_scores.curves_figure(stored("pruning_scores")),
        "pruning scores": lambda: pruning_scores.scores_figure(stored("pruning_scores"), 44),
    }
    if name not in figures:
        raise ValueError(f"There is no figure '{name}'; valid names: {', '.join(figures)}.")
    path = FIGURES / f"{name.replace(' ', '_')}.png"
    FIGURES.mkdir(exist_ok=True)
    figures[name]().savefig(path)
    return f"![{alt}](figures/made/{path.name})"


FILLS: dict[str, Callable[..., str]] = {
    "tables": tables,
    "ledger": ledger,
    "coverage": coverage,
    "minutes": minutes,
    "figure": figure,
    "modes": lambda: disabling_modes.table(stored("disabling_modes")),
    "procedures": lambda: "\n".join(procedures.table(stored("procedures"))),
    "scale": lambda: scale.table(stored("scale"), "rows"),
    "screened": lambda: screened.table(stored("screened_sweeps")),
    "shrink": lambda: shrink.summary_of(stored("shrink")),
    "shrink methods": lambda: shrink.table_of(stored("shrink")),
    "pruning": lambda kept: pruning_scores.table(stored("pruning_scores"), int(kept)),
    "planted": lambda: planted.planted_table(stored("importance_planted")),
    "exact effects": lambda name: planted.runs_table(stored(name)),
    "base size": lambda: base_size.tables(stored("base_size")).partition("\n\n")[2],
    "tasks": lambda: tasks.summary(stored("tasks")),
    "runs of tasks": lambda: tasks.runs_table(stored("tasks")),
    "agreement of tasks": lambda: tasks.agreement_table(stored("tasks")),
    "versions": lambda: versions.table(stored("versions")),
}
NUMBERS = {"stored": stored_number, "statement": statement_number, "page": table_cell}
