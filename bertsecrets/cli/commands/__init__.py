"""One module for each command: what ``python -m bertsecrets <command>`` runs."""
