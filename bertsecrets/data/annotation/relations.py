"""Names of dependency relations: from ClearNLP's, which spaCy's English pipelines use, to Universal Dependencies'."""

_UNIVERSAL = {
    "ROOT": "root",
    "auxpass": "aux:pass",
    "csubjpass": "csubj:pass",
    "dative": "iobj",
    "dobj": "obj",
    "intj": "discourse",
    "neg": "advmod",
    "npadvmod": "obl:unmarked",
    "nsubjpass": "nsubj:pass",
    "poss": "nmod:poss",
    "preconj": "cc:preconj",
    "predet": "det:predet",
    "prt": "compound:prt",
    "quantmod": "advmod",
    "relcl": "acl:relcl",
}


def universal(relation: str) -> str:
    """The Universal Dependencies' name of a relation; relations that have no counterpart keep their own.

    The trees stay as they are: prepositions (``prep``, ``pobj``, ``agent``) and copulas (``attr``, ``acomp``) govern in
    ClearNLP what they mark in Universal Dependencies.

    >>> [universal(name) for name in ("nsubjpass", "dobj", "amod", "pobj")]
    ['nsubj:pass', 'obj', 'amod', 'pobj']
    """
    return _UNIVERSAL.get(relation, relation)
