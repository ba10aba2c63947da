"""The page of Voita et al. 2019, *Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting*."""

from bertsecrets.papers.paper import Paper
from bertsecrets.papers.voita2019.heads import gates, last_to_go, roles
from bertsecrets.results.report.content import Section

PAPER = Paper(
    file="specialized_heads.html",
    title="Specialized heads, run again",
    citation="Voita et al. 2019",
    chapters=(roles, gates, last_to_go),
    other_model="The paper prunes the encoder of a translation model, these runs {models}: its numbers stand beside the "
    "statements, which are checked here for another kind of model.",
    reading=Section(
        "How to read this page",
        paragraphs=[
            "A statement holds, or does not, only where a test says so; “cannot be told” where the data leave both open. Layers "
            "and heads are counted from 0.",
            "The importance of heads by relevance propagation (section 4) and the decoder's heads are not run here.",
        ],
    ),
)
