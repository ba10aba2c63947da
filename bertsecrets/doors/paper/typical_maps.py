"""Section 4.1, figure 1: a map of each pattern, out of those that the runs kept."""

from collections.abc import Iterator

import torch
from matplotlib.figure import Figure
from torch import Tensor

from bertsecrets.comparison.runs import FinishedRun
from bertsecrets.doors.paper.material import Material
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.network import MIN_LENGTH
from bertsecrets.patterns.trained import load_classifier
from bertsecrets.results.captures import FOLDER, read_maps, read_steps
from bertsecrets.results.figures.classifier import TitledMap, map_sheet


def typical_maps(material: Material) -> Figure | None:
    """For each pattern the map of a fine-tuned model that the classifier is most certain of; None where no run kept maps."""
    classifier = load_classifier()
    best: dict[int, tuple[float, str, Tensor]] = {}
    kept = 0
    for condition in material.trained:
        for map_LHQK in _last_maps(condition.runs[0]):
            length = map_LHQK.shape[-1]
            if length < MIN_LENGTH:
                continue
            kept += map_LHQK[..., 0, 0].numel()
            judged = classifier(map_LHQK, torch.ones(map_LHQK.shape[0], length, dtype=torch.bool))
            for place in range(len(PATTERNS)):
                probability_LH = judged.probability_P[..., place].masked_fill(judged.pattern != place, -1.0)
                layer, head = divmod(int(probability_LH.argmax()), probability_LH.shape[1])
                probability = float(probability_LH[layer, head])
                if probability > best.get(place, (0.0,))[0]:
                    where = f"{material.name(condition)}, layer {layer} · head {head}"
                    best[place] = (probability, where, map_LHQK[layer, head])
    if not best:
        return None
    titled = [
        TitledMap(
            f"{PATTERNS[place].replace('_', ' + ')} ({probability:.2f})\n{where}\n{map_QK.shape[-1]} tokens", map_QK
        )
        for place, (probability, where, map_QK) in sorted(best.items())
    ]
    return map_sheet(
        titled,
        title="A map of each pattern, after fine-tuning",
        note=f"of {kept:,} maps that the runs kept, those that the classifier is most certain of (its probability in "
        "brackets); attending tokens downward, attended tokens to the right; from dark violet (0) to yellow (the "
        "largest weight of the map); layers and heads count from 0",
    )


def _last_maps(run: FinishedRun) -> Iterator[Tensor]:
    steps = read_steps(run.folder / FOLDER)
    if steps:
        yield from read_maps(steps[max(steps)]).values()
