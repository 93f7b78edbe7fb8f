"""The CuTe DSL: kernels of our own, compiled by nvidia-cutlass-dsl."""

from importlib.metadata import version as installed


def version() -> str:
    return f"nvidia-cutlass-dsl {installed('nvidia-cutlass-dsl')}"


def cases():
    import cute_kit

    cute_kit.ready()
    import cute_cases

    for name, targets, function in cute_cases.CASES:
        for target in targets:
            yield name, target, function
