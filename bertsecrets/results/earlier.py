"""Rows of findings in run folders of version 0.1, which keep them as JSON beside the head table."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsecrets.results.rows import RecordError
from bertsecrets.statistics.ranks import spearman
from bertsecrets.statistics.student import ratio_limits

Content = Mapping[str, Any]

HEADS = "heads of a layer"
"""Key of their number, which is added to every JSON."""


def earlier_lines(folder: Path, experiment: str, kind: str, model: str, heads: int) -> list[Content]:
    """The fields of an experiment's rows of one kind from its JSON of version 0.1; none without such JSON.

    Args:
        folder: The run's folder.
        experiment, kind: The experiment and the kind of rows.
        model: Key of the model in the JSON.
        heads: Number of heads of a layer.

    Raises:
        RecordError: If it cannot be read, or lacks a field.
    """
    if (experiment, kind) not in EARLIER:
        return []
    name = _FILES.get(experiment, f"{experiment}.json")
    if not (folder / name).is_file():
        return []
    try:
        content = json.loads((folder / name).read_text("utf-8"))
        if experiment not in _FILES:
            of_model = content.get(model)
            content = of_model and {**of_model, HEADS: heads}
        return list(EARLIER[experiment, kind](content)) if content else []
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise RecordError(
            f"'{name}' holds no valid {kind} ({type(error).__name__}: {error}), so it is damaged or of another "
            "version; repeat the analysis."
        ) from error


def estimate(entry: Content, name: str, low: str = "low", high: str = "high", count: int = 0) -> dict[str, Any]:
    """The number ``name`` of an entry with its limits, of ``count`` examples."""
    limits = {"low": _number(entry[low]), "high": _number(entry[high])}
    return {"value": _number(entry[name]), **limits, "n": count}


def _number(value: float | None) -> float:
    """A number of JSON, which has none for NaN."""
    return math.nan if value is None else value


def _searched(content: Content, examples: str, choosing: str) -> dict[str, Any]:
    """What searches for smaller models had to show; those of the first versions did not count each other."""
    return {
        **{name: content[name] for name in ("margin", "confidence", "parameters")},
        "class_margin": content.get("class_margin"),
        "number": content.get("search", 0),
        "level": content.get("level", content["confidence"]),
        "counted": content.get("counted", False),
        "examples": content[examples],
        "choosing": content[choosing],
    }


def _prune_search(content: Content) -> Iterator[Content]:
    names = ("length", "device", "threads", "metric", "iterative", "recovery_epochs", "flops")
    yield {
        **_searched(content, "examples", "choosing"),
        **{name: content[name] for name in names},
        "score": content["baseline"],
        "loss": content["clean_loss"],
        "heads": content["total"],
    }


def _points(content: Content) -> Iterator[Content]:
    places: Counter[tuple[str, int]] = Counter()
    for entry in content["curves"]:
        score, order = entry["score"], entry["seed"]
        # Runs without a list read all scores of a measure's name from tables.
        own = score.removeprefix("-") in ("exact", "random", "reversed") or ":" in score
        yield {
            "score": score,
            "label": {"exact": "effects of single heads"}.get(score, score),
            "from_table": score in content["from_tables"] if "from_tables" in content else not own,
            "order": order,
            "attempt": places[score, order],
            "change": estimate(entry, "change"),
            **{name: entry[name] for name in ("kept", "loss", "parameters", "flops")},
        }
        places[score, order] += 1


def _order(content: Content) -> list[Content]:
    """The models of the order that was chosen."""
    return [entry for entry in content["curves"] if entry["score"] == content["chosen"]["score"]]


def _chosen_attempt(content: Content) -> int:
    return [entry["kept"] for entry in _order(content)].index(content["chosen"]["kept"])


def _chosen(content: Content) -> Iterator[Content]:
    chosen = content["chosen"]
    yield {
        **{name: chosen[name] for name in ("score", "kept", "asked", "holds", "needed", "hopeless")},
        "attempt": _chosen_attempt(content),
        "change": _number(chosen["change"]),
        "bound": _number(chosen["bound"]),
        "p_margin": chosen["p_value"],
    }


def _timings(models: Iterable[Content]) -> Iterator[Content]:
    for attempt, model in enumerate(models):
        for batch, timing in model["latency"].items():
            yield {"attempt": attempt, "batch": int(batch), **timing}


def _group_rows(attempt: int, by: str, groups: Iterable[Content]) -> Iterator[Content]:
    for group in groups:
        kept = {name: group[name] for name in ("group", "examples", "whole", "smaller")}
        limits = {"low": group["low"], "high": group["high"]}
        change = {"value": group["smaller"] - group["whole"], **limits}
        yield {"attempt": attempt, "by": by, **kept, "change": change}


def _prune_groups(content: Content) -> Iterator[Content]:
    return _group_rows(_chosen_attempt(content), "class", content["chosen"].get("classes", ()))


def _removed(content: Content) -> Iterator[Content]:
    names = ("score", "kept", "metric", "evaluation")
    yield {**{name: content[name] for name in names}, "label": content["score"], "heads": content["total"]}


def _gate_fits(content: Content) -> Iterator[Content]:
    names = ("metric", "level", "examples", "choosing", "penalty", "steps")
    yield {**{name: content[name] for name in names}, "score": content["baseline"], "loss": content["clean_loss"]}


def _path(content: Content) -> Iterator[Content]:
    for entry in content["curves"]:
        yield {**{name: entry[name] for name in ("penalty", "kept", "loss")}, "change": estimate(entry, "change")}


def _shrink_search(content: Content) -> Iterator[Content]:
    table = content["table"]
    yield {
        **_searched(content, "judged_on", "chosen_on"),
        **{name: table[name] for name in ("length", "device", "threads", "batch_size", "fixed", "processor")},
        **{name: content[name] for name in ("shape", "taught_on", "epochs")},
        "onnx": "onnx" in content.get("export", ()),
        "heads": content["total_heads"],
        "neurons": content["total_neurons"],
    }


def _attempts(content: Content) -> Iterator[Content]:
    for attempt, entry in enumerate(content["attempts"]):
        yield {
            "attempt": attempt,
            **{name: entry[name] for name in ("asked", "int8", "predicted", "parameters", "passed")},
            "missed": entry.get("missed", False),
            "search": entry.get("search", 0),
            "ruled_out": entry.get("ruled_out", entry["passed"]),
            "class_ruled_out": entry.get("class_ruled_out"),
        }


def _tests(content: Content) -> Iterator[Content]:
    for attempt, entry in enumerate(content["attempts"]):
        for test in entry["tests"]:
            yield {
                "attempt": attempt,
                **{name: test[name] for name in ("metric", "whole", "smaller", "bound", "high", "needed")},
                "bound_later": test.get("bound_later", test["bound"]),
                "p_margin": test["p_value"],
                "lost": test.get("lost"),
                "won": test.get("won"),
            }


def _layers(content: Content) -> Iterator[Content]:
    for attempt, entry in enumerate(content["attempts"]):
        for layer, (heads, neurons) in enumerate(zip(entry["heads"], entry["neurons"], strict=True)):
            yield {"attempt": attempt, "layer": layer, "heads": " ".join(map(str, heads)), "neurons": neurons}


def _shrink_groups(content: Content) -> Iterator[Content]:
    for attempt, entry in enumerate(content["attempts"]):
        yield from _group_rows(attempt, "class", entry.get("classes", ()))
        yield from _group_rows(attempt, "length", entry.get("lengths", ()))


def _relations(content: Content) -> Iterator[Content]:
    for entry in content["relations"]:
        names = ("relation", "layer", "head", "from_head", "chosen", "offset", "baseline", "chosen_on_all")
        yield {
            **{name: entry[name] for name in names},
            "words": entry["count"],
            "accuracy": estimate(entry, "accuracy", count=entry["count"]),
            "gain": estimate(entry, "gain", "gain_low", "gain_high", entry["count"]),
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


def _mentions(content: Content) -> Iterator[Content]:
    for entry in content["kinds"]:
        names = ("documents", "layer", "head", "chosen", "chosen_on_all", "layer_on_all", "head_on_all")
        count = entry["count"]
        yield {
            **{name: entry[name] for name in names},
            "mention": entry["kind"],
            "mentions": count,
            "accuracy": estimate(entry, "accuracy", count=count),
            "one_head": estimate(entry, "one_head", "one_head_low", "one_head_high", count),
            "rules": next(row["accuracy"] for row in entry["baselines"] if row["name"] == "rule_based"),
        }


def _baselines(content: Content) -> Iterator[Content]:
    for entry in content["kinds"]:
        for row in entry["baselines"]:
            yield {
                "mention": entry["kind"],
                "baseline": row["name"],
                "layer": entry["layer"],
                "head": entry["head"],
                "accuracy": estimate(row, "accuracy", count=entry["count"]),
                "gain": estimate(row, "gain", "gain_low", "gain_high", entry["count"]),
                "p_gain": row["p_value"],
            }


def _documents(content: Content) -> Iterator[Content]:
    names = ("documents", "outside", "vanished", "unanswered", "splits")
    settings = {name: content["settings"][name] for name in ("candidates", "windows")}
    numbers = {name: content[name] for name in names}
    yield {"corpus": content["task"], "texts": content["windows"], **numbers, **settings}


def _probe_scores(content: Content) -> Iterator[Content]:
    for entry in content["scores"]:
        yield {"probe": entry["name"], **{name: value for name, value in entry.items() if name != "name"}}


def _differences(content: Content) -> Iterator[Content]:
    yield from content["differences"]


def _hidden_states(content: Content) -> Iterator[Content]:
    if structural := content.get("structural"):
        for state, share in enumerate(structural["uuas"]):
            yield {"state": state, "uuas": share, "chosen": state == structural["state"]}


def _structural(content: Content) -> Iterator[Content]:
    if structural := content.get("structural"):
        yield {name: value for name, value in structural.items() if name not in ("uuas", "state")}


def _probed(content: Content) -> Iterator[Content]:
    names = ("trained_on", "sentences", "words", "halves", "truncated", "vanished", "vectors", "without_vector")
    settings = content["settings"]
    yield {
        "corpus": content["task"],
        **{name: content[name] for name in (*names, "replicates", "file_bytes")},
        **{name: settings[name] for name in ("punctuation", "epochs", "learning_rate", "batch_size")},
        "recipe_seed": settings["seed"],
        "read_seconds": sum(content["read_seconds"].values()),
    }


def _links(content: Content) -> Iterator[Content]:
    settings = {name: content["settings"][name] for name in ("pairs", "direction", "matching", "permutations")}
    # The first runs do not know how many links stay alone.
    numbers = {"source": content["source"], "links": content["links"], "alone": content.get("alone", 0)}
    yield {**numbers, **settings, "text": content["example"]["text"]}


def _filters(content: Content) -> Iterator[Content]:
    for name, sentences in content["remaining"].items():
        yield {"name": name, "sentences": sentences}


def _offsets(content: Content) -> Iterator[Content]:
    for offset, links in content["offsets"].items():
        yield {"offset": int(offset), "links": links}


def _tokens(content: Content) -> Iterator[Content]:
    for position, token in enumerate(content["example"]["tokens"]):
        yield {"position": position, "token": token}


def _linked_pairs(content: Content) -> Iterator[Content]:
    for query, key in content["example"]["pairs"]:
        yield {"query": query, "key": key}


def _weights(content: Content) -> Iterator[Content]:
    for entry in content["example"]["maps"]:
        for query, row in enumerate(entry["attention"]):
            for key, weight in enumerate(row):
                yield {"layer": entry["layer"], "head": entry["head"], "query": query, "key": key, "weight": weight}


def _checks(content: Content, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The modes of the records of one kind beside the ablation table, and the records; ``<kind>_<mode>`` are their
    keys."""
    for key, record in content.items():
        if key.startswith(f"{kind}_") and record:
            yield key.removeprefix(f"{kind}_"), record


