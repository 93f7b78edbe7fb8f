"""Runs a verb of the command line inside the test."""

import json

from numba_marlin.cli import main as cli


def run(capsys, *argv):
    """-> (exit code, stdout, stderr)"""
    try:
        code = cli.main([str(each) for each in argv])
    except SystemExit as stop:  # argparse
        code = stop.code
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys, *argv):
    code, out, _ = run(capsys, *argv, "--json")
    return code, json.loads(out)
