"""Rows of findings in run folders of version 0.1, which keep them as JSON beside the head table."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bertsecrets.results.rows import RecordError

Content = Mapping[str, Any]


def earlier_lines(experiment: str, kind: str, content: Content) -> list[Content]:
    """The fields of an experiment's rows of one kind from its JSON of version 0.1; none without such JSON.

    Raises:
        RecordError: If it lacks a field.
    """
    if not content or (experiment, kind) not in EARLIER:
        return []
    try:
        return list(EARLIER[experiment, kind](content))
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise RecordError(
            f"'{experiment}.json' holds no valid {kind} ({type(error).__name__}: {error}), so it is damaged or of another version; "
            "repeat the analysis."
        ) from error


def estimate(entry: Content, name: str, low: str = "low", high: str = "high") -> dict[str, Any]:
    """The number ``name`` of an entry with its limits."""
    return {"value": entry[name], "low": entry[low], "high": entry[high]}


def _relations(content: Content) -> Iterator[Content]:
    for entry in content["relations"]:
        names = ("relation", "layer", "head", "from_head", "chosen", "offset", "baseline", "chosen_on_all")
        yield {
            **{name: entry[name] for name in names},
            "words": entry["count"],
            "accuracy": estimate(entry, "accuracy"),
            "gain": estimate(entry, "gain", "gain_low", "gain_high"),
            "p_gain": entry["p_value"],
        }


def _treebank(content: Content) -> Iterator[Content]:
    settings = content["settings"]
    yield {
        "corpus": content["task"],
        **{name: content[name] for name in ("sentences", "truncated", "vanished", "splits")},
        **{name: settings[name] for name in ("from_word", "possessive", "punctuation", "root", "min_count")},
        "single_low": content["single"][0],
        "single_high": content["single"][1],
    }


def _thresholds(content: Content) -> Iterator[Content]:
    for column, above in content["thresholds"].items():
        yield {"column": column, "above": above}


def _limits(content: Content) -> Iterator[Content]:
    yield {**content["thresholds"], "min_count": content["min_count"]}


def _distances(content: Content) -> Iterator[Content]:
    for relation, entry in content["baselines"].items():
        for distance, pairs in entry["distances"].items():
            yield {"relation": relation, "distance": int(distance), "pairs": pairs}


EARLIER: Mapping[tuple[str, str], Callable[[Content], Iterator[Content]]] = {
    ("dependency", "relation"): _relations,
    ("dependency", "treebank"): _treebank,
    ("roles", "threshold"): _thresholds,
    ("voita_roles", "limits"): _limits,
    ("voita_roles", "distance"): _distances,
}
"""Experiment and name of the kind of rows, and what makes the fields of each row."""
