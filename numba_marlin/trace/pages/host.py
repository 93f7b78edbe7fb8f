"""What the host does before a launch, from the call to the kernel's parameters: as a flow, and the
parameters as a table. Nothing for a file of an earlier version, which does not have it
(``about["host"]``: parameters, [name, type, what it is] each, and the launch's attributes)."""

from __future__ import annotations

from numba_marlin.trace.record import Trace
from numba_marlin.views import Level, Levels, Table

CALLS = {  # by kind of problem
    "weights": "nm.matmul(x, p)",
    "operands": "nm.block_scaled_matmul(a, b)",
    "experts": "nm.moe_matmul(x, p, routing)",
    "activations": "nm.matmul(x, p, activations=...)",
}


def parts(trace: Trace) -> tuple:
    host = trace.about.get("host")
    return (flow(trace, host), table(host)) if host else ()


def flow(trace: Trace, host: dict) -> Levels:
    launch, about = trace.header["launch"], trace.about
    grid, block = (" x ".join(map(str, launch[name])) for name in ("grid", "block"))
    compiled = about["compiled"]
    registers = compiled["registers"]
    steps = (
        Level(
            "1 call",
            rows=(
                ("call", CALLS.get(about["kind"], "")),
                ("does", "checks types and shapes of what is given, makes a problem of them"),
            ),
            down=words_of(about["problem"]),
        ),
        Level(
            "2 choice",
            rows=(
                (
                    "does",
                    "takes the kernel asked for, or the first of all by rank, and a configuration",
                ),
                *(("because", reason) for reason in about["reasons"]),
            ),
            down=f"{about['kernel']}: {words_of(about['config'])}",
        ),
        Level(
            "3 code",
            rows=(
                ("does", "compiles the kernel for the configuration, or reads it from the cache"),
                ("compiler", f"{compiled['compiler']}, for {trace.header['target']}"),
            ),
            down="PTX" + (f", {registers} registers per thread" if registers else ""),
        ),
        Level(
            "4 arguments",
            rows=(("does", "takes memory for result and partial sums, describes tiles for TMA"),),
            down=f"{len(host['parameters'])} parameters, which go to constant memory",
        ),
        Level(
            "5 launch",
            f"grid {grid}, block {block}",
            rows=tuple(("attribute", each) for each in host["attributes"]),
        ),
    )
    return Levels(
        steps,
        title="Before the kernel: what the host does, from the call to the launch",
        note="The PTX machine was given the same parameters, with addresses of its own memory.",
    )


def words_of(fields: dict) -> str:
    return ", ".join(
        f"{name}={value}" for name, value in fields.items() if value not in (None, False)
    )


def table(host: dict) -> Table:
    return Table(
        ("parameter", "type", "what the host passes"),
        tuple(tuple(each) for each in host["parameters"]),
        title="The kernel's parameters",
    )
