"""The command line: one small module per command (verb). It may import every other room; no room
imports it.

A verb module has ``HELP`` (one line), ``EXAMPLES`` (lines that can be copied),
``add_arguments(parser)`` and ``execute(args, report) -> bool``, which returns whether its checks
passed. It passes rows for people and data for programs to the ``Report`` (``report.py``). A new
verb needs a module and a line in ``main.VERBS``. Libraries are imported inside ``execute``, so that
``--help`` is quick.

Every verb takes --json and --out, the file for the same object; those that draw something at random
(``RANDOM`` in the module says what) take --seed. Exit codes: 0 ok, 1 a check failed, 2 usage or bad
input, 3 this computer lacks something that was asked for.
"""
