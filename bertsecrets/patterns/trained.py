"""The trained classifier on disk: weights, and a card that says how it was made and how good it is."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bertsecrets.errors import UserError
from bertsecrets.patterns.classes import PATTERNS
from bertsecrets.patterns.network import PatternClassifier, PatternNetwork
from bertsecrets.patterns.pooling import BINS, COLUMNS, OFFSETS
from bertsecrets.patterns.views import PICTURES, SUMMARY
from bertsecrets.results.files import atomic_write

WEIGHTS, CARD = "weights.safetensors", "weights.json"
SHIPPED = Path(__file__).parent
"""The folder of the classifier that comes with the package."""

_INPUT = {
    "patterns": list(PATTERNS),
    "bins": BINS,
    "pictures": PICTURES,
    "offsets": list(OFFSETS),
    "columns": COLUMNS,
    "numbers": SUMMARY,
}


def save_classifier(classifier: PatternClassifier, folder: Path, card: dict[str, Any]) -> None:
    """Writes ``weights.safetensors`` and ``weights.json``.

    Args:
        classifier: The weights, temperature and margin.
        folder: Made if missing.
        card: What else the card should say: training, evaluation.
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.contiguous() for name, tensor in classifier.network.state_dict().items()}
    with atomic_write(folder / WEIGHTS) as temporary:
        save_file(state, temporary)
    said = {**_INPUT, "temperature": classifier.temperature, "margin": classifier.margin, **card}
    with atomic_write(folder / CARD) as temporary:
        temporary.write_text(json.dumps(said, indent=2) + "\n", "utf-8")


def load_classifier(folder: Path = SHIPPED) -> PatternClassifier:
    """The classifier of a folder, in evaluation mode.

    Raises:
        UserError: If the folder's files are missing, cannot be read, or are another classifier's.
    """
    try:
        card = json.loads((folder / CARD).read_text("utf-8"))
        state = load_file(folder / WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"Folder '{folder}' holds no pattern classifier that can be read ({error}); give a folder in which "
            f"train_patterns wrote {WEIGHTS} and {CARD}."
        ) from error
    for name, expected in _INPUT.items():
        if card.get(name) != expected:
            raise UserError(
                f"The pattern classifier in '{folder}' was made for {name} {card.get(name)}, and this version works "
                f"with {expected}; train it again with train_patterns."
            )
    network = PatternNetwork()
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise UserError(
            f"The weights in '{folder}' are another network's; train the classifier again with train_patterns."
        ) from error
    return PatternClassifier(network, float(card["temperature"]), float(card["margin"])).eval()
