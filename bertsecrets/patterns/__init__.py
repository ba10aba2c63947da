"""The five patterns of attention maps: their names, maps labelled by eye, and the tool that labels them."""
