"""Questions that readers raised about the papers, answered for the models of any runs."""
