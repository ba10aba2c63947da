"""Train a small spaCy pipeline on a treebank, to annotate real tasks if spaCy's published ones are not available.

    python -m benchmarks.annotator --treebank <UD_English-EWT> --out <folder> --minutes 12

Keeps the epoch with the best labelled attachment on the development set, and prints its scores there, from raw text.
"""

import argparse
import random
import time
from itertools import count
from pathlib import Path
from typing import Any

import conllu
import spacy
from spacy.language import Language
from spacy.scorer import Scorer
from spacy.tokens import Doc
from spacy.training import Example
from spacy.util import minibatch
from thinc.api import fix_random_seed

WIDTH, BATCH, RAW = 96, 48, 0.3
SHOWN = ("token_f", "tag_acc", "pos_acc", "dep_uas", "dep_las")
RELATIONS = ("nsubj", "nsubj:pass", "obj", "iobj", "expl")


def blank() -> Language:
    """An untrained tagger, morphologizer and parser over one small convolutional encoder."""
    nlp = spacy.blank("en")
    encoder = {
        "@architectures": "spacy.HashEmbedCNN.v2", "pretrained_vectors": None, "width": WIDTH, "depth": 4,
        "embed_size": 2000, "window_size": 1, "maxout_pieces": 3, "subword_features": True,
    }  # fmt: skip
    listener = {"@architectures": "spacy.Tok2VecListener.v1", "width": WIDTH, "upstream": "*"}
    tagger = {"@architectures": "spacy.Tagger.v2", "nO": None, "normalize": False, "tok2vec": listener}
    parser = {
        "@architectures": "spacy.TransitionBasedParser.v2", "state_type": "parser", "extra_state_tokens": False,
        "hidden_width": 64, "maxout_pieces": 2, "use_upper": True, "nO": None, "tok2vec": listener,
    }  # fmt: skip
    for name, model in (("tok2vec", encoder), ("tagger", tagger), ("morphologizer", tagger), ("parser", parser)):
        nlp.add_pipe(name, config={"model": model})
    return nlp


def gold(nlp: Language, path: Path) -> list[Doc]:
    """The sentences of a CoNLL-U file; words of a contraction have no space between them."""
    docs = []
    for sentence in conllu.parse(path.read_text("utf-8")):
        words = [token for token in sentence if isinstance(token["id"], int)]
        after = {token["id"]: _space(token) for token in words}
        for token in sentence:
            if not isinstance(token["id"], int) and token["id"][1] == "-":
                first, _, last = token["id"]
                after.update(dict.fromkeys(range(first, last), False))
                after[last] = _space(token)
        docs.append(
            Doc(
                nlp.vocab,
                words=[word["form"] for word in words],
                spaces=[after[word["id"]] for word in words],
                tags=[word["xpos"] for word in words],
                pos=[word["upos"] for word in words],
                morphs=["|".join(f"{k}={v}" for k, v in sorted((word["feats"] or {}).items())) for word in words],
                heads=[place if word["head"] == 0 else word["head"] - 1 for place, word in enumerate(words)],
                deps=["ROOT" if word["deprel"] == "root" else word["deprel"] for word in words],
            )
        )
    return docs


def _space(token: dict[str, Any]) -> bool:
    return (token["misc"] or {}).get("SpaceAfter") != "No"


def split_as_gold(nlp: Language, doc: Doc) -> Example:
    """Training examples with words as the treebank splits them."""
    return Example(Doc(nlp.vocab, [token.text for token in doc], [bool(token.whitespace_) for token in doc]), doc)


def scores(nlp: Language, docs: list[Doc]) -> dict[str, Any]:
    """Scores on raw text: a word that is split differently counts as wrong."""
    found = nlp.pipe([doc.text for doc in docs])
    return Scorer(nlp).score([Example(*pair) for pair in zip(found, docs, strict=True)])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--treebank", type=Path, required=True)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--minutes", type=float, default=12)
    args = arguments.parse_args()
    fix_random_seed(0)
    order = random.Random(0)
    nlp = blank()
    train, dev = (gold(nlp, next(args.treebank.glob(f"*-{split}.conllu"))) for split in ("ud-train", "ud-dev"))
    optimizer = nlp.initialize(lambda: [split_as_gold(nlp, doc) for doc in train])
    started, best = time.monotonic(), -1.0
    for epoch in count(1):
        order.shuffle(train)
        for batch in minibatch(train, BATCH):
            # Some as spaCy itself splits them, which is what it will see.
            raw = [order.random() < RAW for _ in batch]
            examples = [
                Example(nlp.make_doc(doc.text), doc) if each else split_as_gold(nlp, doc)
                for doc, each in zip(batch, raw, strict=True)
            ]
            nlp.update(examples, sgd=optimizer, drop=0.1)
        with nlp.use_params(optimizer.averages):
            labelled = scores(nlp, dev)["dep_las"]
            print(f"epoch {epoch}, {time.monotonic() - started:.0f} s: labelled attachment {labelled:.3f}", flush=True)
            if labelled > best:
                best = labelled
                nlp.to_disk(args.out)
        if time.monotonic() - started > 60 * args.minutes:
            break
    final = scores(spacy.load(args.out), dev)
    print(", ".join(f"{name} {final[name]:.3f}" for name in SHOWN))
    print(", ".join(f"{name} {final['dep_las_per_type'][name]['f']:.3f}" for name in RELATIONS))


if __name__ == "__main__":
    main()
