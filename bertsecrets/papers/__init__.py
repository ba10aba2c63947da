"""Pages that follow a paper section by section."""
