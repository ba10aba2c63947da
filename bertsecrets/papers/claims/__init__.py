"""The claims ledger: published claims about heads, each a file of ``conf/claim``, tested on finished runs."""
