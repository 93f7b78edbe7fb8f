"""Rows as ``bench`` writes them, with figures that nobody measured."""


def row(m=16, us=10.0, spread=0.1, n=4096, k=4096, kernel="ampere", **other):
    """``spread``: half the distance of the quartiles."""
    nbytes, flops = n * k // 2 + 2 * m * (n + k), 2 * m * n * k
    return {
        "kernel": kernel, "config": {"stages": 4}, "chosen": True, "compiler": "numba-cuda", "m": m, "n": n, "k": k, "group_size": 128, "dtype": "float16", "bits": 4, "zeros": None,
        "scale_dtype": "float16", "bias": False, "us": us, "us_spread": [us - spread, us + spread], "us_min": us - 2 * spread, "us_max": us + 2 * spread, "cublas_us": 30.0,
        "cublas_us_spread": [29.9, 30.1], "speedup": 30.0 / us, "speedup_spread": [30 / (us + spread), 30 / (us - spread)], "bytes": nbytes, "flops": flops,
        "tb_per_s": nbytes / us / 1e6, "tflops": flops / us / 1e6, "bandwidth_share": 0.5, "compute_share": 0.1, "limit_us": us / 2, "limit_share": 0.5, "relative_error": 1e-4,
        "ceilings": {"read_bytes": 4e12, "matrix_flops": 7e14, "source": "measured"}, "rounds": 9, "clocks": {"sm_mhz": [1900, 1980], "throttle": [], "samples": 9},
        "device": "GPU", "driver": "1", "versions": {"numba": "0"}, "date": "2026-01-01", "commit": "abc", "sources": "0123", **other,
    }
