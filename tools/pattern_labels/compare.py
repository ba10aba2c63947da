"""How often the labels of a further annotator are those that the passes of an annotation folder agree on."""

from collections.abc import Mapping
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bertsecrets.errors import UserError
from tools.pattern_labels.agreement import Agreement
from tools.pattern_labels.labels import clear_maps, consensus, merge_labels, parse_labels, read_labels, votes
from tools.pattern_labels.map_set import MapSet

_OLDEST = "0001-01-01T00:00:00+00:00"


def compare_labels(folder: Path, path: Path) -> dict[str, tuple[Agreement, Agreement]]:
    """Compare a file of labels with the consensus of a folder, over all models and by model, and print a table.

    Args:
        folder: The annotation folder.
        path: A CSV file of labels, as for importing; its labels are not imported.

    Returns:
        ``all models`` or a model -> agreement on all maps with a consensus, and on the clear ones.

    Raises:
        UserError: If the file is not valid or has no map with a consensus.
    """
    maps, labels = MapSet.read(folder), read_labels(folder)
    others, clear = consensus(labels), clear_maps(labels)
    model_of = {row.map: row.model for row in maps.rows}
    # Answers without a time count as the oldest.
    answers = votes(merge_labels((), parse_labels(path, model_of.keys(), annotator=path.stem), _OLDEST))
    pattern_of = {name: answer[max(answer)] for name, answer in answers.items() if name in others}
    if not pattern_of:
        raise UserError(
            f"File '{path}' labels no map on which the passes in '{folder}' agree; give labels of its maps."
        )
    parts: Mapping[str, set[str]] = {
        "all models": set(pattern_of),
        **{
            model: {name for name in pattern_of if model_of[name] == model}
            for model in sorted({model_of[name] for name in pattern_of})
        },
    }
    compared = {}
    table = Table("model", box=None, pad_edge=False)
    for heading in ("maps", "agreement", "clear maps", "agreement on them"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model, names in parts.items():
        both = tuple(
            Agreement.between(others, {name: pattern_of[name] for name in part}) for part in (names, names & clear)
        )
        compared[model] = (both[0], both[1])
        table.add_row(model, *(text for one in both for text in (str(one.count), _share(one))))
    Console(width=100).print(table)
    return compared


def _share(agreement: Agreement) -> str:
    low, high = agreement.raw_interval
    return f"{agreement.raw:.3f} [{low:.3f}, {high:.3f}]"
