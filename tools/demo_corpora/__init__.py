"""The grammar behind the demo corpora: labelled sentences with gold annotation, the same ones on every machine."""
