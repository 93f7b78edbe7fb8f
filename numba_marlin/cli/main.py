"""``main(argv) -> exit code``: parse, run the verb, and turn an error into one line and an
exit code.

With NUMBA_MARLIN_TRACEBACK set in the environment, errors keep their traceback instead.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import os
import sys

from numba_marlin import __version__
from numba_marlin.cli.report import Report, check_output, to_json, write_atomically
from numba_marlin.errors import CapabilityMissing
from numba_marlin.wording import did_you_mean, printable

OK, CHECK_FAILED, USAGE, MISSING = 0, 1, 2, 3
INTERRUPTED, PIPE_CLOSED = 130, 141  # 128 + SIGINT and SIGPIPE, as a shell has it
TRACEBACK = "NUMBA_MARLIN_TRACEBACK"  # set, it shows where an error came from
VERBS = {
    "run": "numba_marlin.cli.run",
    "info": "numba_marlin.cli.info",
    "explain": "numba_marlin.cli.explain",
    "inspect": "numba_marlin.cli.inspect",
    "convert": "numba_marlin.cli.convert",
    "bench": "numba_marlin.cli.bench",
    "compare": "numba_marlin.cli.compare",
    "machine": "numba_marlin.cli.machine",
    "trace": "numba_marlin.cli.trace",
    "quantize": "numba_marlin.cli.quantize",
    "methods": "numba_marlin.cli.methods",
    "verify": "numba_marlin.cli.verify",
    "unpack": "numba_marlin.cli.unpack",
    "profile": "numba_marlin.cli.profile",
    "watch": "numba_marlin.cli.watch",
    "warmup": "numba_marlin.cli.warmup",
    "puzzles": "numba_marlin.cli.puzzles",
    "judge": "numba_marlin.cli.judge",
}
EPILOG = """exit codes: 0 ok, 1 a check failed, 2 usage or bad input,
            3 this machine lacks something that was asked for

examples:
  numba-marlin run                   a random matrix, all the way; no GPU needed
  numba-marlin run --input w.npy     your own
  numba-marlin info
  numba-marlin explain --m 16 --n 8192 --k 8192
  numba-marlin quantize w.npy q.safetensors --method gptq --calib x.npy
  numba-marlin methods w.npy --calib x.npy
  numba-marlin inspect llama-gptq/
  numba-marlin convert llama-gptq/ llama-marlin/ --to marlin
  numba-marlin warmup llama-gptq/ --m 1-256
  numba-marlin bench --shapes llama-3-8b --m 1,16,64
  numba-marlin trace                 a kernel's run, step by step; no GPU needed
  numba-marlin unpack --format awq --k 3 --n 12
  numba-marlin profile --demo
  numba-marlin watch --seconds 10
  numba-marlin puzzles               kernels to complete; no GPU needed
  numba-marlin judge task.py kernel.py   is a kernel right? no GPU needed
  numba-marlin machine run kernel.ptx --block 128 --args out:f32[128]
