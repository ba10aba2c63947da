"""The adapters, one file each; a new family is a new file and a line here."""

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
