"""The adapters, one file each; a new family of this package is a new file and a line here."""

import inspect

from bertsecrets.doors import load_offer, offers
from bertsecrets.errors import UserError
from bertsecrets.models.families.albert import Albert
from bertsecrets.models.families.base import Family
from bertsecrets.models.families.bert import Bert
from bertsecrets.models.families.deberta import Deberta
from bertsecrets.models.families.deberta_v2 import DebertaV2
from bertsecrets.models.families.distilbert import DistilBert
from bertsecrets.models.families.modernbert import ModernBert
from bertsecrets.models.families.mpnet import MPNet

_ADAPTERS: tuple[Family, ...] = (Bert(), DistilBert(), Albert(), MPNet(), Deberta(), DebertaV2(), ModernBert())

FAMILIES: dict[str, Family] = {model_type: family for family in _ADAPTERS for model_type in family.model_types}


def family_of(model_type: str) -> Family | None:
    """The adapter for a model type, of this package or of an installed one whose entry point has its name; None without one.

    Raises:
        UserError: If a package offers something else than a subclass of :class:`Family` under this name.
    """
    if model_type in FAMILIES or model_type not in offers("families"):
        return FAMILIES.get(model_type)
    kind = load_offer("families", model_type)
    if kind is None:
        return None
    if not (inspect.isclass(kind) and issubclass(kind, Family)):
        raise UserError(
            f"The entry point bertsecrets.families '{model_type}' names {offers('families')[model_type].value}, which is not a "
            "subclass of bertsecrets.models.families.base.Family; correct it."
        )
    return kind()
