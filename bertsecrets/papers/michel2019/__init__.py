"""Michel et al. 2019, *Are Sixteen Heads Really Better than One?*, as a page."""
