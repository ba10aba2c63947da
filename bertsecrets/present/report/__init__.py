"""One self-contained HTML page for a run or a comparison: no network needed to read it."""
