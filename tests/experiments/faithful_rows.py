"""Rows of experiment 03's faithful kernel that nobody measured."""

from tests.bench.invented import row


def faithful_rows(cells):
    times = {"ampere": 30.0, "ampere_aligned": 22.0, "ampere_tensor": 20.0}
    return [
        row(
            m=16,
            n=512,
            k=256,
            us=times[name] + stages,
            part="faithful",
            kernel=name,
            config={"stages": stages},
        )
        for name, stages in cells.faithful_configs(16)
        if (name, stages) != ("ampere", 6)
    ]
