"""The command line: one small module per verb, which may import everything and which nothing
imports.

A verb module has ``HELP`` (a line), ``EXAMPLES`` (lines that can be copied),
``add_arguments(parser)`` and ``execute(args, report) -> bool``: whether its checks passed. It tells
the ``Report`` (``report.py``) rows for people and data for programs as it goes. Adding a verb is
adding its module and a line in ``main.VERBS``. Libraries are imported inside ``execute``, so that
``--help`` is quick.

Every verb takes --json, --out and --seed. Exit codes: 0 ok, 1 a check failed, 2 usage or bad input,
3 this machine lacks something that was asked for.
"""
