"""The papers that have a page, by name."""

from bertsecrets.papers.clark2019.page import PAPER as CLARK
from bertsecrets.papers.kovaleva2019.page import PAPER as KOVALEVA
from bertsecrets.papers.michel2019.page import PAPER as MICHEL
from bertsecrets.papers.paper import Paper
from bertsecrets.papers.voita2019.page import PAPER as VOITA

PAPERS: dict[str, Paper] = {"kovaleva2019": KOVALEVA, "clark2019": CLARK, "michel2019": MICHEL, "voita2019": VOITA}
