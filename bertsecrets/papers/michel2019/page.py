"""The page of Michel et al. 2019, *Are Sixteen Heads Really Better than One?*."""

from bertsecrets.papers.michel2019.ablation import all_but_one, one_head, other_data
from bertsecrets.papers.michel2019.pruning import curves, efficiency
from bertsecrets.papers.paper import Paper
from bertsecrets.results.report.content import Section

PAPER = Paper(
    file="sixteen_heads.html",
    title="Are sixteen heads better than one, run again",
    citation="Michel et al. 2019",
    chapters=(one_head, all_but_one, other_data, curves, efficiency),
    other_model="The paper prunes bert-base-uncased, these runs {models}: its numbers by layer and its curve are left out, and "
    "its general statements are checked.",
    reading=Section(
        "How to read this page",
        paragraphs=[
            "A statement holds, or does not, only where a test says so; “cannot be told” where the data leave both open. "
            "Removing a head means that its output is zero.",
            "The paper's translation models, and importance during training (section 5), are not run here. Layers and heads "
            "are counted from 0. Numbers of the paper's figures were read off the pictures.",
        ],
    ),
)
