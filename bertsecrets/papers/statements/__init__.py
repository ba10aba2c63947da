"""Published statements about heads, each a file in ``conf/statement``, tested on finished runs."""
