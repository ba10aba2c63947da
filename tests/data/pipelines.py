"""A small spaCy pipeline with a trained tagger and parser, for machines without a network."""

import itertools
import random
from pathlib import Path

from bertsecrets.data.sources.demo import demo_examples

CLEARNLP = {
    "nsubj:pass": "nsubjpass",
    "obj": "dobj",
    "aux:pass": "auxpass",
    "nmod:poss": "poss",
    "acl:relcl": "relcl",
    "root": "ROOT",
}
PENN = {"NOUN": "NN", "PROPN": "NNP", "VERB": "VBD", "PRON": "PRP"}


def train_pipeline(folder: Path, sentences: int = 240, rounds: int = 5) -> Path:
    """Train on gold sentences of the demo corpus, with spaCy's names of relations, and save to the folder."""
    import spacy
    from spacy.tokens import Doc
    from spacy.training import Example

    spacy.util.fix_random_seed(0)
    nlp = spacy.blank("en")
    width = 48
    shared = {
        "@architectures": "spacy.HashEmbedCNN.v2", "pretrained_vectors": None, "width": width, "depth": 2,
        "embed_size": 500, "window_size": 1, "maxout_pieces": 2, "subword_features": True,
    }  # fmt: skip
    nlp.add_pipe("tok2vec", config={"model": shared})
    for name in ("morphologizer", "parser", "tagger"):
        nlp.add_pipe(name)
    docs = []
    for example in demo_examples("demo_paraphrase", "train")[: sentences // 2]:
        for annotation in example.annotations:
            words = annotation.words
            docs.append(
                Doc(
                    nlp.vocab,
                    words=[word.form for word in words],
                    spaces=[right.start > left.end for left, right in itertools.pairwise(words)] + [False],
                    pos=[word.pos for word in words],
                    tags=[PENN.get(word.pos, word.pos) for word in words],
                    heads=[place if word.head < 0 else word.head for place, word in enumerate(words)],
                    deps=[CLEARNLP.get(word.relation, word.relation) for word in words],
                )
            )

    def examples() -> list[Example]:
        return [Example(nlp.make_doc(doc.text), doc) for doc in docs]

    optimizer = nlp.initialize(examples)
    order = random.Random(0)
    for _ in range(rounds):
        batch = examples()
        order.shuffle(batch)
        for start in range(0, len(batch), 32):
            nlp.update(batch[start : start + 32], sgd=optimizer)
    nlp.to_disk(folder)
    return folder
