"""Coreference files that cannot be read, and texts without coreference."""

from pathlib import Path

from faults.cases import LATE, Case, Outcome, analyze, parametrized
from faults.places import write
from faults.runner import Warm
from faults.test_tasks_and_texts import FRESH, JUNK, sentences, tsv

HEADER = "ID\tText\tPronoun\tPronoun-offset\tA\tA-offset\tA-coref\tB\tB-offset\tB-coref\tURL"
SNIPPET = "x-1\tAnn met Zoe. She laughed.\tShe\t13\tAnn\t0\tTRUE\tZoe\t8\tFALSE\tu"
OF_DOCUMENTS = {**FRESH, "task": "coreference", "data": "coreference", "measure": "[coreference]"}
FEW_SAMPLES = {"measure.coreference.splits": 5}


def story(first: str = "(0)", second: str = "(0)", count: int = 4) -> str:
    """Documents of one sentence, with the coreference of two of its words."""
    rows = (("Ann", first), ("said", "_"), ("she", second), ("slept", "_"))
    return "".join(
        f"#begin document (d{number}); part 0\n"
        + "".join(f"d{number}\t0\t{place}\t{form}\t_\t{cell}\n" for place, (form, cell) in enumerate(rows))
        + "\n#end document\n"
        for number in range(count)
    )


def talk() -> str:
    """Documents whose anaphors choose among several candidates."""
    mentions = {"Ann": "(0)", "She": "(0)", "Zoe": "(1)", "her": "(1)", "Tom": "(2)", "He": "(2)"}
    sentences = (
        "Ann met Zoe .",
        "She told her .",
        "Tom liked Ann .",
        "He met Zoe .",
        "Zoe liked Tom .",
        "He told her .",
    )
    content = ""
    for number in range(5):
        content += f"#begin document (d{number}); part 0\n"
        for sentence in (*sentences[number:], *sentences[:number])[:4]:
            words = enumerate(sentence.split())
            content += "".join(f"d\t0\t{place}\t{form}\t_\t{mentions.get(form, '_')}\n" for place, form in words) + "\n"
        content += "#end document\n"
    return content


def documents(name: str, sentence: str, content: str | bytes, file: str = "toy.conll", **settings: object) -> Case:
    words = analyze(**{**OF_DOCUMENTS, **settings})
    return Case(f"coreference-{name}", words, sentence, arrange=write(f"data/{file}", content), leaves=LATE)


def runs(
    name: str,
    content: str,
    file: str = "toy.conll",
    text: str = "are uninformative about heads: every candidate is an antecedent",
    **settings: object,
) -> Case:
    def check(folder: Path, outcome: Outcome) -> None:
        [page] = folder.glob("outputs/**/report.html")
        assert text in page.read_text(encoding="utf-8")

    words = analyze(**{**OF_DOCUMENTS, **FEW_SAMPLES, **settings})
    return Case(f"coreference-{name}", words, "Report", 0, arrange=write(f"data/{file}", content), check=check)


FILES = [
    documents("binary", r"toy\.conll' is not UTF-8", JUNK),
    documents("dependency", r"The words of these 4 texts have no dependencies", story(), measure="[dependency]"),
    documents("features", r"Feature '\w+' matches nothing in the 4 examples", story(), measure="[features]"),
    documents("tokens", r"(Feature|Pair) '\w+' matches nothing in the 4 examples", story(), measure="[token_to_token]"),
    runs("whole", story()),
    runs("choices", talk(), text="attends most to an antecedent", **{"task.training.max_length": 64}),
    runs("one-document", story(count=1), text="too few for halves"),
    runs("one-bad", story("(0", count=1) + story(count=3), data__skip_bad_rows="true"),
    runs("gap", "\n".join([HEADER, SNIPPET, SNIPPET, ""]), "gap.tsv", "attends most to an antecedent"),
    Case(
        "coreference-of-labelled-task",
        analyze(**{**FRESH, "measure": "[coreference]"}),
        r"Measure 'coreference' needs annotated words, but these examples have none",
        arrange=tsv(sentences(8)),
        leaves=LATE,
    ),
]


@parametrized(FILES)
def test_coreference(case: Case, warm: Warm, tmp_path: Path) -> None:
    warm.check(case, tmp_path)