def _of_metric(content: Content, kind: str = "") -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Metric and mode of the records with the key ``<kind>_<metric>_<mode>``, and the records."""
    modes = [mode for name in ("mode", "power", "sweep") for mode in dict(_checks(content, name))]
    others = (
        () if kind else ("spared_", "sublayers_", "together_", "over_examples_", *(f"{name}_" for name in _BY_MODE))
    )
    for key, record in content.items():
        named = key.removeprefix(f"{kind}_")
        mode = next((mode for mode in modes if named.endswith(f"_{mode}")), named.rpartition("_")[2])
        if record and (named != key or not kind) and not key.startswith(others):
            yield {"metric": named.removesuffix(f"_{mode}"), "mode": mode}, record


_BY_MODE = ("mode", "sample", "time", "power", "sweep", "looks")


def _picked(record: Content, *names: str) -> dict[str, Any]:
    return {name: record[name] for name in names if name in record}


def _swept(content: Content) -> Iterator[Content]:
    samples, times = (dict(_checks(content, name)) for name in ("sample", "time"))
    for mode, record in _checks(content, "mode"):
        sample = samples.get(mode, {})
        yield {
            "mode": mode,
            "words": record["words"],
            **_picked(sample, "examples", "budget"),
            **({"whole": sample["of"]} if sample else {}),
            **_picked(times.get(mode, {}), "seconds"),
        }


def _screened(content: Content) -> Iterator[Content]:
    for mode, record in _checks(content, "sweep"):
        yield {"mode": mode, **{name: value for name, value in record.items() if name not in ("fragile", "speedup")}}


def _selection(content: Content) -> Iterator[Content]:
    for names, record in _of_metric(content):
        rest = _picked(record, "best", "chosen", "claimed", "positive", "survives")
        yield {**names, **rest, "kept": estimate(record, "kept"), "p_value": record.get("p_value")}


def _spared(content: Content) -> Iterator[Content]:
    for _, record in _of_metric(content, "spared"):
        judged = record["margins"].index(record["margin"])
        rest = {name: value for name, value in record.items() if name != "margins"}
        yield {**rest, **{name: record[name][judged] for name in ("each", "at_least")}}


def _spared_at(content: Content) -> Iterator[Content]:
    for names, record in _of_metric(content, "spared"):
        points = zip(record["margins"], record["each"], record["at_least"], strict=True)
        yield from ({**names, "margin": margin, "each": each, "at_least": least} for margin, each, least in points)


def _sublayers(content: Content) -> Iterator[Content]:
    for names, record in _of_metric(content, "sublayers"):
        rest = _picked(record, "layers", "attention", "level")
        yield {**names, **rest, "feed_forward": record["ffn"], "difference": estimate(record, "difference")}


def _over_examples(content: Content) -> Iterator[Content]:
    for mode, record in _checks(content, "over_examples"):
        yield {"mode": mode, "share": estimate(record, "share"), **_picked(record, "level", "heads", "examples")}


def _power(content: Content) -> Iterator[Content]:
    for mode, record in _checks(content, "power"):
        yield {"mode": mode, **record}


def _together(content: Content) -> Iterator[Content]:
    for mode, record in _checks(content, "together"):
        heads = " ".join(f"{layer}-{head}" for layer, head in record["heads"])
        for metric, entry in record["metrics"].items():
            numbers = {**_picked(entry, "baseline", "score"), "change": estimate(entry, "delta")}
            yield {"metric": metric, "mode": mode, "heads": heads, "seconds": record["seconds"], **numbers}


_FILES = {"ablation": "ablation/selection.json"}
"""Files of experiments that kept theirs elsewhere."""


def _models(content: Content) -> Iterator[tuple[bool, Content, NDArray[np.float64]]]:
    """The record and the distances of a model, then of that before fine-tuning if it differs."""
    distance_NN, size = np.array(content["distances"]), len(content["points"])
    yield False, content, distance_NN[:size, :size]
    if content.get("before"):
        yield True, content["before"], distance_NN[size:, size:]


def _spaces(content: Content) -> Iterator[Content]:
    for before, model, _ in _models(content):
        names = ("rows", "replicates", "stress", "within", "between")
        yield {"before": before, **{name: model[name] for name in names}, "p_layers": model["p"]}


def _groups(content: Content) -> Iterator[Content]:
    for before, model, distance_NN in _models(content):
        for group, stability in enumerate(model["stability"]):
            members = np.flatnonzero(np.array(model["groups"]) == group)
            pairs = distance_NN[np.ix_(members, members)][np.triu_indices(len(members), 1)]
            mean = float(pairs.mean()) if len(pairs) else math.nan
            yield {"before": before, "group": group, "distance": mean, "stability": stability}


def _places(content: Content) -> Iterator[Content]:
    for before, model, _ in _models(content):
        for number, ((x, y), group) in enumerate(zip(model["points"], model["groups"], strict=True)):
            yield {"before": before, **_numbered(number, content), "x": x, "y": y, "group": group}


def _tuned(content: Content) -> Iterator[Content]:
    if content.get("before"):
        (_, _, now_NN), (_, _, before_NN) = _models(content)
        size = len(now_NN)
        cross_NN, upper = np.array(content["distances"])[:size, size:], np.triu_indices(size, 1)
        yield {
            "stress": content["stress_of_both"],
            "correlation": spearman(now_NN[upper], before_NN[upper]),
            "nearest_to_self": int((cross_NN.argmin(axis=1) == np.arange(size)).sum()),
        }


def _moved(content: Content) -> Iterator[Content]:
    points, size = content["points_of_both"], len(content["points"])
    for number in range(size if points else 0):
        (x, y), (x_before, y_before) = points[number], points[size + number]
        place = {"x": x, "y": y, "x_before": x_before, "y_before": y_before}
        yield {**_numbered(number, content), **place, "distance": content["distances"][number][size + number]}


def _pair_distances(content: Content) -> Iterator[Content]:
    for before, _, distance_NN in _models(content):
        for one, other in zip(*np.triu_indices(len(distance_NN), 1), strict=True):
            heads = {**_numbered(int(one), content), **_numbered(int(other), content, "other_")}
            yield {"before": before, **heads, "nats": float(distance_NN[one, other])}


def _numbered(number: int, content: Content, prefix: str = "") -> Content:
    """The layer and head of a head that is numbered in order of layers."""
    layer, head = divmod(number, content[HEADS])
    return {f"{prefix}layer": layer, f"{prefix}head": head}


_ROOM = "bertsecrets.pruning"
MOVED: Mapping[str, str] = {
    f"{_ROOM}.first_experiment:FirstPruned": f"{_ROOM}.experiment:FirstPruned",
    f"{_ROOM}.gates_experiment:CausalGates": f"{_ROOM}.experiment:CausalGates",
    f"{_ROOM}.gates_experiment:LearnedGates": f"{_ROOM}.experiment:LearnedGates",
    f"{_ROOM}.shrink_experiment:Shrinking": f"{_ROOM}.experiment:Shrinking",
}
"""Classes that run folders of version 0.1 name, where they are now."""


def _completeness(content: Content) -> Iterator[Content]:
    if "sum" in content:
        yield {"loss_disabled": content["loss_disabled"], "loss": content["loss"], "total": content["sum"]}


def _propagation(content: Content) -> Iterator[Content]:
    yield {"rule": content.get("rule", "z"), "consider_attention": content["consider_attention"]}


def _worths(content: Content) -> Iterator[Content]:
    for quantity, ends in content["worth"].items():
        yield {"quantity": quantity, **ends, "mode": content["mode"], "examples": content["examples"]}


def _early_heads(content: Content) -> Iterator[Content]:
    early, found = content.get("early"), {"mode": content["mode"], "direct": None, "total": None, "ratio": None}
    if early and early["direct"]:
        direct, total, count = early["direct"], early["total"], int(early["count"])
        variances = early["total_variance"], early["direct_variance"]
        limits = ratio_limits(total, direct, *variances, early["covariance"], count)
        for name, variance in zip(("total", "direct"), variances, strict=True):
            found[name] = {"value": early[name], "stderr": math.sqrt(variance), "n": count}
        if limits is not None:
            found["ratio"] = {"value": total / direct, "low": limits[0], "high": limits[1], "n": count}
    yield found


def _blocked(content: Content) -> Iterator[Content]:
    shared = {name: content[name] for name in ("metric", "baseline", "level", "margin")}
    for row in content["rows"]:
        names = ("token", "direction", "score", "flips", "verdict")
        change = estimate(row, "delta", count=content["examples"])
        yield {**shared, **{name: row[name] for name in names}, "change": change, "p_loss": row["p_value"]}


def _sink_limits(content: Content) -> Iterator[Content]:
    if "limits" in content:
        yield content["limits"]


def _sink_heads(content: Content) -> Iterator[Content]:
    for token, entry in content.get("tokens", {}).items():
        for head in entry["heads"]:
            numbers = {name: _number(value) for name, value in head.items()}
            loss = {"value": numbers.pop("redirect_loss"), "stderr": numbers.pop("redirect_loss_error")}
            yield {**numbers, "token": token, "redirect_loss": loss}


def _agreements(content: Content) -> Iterator[Content]:
    for token, entry in content.get("tokens", {}).items():
        for intervention, name in (("cutting", "cut_area"), ("redirecting", "redirect_area")):
            area = {key: _number(value) for key, value in entry[name].items()}
            yield {
                "token": token,
                "intervention": intervention,
                "area": estimate(area, "value", count=len(entry["heads"])),
                "changing": area["positive"],
                "unchanged": area["negative"],
            }


EARLIER: Mapping[tuple[str, str], Callable[[Content], Iterator[Content]]] = {
    ("causal_gates", "gatefits"): _gate_fits,
    ("causal_gates", "pathpoint"): _path,
    ("pruned_first", "removed"): _removed,
    ("pruning", "chosen"): _chosen,
    ("pruning", "group"): _prune_groups,
    ("pruning", "point"): _points,
    ("pruning", "prunesearch"): _prune_search,
    ("pruning", "timing"): lambda content: _timings(_order(content)),
    ("shrinking", "attempt"): _attempts,
    ("shrinking", "group"): _shrink_groups,
    ("shrinking", "layer"): _layers,
    ("shrinking", "metrictest"): _tests,
    ("shrinking", "shrinksearch"): _shrink_search,
    ("shrinking", "timing"): lambda content: _timings(content["attempts"]),
    ("dependency", "relation"): _relations,
    ("dependency", "treebank"): _treebank,
    ("roles", "threshold"): _thresholds,
    ("voita_roles", "limits"): _limits,
    ("voita_roles", "distance"): _distances,
    ("coreference", "mentions"): _mentions,
    ("coreference", "baseline"): _baselines,
    ("coreference", "documents"): _documents,
    ("frame_relations", "links"): _links,
    ("frame_relations", "filter"): _filters,
    ("frame_relations", "offset"): _offsets,
    ("frame_relations", "token"): _tokens,
    ("frame_relations", "linkedpair"): _linked_pairs,
    ("frame_relations", "weight"): _weights,
    ("clusters", "space"): _spaces,
    ("clusters", "group"): _groups,
    ("clusters", "place"): _places,
    ("clusters", "tuned"): _tuned,
    ("clusters", "moved"): _moved,
    ("clusters", "distance"): _pair_distances,
    ("probes", "probescore"): _probe_scores,
    ("probes", "difference"): _differences,
    ("probes", "hiddenstate"): _hidden_states,
    ("probes", "structural"): _structural,
    ("probes", "probed"): _probed,
    ("ablation", "swept"): _swept,
    ("ablation", "screened"): _screened,
    ("ablation", "selection"): _selection,
    ("ablation", "spared"): _spared,
    ("ablation", "sparedat"): _spared_at,
    ("ablation", "sublayers"): _sublayers,
    ("ablation", "overexamples"): _over_examples,
    ("ablation", "power"): _power,
    ("ablation", "together"): _together,
    ("integrated_gradients", "completeness"): _completeness,
    ("relevance", "propagation"): _propagation,
    ("shapley", "worth"): _worths,
    ("direct_effect", "earlyheads"): _early_heads,
    ("blocking", "blocked"): _blocked,
    ("sinks", "limits"): _sink_limits,
    ("sinks", "sinkhead"): _sink_heads,
    ("sinks", "agreement"): _agreements,
}
"""Experiment and name of the kind of rows, and what makes the fields of each row."""