"""


# what may be the empty text: a layer can have that name; others have their own word for it
MAY_BE_EMPTY = ("tensor", "layer", "args", "command")


class Parser(argparse.ArgumentParser):
    """Names the nearest verb, option or choice for one that does not exist."""

    #: whether options may stand between a verb's words: argparse gives a second word that may be
    #: left out to nobody, once an option has come behind the first
    options_between = False

    def parse_known_args(self, args=None, namespace=None):
        if not self.options_between:
            return super().parse_known_args(args, namespace)
        self.options_between = False  # argparse's own way comes back to this method
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self.options_between = True

    def parse_args(self, args=None, namespace=None):
        first = args[0] if args else ""
        if first.startswith("--") and not self._get_option_tuples(first.partition("=")[0]):
            guess = did_you_mean(first, self._option_string_actions)
            self.error(f"unrecognized arguments: {first}: the verb comes first{guess}")
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            verb = self if found.verb is None else self.verbs.choices[found.verb]
            guesses = "".join(
                did_you_mean(each.partition("=")[0], verb._option_string_actions)
                for each in unknown
                if each.startswith("--")
            )
            verb.error(f"unrecognized arguments: {' '.join(unknown)}{guesses}")
        return found

    def _check_help(self, action):
        """Not while the parser is made, as from Python 3.14 on: the kernels would be imported for
        their names. Tests print every help."""

    def _get_value(self, action, arg_string):
        # --out "$OUT" with no OUT set means no file, and not the current directory
        if not (arg_string or action.nargs == argparse.PARSER or action.dest in MAY_BE_EMPTY):
            raise argparse.ArgumentError(action, "must not be empty")
        return super()._get_value(action, arg_string)

    def _check_value(self, action, value):
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            error.message += did_you_mean(value, map(str, action.choices))
            raise


@functools.cache
def parser() -> argparse.ArgumentParser:
    result = Parser(
        prog="numba-marlin",
        description=(
            "FP16 x INT4 matrix multiplication (Marlin), in Python, on a GPU or on the PTX machine."
        ),
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("--version", action="version", version=f"numba-marlin {__version__}")
    result.verbs = verbs = result.add_subparsers(
        dest="verb",
        metavar="VERB",
        required=True,
        title="verbs",
        description="`numba-marlin VERB --help` says more",
    )
    for name, module_name in VERBS.items():
        module = importlib.import_module(module_name)
        verb = verbs.add_parser(
            name,
            help=module.HELP,
            description=module.HELP,
            epilog=f"examples:\n{module.EXAMPLES}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(verb)
        verb.add_argument(
            "--json", action="store_true", help="print one JSON object on stdout and nothing else"
        )
        verb.add_argument(
            "--out", metavar="FILE.json", help="also write the JSON object to this file"
        )
        if hasattr(module, "RANDOM"):
            verb.add_argument(
                "--seed",
                type=int,
                default=0,
                metavar="S",
                help=f"seed of {module.RANDOM} (default 0)",
            )
        verb.set_defaults(execute=module.execute)
    return result


def main(argv: list[str] | None = None) -> int:
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the parent process: nothing can be printed
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))
        elif hasattr(stream, "reconfigure"):
            # what has no place in its encoding is shown as an escape
            stream.reconfigure(errors="backslashreplace")
    try:
        return _main(argv)
    except KeyboardInterrupt:
        print("\nnumba-marlin: interrupted", file=sys.stderr)
        return INTERRUPTED


def _main(argv: list[str] | None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if not arguments:  # no command: show the help
        parser().print_help(sys.stderr)
        return USAGE
    args = parser().parse_args(arguments)
    report = Report(args.verb, args.json)
    try:
        if getattr(args, "seed", 0) < 0:
            raise ValueError(f"--seed {args.seed} must not be negative")
        out = check_output(args.out, (".json",))
        ok = args.execute(args, report)
        if out is not None:
            document = to_json(report.object(ok)).encode() + b"\n"
            write_atomically(out, lambda file: file.write(document))
        report.finish(ok)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of stdout has closed it
        _drop(sys.stdout)
        return PIPE_CLOSED
    except Exception as error:
        code = _exit_code(error)
        if code is None or os.environ.get(TRACEBACK):
            raise
        text = _said(error)
        try:
            print(f"numba-marlin {report.verb}: error: {printable(text)}", file=sys.stderr)
        except OSError:  # a full disk: nothing can be said, but the exit code
            _drop(sys.stderr)
        try:
            report.finish(False, text)
            sys.stdout.flush()
        except OSError:  # a full disk: said on stderr just now
            _drop(sys.stdout)
        return code
    return OK if ok else CHECK_FAILED


def _said(error: Exception) -> str:
    """What an error says; one of the operating system names the file first, and no number."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error) or type(error).__name__


def _drop(stream) -> None:
    """Give up what could not be written: Python would otherwise try again, and complain again, when
    it closes the stream."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _exit_code(error: Exception) -> int | None:
    """The exit code of an error that is no bug of this package; None for one that should show its
    traceback."""
    from numba_marlin.compiler.errors import MissingCompiler
    from numba_marlin.emulator.errors import (
        LimitExceeded,
        MachineError,
        PtxSyntaxError,
        UnknownInstruction,
    )

    if isinstance(error, (CapabilityMissing, MissingCompiler, UnknownInstruction)):
        return MISSING
    if isinstance(error, (PtxSyntaxError, LimitExceeded)):
        return USAGE
    if isinstance(error, MachineError):  # the PTX machine caught the kernel at something
        return CHECK_FAILED
    return USAGE if isinstance(error, (ValueError, TypeError, OSError, MemoryError)) else None


if __name__ == "__main__":
    sys.exit(main())
