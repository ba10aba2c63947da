"""The statements ledger: published statements about heads, each a file of ``conf/statement``, tested on finished
runs.
"""
