"""Documents with annotated coreference: CoNLL-2012 files (OntoNotes, LitBank) and GAP."""
