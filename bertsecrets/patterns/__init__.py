"""The five patterns of attention maps: their classifier and their measure."""
